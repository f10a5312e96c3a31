//! What a plan would take on the CPU and on a GPU, told before anything runs.
//!
//! ```text
//!   CPU   (values read x scan + rows x operator) / cores
//!   GPU   start + pipelines x compile + (values read x scan) / cores + values / link
//! ```
//!
//! It is there for one question: is an input so small that the CPU has answered before a
//! GPU has started? Row counts are those of the files' metadata, filters are taken to keep
//! every row, and times per row are rounded from measurements (`tests/bench/results`), so an
//! estimate is good to a factor of two or so, not more.

use std::sync::Arc;

use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec,
};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use serde::Serialize;

use crate::cpu::few_groups::FewGroupsExec;

/// A context on the device, and the driver's and the compiler's libraries, milliseconds.
const GPU_START_MS: f64 = 600.0;
/// A kernel that is new, where several compile at once, milliseconds.
const GPU_PIPELINE_MS: f64 = 25.0;
/// Values that cross to the device in a nanosecond.
const GPU_VALUES_PER_NS: f64 = 6.0;
/// Nanoseconds of a core for a value of a Parquet file: decompressed and decoded, or made
/// ready for the device.
const CPU_SCAN_NS: f64 = 22.0;
const GPU_SCAN_NS: f64 = 11.0;
/// Nanoseconds of a core for a row that goes through an operator.
const CPU_PASS_NS: f64 = 3.0;
const CPU_GROUP_NS: f64 = 40.0;
const CPU_JOIN_NS: f64 = 50.0;
const CPU_ORDER_NS: f64 = 150.0;

/// What is expected of one stage. Estimates add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// Rows of the files that are read.
    pub rows: u64,
    /// Values of those rows: of the columns that are read.
    pub values: u64,
    /// Wall time on the CPU, milliseconds.
    pub cpu_ms: f64,
    /// Wall time on the GPU, milliseconds, without the time to start it.
    pub gpu_ms: f64,
}

impl Estimate {
    /// What this plan takes with so many cores; `None` where the size of some input is
    /// not known before it is read.
    pub fn of(plan: &Arc<dyn ExecutionPlan>, n_cores: usize) -> Option<Estimate> {
        let mut work = Work::default();
        work.add(plan)?;
        let cores_ns = n_cores.max(1) as f64 * 1e6;
        let values = work.values as f64;
        Some(Estimate {
            rows: work.rows,
            values: work.values,
            cpu_ms: (values * CPU_SCAN_NS + work.cpu_ns) / cores_ns,
            gpu_ms: work.n_pipelines as f64 * GPU_PIPELINE_MS
                + values * GPU_SCAN_NS / cores_ns
                + values / GPU_VALUES_PER_NS / 1e6,
        })
    }

    /// This one and then another.
    pub fn then(self, next: Estimate) -> Estimate {
        Estimate {
            rows: self.rows + next.rows,
            values: self.values + next.values,
            cpu_ms: self.cpu_ms + next.cpu_ms,
            gpu_ms: self.gpu_ms + next.gpu_ms,
        }
    }

    /// Wall time on a GPU that is not in use yet, milliseconds.
    pub fn gpu_from_start_ms(&self) -> f64 {
        GPU_START_MS + self.gpu_ms
    }

    /// Whether the CPU is expected to answer sooner than a GPU that has to be started.
    pub fn is_for_cpu(&self) -> bool {
        self.cpu_ms < self.gpu_from_start_ms()
    }
}

#[derive(Default)]
struct Work {
    /// Keeps what it has found, so that no node is asked twice.
    statistics: StatisticsContext,
    rows: u64,
    values: u64,
    cpu_ns: f64,
    n_pipelines: usize,
}

impl Work {
    /// Adds a node and what is below it; gives the rows that come out of it at most.
    fn add(&mut self, node: &Arc<dyn ExecutionPlan>) -> Option<u64> {
        if node.children().is_empty() {
            return self.add_source(node);
        }
        let mut rows_in: u64 = 0;
        let mut rows_out: u64 = 0;
        for child in node.children() {
            let rows = self.add(child)?;
            rows_in = rows_in.saturating_add(rows);
            rows_out = rows_out.max(rows);
        }
        let (ns, breaks) = cost(node);
        self.cpu_ns += rows_in as f64 * ns;
        self.n_pipelines += usize::from(breaks);
        let known = self.n_rows(node);
        Some(known.map_or(rows_out, |known| known.min(rows_in.max(1))))
    }

    fn add_source(&mut self, node: &Arc<dyn ExecutionPlan>) -> Option<u64> {
        if !node.is::<DataSourceExec>() {
            // A row of constants, or none.
            return Some(self.n_rows(node).unwrap_or(1));
        }
        let rows = self.n_rows(node)?;
        let n_columns = node.schema().fields().len().max(1) as u64;
        self.rows = self.rows.saturating_add(rows);
        self.values = self.values.saturating_add(rows.saturating_mul(n_columns));
        Some(rows)
    }

    fn n_rows(&self, node: &Arc<dyn ExecutionPlan>) -> Option<u64> {
        let statistics = self
            .statistics
            .compute(node.as_ref(), &StatisticsArgs::new())
            .ok()?;
        statistics.num_rows.get_value().map(|rows| *rows as u64)
    }
}

/// Nanoseconds of a core for each row that comes in, and whether a pipeline ends here.
fn cost(node: &Arc<dyn ExecutionPlan>) -> (f64, bool) {
    if node.is::<AggregateExec>() || node.is::<FewGroupsExec>() {
        (CPU_GROUP_NS, true)
    } else if node.is::<HashJoinExec>()
        || node.is::<SortMergeJoinExec>()
        || node.is::<NestedLoopJoinExec>()
        || node.is::<CrossJoinExec>()
    {
        (CPU_JOIN_NS, true)
    } else if node.is::<SortExec>()
        || node.is::<WindowAggExec>()
        || node.is::<BoundedWindowAggExec>()
    {
        (CPU_ORDER_NS, true)
    } else {
        (CPU_PASS_NS, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(rows: u64) -> Estimate {
        let values = rows * 4;
        Estimate {
            rows,
            values,
            cpu_ms: values as f64 * CPU_SCAN_NS / 1e6,
            gpu_ms: values as f64 * GPU_SCAN_NS / 1e6,
        }
    }

    #[test]
    fn a_small_input_is_for_the_cpu_and_a_large_one_is_not() {
        assert!(estimate(1_000).is_for_cpu());
        assert!(!estimate(100_000_000).is_for_cpu());
    }

    #[test]
    fn the_start_of_a_gpu_is_paid_once_for_all_stages() {
        let stage = Estimate {
            cpu_ms: GPU_START_MS * 0.7,
            gpu_ms: GPU_START_MS * 0.1,
            ..Estimate::default()
        };
        assert!(stage.is_for_cpu());
        assert!(!stage.then(stage).is_for_cpu());
    }
}
