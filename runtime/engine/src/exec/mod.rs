//! Plan nodes that run on the GPU. Each keeps the CPU subtree that it replaced.

mod aggregate;
mod dictionary;
mod finish;

pub use aggregate::{GpuAggregateExec, Outcome, Output};

use std::path::Path;
use std::sync::Arc;

use kernels::gpu::{Gpu, Target};
use kernels::jit::Jit;

use crate::error::{Error, Result};

/// A device and its kernels, handed to every node that runs on it.
#[derive(Debug, Clone)]
pub struct Device {
    /// The device.
    pub gpu: Arc<dyn Gpu>,
    /// Its compiled kernels.
    pub jit: Arc<Jit>,
}

impl Device {
    /// Opens an NVIDIA GPU by its number. Compiled kernels are kept below `cache_dir`.
    pub fn open(ordinal: usize, cache_dir: &Path) -> Result<Device> {
        let gpu = kernels::gpu::open_cuda(ordinal).map_err(|error| Error::Device {
            message: error.to_string(),
        })?;
        let jit = Arc::new(Jit::new(Some(cache_dir.join("kernels"))));
        Ok(Device { gpu, jit })
    }

    /// Its number and name, such as `cuda:0 NVIDIA H200`.
    pub fn name(&self) -> String {
        let info = self.gpu.info();
        match info.target {
            Target::Host => "host".to_string(),
            Target::Cuda => format!("cuda:{} {}", info.ordinal, info.name),
        }
    }
}
