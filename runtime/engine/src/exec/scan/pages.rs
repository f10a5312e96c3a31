//! A column chunk's bytes to page bodies on the device.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::StringArray;
use bytes::Bytes;
use kernels::error::{Error, MalformedPage, Result};
use kernels::gpu::{DeviceBuffer, Gpu, PinnedPool, Stream};
use kernels::parquet::{ColumnChunk, Encoding, Page, PageKind};
use parquet::basic::Encoding as FileEncoding;
use parquet::column::page::{Page as FilePage, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::footers::Piece;

/// Bodies start at multiples of this.
const ALIGNMENT: usize = 8;

/// Page-locked memory that one copy takes at most.
const PINNED_BYTES: usize = 64 << 20;

/// How long a copy waits for page-locked memory that others hold.
const PINNED_WAIT: Duration = Duration::from_secs(60);

/// Where pages go.
#[derive(Debug, Clone)]
pub struct Target {
    /// The device.
    pub gpu: Arc<dyn Gpu>,
    /// What copies go through.
    pub pinned: PinnedPool,
    /// What copies are enqueued on.
    pub stream: Arc<Stream>,
}

/// A column chunk whose pages are on their way to the device.
#[derive(Debug)]
pub struct Loaded {
    /// Its pages.
    pub chunk: ColumnChunk,
    /// The texts of its dictionary, if that was asked for and all its pages use it.
    pub dictionary: Option<StringArray>,
    /// Bytes that were decompressed here.
    pub decompressed_bytes: u64,
}

/// The bytes of a column chunk at their place in the file.
struct Slice {
    start: u64,
    bytes: Bytes,
}

impl Length for Slice {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl Slice {
    fn from(&self, start: u64) -> ParquetResult<Bytes> {
        let at = start
            .checked_sub(self.start)
            .and_then(|at| usize::try_from(at).ok());
        match at.filter(|at| *at <= self.bytes.len()) {
            Some(at) => Ok(self.bytes.slice(at..)),
            None => Err(ParquetError::EOF(
                "a page outside of its column chunk".into(),
            )),
        }
    }
}

impl ChunkReader for Slice {
    type T = Cursor<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Cursor<Bytes>> {
        self.from(start).map(Cursor::new)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let bytes = self.from(start)?;
        match length <= bytes.len() {
            true => Ok(bytes.slice(..length)),
            false => Err(ParquetError::EOF(
                "a page past the end of its column chunk".into(),
            )),
        }
    }
}

/// Which column chunk, and how it is read.
pub struct Chunk {
    /// The row group.
    pub piece: Piece,
    /// Which of the wanted columns.
    pub column: usize,
    /// Where its bytes start in the file.
    pub start: u64,
    /// Its bytes.
    pub bytes: Bytes,
    /// Whether the texts of its dictionary are wanted.
    pub wants_dictionary: bool,
}

impl Chunk {
    /// Decompresses the pages and sends them to the device. Blocks the thread.
    pub fn load(self, target: &Target) -> Result<Loaded> {
        let group = self.piece.file.metadata.row_group(self.piece.row_group);
        let meta = group.column(self.piece.file.leaves[self.column]);
        let is_optional = meta.column_descr().max_def_level() > 0;
        let name = meta.column_path().string();
        let malformed = |place: String, reason: String| {
            Error::from(MalformedPage {
                file: self.piece.file.name.to_string(),
                column: name.clone(),
                row_group: self.piece.row_group,
                place,
                reason,
            })
        };
        let slice = Arc::new(Slice {
            start: self.start,
            bytes: self.bytes.clone(),
        });
        let n_rows = self.piece.n_rows();
        let mut reader = SerializedPageReader::new(slice, meta, n_rows, None)
            .map_err(|e| malformed("all pages".into(), e.to_string()))?;
        let (mut pages, mut bodies) = (Vec::new(), Vec::new());
        let (mut end, mut n_data) = (0usize, 0);
        loop {
            let place = || format!("data page {n_data}, or the dictionary page");
            let page = reader
                .get_next_page()
                .map_err(|e| malformed(place(), e.to_string()))?;
            let Some(page) = page else { break };
            let read = read_page(&page, is_optional).map_err(|what| {
                let file = &self.piece.file.name;
                Error::Unsupported(format!("{file}: column {name}: {what}"))
            })?;
            let body = body(&page).ok_or_else(|| {
                malformed(place(), "the levels reach past the end of the page".into())
            })?;
            n_data += usize::from(read.kind != PageKind::Dictionary);
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + body.len();
            pages.push(Page {
                bytes: start..end,
                ..read
            });
            bodies.push(body);
        }
        let dictionary = match self.wants_dictionary {
            true => dictionary(&pages, &bodies)
                .map_err(|reason| malformed("dictionary page".into(), reason))?,
            false => None,
        };
        let is_compressed = meta.compression() != parquet::basic::Compression::UNCOMPRESSED;
        Ok(Loaded {
            decompressed_bytes: if is_compressed { end as u64 } else { 0 },
            dictionary,
            chunk: ColumnChunk {
                file: Arc::clone(&self.piece.file.name),
                row_group: self.piece.row_group,
                n_rows,
                bytes: send(target, &pages, &bodies, end)?,
                pages,
            },
        })
    }
}

/// The body of a page. Some writers give repetition levels to columns that are not nested:
/// they say nothing.
fn body(page: &FilePage) -> Option<Bytes> {
    let n_skipped = match page {
        FilePage::DataPageV2 {
            rep_levels_byte_len,
            ..
        } => *rep_levels_byte_len as usize,
        _ => 0,
    };
    let body = page.buffer();
    (n_skipped <= body.len()).then(|| body.slice(n_skipped..))
}

/// A page as the decoder takes it, without its place; or what no decoder reads.
fn read_page(page: &FilePage, is_optional: bool) -> std::result::Result<Page, String> {
    let kind = match page {
        FilePage::DictionaryPage { .. } => PageKind::Dictionary,
        FilePage::DataPage {
            def_level_encoding, ..
        } => {
            if is_optional && *def_level_encoding != FileEncoding::RLE {
                return Err(format!(
                    "definition levels in {def_level_encoding} encoding"
                ));
            }
            PageKind::DataV1
        }
        FilePage::DataPageV2 {
            def_levels_byte_len,
            ..
        } => PageKind::DataV2 {
            level_bytes: *def_levels_byte_len,
        },
    };
    let encoding = match page.encoding() {
        // What a dictionary says of itself is PLAIN, in words of two versions.
        FileEncoding::PLAIN_DICTIONARY if kind == PageKind::Dictionary => Encoding::Plain,
        FileEncoding::PLAIN => Encoding::Plain,
        FileEncoding::PLAIN_DICTIONARY | FileEncoding::RLE_DICTIONARY => Encoding::Dictionary,
        FileEncoding::RLE => Encoding::Rle,
        FileEncoding::DELTA_BINARY_PACKED => Encoding::DeltaBinaryPacked,
        FileEncoding::DELTA_LENGTH_BYTE_ARRAY => Encoding::DeltaLengthByteArray,
        FileEncoding::DELTA_BYTE_ARRAY => Encoding::DeltaByteArray,
        FileEncoding::BYTE_STREAM_SPLIT => Encoding::ByteStreamSplit,
        other => return Err(format!("values in {other} encoding")),
    };
    Ok(Page {
        kind,
        encoding,
        n_values: page.num_values(),
        bytes: 0..0,
    })
}

/// The texts of the dictionary, if every page uses it.
fn dictionary(
    pages: &[Page],
    bodies: &[Bytes],
) -> std::result::Result<Option<StringArray>, String> {
    let mut data = pages
        .iter()
        .filter(|page| page.kind != PageKind::Dictionary);
    if data.any(|page| page.encoding != Encoding::Dictionary) {
        return Ok(None);
    }
    let (Some(page), Some(body)) = (pages.first(), bodies.first()) else {
        // No pages: no rows.
        return Ok(Some(StringArray::new_null(0)));
    };
    if page.kind != PageKind::Dictionary || page.encoding != Encoding::Plain {
        return Ok(None);
    }
    let mut rest = body.as_ref();
    // The number of values is only a claim until the bytes were seen.
    let mut texts = Vec::with_capacity((page.n_values as usize).min(body.len() / 4));
    for number in 0..page.n_values {
        let text = rest.split_first_chunk::<4>().and_then(|(length, after)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let (text, after) = after.split_at_checked(length)?;
            rest = after;
            Some(text)
        });
        let text = text.ok_or_else(|| format!("it ends in text {number}"))?;
        let text = std::str::from_utf8(text).map_err(|_| "text is not UTF-8".to_string())?;
        texts.push(text);
    }
    Ok(Some(StringArray::from_iter_values(texts)))
}

/// Sends the bodies to the device, through page-locked memory.
fn send(target: &Target, pages: &[Page], bodies: &[Bytes], n_bytes: usize) -> Result<DeviceBuffer> {
    let buffer = DeviceBuffer::allocate(&target.gpu, n_bytes)?;
    let mut pieces = pages.iter().zip(bodies).peekable();
    // A body is cut where page-locked memory ends.
    let mut from = 0;
    for start in (0..n_bytes).step_by(PINNED_BYTES) {
        let end = (start + PINNED_BYTES).min(n_bytes);
        let mut pinned = target.pinned.take_or_wait(end - start, PINNED_WAIT)?;
        let to = pinned.as_mut_slice();
        while let Some((page, body)) = pieces.peek() {
            let at = page.bytes.start + from;
            if at >= end {
                break;
            }
            let n = (body.len() - from).min(end - at);
            to[at - start..at - start + n].copy_from_slice(&body[from..from + n]);
            from += n;
            if from < body.len() {
                break;
            }
            from = 0;
            pieces.next();
        }
        buffer.upload(&target.stream, start, &pinned, 0..end - start)?;
    }
    Ok(buffer)
}
