//! Plan nodes that run on the GPU. Each keeps the CPU subtree that it replaced.

mod aggregate;
mod cache;
mod codes;
mod collect;
mod deal;
mod dictionary;
mod failure;
mod feed;
mod finish;
mod held;
mod no_rows;
mod numbering;
mod original;
mod relation;
mod rest;
mod scan;
mod slices;
mod sort;
mod sort_parts;
mod spill;
mod window;

pub use aggregate::{AggregatePipeline, GpuAggregateExec, Output};
pub use codes::Codes;
pub use collect::{CollectForm, CollectPipeline, GpuCollectExec, Taken};
pub use original::Outcome;
pub use rest::depth_of;
pub use scan::Scans;
pub use sort::{GpuSortExec, KeyColumn, SortPipeline};
pub use window::{DefaultText, GpuWindowExec, WindowPipeline};

use std::path::Path;
use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use kernels::admission::Admission;
use kernels::gpu::{Gpu, PinnedPool, Target};
use kernels::jit::Jit;

use crate::error::{Error, Result};
use crate::lower::{Joined, without_exchange};
use cache::ColumnCache;
use held::Waiting;

/// A device, its kernels, and what may be used of it: handed to every node that runs
/// on it. Clones share everything.
#[derive(Debug, Clone)]
pub struct Device {
    /// The device.
    pub gpu: Arc<dyn Gpu>,
    /// Its compiled kernels.
    pub jit: Arc<Jit>,
    /// Page-locked memory that copies go through.
    pub pinned: PinnedPool,
    /// How many chunks are on their way at a time.
    pub admission: Admission,
    /// Relations on it that wait for others.
    pub(crate) waiting: Arc<Waiting>,
    /// Columns that stay on the device.
    pub cache: Arc<ColumnCache>,
    /// Bytes that the cache may take; 0 for no cache.
    pub cache_bytes: usize,
    /// As in [`DeviceLimits`]; a power of two.
    pub(crate) least_slices: usize,
    /// As in [`DeviceLimits`].
    pub(crate) unpacks_on_host: bool,
    /// The accounts of scans since they were last taken.
    pub scans: Scans,
}

/// What a batch may use of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Device memory, in bytes; never more than the device has.
    pub memory_bytes: usize,
    /// Page-locked host memory, in bytes.
    pub pinned_bytes: usize,
    /// Chunks on their way at a time.
    pub concurrent_chunks: usize,
    /// The part of the memory that columns of files may stay in; 0 for none.
    pub cache_part: CachePart,
    /// Into how many slices joins and groups are cut at least, whether they fit or not: more
    /// than 1 is for tests.
    pub least_slices: usize,
    /// Whether pages of files are decompressed on the CPU though kernels could: for tests,
    /// and to compare.
    pub unpacks_on_host: bool,
}

/// A part of the device memory, in per cent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachePart(pub u8);

impl Default for DeviceLimits {
    /// All of the device, 1 GiB of page-locked memory, four chunks, no cache.
    fn default() -> DeviceLimits {
        DeviceLimits {
            memory_bytes: usize::MAX,
            pinned_bytes: 1 << 30,
            concurrent_chunks: 4,
            cache_part: CachePart(0),
            least_slices: 1,
            unpacks_on_host: false,
        }
    }
}

impl Device {
    /// A device within these limits.
    pub fn new(gpu: Arc<dyn Gpu>, jit: Arc<Jit>, limits: DeviceLimits) -> Device {
        let pinned = PinnedPool::new(&gpu, limits.pinned_bytes);
        let memory_bytes = limits.memory_bytes.min(gpu.info().memory_bytes);
        let (cache, waiting) = (Arc::<ColumnCache>::default(), Arc::<Waiting>::default());
        gpu.meter().set_limit(memory_bytes);
        // Weak: cached columns keep the device.
        let (columns, relations) = (Arc::downgrade(&cache), Arc::downgrade(&waiting));
        gpu.meter().set_reclaim(Arc::new(move |bytes| {
            let evicted = columns
                .upgrade()
                .is_some_and(|cache| cache.evict(bytes) > 0);
            evicted
                || relations
                    .upgrade()
                    .is_some_and(|waiting| waiting.spill_one())
        }));
        Device {
            gpu,
            jit,
            pinned,
            admission: Admission::new(limits.concurrent_chunks),
            waiting,
            least_slices: limits.least_slices.next_power_of_two(),
            unpacks_on_host: limits.unpacks_on_host,
            cache,
            scans: Scans::default(),
            cache_bytes: memory_bytes / 100 * usize::from(limits.cache_part.0.min(100)),
        }
    }

