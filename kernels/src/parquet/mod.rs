//! Pages of flat Parquet columns, decoded on the device.
//!
//! The caller reads footers and page headers and decompresses; what comes in is the bodies
//! of pages in device memory, what goes out is a [`DeviceColumn`] as any pipeline reads it.
//!
//! ```text
//!   pages ─ levels ──> validity bits, row of each value, where values start
//!         ─ values ──> wide elements, interval of each page ── narrow ──> column
//!         ─ texts ───> where each value's bytes are ── offsets ── copy ──> column
//! ```
//!
//! A warp takes a page: it walks the headers of runs and blocks, and its lanes share what is
//! behind them. Nothing is read outside of a page, apart from whole words at its ends, which
//! are in the same buffer. A page that is not what the format allows is
//! [`Error::MalformedPage`](crate::error::Error::MalformedPage).
//!
//! This module does not know footers, compression, files or nested columns.

mod decode;
mod fault;
mod pages;
mod plan;
mod texts;
mod unpack;

use std::ops::Range as Bytes;
use std::sync::Arc;

pub use decode::{Decoded, Decoder};
pub use plan::{check, kernel_texts};
pub use unpack::{
    Codec, FRONT_BYTES, PackedBody, PackedChunk, Packing, Refused, Unpacked, Unpacker,
};

use crate::gpu::DeviceBuffer;
use crate::ir::Type;

/// How a column's values are stored in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Physical {
    /// One bit.
    Boolean,
    /// 32 bits, signed unless the column's type is not.
    Int32,
    /// 64 bits, signed unless the column's type is not.
    Int64,
    /// Nanoseconds of a day and a Julian day.
    Int96,
    /// IEEE 754 binary32.
    Float,
    /// IEEE 754 binary64.
    Double,
    /// Any number of bytes.
    ByteArray,
    /// So many bytes.
    FixedLenByteArray(usize),
}

impl Physical {
    /// Bytes of every value of a FIXED_LEN_BYTE_ARRAY; 0 for all others.
    pub(crate) fn value_bytes(self) -> u64 {
        match self {
            Physical::FixedLenByteArray(bytes) => bytes as u64,
            _ => 0,
        }
    }
}

/// How a page's values are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// One value after another.
    Plain,
    /// Indices into the column chunk's dictionary.
    Dictionary,
    /// Runs of booleans.
    Rle,
    /// Differences, packed.
    DeltaBinaryPacked,
    /// Packed lengths, then bytes.
    DeltaLengthByteArray,
    /// Packed lengths of what is shared with the value before, then the rest of each value.
    DeltaByteArray,
    /// The first bytes of all values, then the second ones, and so on.
    ByteStreamSplit,
}

/// What a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// The dictionary of its column chunk; the first page if there is one.
    Dictionary,
    /// Values, with levels in front that say their length.
    DataV1,
    /// Values, with levels in front whose length the page's header says.
    DataV2 {
        /// Bytes of all levels.
        level_bytes: u32,
    },
}

/// The body of a page.
#[derive(Debug, Clone)]
pub struct Page {
    /// What it is.
    pub kind: PageKind,
    /// How its values are encoded.
    pub encoding: Encoding,
    /// How many values it has, nulls too.
    pub n_values: u32,
    /// Where it is in its column chunk's buffer.
    pub bytes: Bytes<usize>,
}

/// A row group's part of a column.
#[derive(Debug)]
pub struct ColumnChunk {
    /// The file, for messages.
    pub file: Arc<str>,
    /// The row group's number in the file, for messages.
    pub row_group: usize,
    /// Its rows.
    pub n_rows: usize,
    /// Its pages in their order.
    pub pages: Vec<Page>,
    /// The bodies of the pages.
    pub bytes: DeviceBuffer,
}

/// The pages of one column, of any number of row groups one after another.
#[derive(Debug)]
pub struct ColumnPages {
    /// Its name, for messages.
    pub name: String,
    /// How values are stored.
    pub physical: Physical,
    /// What they are.
    pub ty: Type,
    /// Whether there are definition levels, of 0 and 1.
    pub is_optional: bool,
    /// The row groups.
    pub chunks: Vec<ColumnChunk>,
}

impl ColumnPages {
    /// Rows of all row groups.
    pub fn n_rows(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.n_rows).sum()
    }

    /// Bytes of all pages.
    pub fn n_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes.bytes()).sum()
    }
}
