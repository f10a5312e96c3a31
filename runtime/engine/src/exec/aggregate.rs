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
use std::sync::{Arc, Mutex};
use std::time::Instant;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow::compute::concat_batches;
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
use kernels::ir::Aggregate;
use kernels::launch::{AggregateRun, Groups, Number, RunCounts};

use super::dictionary::Dictionary;
use super::{Device, finish};
use crate::error::Error;
use crate::report::{Fallback, FallbackTime, PipelineReport, Reason};

/// Rows gathered before a launch: enough to fill a device, little enough that
/// staging two chunks stays within tens of megabytes a column.
const CHUNK_ROWS: usize = 1 << 20;

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

/// An aggregate whose whole input pipeline runs on the GPU.
#[derive(Debug)]
pub struct GpuAggregateExec {
    device: Device,
    /// The CPU subtree that this node replaced: fallback, explain and oracle.
    original: Arc<dyn ExecutionPlan>,
    source: Arc<dyn ExecutionPlan>,
    aggregate: Aggregate,
    /// Source columns that are text keys, held as dictionary codes.
    encoded: Vec<usize>,
    /// For each key, the source column whose dictionary decodes it.
    key_dictionaries: Vec<Option<usize>>,
    outputs: Vec<Output>,
    operators: Vec<String>,
    /// Whether the CPU subtree may run when the device cannot go on.
    allow_fallback: bool,
    properties: Arc<PlanProperties>,
    outcome: Arc<Mutex<Option<Outcome>>>,
}

impl GpuAggregateExec {
    /// A node that computes what `original` computes. `outputs` has one entry for
    /// each column after the keys.
    #[allow(clippy::too_many_arguments)] // every part is named at the one call
    pub fn new(
        device: Device,
        original: Arc<dyn ExecutionPlan>,
        source: Arc<dyn ExecutionPlan>,
        aggregate: Aggregate,
        encoded: Vec<usize>,
        key_dictionaries: Vec<Option<usize>>,
        outputs: Vec<Output>,
        operators: Vec<String>,
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
            source,
            aggregate,
            encoded,
            key_dictionaries,
            outputs,
            operators,
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
        &self.operators
    }

    /// What the last execution did; `None` before it is done.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome.lock().ok()?.clone()
    }

    fn job(&self) -> Job {
        Job {
            device: self.device.clone(),
            source: Arc::clone(&self.source),
            schema: self.original.schema(),
            aggregate: self.aggregate.clone(),
            encoded: self.encoded.clone(),
            key_dictionaries: self.key_dictionaries.clone(),
            outputs: self.outputs.clone(),
            operators: self.operators.clone(),
        }
    }
}

impl DisplayAs for GpuAggregateExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GpuAggregateExec: operators=[{}]",
            self.operators.join(", ")
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
        vec![&self.source]
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
            source,
            self.aggregate.clone(),
            self.encoded.clone(),
            self.key_dictionaries.clone(),
            self.outputs.clone(),
            self.operators.clone(),
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
        let job = self.job();
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

/// Why a pipeline did not finish.
enum Failure {
    /// The data or the source is at fault: the CPU would fail too.
    User(DataFusionError),
    /// The device is: the CPU subtree can answer.
    Device(Reason),
}

impl From<DataFusionError> for Failure {
    fn from(error: DataFusionError) -> Failure {
        Failure::User(error)
    }
}

impl From<kernels::error::Error> for Failure {
    fn from(error: kernels::error::Error) -> Failure {
        use arrow::error::ArrowError;
        use kernels::error::{Error, Fault};
        let user = |error| Failure::User(DataFusionError::ArrowError(Box::new(error), None));
        let code = match &error {
            Error::DataFault(data) => {
                return user(match data.fault {
                    Fault::DivisionByZero => ArrowError::DivideByZero,
                    Fault::IntegerOverflow | Fault::DecimalOverflow | Fault::CastOverflow => {
                        ArrowError::ArithmeticOverflow(data.fault.to_string())
                    }
                    _ => ArrowError::ComputeError(data.fault.to_string()),
                });
            }
            Error::Arrow(ArrowError::ArithmeticOverflow(detail)) => {
                return user(ArrowError::ArithmeticOverflow(detail.clone()));
            }
            Error::OutOfMemory(_) => "out-of-device-memory",
            Error::Unsupported(_) => "unsupported-at-run-time",
            _ => "device-error",
        };
        Failure::Device(Reason {
            code: code.to_string(),
            message: error.to_string(),
            fix: String::new(),
        })
    }
}

