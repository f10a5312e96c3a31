//! SQL on CPU and GPU for one batch. Home of DataFusion.
//!
//! [`rewrite::GpuRewrite`] is a physical optimizer rule: it swaps what a GPU can run
//! for nodes that run it, each of which keeps the CPU subtree that it replaced. This
//! crate knows neither batch specs nor HTTP.

pub mod exec;
pub mod lower;
pub mod report;
pub mod rewrite;
