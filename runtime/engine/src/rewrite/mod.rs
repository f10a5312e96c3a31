//! The GPU rewrite: the last physical rule, in passes that each leave a plan that
//! runs.
//!
//! 1. `gather` moves the merge of sorted partitions below projections, to the sort
//!    that it belongs to. It comes first, because `mark` takes the two as one.
//! 2. `mark` decides, from the top, whether a node and everything that belongs to it
//!    can run on the GPU, and says why not:
//!
//!    | Node | Takes with it | Becomes |
//!    |---|---|---|
//!    | complete aggregate | filters, projections, joins, exchanges, sorts below | `GpuAggregateExec` |
//!    | sort, or sorts and their merge | exchanges below | `GpuSortExec` |
//!    | window functions | exchanges and sorts below | `GpuWindowExec` |
//!    | filter, projection, join | filters, projections and joins below | `GpuCollectExec` |
//!
//! 3. `choose` keeps a filter or projection on the CPU when what feeds it stays there
//!    too: the rows would cross for little work. It comes after `mark`, because only
//!    what could go can be not worth it, and does nothing when fallback is forbidden.
//! 4. `place` swaps what is left for one node that keeps the CPU subtree. It comes
//!    last, because a subtree is replaced whole or not at all. What feeds the node is
//!    looked at next.
//!
//! Before all that, among DataFusion's own rules, `scans` keeps computation out of scans.
//!
//! Exchanges inside a subtree vanish where one device handles all rows. Where the plan
//! above may rely on the partitioning or the order that the subtree had, an exchange or
//! a sort above the new node provides it again; one that another GPU node reads is taken
//! off. A collect without joins keeps its partitions and their order.

mod choose;
mod gather;
mod mark;
mod place;
mod scans;
mod sets;
mod whole;
mod window;
mod window_evaluator;
mod window_frame;

pub use choose::{choose, not_worth_it};
pub use mark::{Candidate, computes_nothing, mark};
pub use place::GpuRewrite;
pub use scans::with_plain_scans;
pub use whole::{CpuRules, WholeOnDevice, finish_for_cpu};
