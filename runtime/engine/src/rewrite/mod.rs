//! The GPU rewrite: the last physical rule, in passes that each leave a plan that
//! runs.
//!
//! 1. `mark` decides, from the top, whether an aggregate and everything down to its
//!    source can run on the GPU, and says why not.
//! 2. `place` swaps what can for one node that keeps the CPU subtree. It comes
//!    after `mark`, because a subtree is replaced whole or not at all.
//!
//! Exchanges between a partial and a final aggregate vanish inside a subtree: one
//! device adds everything up. Where the plan above relies on the partitioning that
//! the subtree had, an exchange above the new node provides it again.

mod mark;
mod place;

pub use mark::mark;
pub use place::GpuRewrite;
