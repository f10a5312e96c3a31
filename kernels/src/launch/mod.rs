//! One file per pipeline kind: size the launch, run it chunk by chunk, read back.

mod aggregate;
mod collect;
pub(crate) mod context;
mod count;
mod dense_groups;
mod distinct;
mod few_groups;
mod full_join;
mod hash_rows;
mod join;
mod loader;
mod many_groups;
mod output;
mod parameters;
mod relations;
mod sort;
mod staged;
mod totals;
mod window;

pub use aggregate::{AggregateRun, Groups};
pub use collect::{CollectRun, Collected};
pub use context::RunCounts;
pub use join::JoinTable;
pub use loader::Loader;
pub use sort::{SORT_ROWS_MAX, Sorted, sort, sort_resident};
pub use staged::{DeviceHashes, StagedBatch, slice_of_hashes};
pub use totals::{GroupTotals, Number, Totals};
pub use window::{Windowed, window_bytes, window_resident};
