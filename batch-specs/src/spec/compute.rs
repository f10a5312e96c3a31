//! The hardware that a batch asks for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_default;
use crate::{MemorySize, TaskShare};

/// The GPU a batch asks for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Accelerator {
    /// A name from the catalogue (`l4`, `a10`, `a30`, `a100-40`, `a100-80`, `h100`, `h200`), `auto`
    /// for what the machine has, unless the CPU is expected to be sooner, or `none`.
    #[serde(default, rename = "type", skip_serializing_if = "is_default")]
    pub kind: Option<String>,
    /// The tier of the executors; the same setting as `executors.tier`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tier: Option<Tier>,
    /// What happens to a part that cannot run on the GPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fallback: Option<Fallback>,
    /// Float sums give the same last digits on every run, at some cost.
    #[serde(default, skip_serializing_if = "is_default")]
    pub deterministic: Option<bool>,
    /// The share of a GPU that one task claims, such as `1/8`; it bounds the tasks per GPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub task_share: Option<TaskShare>,
    /// Chunks in flight on one GPU at a time.
    #[serde(default, skip_serializing_if = "is_default")]
    pub concurrent_tasks: Option<u32>,
    /// Device memory that the batch may take on each GPU, when less than the GPU has.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory: Option<MemorySize>,
    /// Whether columns that a stage read stay in device memory for later stages, as far as
    /// there is room. They do unless this is false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub column_cache: Option<bool>,
}

/// What happens to work that the GPU cannot do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// It runs on the CPU, and the run report says what and why.
    #[default]
    Cpu,
    /// The batch fails and names the part.
    Fail,
}

/// A class of machine or disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// The ordinary class.
    Standard,
    /// The fast class; GPUs need it.
    Premium,
}

/// The processes that do the work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Executors {
    /// How many.
    #[serde(default, skip_serializing_if = "is_default")]
    pub instances: Option<u32>,
    /// Cores of each.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cores: Option<u32>,
    /// GPUs of each.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gpus: Option<u32>,
    /// Memory that operators share out on the host.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory: Option<MemorySize>,
    /// Memory beside `memory`: staging, guests, the runtime itself.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory_overhead: Option<MemorySize>,
    /// Class of machine.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tier: Option<Tier>,
    /// Scratch disk; its size bounds what can be spilled.
    #[serde(default, skip_serializing_if = "is_default")]
    pub disk: Disk,
    /// Growing and shrinking while the batch runs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dynamic_allocation: DynamicAllocation,
}

/// A scratch disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Its size.
    #[serde(default, skip_serializing_if = "is_default")]
    pub size: Option<MemorySize>,
    /// Its class.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tier: Option<Tier>,
}

/// How the number of executors follows the work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DynamicAllocation {
    /// Switches it on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub enabled: Option<bool>,
    /// Executors at the start.
    #[serde(default, skip_serializing_if = "is_default")]
    pub initial: Option<u32>,
    /// Never fewer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub min: Option<u32>,
    /// Never more.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max: Option<u32>,
    /// Executors per waiting task, from 0 to 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ratio: Option<f64>,
}

/// The process that plans the work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Driver {
    /// Its cores.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cores: Option<u32>,
    /// Its memory.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory: Option<MemorySize>,
    /// Memory beside `memory`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory_overhead: Option<MemorySize>,
    /// Class of machine.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tier: Option<Tier>,
    /// Scratch disk.
    #[serde(default, skip_serializing_if = "is_default")]
    pub disk: Disk,
}

/// Host memory that the GPU path uses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Page-locked memory for copies to and from the GPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pinned: Option<MemorySize>,
    /// Bound on all host memory outside `executors.memory`, page-locked memory included.
    #[serde(default, skip_serializing_if = "is_default")]
    pub off_heap_limit: Option<MemorySize>,
}

/// How executors exchange rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shuffle {
    /// Threads that read exchanged rows.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reader_threads: Option<u32>,
    /// Threads that write exchanged rows.
    #[serde(default, skip_serializing_if = "is_default")]
    pub writer_threads: Option<u32>,
}

/// How tables are read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scan {
    /// Reads in flight per executor.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reader_threads: Option<u32>,
}
