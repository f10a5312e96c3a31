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
use std::time::Instant;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties,
};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use kernels::codegen::GroupOutput;
use kernels::columns::{DeviceChunk, stage, type_of};
use kernels::ir::{Aggregate, IntWidth, Range, Spread, Type};
use kernels::launch::{AggregateRun, Groups, Loader, Number, StagedBatch};

use super::codes::{Codes, Texts, Wanted, encode, internal};
use super::collect::{Left, Taken};
use super::dictionary::{Dictionary, Encoder};
use super::failure::{Failure, add_counts};
use super::feed::{Consumer, feed};
use super::no_rows::of_no_rows;
use super::original::{Original, Outcome, only_partition};
use super::relation::{blocking, is_whole, relation, tables};
use super::scan::{self, ChunkSink};
use super::{Device, finish, in_any_order, replaced};
use crate::lower::{DerivedText, Joined, LateValues, without_exchange};
use crate::report::PipelineReport;

/// How one output column is made of the pipeline's calls.
#[derive(Debug, Clone)]
pub enum Output {
    /// The value of a call.
    Value(usize),
    /// The text whose code is the value of a call.
    Text {
        /// The call.
        call: usize,
        /// The number of the codes.
        codes: usize,
    },
    /// A sum divided by a count.
    Average {
        /// The call that sums.
        sum: usize,
        /// The call that counts.
        count: usize,
        /// Digits after the point of the sum.
        scale: i8,
    },
    /// A variance of what a call has the moments of.
    Spread {
        /// The call.
        call: usize,
        /// What is made of the moments.
        spread: Spread,
    },
}

/// What an aggregate node computes, lowered.
#[derive(Debug, Clone)]
pub struct AggregatePipeline {
    /// Where it reads from.
    pub source: Arc<dyn ExecutionPlan>,
    /// What it probes.
    pub joined: Vec<Joined>,
    /// What it computes.
    pub aggregate: Aggregate,
    /// Text columns that are keys.
    pub codes: Codes,
    /// For each key that is text, the number of its codes.
    pub key_codes: Vec<Option<usize>>,
    /// Constants that are known when it starts.
    pub late: LateValues,
    /// How the columns after the keys are made.
    pub outputs: Vec<Output>,
    /// The grouping ids of sets without keys: they have a group even when there are no rows.
    pub sets_without_keys: Vec<i128>,
    /// The operators in the pipeline, top first.
    pub operators: Vec<String>,
    /// What statistics prove about source columns.
    pub known: Arc<HashMap<usize, Range>>,
}

