//! Window functions on the GPU.
//!
//! ```text
//!   source, all rows ── columns; text as its codes
//!      |                   └─ text keys: the codes' ranks
//!   device: rows to window order, partitions, peers, totals; all output columns ─┬─ stay there
//!                                                                                └─ record batches
//! ```
//!
//! The node sorts by itself, so a sort below it is not needed. Its rows are all in one
//! partition, in the order of its keys. Nothing is emitted before all of it is done, so when
//! the device cannot go on, the CPU subtree runs instead.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, AsArray, StringArray};
use arrow::compute::sort;
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
use futures::FutureExt;
use futures::future::BoxFuture;
use kernels::columns::DeviceChunk;
use kernels::gpu::Stream;
use kernels::ir::{Expr, IntWidth, Literal, RELATION_COLUMNS, Range, Type, Window, WindowFunction};
use kernels::launch::{RunCounts, window_bytes, window_resident};

use super::codes::{Codes, Texts, internal};
use super::collect::{Left, Taken, ranks_on_device};
use super::failure::{Failure, add_counts, out_of_memory};
use super::held::Held;
use super::original::{Original, Outcome, in_parts, only_partition};
use super::relation::{Place, blocking, relation};
use super::spill::Spill;
use super::{Device, in_any_order};
use crate::lower::LateValues;
use crate::report::PipelineReport;

/// Columns of ranks are numbered from here on, by the codes that they are the ranks of.
const RANKS_FROM: usize = RELATION_COLUMNS / 4 * 3;

/// What a function gives where there is no row.
#[derive(Debug, Clone)]
pub struct DefaultText {
    /// The call, by its number.
    pub call: usize,
    /// The number of the codes of its value.
    pub codes: usize,
    /// The text.
    pub text: String,
}

/// What a window node computes, lowered.
#[derive(Debug, Clone)]
pub struct WindowPipeline {
    /// Where it reads from, all partitions.
    pub source: Arc<dyn ExecutionPlan>,
    /// What is computed.
    pub window: Window,
    /// Where each output column comes from.
    pub outputs: Vec<Taken>,
    /// Text columns that the window has codes of.
    pub codes: Codes,
    /// Codes whose ranks are keys, by their number and the column that holds them.
    pub ranked: Vec<(usize, usize)>,
    /// Constants of functions whose codes are known when all texts are.
    pub default_texts: Vec<DefaultText>,
    /// Constants that are known when it starts.
    pub late: LateValues,
    /// Whether the rows stand in the order of the CPU subtree's, so that all which holds
    /// for its order holds here.
    pub keeps_order: bool,
    /// The operators in the pipeline, top first.
    pub operators: Vec<String>,
    /// What statistics prove about source columns.
    pub known: Arc<HashMap<usize, Range>>,
}

impl WindowPipeline {
    /// The column of the ranks of these codes.
    pub fn ranks(number: usize) -> Expr {
        Expr::column(RANKS_FROM + number, Type::Int(IntWidth::W32), true)
    }

    /// The number of the codes that these ranks are: of the texts in order.
    pub fn codes_of_ranks(number: usize) -> usize {
        RANKS_FROM + number
    }

    /// The window with the codes of its constant texts, which `texts` then has.
    fn with_default_texts(&self, mut window: Window, texts: &mut Texts) -> Result<Window> {
        for default in &self.default_texts {
            let known = texts
                .get(&default.codes)
                .ok_or_else(|| internal(format!("codes {} have no texts", default.codes)))?;
            let code = match known.iter().position(|text| text == Some(&default.text)) {
                Some(code) => code,
                None => {
                    let all = known.iter().chain([Some(default.text.as_str())]);
                    let all: StringArray = all.collect();
                    texts.insert(default.codes, all);
                    texts[&default.codes].len() - 1
                }
            };
            if let Some(call) = window.calls.get_mut(default.call)
                && let WindowFunction::Shift { otherwise, .. } = &mut call.function
            {
                let code = Literal::Integer(code as i128);
                *otherwise = Expr::literal(code, Type::Int(IntWidth::W32));
            }
        }
        Ok(window)
    }
}

/// Window functions that run on the GPU.
#[derive(Debug, Clone)]
pub struct GpuWindowExec {
    device: Device,
    original: Original,
    pipeline: WindowPipeline,
    properties: Arc<PlanProperties>,
}

