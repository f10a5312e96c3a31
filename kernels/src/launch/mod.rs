//! One file per pipeline kind: size the launch, run it chunk by chunk, read back.

mod aggregate;
mod totals;

pub use aggregate::{AggregateRun, RunCounts};
pub use totals::{GroupTotals, Number, Totals};