/// One execution: plain data, moved into the task that runs it.
struct Job {
    device: Device,
    source: Arc<dyn ExecutionPlan>,
    schema: SchemaRef,
    aggregate: Aggregate,
    encoded: Vec<usize>,
    key_dictionaries: Vec<Option<usize>>,
    outputs: Vec<Output>,
    operators: Vec<String>,
}

impl Job {
    async fn run(
        self,
        context: Arc<TaskContext>,
    ) -> Result<(RecordBatch, PipelineReport), Failure> {
        let whole: Arc<dyn ExecutionPlan> =
            Arc::new(CoalescePartitionsExec::new(Arc::clone(&self.source)));
        let mut stream = whole.execute(0, context)?;
        let device = &self.device;
        let mut run = AggregateRun::new(
            Arc::clone(&device.gpu),
            Arc::clone(&device.jit),
            self.aggregate.clone(),
            HashMap::new(),
        )?;
        let mut dictionaries: BTreeMap<usize, Dictionary> = self
            .encoded
            .iter()
            .map(|column| (*column, Dictionary::default()))
            .collect();
        let mut report = PipelineReport {
            operators: self.operators.clone(),
            device: device.name(),
            ..PipelineReport::default()
        };
        let mut pending: Vec<RecordBatch> = Vec::new();
        let mut pending_rows = 0;
        loop {
            let next = stream.next().await.transpose()?;
            let done = next.is_none();
            if let Some(batch) = next {
                pending_rows += batch.num_rows();
                pending.push(encode(batch, &mut dictionaries)?);
            }
            if pending_rows >= CHUNK_ROWS || (done && pending_rows > 0) {
                let started = Instant::now();
                let chunk = concat_batches(&pending[0].schema(), &pending)
                    .map_err(DataFusionError::from)?;
                pending.clear();
                pending_rows = 0;
                // Staging and launching block; a thread of the runtime must not.
                let (used, result) = tokio::task::spawn_blocking(move || {
                    let result = run.add(&chunk);
                    (run, result)
                })
                .await
                .map_err(|e| DataFusionError::Internal(format!("the device thread ended: {e}")))?;
                run = used;
                result?;
                report.staging_ms += started.elapsed().as_secs_f64() * 1e3;
            }
            if done {
                break;
            }
        }
        report.kernel = run.kernel_name().unwrap_or_default().to_string();
        let (groups, counts) = run.finish()?;
        let batch = self.finish(&groups, &dictionaries)?;
        add_counts(&mut report, counts);
        if let Some(bandwidth) = device.gpu.info().bandwidth_bytes_per_s {
            report.ideal_ms = report.bytes_read as f64 / bandwidth * 1e3;
        }
        report.rows_out = batch.num_rows() as u64;
        Ok((batch, report))
    }

    /// The result's columns: keys, then one for each output.
    fn finish(
        &self,
        groups: &Groups,
        dictionaries: &BTreeMap<usize, Dictionary>,
    ) -> Result<RecordBatch> {
        let n_keys = self.aggregate.keys.len();
        let mut columns: Vec<ArrayRef> = Vec::new();
        for (index, field) in self.schema.fields().iter().enumerate() {
            let data_type = field.data_type();
            let dictionary = (index < n_keys)
                .then(|| self.key_dictionaries[index].and_then(|c| dictionaries.get(&c)))
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
                None => self.output(&self.outputs[index - n_keys], groups, data_type)?,
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
fn text(code: Option<Number>, dictionary: &Dictionary) -> Result<Option<&str>> {
    match code {
        None => Ok(None),
        Some(Number::Integer(code)) => match dictionary.text(code) {
            Some(text) => Ok(Some(text)),
            None => Err(DataFusionError::Internal(format!(
                "dictionary code {code} does not exist"
            ))),
        },
        Some(Number::Float(_)) => Err(DataFusionError::Internal(
            "a dictionary code is a whole number".into(),
        )),
    }
}

/// Replaces text keys by their codes.
fn encode(
    batch: RecordBatch,
    dictionaries: &mut BTreeMap<usize, Dictionary>,
) -> Result<RecordBatch> {
    if dictionaries.is_empty() {
        return Ok(batch);
    }
    let mut fields: Vec<Field> = batch
        .schema()
        .fields()
        .iter()
        .map(|field| field.as_ref().clone())
        .collect();
    let mut columns = batch.columns().to_vec();
    for (index, dictionary) in dictionaries {
        let array: &dyn Array = columns[*index].as_ref();
        columns[*index] = dictionary.encode(array);
        fields[*index] = Field::new(fields[*index].name(), DataType::Int32, true);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(
        Arc::new(Schema::new(fields)),
        columns,
        &options,
    )?)
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
