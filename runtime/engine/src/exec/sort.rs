//! Sort on the GPU: the keys go to the device, the order comes back, and the host
//! takes the rows.
//!
//! ```text
//!   source, all partitions (CPU plan)
//!      | record batches, kept on the host, in the order of partitions
//!   key columns; text as its rank among the texts there are
//!      | device: keys to words, radix passes
//!   row numbers in order
//!      | host: takes the rows, a few at a time
//!   record batches, one partition
//! ```
//!
//! Rows that another GPU node left on the device are sorted there, and only those that
//! are wanted come home.
//!
//! Rows whose keys do not fit the device are sorted in parts, which the host merges.
//!
//! Nothing is emitted before the order is known, so when the device cannot go on, the
//! CPU subtree runs instead.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, RecordBatch, StringArray, UInt32Array};
use arrow::compute::{concat, interleave_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PhysicalExpr, PlanProperties,
};
use futures::{StreamExt, TryStreamExt};
use kernels::columns::DeviceChunk;
use kernels::gpu::Stream;
use kernels::ir::Sort;
use kernels::launch::{Sorted, sort, sort_resident};

use super::collect::Left;
use super::failure::{Failure, add_counts, is_out_of_memory};
use super::original::{Original, Outcome, in_parts, only_partition};
use super::relation::{HostRows, SourceRows, blocking, source_rows};
use super::scan;
use super::sort_parts::{in_sorted_parts, merged};
use super::spill::Spill;
use super::{Device, in_any_order};
use crate::report::PipelineReport;

/// Rows that are taken from the kept record batches at once.
const TAKE_ROWS: usize = 1 << 16;

/// What the keys are computed from: one column of the source each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyColumn {
    /// Its number in the source.
    pub index: usize,
    /// Whether it is text that is replaced by its rank.
    pub is_text: bool,
}

/// What a sort node computes, lowered.
#[derive(Debug, Clone)]
pub struct SortPipeline {
    /// Where it reads from, all partitions.
    pub source: Arc<dyn ExecutionPlan>,
    /// The keys, over `key_columns`.
    pub sort: Sort,
    /// What the keys are computed from.
    pub key_columns: Vec<KeyColumn>,
    /// The most rows that are wanted.
    pub fetch: Option<usize>,
    /// The operators in the pipeline, top first.
    pub operators: Vec<String>,
}

/// A sort of all rows of its source, into one partition.
#[derive(Debug, Clone)]
pub struct GpuSortExec {
    device: Device,
    original: Original,
    pipeline: SortPipeline,
    properties: Arc<PlanProperties>,
}

