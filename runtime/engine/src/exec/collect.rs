//! Filter, project and join as one GPU pipeline that gives rows back.
//!
//! Streamed, when there is no join and the rows come from the host:
//!
//! ```text
//!   source partition (CPU plan)
//!      | record batches, gathered to chunks
//!   device: which rows pass, and what is computed for them
//!      | row numbers, computed columns
//!   host: takes passed-through columns from the chunk it still has
//!      | record batches, in the source's order
//! ```
//!
//! Columns that are only passed through never leave the host, so they may have any
//! Arrow type. Each partition of the source is one of the node. A chunk's rows are
//! emitted when the chunk is done; from any chunk on the CPU can take over.
//!
//! Whole, when there are joins, or when another GPU node reads the result:
//!
//! ```text
//!   relations 1.. ── tables ─┐
//!   source, all rows ────────┴─ device: all output columns ─┬─ stay there
//!                                                           └─ record batches
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringArray, UInt32Array};
use arrow::compute::{cast, concat_batches, take};
use arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::stream::{
    EmptyRecordBatchStream, RecordBatchReceiverStream, RecordBatchStreamAdapter,
};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PhysicalExpr, PlanProperties,
};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use kernels::columns::{DeviceChunk, DeviceColumn, read_column, stage, type_of};
use kernels::gpu::Stream;
use kernels::ir::{Build, Collect, Expr, IntWidth, RELATION_COLUMNS, Range, Step, Type};
use kernels::launch::{CollectRun, JoinTable, Loader, RunCounts, StagedBatch};
use tokio::sync::mpsc::Sender;

use super::codes::{Codes, Texts, internal};
use super::failure::{Failure, add_counts, add_slices};
use super::feed::CHUNK_ROWS;
use super::held::Held;
use super::original::{Original, Outcome};
use super::relation::{HostRows, Place, SourceRows, blocking, is_whole, relation, tables, text_of};
use super::rest::run_over;
use super::scan;
use super::slices::{HostInputs, Inputs, Passes, Slices, rows_of, without_run};
use super::sort::ranks_of;
use super::spill::Spill;
use super::{Device, replaced};
use crate::lower::{Joined, LateValues};
use crate::report::{PipelineReport, Reason};

/// Where one output column comes from.
#[derive(Debug, Clone)]
pub enum Taken {
    /// A column of the source, taken on the host.
    Source(usize),
    /// The same value in every row.
    Constant(ScalarValue),
    /// An output of the pipeline.
    Computed(usize),
    /// Text whose codes are an output of the pipeline.
    Text {
        /// The output.
        computed: usize,
        /// The number of the codes.
        codes: usize,
    },
}

/// What the device computes, and how the node's columns are made of it.
#[derive(Debug, Clone)]
pub struct CollectForm {
    /// What is computed.
    pub collect: Collect,
    /// Where each output column comes from.
    pub outputs: Vec<Taken>,
}

/// What a collect node computes, lowered.
#[derive(Debug, Clone)]
pub struct CollectPipeline {
    /// Where it reads from.
    pub source: Arc<dyn ExecutionPlan>,
    /// What it probes.
    pub joined: Vec<Joined>,
    /// Partition by partition, if it can be: without joins.
    pub streamed: Option<CollectForm>,
    /// All rows at once with every column from the device, if every column has a device
    /// form.
    pub whole: Option<CollectForm>,
    /// Text columns that the whole form has codes of.
    pub codes: Codes,
    /// Constants that are known when it starts.
    pub late: LateValues,
    /// The most rows of a partition.
    pub fetch: Option<usize>,
    /// How many nodes of the CPU subtree stand above the source, when it is streamed.
    pub depth: usize,
    /// The operators in the pipeline, top first.
    pub operators: Vec<String>,
    /// What statistics prove about source columns.
    pub known: Arc<HashMap<usize, Range>>,
}

/// Filters, projections and joins that run on the GPU.
#[derive(Debug, Clone)]
pub struct GpuCollectExec {
    device: Device,
    original: Original,
    pipeline: CollectPipeline,
    properties: Arc<PlanProperties>,
}

