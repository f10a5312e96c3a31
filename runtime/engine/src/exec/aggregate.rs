//! Scan, filter, project and aggregate as one GPU pipeline.
//!
//! ```text
//!   source (CPU plan, N partitions)
//!      | record batches, gathered to chunks
//!   dictionary codes for text keys
//!      | one launch a chunk
//!   totals a group
//!      | finished once, when the source is done
//!   one record batch
//! ```
//!
//! Nothing is emitted before everything is added up, so when the device cannot go
//! on, the CPU subtree that the node kept runs instead, and the report says why.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties,
};
use futures::{StreamExt, TryStreamExt};
use kernels::budget::Budget;
use kernels::codegen::columns_of;
use kernels::ir::{Aggregate, Range};
use kernels::launch::{AggregateRun, Groups, Loader, Number, RunCounts};

use super::dictionary::{Dictionary, Encoder};
use super::failure::Failure;
use super::feed::{Consumer, feed};
use super::{Device, finish};
use crate::error::Error;
use crate::report::{Fallback, FallbackTime, PipelineReport};

/// How one output column is made of the pipeline's calls.
#[derive(Debug, Clone)]
pub enum Output {
    /// The value of a call.
    Value(usize),
    /// A sum divided by a count.
    Average {
        /// The call that sums.
        sum: usize,
        /// The call that counts.
        count: usize,
        /// Digits after the point of the sum.
        scale: i8,
    },
}

/// What happened in one execution.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The pipeline ran on the device.
    Ran(PipelineReport),
    /// The CPU subtree ran instead.
    FellBack(Fallback),
}

/// What an aggregate node computes, lowered.
#[derive(Debug, Clone)]
pub struct AggregatePipeline {
    /// Where it reads from.
    pub source: Arc<dyn ExecutionPlan>,
    /// What it computes.
    pub aggregate: Aggregate,
    /// Source columns that are text keys. Their codes are columns after the source's
    /// own, in this order.
    pub encoded: Vec<usize>,
    /// For each key, the source column whose dictionary decodes it.
    pub key_dictionaries: Vec<Option<usize>>,
    /// How the columns after the keys are made.
    pub outputs: Vec<Output>,
    /// The operators in the pipeline, top first.
    pub operators: Vec<String>,
    /// What statistics prove about source columns.
    pub known: Arc<HashMap<usize, Range>>,
}

/// An aggregate whose whole input pipeline runs on the GPU.
#[derive(Debug)]
pub struct GpuAggregateExec {
    device: Device,
    /// The CPU subtree that this node replaced: fallback, explain and oracle.
    original: Arc<dyn ExecutionPlan>,
    pipeline: AggregatePipeline,
    /// Whether the CPU subtree may run when the device cannot go on.
    allow_fallback: bool,
    properties: Arc<PlanProperties>,
    outcome: Arc<Mutex<Option<Outcome>>>,
}

impl GpuAggregateExec {
    /// A node that computes what `original` computes.
    pub fn new(
        device: Device,
        original: Arc<dyn ExecutionPlan>,
        pipeline: AggregatePipeline,
        allow_fallback: bool,
    ) -> GpuAggregateExec {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(original.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        GpuAggregateExec {
            device,
            original,
            pipeline,
            allow_fallback,
            properties: Arc::new(properties),
            outcome: Arc::new(Mutex::new(None)),
        }
    }

    /// The CPU subtree that this node replaced.
    pub fn original(&self) -> &Arc<dyn ExecutionPlan> {
        &self.original
    }

    /// The operators that run in the pipeline, top first.
    pub fn operators(&self) -> &[String] {
        &self.pipeline.operators
    }

    /// What the last execution did; `None` before it is done.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome.lock().ok()?.clone()
    }
}

impl DisplayAs for GpuAggregateExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GpuAggregateExec: operators=[{}]",
            self.pipeline.operators.join(", ")
        )
    }
}

impl ExecutionPlan for GpuAggregateExec {
    fn name(&self) -> &str {
        "GpuAggregateExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.pipeline.source]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        // The expressions are lowered; no physical expression is evaluated here.
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [source] = <[_; 1]>::try_from(children)
            .map_err(|_| DataFusionError::Internal("GpuAggregateExec has one child".into()))?;
        Ok(Arc::new(GpuAggregateExec::new(
            self.device.clone(),
            Arc::clone(&self.original),
            AggregatePipeline {
                source,
                ..self.pipeline.clone()
            },
            self.allow_fallback,
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
        if partition != 0 {
            return Err(DataFusionError::Internal(format!(
                "GpuAggregateExec has no partition {partition}"
            )));
        }
        let job = Job {
            device: self.device.clone(),
            schema: self.original.schema(),
            pipeline: self.pipeline.clone(),
        };
        let original = Arc::clone(&self.original);
        let outcome = Arc::clone(&self.outcome);
        let allow_fallback = self.allow_fallback;
        let schema = self.schema();
        let stream = futures::stream::once(async move {
            match job.run(Arc::clone(&context)).await {
                Ok((batch, report)) => {
                    record(&outcome, Outcome::Ran(report));
                    Ok(futures::stream::iter([Ok(batch)]).boxed())
                }
                Err(Failure::User(error)) => Err(error),
                Err(Failure::Device(reason)) if !allow_fallback => {
                    let what = format!(
                        "{} cannot run on the GPU: {}",
                        original.name(),
                        reason.message
                    );
                    Err(DataFusionError::External(Box::new(
                        Error::FallbackRefused { what },
                    )))
                }
                Err(Failure::Device(reason)) => {
                    let fallback = Fallback {
                        node: original.name().to_string(),
                        when: FallbackTime::Run,
                        reason,
                        rows: None,
                        cpu_ms: None,
                    };
                    record(&outcome, Outcome::FellBack(fallback));
                    let whole: Arc<dyn ExecutionPlan> =
                        Arc::new(CoalescePartitionsExec::new(original));
                    Ok(whole.execute(0, context)?.boxed())
                }
            }
        })
        .try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream)))
    }
}