impl GpuSortExec {
    /// A node that gives the rows of `original`, all in one partition.
    pub fn new(
        device: Device,
        original: Arc<dyn ExecutionPlan>,
        pipeline: SortPipeline,
        allow_fallback: bool,
    ) -> GpuSortExec {
        let properties = PlanProperties::new(
            original.equivalence_properties().clone(),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        GpuSortExec {
            device,
            original: Original::new(original, allow_fallback),
            pipeline,
            properties: Arc::new(properties),
        }
    }

    /// The CPU subtree that this node replaced.
    pub fn original(&self) -> &Original {
        &self.original
    }

    /// The operators that run in the pipeline, top first.
    pub fn operators(&self) -> &[String] {
        &self.pipeline.operators
    }
}

impl DisplayAs for GpuSortExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GpuSortExec: operators=[{}]",
            self.pipeline.operators.join(", ")
        )?;
        match self.pipeline.fetch {
            Some(fetch) => write!(f, ", fetch={fetch}"),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for GpuSortExec {
    fn name(&self) -> &str {
        "GpuSortExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.pipeline.source]
    }

    fn fetch(&self) -> Option<usize> {
        self.pipeline.fetch
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        // The keys are lowered; no physical expression is evaluated here.
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [source] = <[_; 1]>::try_from(children)
            .map_err(|_| DataFusionError::Internal("GpuSortExec has one child".into()))?;
        Ok(Arc::new(GpuSortExec::new(
            self.device.clone(),
            Arc::clone(self.original.plan()),
            SortPipeline {
                source: in_any_order(source),
                ..self.pipeline.clone()
            },
            self.original.allows_fallback(),
        )))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        only_partition(self, partition)?;
        let job = Job {
            device: self.device.clone(),
            pipeline: self.pipeline.clone(),
        };
        let (original, task) = (self.original.clone(), Arc::clone(&context));
        let batch_rows = context.session_config().batch_size().max(1);
        let fetch = self.pipeline.fetch;
        let rows = async move {
            let (rows, report) = job.run(Arc::clone(&task)).await?;
            let rows = match rows {
                Ordered::Kept(rows) => rows.stream(batch_rows),
                Ordered::Batch(batch) => in_parts(batch, batch_rows),
                Ordered::Parts(parts) => {
                    let parts = parts.into_iter().map(|part| part.stream(batch_rows));
                    merged(original.plan(), parts.collect(), fetch, &task)?
                }
            };
            original.record(Outcome::Ran(report));
            Ok(rows)
        };
        Ok(self.original.or_stream(rows, context))
    }
}

/// One execution: plain data, moved into the task that runs it.
struct Job {
    device: Device,
    pipeline: SortPipeline,
}

/// The rows in order.
enum Ordered {
    /// Kept record batches, and the order of their rows.
    Kept(OrderedRows),
    /// One record batch.
    Batch(RecordBatch),
    /// Parts that are in order, to be merged.
    Parts(Vec<OrderedRows>),
}

impl Job {
    async fn run(self, context: Arc<TaskContext>) -> Result<(Ordered, PipelineReport), Failure> {
        let mut report = PipelineReport {
            operators: self.pipeline.operators.clone(),
            device: self.device.name(),
            ..PipelineReport::default()
        };
        let (job, spill) = (Arc::new(self), Spill::new(&context));
        let host = match source_rows(&job.pipeline.source, &context).await? {
            SourceRows::Left(left) => {
                let own = Arc::clone(&job);
                let place = Arc::clone(&spill);
                let permit = job.device.admission.acquire().await;
                report.rows_in = left.n_rows() as u64;
                let (rows, report_of) = blocking(move || {
                    let _permit = permit;
                    own.sort_on_device(*left, &place, report)
                })
                .await?;
                report = report_of;
                match rows {
                    AtOnce::Sorted(batch) => {
                        report.rows_out = batch.num_rows() as u64;
                        return Ok((Ordered::Batch(batch), report));
                    }
                    AtOnce::Not(batch) => HostRows::kept(vec![batch], spill),
                }
            }
            SourceRows::Host(host) => host,
            SourceRows::Stream => {
                let reservation = MemoryConsumer::new("GpuSortExec");
                let reservation = Arc::new(reservation.register(context.memory_pool()));
                scan::streamed(&job.pipeline.source, &job.device);
                let batches = gather(&job.pipeline.source, &context, &reservation).await?;
                return job.run_from_host(batches, reservation, report).await;
            }
        };
        let reservation = MemoryConsumer::new("GpuSortExec").register(context.memory_pool());
        job.run_from_host(host.batches, Arc::new(reservation), report)
            .await
    }

    /// Sorts rows that are on the device; only those that are wanted come home.
    fn sort_on_device(
        &self,
        left: Left,
        spill: &Spill,
        mut report: PipelineReport,
    ) -> Result<(AtOnce, PipelineReport), Failure> {
        let sorted = match sort_left(self, &left) {
            Err(failure) if is_out_of_memory(&failure) => {
                let batch = spill.keep_batch(left.batch()?)?;
                report.spilled_bytes += spill.moved_bytes();
                report.disk_bytes += spill.disk_bytes();
                return Ok((AtOnce::Not(batch), report));
            }
            sorted => sorted?,
        };
        report.kernel = sorted.kernel;
        add_counts(&mut report, sorted.counts, &self.device);
        // The rows are there twice while they are taken.
        let batch = match self.device.make_room(left.chunk.bytes()) {
            Err(_) => {
                let rows = UInt32Array::from(sorted.rows);
                take_record_batch(&left.batch()?, &rows)?
            }
            Ok(()) => {
                let (rows, counts) = left.take(&self.device, &sorted.rows)?;
                add_counts(&mut report, counts, &self.device);
                rows.batch()?
            }
        };
        Ok((AtOnce::Sorted(batch), report))
    }

    async fn run_from_host(
        self: Arc<Job>,
        batches: Vec<RecordBatch>,
        reservation: Arc<MemoryReservation>,
        mut report: PipelineReport,
    ) -> Result<(Ordered, PipelineReport), Failure> {
        let started = Instant::now();
        let source = self.pipeline.source.schema();
        let permit = self.device.admission.acquire().await;
        // Ranking, staging and launching block; a thread of the runtime must not.
        let own = Arc::clone(&self);
        let parts = blocking(move || {
            let _permit = permit;
            in_sorted_parts(batches, |part| order(&own, &source, part))
        })
        .await?;
        report.staging_ms = started.elapsed().as_secs_f64() * 1e3;
        if parts.len() > 1 {
            report.passes += parts.len() as u64;
        }
        let mut runs = Vec::new();
        for (batches, sorted) in parts {
            report.kernel.clone_from(&sorted.kernel);
            report.rows_out += sorted.rows.len() as u64;
            add_counts(&mut report, sorted.counts, &self.device);
            runs.push(OrderedRows::new(
                batches,
                sorted.rows,
                Arc::clone(&reservation),
            ));
        }
        if let Some(fetch) = self.pipeline.fetch {
            report.rows_out = report.rows_out.min(fetch as u64);
        }
        let rows = match runs.len() {
            0 => Ordered::Parts(Vec::new()),
            1 => runs.pop().map_or(Ordered::Parts(Vec::new()), Ordered::Kept),
            _ => Ordered::Parts(runs),
        };
        Ok((rows, report))
    }
}

/// Rows that were on the device.
enum AtOnce {
    /// In order.
    Sorted(RecordBatch),
    /// On the host: the device has no room for their order.
    Not(RecordBatch),
}

/// The order of rows that are on the device.
fn sort_left(job: &Job, left: &Left) -> Result<Sorted, Failure> {
    let mut columns = HashMap::new();
    for (number, key) in job.pipeline.key_columns.iter().enumerate() {
        let column = match left.column(key.index) {
            Some(column) => Arc::clone(column),
            None => left.ranks(&job.device, key.index)?,
        };
        columns.insert(number, column);
    }
    let stream = Stream::new(&job.device.gpu)?;
    let keys = DeviceChunk::of_columns(&stream, columns, left.n_rows())?;
    let (gpu, jit) = (Arc::clone(&job.device.gpu), Arc::clone(&job.device.jit));
    Ok(sort_resident(
        gpu,
        jit,
        &job.pipeline.sort,
        &keys,
        job.pipeline.fetch,
    )?)
}

/// All rows of the source. Partitions are read at the same time and stand one after
/// another, so that equal keys come in the same order on every run.
async fn gather(
    source: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    reservation: &Arc<MemoryReservation>,
) -> Result<Vec<RecordBatch>, Failure> {
    let mut tasks = tokio::task::JoinSet::new();
    for partition in 0..source.output_partitioning().partition_count() {
        let mut rows = source.execute(partition, Arc::clone(context))?;
        let reservation = Arc::clone(reservation);
        tasks.spawn(async move {
            let mut batches = Vec::new();
            while let Some(batch) = rows.next().await.transpose()? {
                if batch.num_rows() == 0 {
                    continue;
                }
                reservation
                    .try_grow(batch.get_array_memory_size())
                    .map_err(|e| Failure::device("out-of-memory", e.to_string()))?;
                batches.push(batch);
            }
            Ok::<_, Failure>((partition, batches))
        });
    }
    let mut partitions = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        let ended =
            ended.map_err(|e| DataFusionError::Internal(format!("a source task ended: {e}")))?;
        partitions.push(ended?);
    }
    partitions.sort_by_key(|(partition, _)| *partition);
    Ok(partitions
        .into_iter()
        .flat_map(|(_, batches)| batches)
        .collect())
}

