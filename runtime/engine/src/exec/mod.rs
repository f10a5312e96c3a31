//! Plan nodes that run on the GPU. Each keeps the CPU subtree that it replaced.

mod aggregate;
mod dictionary;
mod finish;

pub use aggregate::{GpuAggregateExec, Outcome, Output};

use std::sync::Arc;

use kernels::gpu::Gpu;
use kernels::jit::Jit;

/// A device and its kernels, handed to every node that runs on it.
#[derive(Debug, Clone)]
pub struct Device {
    /// The device.
    pub gpu: Arc<dyn Gpu>,
    /// Its compiled kernels.
    pub jit: Arc<Jit>,
}