impl GpuCollectExec {
    /// A node that computes what `original` computes, partition by partition.
    pub fn new(
        device: Device,
        original: Arc<dyn ExecutionPlan>,
        pipeline: CollectPipeline,
        allow_fallback: bool,
    ) -> GpuCollectExec {
        let n_partitions = pipeline.source.output_partitioning().partition_count();
        let properties = if pipeline.streamed.is_none() {
            PlanProperties::new(
                EquivalenceProperties::new(original.schema()),
                Partitioning::UnknownPartitioning(1),
                EmissionType::Final,
                Boundedness::Bounded,
            )
        } else if n_partitions == original.output_partitioning().partition_count() {
            // Rows keep their order and their partition, so what holds above does too.
            PlanProperties::new(
                original.equivalence_properties().clone(),
                original.output_partitioning().clone(),
                EmissionType::Incremental,
                Boundedness::Bounded,
            )
        } else {
            // Rows of the source were spread otherwise.
            PlanProperties::new(
                EquivalenceProperties::new(original.schema()),
                Partitioning::UnknownPartitioning(n_partitions),
                EmissionType::Incremental,
                Boundedness::Bounded,
            )
        };
        GpuCollectExec {
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

    /// Whether all its columns can stay on the device.
    pub fn has_device_form(&self) -> bool {
        self.pipeline.whole.is_some()
    }
}

impl DisplayAs for GpuCollectExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GpuCollectExec: operators=[{}]",
            self.pipeline.operators.join(", ")
        )?;
        match self.pipeline.fetch {
            Some(fetch) => write!(f, ", fetch={fetch}"),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for GpuCollectExec {
    fn name(&self) -> &str {
        "GpuCollectExec"
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

    fn maintains_input_order(&self) -> Vec<bool> {
        let mut kept = vec![false; 1 + self.pipeline.joined.len()];
        kept[0] = self.pipeline.streamed.is_some();
        kept
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
        Ok(Arc::new(GpuCollectExec::new(
            self.device.clone(),
            Arc::clone(self.original.plan()),
            CollectPipeline {
                source,
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
        // Sorted partitions one after another are not sorted.
        let source = &self.pipeline.source;
        let is_one = source.output_partitioning().partition_count() == 1;
        let is_whole = self.has_device_form()
            && is_whole(source, &self.device)
            && (is_one || source.output_ordering().is_none());
        let form = match &self.pipeline.streamed {
            Some(form) if !is_whole => form.clone(),
            _ => return self.execute_whole(partition, context),
        };
        scan::streamed(source, &self.device);
        let source = self.pipeline.source.output_partitioning().partition_count();
        let own = self.properties.output_partitioning().partition_count();
        if source != own {
            return Err(DataFusionError::Internal(format!(
                "GpuCollectExec has {own} partitions over {source}"
            )));
        }
        let job = Job {
            device: self.device.clone(),
            rows: self
                .pipeline
                .source
                .execute(partition, Arc::clone(&context))?,
            schema: self.schema(),
            late: self.pipeline.late.values()?,
            pipeline: self.pipeline.clone(),
            form,
            batch_rows: context.session_config().batch_size().max(1),
        };
        let original = self.original.clone();
        let depth = self.pipeline.depth;
        let mut builder = RecordBatchReceiverStream::builder(self.schema(), 2);
        let to = builder.tx();
        builder.spawn(async move {
            let (reason, rest) = match job.run(&to).await? {
                Ended::Done(report) => {
                    original.record(Outcome::Ran(report));
                    return Ok(());
                }
                Ended::Stopped(reason, rest) => (reason, rest),
            };
            original.take_over(reason)?;
            let mut left = rest.left;
            let mut rows = run_over(original.plan(), depth, rest.rows(), context)?;
            while left > 0
                && let Some(batch) = rows.next().await
            {
                let batch = batch.map(|batch| batch.slice(0, batch.num_rows().min(left)));
                left -= batch.as_ref().map_or(0, RecordBatch::num_rows);
                if to.send(batch).await.is_err() {
                    break;
                }
            }
            Ok(())
        });
        Ok(builder.build())
    }
}

impl GpuCollectExec {
    /// Computes all rows; they stay on the device if it has room for them.
    pub fn run_on_device<'a>(
        &'a self,
        context: &'a Arc<TaskContext>,
    ) -> BoxFuture<'a, Result<SourceRows, Failure>> {
        // Boxed: a source of this node may be a node of its kind.
        self.compute(context).boxed()
    }

    async fn compute(&self, context: &Arc<TaskContext>) -> Result<SourceRows, Failure> {
        let (device, pipeline) = (&self.device, &self.pipeline);
        let form = pipeline
            .whole
            .clone()
            .ok_or_else(|| internal("a collect without a device form".to_string()))?;
        let late = pipeline.late.values()?;
        let collect = form.collect.map(&|expr| expr.with_late(&late));
        let columns = collect.columns();
        let spill = Spill::new(context);
        let place = Place {
            device,
            spill: &spill,
            context,
        };
        let tables = tables(&pipeline.joined, &columns, &pipeline.codes, &late, place);
        let rows = async {
            let rows = relation(
                &pipeline.source,
                Codes::wanted(&columns, 0),
                &pipeline.codes,
                Arc::clone(&pipeline.known),
                place,
            );
            let rows = rows.await?;
            let parked = device.waiting.park(rows.rows, &spill);
            Ok((parked, rows.texts, rows.staging_ms, rows.counts))
        };
        let (tables, (rows, mut texts, staging_ms, counts)) =
            futures::future::try_join(tables, rows).await?;
        let permit = device.admission.acquire().await;
        texts.extend(tables.texts);
        texts.extend(pipeline.codes.fixed_texts());
        let mut report = PipelineReport {
            operators: pipeline.operators.clone(),
            device: device.name(),
            staging_ms: tables.staging_ms + staging_ms,
            ..PipelineReport::default()
        };
        add_counts(&mut report, tables.counts.and(&counts), device);
        let run = Whole {
            device: device.clone(),
            collect,
            outputs: form.outputs,
            schema: self.schema(),
            texts,
            fetch: pipeline.fetch,
            builds: tables.builds,
            spill,
        };
        let tables = tables.tables;
        let (rows, report) = blocking(move || {
            let _permit = permit;
            let inputs = Inputs::of(tables, rows, &run.device, &run.spill)?;
            run.run(inputs, report)
        })
        .await?;
        self.original.record(Outcome::Ran(report));
        Ok(rows)
    }

    fn execute_whole(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition > 0 {
            // All rows come from partition 0; a streamed form has as many as its source.
            return Ok(Box::pin(EmptyRecordBatchStream::new(self.schema())));
        }
        let batch_rows = context.session_config().batch_size().max(1);
        let (node, task) = (self.clone(), Arc::clone(&context));
        let rows = async move { node.run_on_device(&task).await?.stream(batch_rows).await };
        Ok(self.original.or_stream(rows, context))
    }
}

/// All rows at once: plain data, moved to the thread that runs it.
struct Whole {
    device: Device,
    collect: Collect,
    outputs: Vec<Taken>,
    schema: SchemaRef,
    texts: Texts,
    fetch: Option<usize>,
    builds: Vec<Build>,
    spill: Arc<Spill>,
}

impl Whole {
    fn run(
        self,
        inputs: Inputs,
        mut report: PipelineReport,
    ) -> Result<(SourceRows, PipelineReport), Failure> {
        let inputs = match inputs {
            Inputs::OnHost(inputs) => inputs,
            Inputs::OnDevice { tables, source } => {
                let mut run = self.pass(self.collect.steps.clone(), tables)?;
                match run.collect_to_device(&source) {
                    Ok(chunk) => {
                        report.kernel = run.kernel_name().unwrap_or_default().to_string();
                        add_counts(&mut report, run.counts(), &self.device);
                        let left = self.left(chunk);
                        report.rows_out = left.n_rows() as u64;
                        return Ok((SourceRows::Left(Box::new(left)), report));
                    }
                    Err(error) if !error.ran_short() => return Err(error.into()),
                    Err(_) => HostInputs {
                        relations: rows_of(run.into_tables(), &self.spill)?,
                        source: vec![Held::Rows(source).into_host(&self.spill)?],
                    },
                }
            }
        };
        let mut passes = CollectPasses {
            whole: &self,
            run: None,
            batches: Vec::new(),
            n_rows: 0,
            kernel: String::new(),
            counts: RunCounts::default(),
        };
        let slices = Slices {
            device: &self.device,
            spill: &self.spill,
            inputs: &inputs,
            builds: &self.builds,
            steps: &self.collect.steps,
            group_keys: &[],
        };
        let sliced = slices.run(&mut passes)?;
        report.kernel = passes.kernel;
        report.rows_out = passes.n_rows as u64;
        add_counts(&mut report, passes.counts, &self.device);
        add_slices(&mut report, &sliced, &self.spill, &self.device);
        let rows = HostRows::kept(passes.batches, Arc::clone(&self.spill));
        Ok((SourceRows::Host(rows), report))
    }

    fn pass(&self, steps: Vec<Step>, tables: Vec<JoinTable>) -> Result<CollectRun, Failure> {
        let (gpu, jit) = (Arc::clone(&self.device.gpu), Arc::clone(&self.device.jit));
        let collect = Collect {
            steps,
            outputs: self.collect.outputs.clone(),
        };
        let run = CollectRun::new(gpu, jit, &self.device.pinned, collect, Arc::default())?;
        Ok(run.with_tables(tables))
    }

    fn left(&self, chunk: DeviceChunk) -> Left {
        let (outputs, schema) = (self.outputs.clone(), Arc::clone(&self.schema));
        let mut left = Left::new(chunk, outputs, schema, self.texts.clone());
        left.n_rows = self
            .fetch
            .map_or(left.n_rows, |fetch| fetch.min(left.n_rows));
        left
    }
}

/// Passes over parts of the input: the rows of each come home.
struct CollectPasses<'a> {
    whole: &'a Whole,
    run: Option<CollectRun>,
    batches: Vec<RecordBatch>,
    n_rows: usize,
    kernel: String,
    counts: RunCounts,
}

impl Passes for CollectPasses<'_> {
    fn start(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn pass(&mut self, steps: Vec<Step>, tables: Vec<JoinTable>) -> Result<(), Failure> {
        self.run = Some(self.whole.pass(steps, tables)?);
        Ok(())
    }

    fn piece(&mut self, piece: DeviceChunk) -> Result<(), Failure> {
        let left = self
            .whole
            .fetch
            .map(|fetch| fetch.saturating_sub(self.n_rows));
        if left == Some(0) {
            return Ok(());
        }
        let run = self.run.as_mut().ok_or_else(without_run)?;
        let chunk = run.collect_to_device(&piece)?;
        drop(piece);
        if chunk.n_rows == 0 {
            return Ok(());
        }
        let batch = self.whole.left(chunk).batch()?;
        let batch = batch.slice(
            0,
            left.map_or(batch.num_rows(), |left| left.min(batch.num_rows())),
        );
        self.n_rows += batch.num_rows();
        self.batches.push(self.whole.spill.keep_batch(batch)?);
        Ok(())
    }

    fn can_split(&self) -> bool {
        true
    }

    fn end_pass(&mut self) -> Vec<JoinTable> {
        let Some(run) = self.run.take() else {
            return Vec::new();
        };
        self.counts = self.counts.and(&run.counts());
        self.kernel = run.kernel_name().unwrap_or(&self.kernel).to_string();
        run.into_tables()
    }

    fn finish(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn reset(&mut self) {
        self.run = None;
        self.batches.clear();
        self.n_rows = 0;
    }
}

/// What a collect left on the device.
#[derive(Debug)]
pub struct Left {
    /// The outputs of the pipeline.
    pub chunk: DeviceChunk,
    /// The texts of codes.
    pub texts: Texts,
    /// Time to lay columns out, milliseconds.
    pub staging_ms: f64,
    /// What was done since the node's own account.
    pub counts: RunCounts,
    n_rows: usize,
    outputs: Vec<Taken>,
    schema: SchemaRef,
}

impl Left {
    /// All rows of a chunk, whose columns are made of its columns as `outputs` say.
    pub fn new(chunk: DeviceChunk, outputs: Vec<Taken>, schema: SchemaRef, texts: Texts) -> Left {
        Left {
            n_rows: chunk.n_rows,
            counts: RunCounts::default(),
            staging_ms: 0.0,
            outputs,
            schema,
            texts,
            chunk,
        }
    }

    /// The rows with these columns, under the names of `schema`.
    pub fn select(mut self, columns: &[usize], schema: SchemaRef) -> Result<Left, Failure> {
        let outputs = columns.iter().map(|column| {
            let output = self.outputs.get(*column).cloned();
            output.ok_or_else(|| internal(format!("rows without column {column}")))
        });
        self.outputs = outputs.collect::<Result<_, _>>()?;
        self.schema = schema;
        Ok(self)
    }

    /// How many rows there are; the chunk may hold more.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Column `index` of the node, if its values are on the device.
    pub fn column(&self, index: usize) -> Option<&Arc<DeviceColumn>> {
        match self.outputs.get(index)? {
            Taken::Computed(number) => self.chunk.shared_column(*number).ok(),
            _ => None,
        }
    }

    /// The codes of column `index` of the node and their texts, if it is such text.
    pub fn codes(&self, index: usize) -> Option<(&Arc<DeviceColumn>, &StringArray)> {
        match self.outputs.get(index)? {
            Taken::Text { computed, codes } => {
                let column = self.chunk.shared_column(*computed).ok()?;
                Some((column, self.texts.get(codes)?))
            }
            _ => None,
        }
    }

    /// Column `index` of the node, on the host.
    pub fn array(&self, index: usize) -> Result<ArrayRef, Failure> {
        let field = self.schema.field(index);
        let read = |number: usize, ty: Type| -> Result<ArrayRef, Failure> {
            let column = self.chunk.column(number)?;
            let stream = Stream::new(column.gpu())?;
            Ok(read_column(&stream, column, self.n_rows, ty)?)
        };
        match &self.outputs[index] {
            Taken::Constant(value) => Ok(value.to_array_of_size(self.n_rows)?),
            Taken::Computed(number) => {
                let ty = type_of(field.data_type())
                    .map_err(|reason| internal(reason.message.clone()))?;
                read(*number, ty)
            }
            Taken::Text { computed, codes } => {
                let read = read(*computed, Type::Int(IntWidth::W32))?;
                let text = text_of(read.as_ref(), &self.texts, *codes)?;
                Ok(cast(&text, field.data_type())?)
            }
            Taken::Source(_) => Err(internal("a column that stayed on the host".into()).into()),
        }
    }

    /// The rank of each text of column `index`, on the device.
    pub fn ranks(&self, device: &Device, index: usize) -> Result<Arc<DeviceColumn>, Failure> {
        let (codes, texts) = self
            .codes(index)
            .ok_or_else(|| Failure::device("unsupported-sort", "a constant as a key".into()))?;
        ranks_on_device(device, codes, texts, self.n_rows)
    }

    /// Some of the rows, by their numbers.
    pub fn take(self, device: &Device, rows: &[u32]) -> Result<(Left, RunCounts), Failure> {
        let mut wanted = Vec::new();
        let mut outputs = Vec::new();
        for (output, field) in self.outputs.iter().zip(self.schema.fields()) {
            let (number, ty) = match output {
                Taken::Constant(_) | Taken::Source(_) => {
                    outputs.push(output.clone());
                    continue;
                }
                Taken::Computed(number) => {
                    let ty = type_of(field.data_type()).map_err(|e| internal(e.message))?;
                    outputs.push(Taken::Computed(wanted.len()));
                    (*number, ty)
                }
                Taken::Text { computed, codes } => {
                    outputs.push(Taken::Text {
                        computed: wanted.len(),
                        codes: *codes,
                    });
                    (*computed, Type::Int(IntWidth::W32))
                }
            };
            let nullable = self.chunk.column(number)?.shape.nullable;
            wanted.push(Expr::column(RELATION_COLUMNS + number, ty, nullable));
        }
        let numbers = UInt32Array::from(rows.to_vec());
        let numbers = stage(&numbers, None).map_err(|e| internal(e.message))?;
        let numbers = StagedBatch::new(HashMap::from([(0, numbers)]), rows.len());
        let loader = Loader::new(&device.gpu, &device.pinned, Vec::new(), Arc::default())?;
        let numbers = loader.upload(&numbers)?;
        numbers.wait()?;
        let column = Arc::clone(numbers.shared_column(0)?);
        let all = Arc::new(self.chunk);
        let (chunk, counts) = looked_up(device, column, rows.len(), all, wanted, false)?;
        let taken = Left {
            n_rows: rows.len(),
            counts: RunCounts::default(),
            staging_ms: 0.0,
            outputs,
            schema: self.schema,
            texts: self.texts,
            chunk,
        };
        Ok((taken, counts))
    }

    /// All rows, on the host.
    pub fn batch(self) -> Result<RecordBatch, Failure> {
        let columns = (0..self.outputs.len()).map(|index| self.array(index));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.n_rows));
        let schema = Arc::clone(&self.schema);
        Ok(RecordBatch::try_new_with_options(
            schema, columns, &options,
        )?)
    }
}

/// The rank of the text of each row's code.
pub(super) fn ranks_on_device(
    device: &Device,
    codes: &Arc<DeviceColumn>,
    texts: &StringArray,
    n_rows: usize,
) -> Result<Arc<DeviceColumn>, Failure> {
    let ranks = stage(&ranks_of(texts), None).map_err(|e| internal(e.message))?;
    let ranks = StagedBatch::new(HashMap::from([(0, ranks)]), texts.len());
    let loader = Loader::new(&device.gpu, &device.pinned, Vec::new(), Arc::default())?;
    let ranks = Arc::new(loader.upload(&ranks)?);
    let int = Type::Int(IntWidth::W32);
    let (taken, _) = looked_up(
        device,
        Arc::clone(codes),
        n_rows,
        ranks,
        vec![Expr::column(RELATION_COLUMNS, int, codes.shape.nullable)],
        codes.shape.nullable,
    )?;
    Ok(Arc::clone(taken.shared_column(0)?))
}

/// Columns of the rows of `relation` that have these numbers.
fn looked_up(
    device: &Device,
    numbers: Arc<DeviceColumn>,
    n_rows: usize,
    relation: Arc<DeviceChunk>,
    outputs: Vec<Expr>,
    nullable: bool,
) -> Result<(DeviceChunk, RunCounts), Failure> {
    relation.wait()?;
    let stream = Stream::new(&device.gpu)?;
    let numbers = DeviceChunk::of_columns(&stream, HashMap::from([(0, numbers)]), n_rows)?;
    let collect = Collect {
        steps: vec![Step::Lookup {
            relation: 1,
            row: Expr::column(0, Type::UInt(IntWidth::W32), nullable),
        }],
        outputs,
    };
    let (gpu, jit) = (Arc::clone(&device.gpu), Arc::clone(&device.jit));
    let table = JoinTable::of_rows(&gpu, relation)?;
    let run = CollectRun::new(gpu, jit, &device.pinned, collect, Arc::default())?;
    let mut run = run.with_tables(vec![table]);
    let chunk = run.collect_to_device(&numbers)?;
    Ok((chunk, run.counts()))
}

/// One partition: plain data, moved into the task that runs it.
struct Job {
    device: Device,
    rows: SendableRecordBatchStream,
    schema: SchemaRef,
    late: Vec<Expr>,
    pipeline: CollectPipeline,
    form: CollectForm,
    batch_rows: usize,
}

impl Job {
    async fn run(mut self, to: &Sender<Result<RecordBatch>>) -> Result<Ended> {
        let (device, pipeline) = (&self.device, &self.pipeline);
        let mut left = pipeline.fetch.unwrap_or(usize::MAX);
        let run = CollectRun::new(
            Arc::clone(&device.gpu),
            Arc::clone(&device.jit),
            &device.pinned,
            self.form.collect.map(&|expr| expr.with_late(&self.late)),
            Arc::clone(&pipeline.known),
        );
        let mut run = match run.map_err(Failure::from) {
            Ok(run) => run,
            Err(failure) => return self.stopped(failure, None, left),
        };
        let mut report = PipelineReport {
            operators: pipeline.operators.clone(),
            device: device.name(),
            ..PipelineReport::default()
        };
        let mut pending: Vec<RecordBatch> = Vec::new();
        let mut pending_rows = 0;
        let mut done = false;
        while !done && left > 0 {
            match self.rows.next().await.transpose()? {
                None => done = true,
                Some(batch) => {
                    pending_rows += batch.num_rows();
                    pending.push(batch);
                }
            }
            if pending_rows < CHUNK_ROWS && (!done || pending_rows == 0) {
                continue;
            }
            let started = Instant::now();
            // As they are: a source of constants says another schema than its rows have.
            let chunk = concat_batches(&pending[0].schema(), &pending)?;
            pending.clear();
            pending_rows = 0;
            let (schema, outputs) = (Arc::clone(&self.schema), self.form.outputs.clone());
            let permit = device.admission.acquire().await;
            // Staging, launching and taking block; a thread of the runtime must not.
            let (used, chunk, collected) = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                let collected = collect_chunk(&mut run, &chunk, &schema, &outputs);
                (run, chunk, collected)
            })
            .await
            .map_err(|e| DataFusionError::Internal(format!("the device thread ended: {e}")))?;
            run = used;
            let rows = match collected {
                Ok(rows) => rows,
                Err(failure) => return self.stopped(failure, Some(chunk), left),
            };
            report.staging_ms += started.elapsed().as_secs_f64() * 1e3;

            let n_rows = rows.num_rows().min(left);
            left -= n_rows;
            report.rows_out += n_rows as u64;
            for first in (0..n_rows).step_by(self.batch_rows) {
                let part = rows.slice(first, self.batch_rows.min(n_rows - first));
                if to.send(Ok(part)).await.is_err() {
                    // Nobody wants more.
                    done = true;
                    break;
                }
            }
        }
        report.kernel = run.kernel_name().unwrap_or_default().to_string();
        add_counts(&mut report, run.counts(), device);
        Ok(Ended::Done(report))
    }

    fn stopped(self, failure: Failure, chunk: Option<RecordBatch>, left: usize) -> Result<Ended> {
        match failure {
            Failure::User(error) => Err(error),
            Failure::Device(reason) => {
                let rows = self.rows;
                Ok(Ended::Stopped(reason, Rest { chunk, rows, left }))
            }
        }
    }
}

/// How a partition's run on the device ended.
enum Ended {
    Done(PipelineReport),
    Stopped(Reason, Rest),
}

/// What the device did not get to.
struct Rest {
    /// The chunk that it could not do.
    chunk: Option<RecordBatch>,
    /// The rows after that.
    rows: SendableRecordBatchStream,
    /// The most rows that are still wanted.
    left: usize,
}

impl Rest {
    fn rows(self) -> SendableRecordBatchStream {
        let schema = self.rows.schema();
        let chunk = futures::stream::iter(self.chunk.map(Ok));
        Box::pin(RecordBatchStreamAdapter::new(
            schema,
            chunk.chain(self.rows),
        ))
    }
}

/// The rows of a chunk that pass, with all output columns.
fn collect_chunk(
    run: &mut CollectRun,
    chunk: &RecordBatch,
    schema: &SchemaRef,
    outputs: &[Taken],
) -> Result<RecordBatch, Failure> {
    let collected = run.collect(chunk)?;
    let rows = collected.rows.map(UInt32Array::from);
    let columns = outputs.iter().map(|output| -> Result<ArrayRef, Failure> {
        Ok(match (output, &rows) {
            (Taken::Source(index), None) => Arc::clone(chunk.column(*index)),
            (Taken::Source(index), Some(rows)) => take(chunk.column(*index), rows, None)?,
            (Taken::Constant(value), _) => value.to_array_of_size(collected.n_rows)?,
            (Taken::Text { .. }, _) => {
                let what = "a streamed collect has no codes".to_string();
                return Err(Failure::User(DataFusionError::Internal(what)));
            }
            (Taken::Computed(number), _) => match collected.outputs.get(*number) {
                Some(array) => Arc::clone(array),
                None => {
                    let what = format!("output {number} was not computed");
                    return Err(Failure::User(DataFusionError::Internal(what)));
                }
            },
        })
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(collected.n_rows));
    let batch = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?;
    Ok(batch)
}
