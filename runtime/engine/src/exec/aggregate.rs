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
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions, reset_plan_states,
};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use kernels::codegen::GroupOutput;
use kernels::columns::{DeviceChunk, stage, type_of};
use kernels::ir::{Aggregate, Build, IntWidth, Range, Spread, Step, Type};
use kernels::launch::{AggregateRun, Groups, JoinTable, Loader, Number, RunCounts, StagedBatch};

use super::codes::{Codes, Texts, Wanted, encode, internal};
use super::collect::{Left, Taken};
use super::dictionary::{Dictionary, Encoder};
use super::failure::{Failure, add_counts, add_slices, is_out_of_memory};
use super::feed::{Consumer, feed};
use super::held::Held;
use super::no_rows::of_no_rows;
use super::original::{Original, Outcome, only_partition};
use super::relation::{HostRows, Place, SourceRows, blocking, is_whole, relation, tables};
use super::scan::{self, ChunkSink};
use super::slices::{HostInputs, Inputs, Passes, Slices, rows_of, taken, without_run};
use super::spill::Spill;
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
            let rows = node.run_on_device(&task).await?;
            rows.stream(usize::MAX).await
        };
        Ok(self.original.or_stream(rows, context))
    }
}

/// One execution: plain data, moved into the task that runs it.
struct Job {
    device: Device,
    schema: SchemaRef,
    pipeline: AggregatePipeline,
    spill: Arc<Spill>,
}

impl GpuAggregateExec {
    /// Computes the groups; many of them stay on the device.
    pub fn run_on_device<'a>(
        &'a self,
        context: &'a Arc<TaskContext>,
    ) -> BoxFuture<'a, Result<SourceRows, Failure>> {
        let job = Job {
            device: self.device.clone(),
            schema: self.schema(),
            pipeline: self.pipeline.clone(),
            spill: Spill::new(context),
        };
        // Boxed: a source of this node may be a node of its kind.
        async move {
            let (rows, report) = job.run(context).await?;
            self.original.record(Outcome::Ran(report));
            Ok(rows)
        }
        .boxed()
    }
}

/// What the partitions of one execution share.
struct Shared {
    /// What chunks are added to; without it they are gathered.
    run: Option<Mutex<AggregateRun>>,
    gathered: Mutex<Vec<StagedBatch>>,
    spill: Arc<Spill>,
    dictionaries: Arc<BTreeMap<usize, Arc<Dictionary>>>,
    staging_us: AtomicU64,
    retries: AtomicU64,
}

impl Shared {
    fn new(
        run: Option<AggregateRun>,
        wanted: &[(usize, Wanted)],
        spill: &Arc<Spill>,
    ) -> Arc<Shared> {
        let of_codes = wanted.iter().filter_map(|(_, wanted)| match wanted {
            Wanted::Codes(number) => Some((*number, Arc::default())),
            Wanted::Own(_) => None,
        });
        Arc::new(Shared {
            run: run.map(Mutex::new),
            gathered: Mutex::default(),
            spill: Arc::clone(spill),
            dictionaries: Arc::new(of_codes.collect()),
            staging_us: AtomicU64::new(0),
            retries: AtomicU64::new(0),
        })
    }

    /// Keeps a chunk that is not added yet.
    fn gather(&self, staged: StagedBatch) -> Result<(), Failure> {
        let staged = self.spill.keep_staged(staged)?;
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        gathered.push(staged);
        Ok(())
    }

    /// What all partitions made, when none is running any more.
    fn end(
        self: Arc<Shared>,
        texts: &mut Texts,
        report: &mut PipelineReport,
    ) -> Result<(Option<AggregateRun>, Vec<StagedBatch>), Failure> {
        let shared =
            Arc::into_inner(self).ok_or_else(|| internal("a partition is still running".into()))?;
        let own = shared.dictionaries.iter();
        texts.extend(own.map(|(number, texts)| (*number, texts.texts())));
        report.staging_ms += shared.staging_us.into_inner() as f64 / 1e3;
        report.retries += shared.retries.into_inner();
        let run = shared.run.map(Mutex::into_inner);
        let gathered = shared.gathered.into_inner();
        Ok((
            run.map(|run| run.unwrap_or_else(PoisonError::into_inner)),
            gathered.unwrap_or_else(PoisonError::into_inner),
        ))
    }
}

