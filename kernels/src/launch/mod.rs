//! One file per pipeline kind: size the launch, run it chunk by chunk, read back.

mod aggregate;
mod context;
mod few_groups;
mod loader;
mod many_groups;
mod parameters;
mod totals;

pub use aggregate::{AggregateRun, Groups};
pub use context::RunCounts;
pub use loader::{Loader, StagedBatch};
pub use totals::{GroupTotals, Number, Totals};
