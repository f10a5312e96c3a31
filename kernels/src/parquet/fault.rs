//! What kernels say is wrong with a page, in words.

use super::{ColumnChunk, ColumnPages, PageKind};
use crate::error::{Error, MalformedPage};

/// The fault word while no page has met one.
pub(super) const NO_FAULT: u64 = u64::MAX;

/// `PAGE_FAULT_TIME`.
const TIME: u64 = 11;

/// The `PAGE_FAULT_..` of `cuda/parquet/page.h`.
fn reason(code: u64) -> &'static str {
    match code {
        1 => "the definition levels end before the last value",
        2 => "a definition level is above the column's largest",
        3 => "the values end before the last one",
        4 => "an index is past the end of the dictionary",
        5 => "indices have more than 32 bits",
        6 => "the delta encoding is cut off or not well-formed",
        7 => "a length reaches past the end of the page",
        8 => "a value starts with more bytes than the value before it has",
        9 => "text is not UTF-8",
        10 => "a decimal has no bytes, or more or fewer than its type",
        11 => "a timestamp does not fit 64 bits",
        12 => "the values have an encoding that their type has not",
        13 => "a value does not fit the column's type",
        14 => "its snappy compression is cut off or not well-formed",
        15 => "its lz4 compression is cut off or not well-formed",
        16 => "the literals of its zstd compression are not well-formed",
        17 => "the sequences of its zstd compression are not well-formed",
        18 => "its zstd compression copies from before the start of its data",
        19 => "it decompresses to more or fewer bytes than its header says",
        20 => "the checksum of its zstd compression is not that of its bytes",
        _ => "the page is not well-formed",
    }
}

/// Where a page is: its column chunk, and its place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageNumber {
    pub(super) chunk: usize,
    pub(super) page: usize,
}

/// The error of a fault word that names one of `numbers`.
pub(super) fn page_fault(column: &ColumnPages, numbers: &[PageNumber], word: u64) -> Error {
    match numbers.get((word >> 8) as usize) {
        // The page is in order; its values are too far away.
        Some(_) if word & 0xff == TIME => {
            Error::Unsupported(format!("column {}: {}", column.name, reason(TIME)))
        }
        Some(number) => malformed(column, *number, reason(word & 0xff).to_string()),
        None => Error::Internal(format!(
            "a kernel reported page fault {word:#x}, which does not exist"
        )),
    }
}

/// The error of a page, or of the column chunk if it has no such page.
pub(super) fn malformed(column: &ColumnPages, number: PageNumber, reason: String) -> Error {
    malformed_in(
        &column.chunks[number.chunk],
        &column.name,
        number.page,
        reason,
    )
}

/// The error of a page that a kernel could not decompress.
pub(super) fn unpack_fault(chunk: &ColumnChunk, column: &str, page: usize, word: u64) -> Error {
    malformed_in(chunk, column, page, reason(word & 0xff).to_string())
}

fn malformed_in(chunk: &ColumnChunk, column: &str, page: usize, reason: String) -> Error {
    let has_dictionary = matches!(
        chunk.pages.first().map(|page| page.kind),
        Some(PageKind::Dictionary)
    );
    let place = match chunk.pages.get(page).map(|page| page.kind) {
        Some(PageKind::Dictionary) => "dictionary page".to_string(),
        Some(_) => format!("data page {}", page - usize::from(has_dictionary)),
        None => "all pages".to_string(),
    };
    MalformedPage {
        file: chunk.file.to_string(),
        column: column.to_string(),
        row_group: chunk.row_group,
        place,
        reason,
    }
    .into()
}