impl GpuWindowExec {
    /// A node that computes what `original` computes, in one partition.
    pub fn new(
        device: Device,
        original: Arc<dyn ExecutionPlan>,
        pipeline: WindowPipeline,
        allow_fallback: bool,
    ) -> GpuWindowExec {
        let equivalences = match pipeline.keeps_order {
            true => original.properties().equivalence_properties().clone(),
            false => EquivalenceProperties::new(original.schema()),
        };
        let properties = PlanProperties::new(
            equivalences,
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        GpuWindowExec {
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

    /// Computes all rows; they stay on the device.
    pub fn run_on_device<'a>(
        &'a self,
        context: &'a Arc<TaskContext>,
    ) -> BoxFuture<'a, Result<Left, Failure>> {
        // Boxed: the source of this node may be a node of its kind.
        self.compute(context).boxed()
    }

    async fn compute(&self, context: &Arc<TaskContext>) -> Result<Left, Failure> {
        let (device, pipeline) = (&self.device, &self.pipeline);
        let late = pipeline.late.values()?;
        let window = pipeline.window.map(&|expr| expr.with_late(&late));
        let mut columns = window.columns();
        columns.retain(|column| *column < RANKS_FROM);
        columns.extend(pipeline.ranked.iter().map(|(_, codes)| *codes));
        columns.sort_unstable();
        columns.dedup();
        let rows = relation(
            &pipeline.source,
            Codes::wanted(&columns, 0),
            &pipeline.codes,
            Arc::clone(&pipeline.known),
            Place {
                device,
                spill: &Spill::new(context),
                context,
            },
        )
        .await?;
        let Held::Rows(source) = rows.rows else {
            return Err(no_room(device));
        };
        let permit = device.admission.acquire().await;
        let (own, ranked) = (device.clone(), pipeline.ranked.clone());
        let (mut texts, source_counts) = (rows.texts, rows.counts);
        let window = pipeline.with_default_texts(window, &mut texts)?;
        let (done, texts) = blocking(move || {
            let _permit = permit;
            let n_rows = source.n_rows;
            own.make_room(window_bytes(&window, n_rows))?;
            let mut all = HashMap::new();
            for column in columns {
                all.insert(column, Arc::clone(source.shared_column(column)?));
            }
            source.wait()?;
            for (number, codes) in ranked {
                let of = texts
                    .get(&number)
                    .ok_or_else(|| internal(format!("codes {number} have no texts")))?;
                let codes = source.shared_column(codes)?;
                let ranks = ranks_on_device(&own, codes, of, n_rows)?;
                all.insert(RANKS_FROM + number, ranks);
                let in_order = sort(of, None)?.as_string::<i32>().clone();
                texts.insert(WindowPipeline::codes_of_ranks(number), in_order);
            }
            let stream = Stream::new(&own.gpu)?;
            let chunk = DeviceChunk::of_columns(&stream, all, n_rows)?;
            let (gpu, jit) = (Arc::clone(&own.gpu), Arc::clone(&own.jit));
            let done = window_resident(gpu, jit, &window, &chunk)?;
            Ok((done, texts))
        })
        .await?;
        let outputs = pipeline.outputs.clone();
        let left = Left::new(done.chunk, outputs, self.schema(), texts);
        let mut report = PipelineReport {
            operators: pipeline.operators.clone(),
            device: device.name(),
            kernel: done.kernel,
            staging_ms: rows.staging_ms,
            rows_out: left.n_rows() as u64,
            ..PipelineReport::default()
        };
        let counts: RunCounts = done.counts.and(&source_counts);
        add_counts(&mut report, counts, device);
        self.original.record(Outcome::Ran(report));
        Ok(left)
    }
}

impl DisplayAs for GpuWindowExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = self.pipeline.window.calls.iter();
        let calls: Vec<String> = calls.map(|call| call.function.to_string()).collect();
        write!(
            f,
            "GpuWindowExec: operators=[{}], functions=[{}]",
            self.pipeline.operators.join(", "),
            calls.join(", ")
        )
    }
}

impl ExecutionPlan for GpuWindowExec {
    fn name(&self) -> &str {
        "GpuWindowExec"
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
            .map_err(|_| DataFusionError::Internal("GpuWindowExec has one child".into()))?;
        // Without keys the rows stay as they come; otherwise this node orders them.
        let source = match self.pipeline.window.sort.keys.is_empty() {
            true => source,
            false => in_any_order(source),
        };
        Ok(Arc::new(GpuWindowExec::new(
            self.device.clone(),
            Arc::clone(self.original.plan()),
            WindowPipeline {
                source,
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
        let batch_rows = context.session_config().batch_size().max(1);
        let (node, task) = (self.clone(), Arc::clone(&context));
        let rows = async move {
            let left = node.run_on_device(&task).await?;
            let batch = blocking(move || left.batch()).await?;
            Ok(in_parts(batch, batch_rows))
        };
        Ok(self.original.or_stream(rows, context))
    }
}

/// Why a window cannot run: its rows are ordered as a whole.
fn no_room(device: &Device) -> Failure {
    let limit = device.gpu.meter().limit();
    let what = format!("a window's rows and their order do not fit the {limit} bytes there are");
    out_of_memory(what)
}