    /// Opens an NVIDIA GPU by its number. Compiled kernels are kept below `cache_dir`.
    pub fn open(ordinal: usize, cache_dir: &Path, limits: DeviceLimits) -> Result<Device> {
        let gpu = kernels::gpu::open_cuda(ordinal).map_err(|error| Error::Device {
            message: error.to_string(),
        })?;
        let jit = Arc::new(Jit::new(Some(cache_dir.join("kernels"))));
        Ok(Device::new(gpu, jit, limits))
    }

    /// Fails if so many bytes are more than there is room for, also when columns that nothing
    /// uses and relations that wait have left.
    pub(crate) fn make_room(&self, bytes: usize) -> kernels::error::Result<()> {
        Ok(self.gpu.meter().make_room(bytes)?)
    }

    /// Device memory that a pipeline can have, once columns that nothing uses have left it.
    pub(crate) fn room(&self) -> usize {
        self.cache.evict(usize::MAX);
        self.gpu.meter().free()
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

/// What every GPU node tells about itself.
#[derive(Debug, Clone)]
pub struct GpuNode<'a> {
    /// The operators that run in it, top first.
    pub operators: &'a [String],
    /// What its last execution did; `None` before it is done.
    pub outcome: Option<Outcome>,
}

/// The plan node as a GPU node, if it is one.
pub fn gpu_node(plan: &Arc<dyn ExecutionPlan>) -> Option<GpuNode<'_>> {
    if let Some(node) = plan.downcast_ref::<GpuAggregateExec>() {
        return Some(GpuNode {
            operators: node.operators(),
            outcome: node.original().outcome(),
        });
    }
    if let Some(node) = plan.downcast_ref::<GpuCollectExec>() {
        return Some(GpuNode {
            operators: node.operators(),
            outcome: node.original().outcome(),
        });
    }
    if let Some(node) = plan.downcast_ref::<GpuWindowExec>() {
        return Some(GpuNode {
            operators: node.operators(),
            outcome: node.original().outcome(),
        });
    }
    let node = plan.downcast_ref::<GpuSortExec>()?;
    Some(GpuNode {
        operators: node.operators(),
        outcome: node.original().outcome(),
    })
}

/// A node that has the rows of this one, in any order and in any partitions.
fn in_any_order(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let below = without_exchange(&plan);
    match below.downcast_ref::<GpuSortExec>() {
        Some(sort) if sort.fetch().is_none() => in_any_order(Arc::clone(sort.children()[0])),
        _ => Arc::clone(below),
    }
}

/// The source and the joined relations of a node whose children were replaced. What a
/// child does for the order and the partitions of its rows is not needed by joins.
fn replaced(
    children: Vec<Arc<dyn ExecutionPlan>>,
    joined: &[Joined],
) -> datafusion::error::Result<(Arc<dyn ExecutionPlan>, Vec<Joined>)> {
    let mut children = children.into_iter();
    match children.next() {
        Some(source) if children.len() == joined.len() => {
            let source = match joined.is_empty() {
                true => source,
                false => in_any_order(source),
            };
            let joined = joined.iter().zip(children).map(|(joined, plan)| Joined {
                plan: in_any_order(plan),
                build: joined.build.clone(),
            });
            Ok((source, joined.collect()))
        }
        _ => Err(codes::internal("a GPU node lost a child".to_string())),
    }
}