/// The order of the rows of these record batches, numbered through.
fn order(job: &Job, schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Sorted, Failure> {
    let mut fields = Vec::new();
    let mut columns: Vec<ArrayRef> = Vec::new();
    for column in &job.pipeline.key_columns {
        let field = schema.field(column.index);
        let parts: Vec<&dyn Array> = batches
            .iter()
            .map(|batch| batch.column(column.index).as_ref())
            .collect();
        if parts.is_empty() {
            return Ok(Sorted::default());
        }
        let (array, data_type) = match column.is_text {
            true => (Arc::new(ranks(&parts)?) as ArrayRef, DataType::Int32),
            false => (concat(&parts)?, field.data_type().clone()),
        };
        // Two keys may be columns of one name; here they are told apart by number.
        fields.push(Field::new(columns.len().to_string(), data_type, true));
        columns.push(array);
    }
    let keys = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?;
    Ok(sort(
        Arc::clone(&job.device.gpu),
        Arc::clone(&job.device.jit),
        &job.device.pinned,
        &job.pipeline.sort,
        &keys,
        job.pipeline.fetch,
    )?)
}

/// Each text's place among all of them, by bytes.
pub(super) fn ranks_of(texts: &StringArray) -> Int32Array {
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_unstable_by_key(|at| texts.value(*at));
    let mut ranks = vec![0; texts.len()];
    for (rank, at) in order.into_iter().enumerate() {
        ranks[at] = rank as i32;
    }
    Int32Array::from(ranks)
}

/// Each text's place among the distinct texts of all parts, by bytes; null stays null.
fn ranks(parts: &[&dyn Array]) -> Result<Int32Array, Failure> {
    let mut codes: HashMap<&str, i32> = HashMap::new();
    let mut all: Vec<Option<i32>> = Vec::new();
    for part in parts {
        let texts: Box<dyn Iterator<Item = Option<&str>>> = match part.data_type() {
            DataType::Utf8 => Box::new(part.as_string::<i32>().iter()),
            DataType::LargeUtf8 => Box::new(part.as_string::<i64>().iter()),
            DataType::Utf8View => Box::new(part.as_string_view().iter()),
            other => {
                let what = format!("a text key of type {other}");
                return Err(Failure::User(DataFusionError::Internal(what)));
            }
        };
        for text in texts {
            let next = codes.len();
            all.push(match text {
                None => None,
                Some(text) => match codes.get(text) {
                    Some(code) => Some(*code),
                    None => {
                        let code = i32::try_from(next).map_err(|_| {
                            Failure::device("too-many-texts", "over 2^31 texts".into())
                        })?;
                        codes.insert(text, code);
                        Some(code)
                    }
                },
            });
        }
    }
    let mut sorted: Vec<(&str, i32)> = codes.into_iter().collect();
    sorted.sort_unstable();
    let mut rank_of = vec![0; sorted.len()];
    for (rank, (_, code)) in sorted.iter().enumerate() {
        rank_of[*code as usize] = rank as i32;
    }
    Ok(all
        .into_iter()
        .map(|code| code.map(|code| rank_of[code as usize]))
        .collect())
}

/// Kept record batches and the order of their rows.
struct OrderedRows {
    batches: Vec<RecordBatch>,
    /// The number of each record batch's first row.
    starts: Vec<usize>,
    rows: Vec<u32>,
    /// How many rows were given.
    next: usize,
    _reservation: Arc<MemoryReservation>,
}

impl OrderedRows {
    fn new(
        batches: Vec<RecordBatch>,
        rows: Vec<u32>,
        reservation: Arc<MemoryReservation>,
    ) -> OrderedRows {
        let mut starts = Vec::with_capacity(batches.len());
        let mut n_rows = 0;
        for batch in &batches {
            starts.push(n_rows);
            n_rows += batch.num_rows();
        }
        OrderedRows {
            batches,
            starts,
            rows,
            next: 0,
            _reservation: reservation,
        }
    }

    fn stream(self, batch_rows: usize) -> futures::stream::BoxStream<'static, Result<RecordBatch>> {
        let taken = futures::stream::try_unfold(self, |mut rows| async move {
            let batch = rows.take_next()?;
            Ok::<_, DataFusionError>(batch.map(|batch| (batch, rows)))
        });
        let parts = taken.map_ok(move |batch| in_parts(batch, batch_rows));
        parts.try_flatten().boxed()
    }

    fn take_next(&mut self) -> Result<Option<RecordBatch>> {
        let end = self.rows.len().min(self.next + TAKE_ROWS);
        let wanted = &self.rows[self.next..end];
        self.next = end;
        if wanted.is_empty() {
            return Ok(None);
        }
        if let [batch] = self.batches.as_slice() {
            let rows = UInt32Array::from(wanted.to_vec());
            return Ok(Some(take_record_batch(batch, &rows)?));
        }
        let places: Vec<(usize, usize)> = wanted
            .iter()
            .map(|row| {
                let row = *row as usize;
                let batch = self.starts.partition_point(|start| *start <= row) - 1;
                (batch, row - self.starts[batch])
            })
            .collect();
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        Ok(Some(interleave_record_batch(&batches, &places)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::StringViewArray;

    #[test]
    fn ranks_follow_bytes_over_all_parts() {
        let a = StringArray::from(vec![Some("b"), None, Some(""), Some("é")]);
        let b = StringArray::from(vec![Some("a"), Some("b")]);
        let Ok(got) = ranks(&[&a, &b]) else {
            panic!("text has ranks");
        };
        let expected = [Some(2), None, Some(0), Some(3), Some(1), Some(2)];
        assert_eq!(got, Int32Array::from(expected.to_vec()));
        let view = StringViewArray::from(vec![Some("z"), Some("y")]);
        let Ok(got) = ranks(&[&view]) else {
            panic!("text has ranks");
        };
        assert_eq!(got, Int32Array::from(vec![1, 0]));
    }
}