fn record(slot: &Mutex<Option<Outcome>>, outcome: Outcome) {
    if let Ok(mut slot) = slot.lock() {
        *slot = Some(outcome);
    }
}

/// One execution: plain data, moved into the task that runs it.
struct Job {
    device: Device,
    schema: SchemaRef,
    pipeline: AggregatePipeline,
}

/// What the partitions of one execution share.
struct Shared {
    run: Mutex<AggregateRun>,
    dictionaries: BTreeMap<usize, Arc<Dictionary>>,
    staging_us: AtomicU64,
    retries: AtomicU64,
}

impl Job {
    async fn run(
        self,
        context: Arc<TaskContext>,
    ) -> Result<(RecordBatch, PipelineReport), Failure> {
        let (device, pipeline) = (&self.device, &self.pipeline);
        let run = AggregateRun::new(
            Arc::clone(&device.gpu),
            Arc::clone(&device.jit),
            &device.pinned,
            pipeline.aggregate.clone(),
            Arc::clone(&pipeline.known),
        )?;
        let encoded = pipeline.encoded.iter();
        let shared = Arc::new(Shared {
            run: Mutex::new(run),
            dictionaries: encoded.map(|column| (*column, Arc::default())).collect(),
            staging_us: AtomicU64::new(0),
            retries: AtomicU64::new(0),
        });
        feed(&pipeline.source, &context, device, || {
            Partition::new(device, pipeline, &shared)
        })
        .await?;
        let shared = Arc::into_inner(shared)
            .ok_or_else(|| DataFusionError::Internal("a partition is still running".into()))?;
        let run = shared
            .run
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let mut report = PipelineReport {
            kernel: run.kernel_name().unwrap_or_default().to_string(),
            operators: pipeline.operators.clone(),
            device: device.name(),
            staging_ms: shared.staging_us.into_inner() as f64 / 1e3,
            retries: shared.retries.into_inner(),
            ..PipelineReport::default()
        };
        let bandwidth = device.gpu.info().bandwidth_bytes_per_s;
        let texts = shared.dictionaries.iter();
        let texts = texts
            .map(|(column, texts)| (*column, texts.texts()))
            .collect();
        let (batch, counts) = tokio::task::spawn_blocking(move || {
            let (groups, counts) = run.finish()?;
            Ok::<_, Failure>((self.finish(&groups, &texts)?, counts))
        })
        .await
        .map_err(|error| {
            DataFusionError::Internal(format!("the result was not read: {error}"))
        })??;
        add_counts(&mut report, counts);
        if let Some(bandwidth) = bandwidth {
            report.ideal_ms = report.bytes_read as f64 / bandwidth * 1e3;
        }
        report.rows_out = batch.num_rows() as u64;
        Ok((batch, report))
    }

    /// The result's columns: keys, then one for each output.
    fn finish(
        &self,
        groups: &Groups,
        texts: &BTreeMap<usize, Vec<Arc<str>>>,
    ) -> Result<RecordBatch> {
        let n_keys = self.pipeline.aggregate.keys.len();
        let mut columns: Vec<ArrayRef> = Vec::new();
        for (index, field) in self.schema.fields().iter().enumerate() {
            let data_type = field.data_type();
            let dictionary = (index < n_keys)
                .then(|| self.pipeline.key_dictionaries[index].and_then(|c| texts.get(&c)))
                .flatten();
            let numbers = 0..groups.len();
            columns.push(match dictionary {
                Some(dictionary) => {
                    let texts = numbers.map(|group| text(groups.key(index, group), dictionary));
                    Arc::new(texts.collect::<Result<StringArray>>()?)
                }
                None if index < n_keys => {
                    finish::column(numbers.map(|group| Ok(groups.key(index, group))), data_type)?
                }
                None => self.output(&self.pipeline.outputs[index - n_keys], groups, data_type)?,
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(groups.len()));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.schema),
            columns,
            &options,
        )?)
    }

    fn output(&self, output: &Output, groups: &Groups, data_type: &DataType) -> Result<ArrayRef> {
        let number = |call: usize, group: usize| {
            groups
                .value(call, group)
                .map_err(|error| match Failure::from(error) {
                    Failure::User(error) => error,
                    Failure::Device(reason) => DataFusionError::Internal(reason.message),
                })
        };
        let numbers = 0..groups.len();
        match output {
            Output::Value(call) => {
                finish::column(numbers.map(|group| number(*call, group)), data_type)
            }
            Output::Average { sum, count, scale } => {
                let values = numbers
                    .map(|group| {
                        let count = match number(*count, group)? {
                            Some(Number::Integer(count)) => count,
                            _ => 0,
                        };
                        finish::average(number(*sum, group)?, count, *scale, data_type)
                    })
                    .collect::<Result<Vec<ScalarValue>>>()?;
                finish::array(values, data_type)
            }
        }
    }
}

