//! Pools of host memory, and what may be spilled.

use super::Derivation;
use crate::provenance::Origin;

/// Copies do not get faster with more page-locked memory than this.
const PINNED_MIB_MAX: u64 = 8192;
/// What each core takes of the off-heap limit besides pinned memory.
pub(crate) const MIB_PER_CORE: u64 = 15;
/// The off-heap limit is never derived below this.
const OFF_HEAP_MIB_MIN: u64 = 4096;

pub(super) fn derive(d: &mut Derivation<'_>) {
    let memory = d.out.count("executors.memory_mib").unwrap_or(0);
    d.settle("memory.pool_mib", memory, Origin::Rule, "executors.memory");
    let has_gpu = d.chosen.is_some() && d.out.count("executors.gpus").unwrap_or(0) > 0;
    if has_gpu {
        off_heap_limit(d);
    }
    let overhead = d.out.count("executors.memory_overhead_mib").unwrap_or(0);
    let cores = d.out.count("executors.cores").unwrap_or(1);
    let (pinned, rule) = if has_gpu {
        let half = overhead.saturating_sub(MIB_PER_CORE * cores) / 2;
        (
            half.min(PINNED_MIB_MAX),
            format!(
                "min({PINNED_MIB_MAX}, (overhead - {MIB_PER_CORE} x cores) / 2) = min({PINNED_MIB_MAX}, ({overhead} - {MIB_PER_CORE} x {cores}) / 2)"
            ),
        )
    } else {
        (0, "nothing is copied to a GPU".to_owned())
    };
    d.settle("memory.pinned_mib", pinned, Origin::Rule, rule);
    let disk = d.out.count("executors.disk.size_gb").unwrap_or(0);
    d.settle("spill.limit_gb", disk, Origin::Rule, "executors.disk.size");
}

fn off_heap_limit(d: &mut Derivation<'_>) {
    let memory = d.out.count("executors.memory_mib").unwrap_or(0);
    let gpus = d.out.count("executors.gpus").unwrap_or(1).max(1);
    let (limit, rule) = match d.said_count("executors.memory_overhead_mib") {
        Some(_) => {
            let overhead = d.out.count("executors.memory_overhead_mib").unwrap_or(0);
            (
                overhead,
                format!("max({OFF_HEAP_MIB_MIN}, overhead) = max({OFF_HEAP_MIB_MIN}, {overhead})"),
            )
        }
        None => {
            let size = |key| {
                d.property(key)
                    .and_then(|s| s.value.as_str()?.parse::<crate::MemorySize>().ok())
            };
            let spark = size("spark.memory.offHeap.size").map_or(0, |s| s.mib());
            let python = size("spark.executor.pyspark.memory").map_or(0, |s| s.mib());
            let left = (d.total_mib.saturating_sub(memory) / gpus).saturating_sub(spark + python);
            (
                left * 8 / 10,
                format!("max({OFF_HEAP_MIB_MIN}, 80 % of what memory leaves per GPU, {left})"),
            )
        }
    };
    d.settle(
        "memory.off_heap_limit_mib",
        limit.max(OFF_HEAP_MIB_MIN),
        Origin::Rule,
        rule,
    );
}
