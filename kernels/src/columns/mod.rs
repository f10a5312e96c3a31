//! Arrow arrays to the columns that kernels read.
//!
//! A device column is one element a row, as narrow as the values allow, and one
//! validity bit a row (least significant first) when there are nulls. Offsets of
//! sliced arrays are gone: element 0 is row 0 of the chunk.

mod device;
mod pieces;
mod stage;
mod unstage;

pub use device::{DeviceChunk, DeviceColumn};
pub use pieces::PIECE_ROWS;
pub(crate) use stage::bits;
pub use stage::{StagedColumn, stage, stage_parts, type_of};
pub use unstage::{WrittenColumn, arrow_type, read_column, unstage};