/// The text of a dictionary code.
fn text(code: Option<Number>, texts: &[Arc<str>]) -> Result<Option<&str>> {
    match code {
        None => Ok(None),
        Some(Number::Integer(code)) => match usize::try_from(code).map(|code| texts.get(code)) {
            Ok(Some(text)) => Ok(Some(text)),
            _ => Err(DataFusionError::Internal(format!(
                "dictionary code {code} does not exist"
            ))),
        },
        Some(Number::Float(_)) => Err(DataFusionError::Internal(
            "a dictionary code is a whole number".into(),
        )),
    }
}

/// How long a chunk waits for device memory that others hold before it is split.
const MEMORY_WAIT: Duration = Duration::from_secs(30);

/// A chunk of this many rows is not split further when device memory is short.
const SPLIT_ROWS_MIN: usize = 1 << 10;

/// The chunks of one partition: codes for text keys, layout, copy, launch.
struct Partition {
    shared: Arc<Shared>,
    loader: Loader,
    budget: Budget,
    /// Source column and its codes.
    encoders: Vec<(usize, Encoder)>,
}

impl Partition {
    fn new(
        device: &Device,
        pipeline: &AggregatePipeline,
        shared: &Arc<Shared>,
    ) -> Result<Partition, Failure> {
        let columns = columns_of(&pipeline.aggregate);
        let known = Arc::clone(&pipeline.known);
        let encoders = pipeline.encoded.iter().filter_map(|column| {
            let dictionary = shared.dictionaries.get(column)?;
            Some((*column, Encoder::new(dictionary)))
        });
        Ok(Partition {
            shared: Arc::clone(shared),
            loader: Loader::new(&device.gpu, &device.pinned, columns, known)?,
            budget: device.budget.clone(),
            encoders: encoders.collect(),
        })
    }

    /// Appends the codes of text keys, in the order of `AggregatePipeline::encoded`.
    fn encode(&mut self, batch: RecordBatch) -> Result<RecordBatch> {
        if self.encoders.is_empty() {
            return Ok(batch);
        }
        let schema = batch.schema();
        let mut fields: Vec<Field> = schema.fields().iter().map(|f| f.as_ref().clone()).collect();
        let mut columns = batch.columns().to_vec();
        for (index, encoder) in &mut self.encoders {
            let array: &dyn Array = batch.column(*index).as_ref();
            columns.push(encoder.encode(array));
            let name = format!("codes of {}", fields[*index].name());
            fields.push(Field::new(name, DataType::Int32, true));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let schema = Arc::new(Schema::new(fields));
        Ok(RecordBatch::try_new_with_options(
            schema, columns, &options,
        )?)
    }

    /// Adds a chunk; in halves when device memory is short.
    fn add(&mut self, chunk: &RecordBatch) -> Result<(), Failure> {
        let error = match self.add_whole(chunk) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let n_rows = chunk.num_rows();
        if error.out_of_memory().is_none() || n_rows <= SPLIT_ROWS_MIN {
            return Err(error.into());
        }
        self.shared.retries.fetch_add(1, Ordering::Relaxed);
        let half = n_rows / 2;
        self.add(&chunk.slice(0, half))?;
        self.add(&chunk.slice(half, n_rows - half))
    }

    fn add_whole(&mut self, chunk: &RecordBatch) -> kernels::error::Result<()> {
        let started = Instant::now();
        let staged = self.loader.stage(chunk)?;
        let staging_us = started.elapsed().as_micros() as u64;
        self.shared
            .staging_us
            .fetch_add(staging_us, Ordering::Relaxed);
        let _reserved = self.budget.reserve_or_wait(staged.bytes(), MEMORY_WAIT)?;
        let copied = self.loader.upload(&staged)?;
        let mut run = self
            .shared
            .run
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        run.add_copied(&copied)
    }
}

impl Consumer for Partition {
    fn take(&mut self, chunk: RecordBatch) -> Result<(), Failure> {
        let chunk = self.encode(chunk)?;
        self.add(&chunk)
    }
}

fn add_counts(report: &mut PipelineReport, counts: RunCounts) {
    report.rows_in = counts.rows;
    report.chunks = counts.chunks;
    report.bytes_read = counts.bytes_read;
    report.device_ms = counts.device_ms;
    report.jit_compiled = counts.jit_compiled;
    report.jit_cached = counts.jit_cached;
    report.jit_ms = counts.jit_ms;
    report.bytes_to_device = counts.bytes_to_device;
    report.bytes_to_host = counts.bytes_to_host;
}
