//! One file per pipeline kind: size the launch, run it chunk by chunk, read back.

mod aggregate;
mod collect;
mod context;
mod few_groups;
mod loader;
mod many_groups;
mod parameters;
mod sort;
mod totals;

pub use aggregate::{AggregateRun, Groups};
pub use collect::{CollectRun, Collected};
pub use context::RunCounts;
pub use loader::{Loader, StagedBatch};
pub use sort::{SORT_ROWS_MAX, Sorted, sort};
pub use totals::{GroupTotals, Number, Totals};
