//! A sort in parts: each is ordered on the device, and the host merges them.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet};
use datafusion::physical_plan::sorts::streaming_merge::StreamingMergeBuilder;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use futures::stream::BoxStream;
use kernels::launch::Sorted;

use super::codes::internal;
use super::deal::dealt;
use super::failure::{Failure, is_out_of_memory};

/// Rows are sorted in this many parts at most.
const PARTS_MAX: usize = 256;

/// Orders the rows at once or, when that does not fit the device, in as few parts as do: the
/// rows of each part and their order.
pub fn in_sorted_parts(
    batches: Vec<RecordBatch>,
    order: impl Fn(&[RecordBatch]) -> Result<Sorted, Failure>,
) -> Result<Vec<(Vec<RecordBatch>, Sorted)>, Failure> {
    let mut n_parts = 1;
    loop {
        let parts = cut(&batches, n_parts).into_iter().map(|part| {
            let sorted = order(&part)?;
            Ok((part, sorted))
        });
        match parts.collect() {
            Err(failure) if is_out_of_memory(&failure) && n_parts < PARTS_MAX => n_parts *= 2,
            sorted => return sorted,
        }
    }
}

/// The rows in this many parts of about the same size, in their order.
fn cut(batches: &[RecordBatch], n_parts: usize) -> Vec<Vec<RecordBatch>> {
    let n_rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let part_rows = n_rows.div_ceil(n_parts).max(1);
    dealt(
        batches,
        part_rows,
        RecordBatch::num_rows,
        RecordBatch::slice,
    )
}

/// The rows of sorted parts in the order of `original`; equal rows of earlier parts first.
pub fn merged(
    original: &Arc<dyn ExecutionPlan>,
    parts: Vec<BoxStream<'static, Result<RecordBatch>>>,
    fetch: Option<usize>,
    context: &Arc<TaskContext>,
) -> Result<BoxStream<'static, Result<RecordBatch>>, Failure> {
    if parts.is_empty() {
        return Ok(futures::stream::empty().boxed());
    }
    let order = original.output_ordering();
    let order = order.ok_or_else(|| internal("parts of what has no order".into()))?;
    let schema = original.schema();
    let parts = parts.into_iter().map(|part| {
        let part = RecordBatchStreamAdapter::new(Arc::clone(&schema), part);
        Box::pin(part) as _
    });
    let metrics = BaselineMetrics::new(&ExecutionPlanMetricsSet::new(), 0);
    let consumer = MemoryConsumer::new("merge of GpuSortExec");
    let rows = StreamingMergeBuilder::new()
        .with_streams(parts.collect())
        .with_schema(Arc::clone(&schema))
        .with_expressions(order)
        .with_metrics(metrics)
        .with_batch_size(context.session_config().batch_size())
        .with_fetch(fetch)
        .with_reservation(consumer.register(context.memory_pool()))
        .with_round_robin_tie_breaker(false)
        .build()?;
    Ok(rows.boxed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    #[test]
    fn parts_have_all_rows_in_their_order() {
        let batches = [0..5, 5..5, 5..6, 6..20].map(|values| {
            let column = Arc::new(Int64Array::from_iter_values(values)) as _;
            RecordBatch::try_from_iter([("a", column)]).unwrap()
        });
        for n_parts in [1, 2, 3, 7, 20, 64] {
            let parts = cut(&batches, n_parts);
            assert!(parts.len() <= n_parts, "{n_parts}");
            let rows = parts.iter().flatten();
            let rows = rows.flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values());
            assert_eq!(rows.copied().collect::<Vec<i64>>(), Vec::from_iter(0..20));
        }
    }
}