/// An aggregate whose whole input pipeline runs on the GPU.
#[derive(Debug, Clone)]
pub struct GpuAggregateExec {
    device: Device,
    original: Original,
    pipeline: AggregatePipeline,
    properties: Arc<PlanProperties>,
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
        let joined = self.pipeline.joined.iter().map(|joined| &joined.plan);
        std::iter::once(&self.pipeline.source)
            .chain(joined)
            .collect()
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
        let (source, joined) = replaced(children, &self.pipeline.joined)?;
        Ok(Arc::new(GpuAggregateExec::new(
            self.device.clone(),
            Arc::clone(self.original.plan()),
            AggregatePipeline {
                source: in_any_order(source),
                joined,
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
        let node = self.clone();
        let task = Arc::clone(&context);
        let rows = async move {
            let batch = match node.run_on_device(&task).await? {
                Finished::Batch(batch) => batch,
                Finished::Left(left) => blocking(move || left.batch()).await?,
            };
            Ok(futures::stream::iter([Ok(batch)]).boxed())
        };
        Ok(self.original.or_stream(rows, context))
    }
}

/// One execution: plain data, moved into the task that runs it.
struct Job {
    device: Device,
    schema: SchemaRef,
    pipeline: AggregatePipeline,
}

/// The groups of a finished aggregate.
#[derive(Debug)]
pub enum Finished {
    /// On the host.
    Batch(RecordBatch),
    /// On the device.
    Left(Box<Left>),
}

impl GpuAggregateExec {
    /// Computes the groups; many of them stay on the device.
    pub fn run_on_device<'a>(
        &'a self,
        context: &'a Arc<TaskContext>,
    ) -> BoxFuture<'a, Result<Finished, Failure>> {
        let job = Job {
            device: self.device.clone(),
            schema: self.schema(),
            pipeline: self.pipeline.clone(),
        };
        // Boxed: a source of this node may be a node of its kind.
        async move {
            let (finished, report) = job.run(context).await?;
            self.original.record(Outcome::Ran(report));
            Ok(finished)
        }
        .boxed()
    }
}

/// What the partitions of one execution share.
struct Shared {
    run: Mutex<AggregateRun>,
    dictionaries: Arc<BTreeMap<usize, Arc<Dictionary>>>,
    staging_us: AtomicU64,
    retries: AtomicU64,
}

impl ChunkSink for Shared {
    fn add(&self, chunk: &DeviceChunk) -> kernels::error::Result<()> {
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        run.add_copied(chunk)
    }
}

impl Job {
    async fn run(self, context: &Arc<TaskContext>) -> Result<(Finished, PipelineReport), Failure> {
        let (device, pipeline) = (&self.device, &self.pipeline);
        let late = pipeline.late.values()?;
        let aggregate = pipeline.aggregate.map(&|expr| expr.with_late(&late));
        let columns = aggregate.columns();
        let (joined, codes) = (&pipeline.joined, &pipeline.codes);
        let tables = tables(joined, &columns, codes, &late, device, context).await?;
        let wanted = Codes::wanted(&columns, 0);
        let run = AggregateRun::new(
            Arc::clone(&device.gpu),
            Arc::clone(&device.jit),
            &device.pinned,
            aggregate,
            Arc::clone(&pipeline.known),
        )?
        .with_tables(tables.tables);
        let mut texts = tables.texts;
        texts.extend(codes.fixed_texts());
        let mut report = PipelineReport {
            operators: pipeline.operators.clone(),
            device: device.name(),
            staging_ms: tables.staging_ms,
            ..PipelineReport::default()
        };
        let run = if is_whole(&pipeline.source, device) || codes.any_ordered() {
            let known = Arc::clone(&pipeline.known);
            let rows = relation(&pipeline.source, wanted, codes, known, device, context).await?;
            texts.extend(rows.texts);
            report.staging_ms += rows.staging_ms;
            add_counts(&mut report, rows.counts, device);
            let permit = device.admission.acquire().await;
            let (rows, mut run) = (rows.rows, run);
            blocking(move || {
                let _permit = permit;
                run.add_all(&rows)?;
                Ok(run)
            })
            .await?
        } else {
            self.stream(run, wanted, context, &mut texts, &mut report)
                .await?
        };
        report.kernel = run.kernel_name().unwrap_or_default().to_string();
        let device = self.device.clone();
        let (finished, counts) = blocking(move || {
            let mut run = run;
            if run.is_on_device() {
                let left = self.left(&mut run, texts)?;
                let finished = match left.n_rows() {
                    0 if !self.pipeline.sets_without_keys.is_empty() => {
                        Finished::Batch(of_no_rows(&self.pipeline, &self.schema)?)
                    }
                    _ => Finished::Left(Box::new(left)),
                };
                return Ok((finished, run.counts()));
            }
            let (groups, counts) = run.finish()?;
            let batch = self.finish(&groups, &texts)?;
            Ok((Finished::Batch(batch), counts))
        })
        .await?;
        add_counts(&mut report, counts.and(&tables.counts), &device);
        report.rows_out = match &finished {
            Finished::Batch(batch) => batch.num_rows() as u64,
            Finished::Left(left) => left.n_rows() as u64,
        };
        Ok((finished, report))
    }

    /// The groups as columns that stay on the device.
    fn left(&self, run: &mut AggregateRun, texts: Texts) -> Result<Left, Failure> {
        let n_keys = self.pipeline.aggregate.keys.len();
        let mut columns = Vec::new();
        let mut outputs = Vec::new();
        for (index, field) in self.schema.fields().iter().enumerate() {
            let output = match index.checked_sub(n_keys) {
                None => GroupOutput::Key {
                    key: index,
                    range: None,
                },
                Some(output) => match self.pipeline.outputs[output] {
                    Output::Value(call) | Output::Text { call, .. } => GroupOutput::Call(call),
                    Output::Average { sum, count, scale } => {
                        GroupOutput::Average { sum, count, scale }
                    }
                    Output::Spread { call, spread } => GroupOutput::Spread { call, spread },
                },
            };
            let of_output =
                index
                    .checked_sub(n_keys)
                    .and_then(|output| match self.pipeline.outputs[output] {
                        Output::Text { codes, .. } => Some(codes),
                        _ => None,
                    });
            let of_key = self.pipeline.key_codes.get(index).copied().flatten();
            let codes = of_key.or(of_output);
            outputs.push(match codes {
                Some(codes) => {
                    columns.push((output, Type::Int(IntWidth::W32)));
                    Taken::Text {
                        computed: index,
                        codes,
                    }
                }
                None => {
                    let ty = type_of(field.data_type()).map_err(|e| internal(e.message))?;
                    columns.push((output, ty));
                    Taken::Computed(index)
                }
            });
        }
        let chunk = run.columns(&columns)?;
        Ok(Left::new(chunk, outputs, Arc::clone(&self.schema), texts))
    }

