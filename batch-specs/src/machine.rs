//! What the machine at hand really has, as somebody else found it out.

use serde::{Deserialize, Serialize};

/// The machine that an executor runs on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Cores that the process may use.
    pub cores: u64,
    /// Memory that the process may use.
    pub memory_mib: u64,
    /// Its GPUs.
    pub gpus: Vec<GpuInfo>,
}

/// A GPU as its driver describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// The driver's name for it.
    pub name: String,
    /// Memory that the driver reports.
    pub memory_mib: u64,
}