impl ChunkSink for Shared {
    fn add(&self, chunk: &DeviceChunk) -> Result<(), Failure> {
        let Some(run) = &self.run else {
            return self.gather(StagedBatch::of_device(chunk)?);
        };
        let mut run = run.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(run.add_copied(chunk)?)
    }
}

/// What became of the rows of an aggregate.
enum Added {
    /// All of them are in the groups of a run.
    All(Box<AggregateRun>),
    /// They did not fit.
    Not(HostInputs),
}

/// Adds all rows at once, if everything is on the device and there is room for the groups.
fn add_whole(mut run: AggregateRun, inputs: Inputs, spill: &Spill) -> Result<Added, Failure> {
    let (tables, source) = match inputs {
        Inputs::OnDevice { tables, source } => (tables, source),
        Inputs::OnHost(inputs) => return Ok(Added::Not(inputs)),
    };
    run = run.with_tables(tables);
    match run.add_all(&source) {
        Ok(()) => Ok(Added::All(Box::new(run))),
        Err(error) if !error.ran_short() => Err(error.into()),
        Err(_) => {
            let tables = run.take_tables();
            // The groups go first.
            drop(run);
            Ok(Added::Not(HostInputs {
                relations: rows_of(tables, spill)?,
                source: vec![Held::Rows(source).into_host(spill)?],
            }))
        }
    }
}

/// Passes over parts of the rows: the groups of each slice come home.
struct AggregatePasses<'a> {
    job: &'a Job,
    aggregate: &'a Aggregate,
    texts: &'a Texts,
    run: Option<AggregateRun>,
    batches: Vec<RecordBatch>,
    kernel: String,
    counts: RunCounts,
}

impl AggregatePasses<'_> {
    fn run(&mut self) -> Result<&mut AggregateRun, Failure> {
        self.run.as_mut().ok_or_else(without_run)
    }
}

impl Passes for AggregatePasses<'_> {
    fn start(&mut self) -> Result<(), Failure> {
        self.run = Some(self.job.new_run(self.aggregate)?);
        Ok(())
    }

    fn pass(&mut self, steps: Vec<Step>, tables: Vec<JoinTable>) -> Result<(), Failure> {
        self.run()?.go_on_with(steps, tables);
        Ok(())
    }

    fn piece(&mut self, piece: DeviceChunk) -> Result<(), Failure> {
        Ok(self.run()?.add_resident(&piece)?)
    }

    fn can_split(&self) -> bool {
        // Some of its rows may be in their groups.
        false
    }

    fn end_pass(&mut self) -> Vec<JoinTable> {
        self.run
            .as_mut()
            .map(AggregateRun::take_tables)
            .unwrap_or_default()
    }

    fn finish(&mut self) -> Result<(), Failure> {
        let run = self.run.take().ok_or_else(without_run)?;
        self.kernel = run.kernel_name().unwrap_or(&self.kernel).to_string();
        let mut run = run;
        let batch = if run.is_on_device() {
            let (batch, counts) = match self.job.left(&mut run, self.texts.clone()) {
                Err(failure) if is_out_of_memory(&failure) => self.job.home(run, self.texts)?,
                left => (left?.batch()?, run.counts()),
            };
            self.counts = self.counts.and(&counts);
            batch
        } else {
            let (groups, counts) = run.finish()?;
            self.counts = self.counts.and(&counts);
            self.job.batch(&groups, self.texts)?
        };
        if batch.num_rows() > 0 {
            self.batches.push(self.job.spill.keep_batch(batch)?);
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.run = None;
        self.batches.clear();
    }
}