    /// Adds the source chunk by chunk, all its partitions at the same time.
    async fn stream(
        &self,
        run: AggregateRun,
        wanted: Vec<(usize, Wanted)>,
        context: &Arc<TaskContext>,
        texts: &mut Texts,
        report: &mut PipelineReport,
    ) -> Result<AggregateRun, Failure> {
        let (device, pipeline) = (&self.device, &self.pipeline);
        let of_codes = wanted.iter().filter_map(|(_, wanted)| match wanted {
            Wanted::Codes(number) => Some((*number, Arc::default())),
            Wanted::Own(_) => None,
        });
        let shared = Arc::new(Shared {
            run: Mutex::new(run),
            dictionaries: Arc::new(of_codes.collect()),
            staging_us: AtomicU64::new(0),
            retries: AtomicU64::new(0),
        });
        let (source, codes) = (without_exchange(&pipeline.source), &pipeline.codes);
        match scan::open(source, &wanted, codes, device, context).await? {
            Some(scan) => {
                let known = Arc::clone(&pipeline.known);
                let texts = &shared.dictionaries;
                let sink = Arc::clone(&shared) as Arc<dyn ChunkSink>;
                let counts = scan.stream(codes, known, texts, device, context, sink);
                add_counts(report, counts.await?, device);
            }
            None => {
                feed(&pipeline.source, context, device, || {
                    Partition::new(device, pipeline, &wanted, &shared)
                })
                .await?;
            }
        }
        let shared = Arc::into_inner(shared)
            .ok_or_else(|| DataFusionError::Internal("a partition is still running".into()))?;
        let own = shared.dictionaries.iter();
        texts.extend(own.map(|(number, texts)| (*number, texts.texts())));
        report.staging_ms += shared.staging_us.into_inner() as f64 / 1e3;
        report.retries += shared.retries.into_inner();
        Ok(shared
            .run
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner))
    }

    /// The result's columns: keys, then one for each output.
    fn finish(&self, groups: &Groups, texts: &Texts) -> Result<RecordBatch> {
        if groups.is_empty() && !self.pipeline.sets_without_keys.is_empty() {
            return of_no_rows(&self.pipeline, &self.schema);
        }
        let n_keys = self.pipeline.aggregate.keys.len();
        let mut columns: Vec<ArrayRef> = Vec::new();
        for (index, field) in self.schema.fields().iter().enumerate() {
            let data_type = field.data_type();
            let dictionary = (index < n_keys)
                .then(|| self.pipeline.key_codes[index].and_then(|c| texts.get(&c)))
                .flatten();
            let numbers = 0..groups.len();
            columns.push(match dictionary {
                Some(dictionary) => {
                    let texts = numbers.map(|group| text(groups.key(index, group), dictionary));
                    let texts: ArrayRef = Arc::new(texts.collect::<Result<StringArray>>()?);
                    cast(&texts, data_type)?
                }
                None if index < n_keys => {
                    finish::column(numbers.map(|group| Ok(groups.key(index, group))), data_type)?
                }
                None => {
                    let output = &self.pipeline.outputs[index - n_keys];
                    self.output(output, groups, texts, data_type)?
                }
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(groups.len()));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.schema),
            columns,
            &options,
        )?)
    }

    fn output(
        &self,
        output: &Output,
        groups: &Groups,
        texts: &Texts,
        data_type: &DataType,
    ) -> Result<ArrayRef> {
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
            Output::Text { call, codes } => {
                let none = StringArray::new_null(0);
                let own = texts.get(codes).unwrap_or(&none);
                let found = numbers.map(|group| text(number(*call, group)?, own));
                let found: ArrayRef = Arc::new(found.collect::<Result<StringArray>>()?);
                Ok(cast(&found, data_type)?)
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
            Output::Spread { call, spread } => {
                let spreads = numbers.map(|group| finish::spread(number(*call, group)?, *spread));
                finish::column(spreads, data_type)
            }
        }
    }
}