impl Job {
    async fn run(
        self,
        context: &Arc<TaskContext>,
    ) -> Result<(SourceRows, PipelineReport), Failure> {
        let (device, pipeline) = (&self.device, &self.pipeline);
        let late = pipeline.late.values()?;
        let aggregate = pipeline.aggregate.map(&|expr| expr.with_late(&late));
        let columns = aggregate.columns();
        let (joined, codes) = (&pipeline.joined, &pipeline.codes);
        let place = Place {
            device,
            spill: &self.spill,
            context,
        };
        let tables = tables(joined, &columns, codes, &late, place).await?;
        let wanted = Codes::wanted(&columns, 0);
        let mut texts = tables.texts;
        texts.extend(codes.fixed_texts());
        let mut report = PipelineReport {
            operators: pipeline.operators.clone(),
            device: device.name(),
            staging_ms: tables.staging_ms,
            ..PipelineReport::default()
        };
        add_counts(&mut report, tables.counts, device);
        let done = if is_whole(&pipeline.source, device) || codes.any_ordered() {
            let known = Arc::clone(&pipeline.known);
            let rows = relation(&pipeline.source, wanted, codes, known, place).await?;
            texts.extend(rows.texts);
            report.staging_ms += rows.staging_ms;
            add_counts(&mut report, rows.counts, device);
            let rows = device.waiting.park(rows.rows, &self.spill);
            let permit = device.admission.acquire().await;
            let (device, spill) = (device.clone(), Arc::clone(&self.spill));
            let (run, own) = (self.new_run(&aggregate)?, tables.tables);
            blocking(move || {
                let _permit = permit;
                let inputs = Inputs::of(own, rows, &device, &spill)?;
                add_whole(run, inputs, &spill)
            })
            .await?
        } else {
            match taken(tables.tables, device, &self.spill)? {
                Ok(own) => {
                    let run = self.new_run(&aggregate)?.with_tables(own);
                    self.stream(run, wanted, context, &mut texts, &mut report)
                        .await?
                }
                Err(relations) => {
                    let source = &pipeline.source;
                    let source = self
                        .gather(source, wanted, context, &mut texts, &mut report)
                        .await?;
                    Added::Not(HostInputs { source, relations })
                }
            }
        };
        let builds = tables.builds;
        let device = device.clone();
        let permit = match &done {
            Added::All(_) => None,
            Added::Not(_) => Some(device.admission.acquire().await),
        };
        blocking(move || {
            let _permit = permit;
            let rows = match done {
                Added::All(run) => {
                    report.kernel = run.kernel_name().unwrap_or_default().to_string();
                    let (rows, counts) = self.finished(*run, texts)?;
                    add_counts(&mut report, counts, &self.device);
                    rows
                }
                Added::Not(inputs) => {
                    self.in_slices(&aggregate, &builds, &inputs, &texts, &mut report)?
                }
            };
            report.rows_out = match &rows {
                SourceRows::Left(left) => left.n_rows() as u64,
                SourceRows::Host(host) => host.n_rows() as u64,
                SourceRows::Stream => 0,
            };
            Ok((rows, report))
        })
        .await
    }

    fn new_run(&self, aggregate: &Aggregate) -> Result<AggregateRun, Failure> {
        let device = &self.device;
        Ok(AggregateRun::new(
            Arc::clone(&device.gpu),
            Arc::clone(&device.jit),
            &device.pinned,
            aggregate.clone(),
            Arc::clone(&self.pipeline.known),
        )?)
    }

    /// The groups of a run that has seen all rows; many of them stay on the device.
    fn finished(
        &self,
        mut run: AggregateRun,
        texts: Texts,
    ) -> Result<(SourceRows, RunCounts), Failure> {
        if run.is_on_device() {
            let rows = match self.left(&mut run, texts.clone()) {
                Ok(left) if left.n_rows() > 0 => SourceRows::Left(Box::new(left)),
                Ok(_) if !self.pipeline.sets_without_keys.is_empty() => self.no_rows()?,
                Ok(left) => SourceRows::Left(Box::new(left)),
                Err(failure) if is_out_of_memory(&failure) => {
                    let (batch, counts) = self.home(run, &texts)?;
                    let batch = self.spill.keep_batch(batch)?;
                    let rows = HostRows::kept(vec![batch], Arc::clone(&self.spill));
                    return Ok((SourceRows::Host(rows), counts));
                }
                Err(failure) => return Err(failure),
            };
            return Ok((rows, run.counts()));
        }
        let (groups, counts) = run.finish()?;
        let rows = match groups.is_empty() && !self.pipeline.sets_without_keys.is_empty() {
            true => self.no_rows()?,
            false => SourceRows::Host(HostRows::one(self.batch(&groups, &texts)?)),
        };
        Ok((rows, counts))
    }