/// The text of a dictionary code.
fn text(code: Option<Number>, texts: &StringArray) -> Result<Option<&str>> {
    match code {
        None => Ok(None),
        Some(Number::Integer(code)) => match usize::try_from(code) {
            Ok(code) if code < texts.len() => Ok(Some(texts.value(code))),
            _ => Err(DataFusionError::Internal(format!(
                "dictionary code {code} does not exist"
            ))),
        },
        Some(Number::Float(_) | Number::Moments(_)) => Err(DataFusionError::Internal(
            "a dictionary code is a whole number".into(),
        )),
    }
}

/// A chunk of this many rows is not split further when device memory is short.
const SPLIT_ROWS_MIN: usize = 1 << 10;

/// The chunks of one partition: codes for text keys, layout, copy, launch.
struct Partition {
    shared: Arc<Shared>,
    loader: Loader,
    device: Device,
    known: Arc<HashMap<usize, Range>>,
    /// The columns and their numbers on the device.
    wanted: Vec<(usize, Wanted)>,
    /// What the codes of each number stand for.
    encoders: HashMap<usize, (DerivedText, Encoder)>,
}

impl Partition {
    fn new(
        device: &Device,
        pipeline: &AggregatePipeline,
        wanted: &[(usize, Wanted)],
        shared: &Arc<Shared>,
    ) -> Result<Partition, Failure> {
        let encoders = shared.dictionaries.iter().map(|(number, dictionary)| {
            let text = pipeline.codes.text(*number)?;
            Ok((*number, (text, Encoder::new(dictionary))))
        });
        Ok(Partition {
            shared: Arc::clone(shared),
            loader: Loader::new(&device.gpu, &device.pinned, Vec::new(), Arc::default())?,
            device: device.clone(),
            known: Arc::clone(&pipeline.known),
            wanted: wanted.to_vec(),
            encoders: encoders.collect::<Result<_>>()?,
        })
    }

    /// Lays the columns out, with the codes of text keys.
    fn stage(&mut self, chunk: &RecordBatch) -> Result<StagedBatch, Failure> {
        let mut columns = HashMap::new();
        for (number, wanted) in &self.wanted {
            let staged = match wanted {
                Wanted::Own(index) => stage(chunk.column(*index), self.known.get(index).copied()),
                Wanted::Codes(of) => {
                    let (text, encoder) = self
                        .encoders
                        .get_mut(of)
                        .ok_or_else(|| internal(format!("codes {of} have no texts")))?;
                    stage(&encode(encoder, text, chunk.column(text.column))?, None)
                }
            };
            let staged = staged.map_err(|e| kernels::error::Error::Unsupported(e.message))?;
            columns.insert(*number, staged);
        }
        Ok(StagedBatch::new(columns, chunk.num_rows()))
    }

    fn staged(&mut self, chunk: &RecordBatch) -> Result<StagedBatch, Failure> {
        let started = Instant::now();
        let staged = self.stage(chunk)?;
        let staging_us = started.elapsed().as_micros() as u64;
        self.shared
            .staging_us
            .fetch_add(staging_us, Ordering::Relaxed);
        Ok(staged)
    }

    /// Adds a chunk; in halves when device memory is short.
    fn add_split(&mut self, chunk: &RecordBatch, staged: StagedBatch) -> Result<(), Failure> {
        let error = match self.add_staged(&staged) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        drop(staged);
        let n_rows = chunk.num_rows();
        if error.out_of_memory().is_none() || n_rows <= SPLIT_ROWS_MIN {
            return Err(error.into());
        }
        self.shared.retries.fetch_add(1, Ordering::Relaxed);
        let half = n_rows / 2;
        for part in [chunk.slice(0, half), chunk.slice(half, n_rows - half)] {
            let staged = self.staged(&part)?;
            self.add_split(&part, staged)?;
        }
        Ok(())
    }

    fn add_staged(&mut self, staged: &StagedBatch) -> kernels::error::Result<()> {
        let _reserved = self.device.reserve(staged.bytes())?;
        let copied = self.loader.upload(staged)?;
        let mut run = self
            .shared
            .run
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        run.add_copied(&copied)
    }
}

impl Consumer for Partition {
    type LaidOut = (RecordBatch, StagedBatch);

    fn lay_out(&mut self, chunk: RecordBatch) -> Result<Self::LaidOut, Failure> {
        let staged = self.staged(&chunk)?;
        Ok((chunk, staged))
    }

    fn add(&mut self, (chunk, staged): Self::LaidOut) -> Result<(), Failure> {
        self.add_split(&chunk, staged)
    }
}