    fn no_rows(&self) -> Result<SourceRows> {
        let batch = of_no_rows(&self.pipeline, &self.schema)?;
        Ok(SourceRows::Host(HostRows::one(batch)))
    }

    /// The groups of rows that do not fit the device at once.
    fn in_slices(
        &self,
        aggregate: &Aggregate,
        builds: &[Build],
        inputs: &HostInputs,
        texts: &Texts,
        report: &mut PipelineReport,
    ) -> Result<SourceRows, Failure> {
        let mut passes = AggregatePasses {
            job: self,
            aggregate,
            texts,
            run: None,
            batches: Vec::new(),
            kernel: String::new(),
            counts: RunCounts::default(),
        };
        let slices = Slices {
            device: &self.device,
            spill: &self.spill,
            inputs,
            builds,
            steps: &aggregate.steps,
            group_keys: &aggregate.keys,
        };
        let sliced = slices.run(&mut passes)?;
        report.kernel = passes.kernel;
        add_counts(report, passes.counts, &self.device);
        add_slices(report, &sliced, &self.spill, &self.device);
        let rows = HostRows::kept(passes.batches, Arc::clone(&self.spill));
        match rows.n_rows() == 0 && !self.pipeline.sets_without_keys.is_empty() {
            true => Ok(self.no_rows()?),
            false => Ok(SourceRows::Host(rows)),
        }
    }

    /// The groups as columns that stay on the device.
    fn left(&self, run: &mut AggregateRun, texts: Texts) -> Result<Left, Failure> {
        let (columns, outputs) = self.columns()?;
        let chunk = run.columns(&columns)?;
        Ok(Left::new(chunk, outputs, Arc::clone(&self.schema), texts))
    }

    /// The groups on the host: one column of them at a time, or as they stand in their table
    /// if the device has no room for one either.
    fn home(
        &self,
        mut run: AggregateRun,
        texts: &Texts,
    ) -> Result<(RecordBatch, RunCounts), Failure> {
        match self.one_by_one(&mut run, texts) {
            Err(failure) if is_out_of_memory(&failure) && run.has_table() => {
                let (groups, counts) = run.finish()?;
                Ok((self.batch(&groups, texts)?, counts))
            }
            batch => Ok((batch?, run.counts())),
        }
    }

    fn one_by_one(&self, run: &mut AggregateRun, texts: &Texts) -> Result<RecordBatch, Failure> {
        let (columns, outputs) = self.columns()?;
        let mut arrays = Vec::new();
        for (index, output) in outputs.iter().enumerate() {
            let output = match output {
                Taken::Text { codes, .. } => Taken::Text {
                    computed: 0,
                    codes: *codes,
                },
                _ => Taken::Computed(0),
            };
            let chunk = run.columns(&columns[index..=index])?;
            let schema = Arc::new(self.schema.project(&[index])?);
            let column = Left::new(chunk, vec![output], schema, texts.clone());
            arrays.push(column.array(0)?);
        }
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), arrays)?)
    }

    /// The columns of the groups, and how the node's are made of them.
    #[allow(clippy::type_complexity)]
    fn columns(&self) -> Result<(Vec<(GroupOutput, Type)>, Vec<Taken>), Failure> {
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
        Ok((columns, outputs))
    }

    /// Adds the source chunk by chunk, all its partitions at the same time. When memory runs
    /// out in the middle, the source is read again.
    async fn stream(
        &self,
        run: AggregateRun,
        wanted: Vec<(usize, Wanted)>,
        context: &Arc<TaskContext>,
        texts: &mut Texts,
        report: &mut PipelineReport,
    ) -> Result<Added, Failure> {
        let source = &self.pipeline.source;
        let shared = Shared::new(Some(run), &wanted, &self.spill);
        let fed = self.read(source, &wanted, context, &shared, report).await;
        let (run, _) = shared.end(texts, report)?;
        let mut run = run.ok_or_else(|| internal("a stream without its run".into()))?;
        match fed {
            Ok(()) => Ok(Added::All(Box::new(run))),
            Err(failure) if is_out_of_memory(&failure) => {
                let tables = run.take_tables();
                // The groups go first.
                drop(run);
                let relations = rows_of(tables, &self.spill)?;
                let again = reset_plan_states(Arc::clone(source))?;
                let source = self.gather(&again, wanted, context, texts, report).await?;
                Ok(Added::Not(HostInputs { source, relations }))
            }
            Err(failure) => Err(failure),
        }
    }

    /// The source on the host, laid out chunk by chunk. It may have been read before.
    async fn gather(
        &self,
        source: &Arc<dyn ExecutionPlan>,
        wanted: Vec<(usize, Wanted)>,
        context: &Arc<TaskContext>,
        texts: &mut Texts,
        report: &mut PipelineReport,
    ) -> Result<Vec<StagedBatch>, Failure> {
        let mut shared = Shared::new(None, &wanted, &self.spill);
        let mut read = self.read(source, &wanted, context, &shared, report).await;
        if let Err(failure) = &read
            && is_out_of_memory(failure)
        {
            // A row group may be more than the device has room for.
            shared = Shared::new(None, &wanted, &self.spill);
            read = feed(source, context, &self.device, || {
                Partition::new(self, &wanted, &shared)
            })
            .await;
        }
        read?;
        let (_, gathered) = shared.end(texts, report)?;
        Ok(gathered)
    }

    /// Reads a source chunk by chunk, on the device if it can. Nothing runs any more when this
    /// returns.
    async fn read(
        &self,
        source: &Arc<dyn ExecutionPlan>,
        wanted: &[(usize, Wanted)],
        context: &Arc<TaskContext>,
        shared: &Arc<Shared>,
        report: &mut PipelineReport,
    ) -> Result<(), Failure> {
        let (device, codes) = (&self.device, &self.pipeline.codes);
        match scan::open(without_exchange(source), wanted, codes, device, context).await? {
            Some(scan) => {
                let known = Arc::clone(&self.pipeline.known);
                let texts = &shared.dictionaries;
                let sink = Arc::clone(shared) as Arc<dyn ChunkSink>;
                let counts = scan.stream(codes, known, texts, device, context, sink);
                add_counts(report, counts.await?, device);
                Ok(())
            }
            None => {
                feed(source, context, device, || {
                    Partition::new(self, wanted, shared)
                })
                .await
            }
        }
    }

    /// The result's columns: keys, then one for each output.
    fn batch(&self, groups: &Groups, texts: &Texts) -> Result<RecordBatch> {
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
    known: Arc<HashMap<usize, Range>>,
    /// The columns and their numbers on the device.
    wanted: Vec<(usize, Wanted)>,
    /// What the codes of each number stand for.
    encoders: HashMap<usize, (DerivedText, Encoder)>,
}

impl Partition {
    fn new(
        job: &Job,
        wanted: &[(usize, Wanted)],
        shared: &Arc<Shared>,
    ) -> Result<Partition, Failure> {
        let (device, pipeline) = (&job.device, &job.pipeline);
        let encoders = shared.dictionaries.iter().map(|(number, dictionary)| {
            let text = pipeline.codes.text(*number)?;
            Ok((*number, (text, Encoder::new(dictionary))))
        });
        Ok(Partition {
            shared: Arc::clone(shared),
            loader: Loader::new(&device.gpu, &device.pinned, Vec::new(), Arc::default())?,
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
        let Some(run) = &self.shared.run else {
            return Err(kernels::error::Error::Internal(
                "chunks are gathered".into(),
            ));
        };
        let copied = self.loader.upload(staged)?;
        let mut run = run.lock().unwrap_or_else(PoisonError::into_inner);
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
        if self.shared.run.is_some() {
            return self.add_split(&chunk, staged);
        }
        self.shared.gather(staged)
    }
}
