//! Filter and project as one GPU pipeline that gives rows back.
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
//! emitted when the chunk is done; the CPU subtree can take over a partition only
//! while nothing of it was emitted.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{concat_batches, take};
use arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PhysicalExpr,
    PlanProperties,
};
use futures::StreamExt;
use kernels::ir::{Collect, Range};
use kernels::launch::CollectRun;
use tokio::sync::mpsc::Sender;

use super::Device;
use super::aggregate::Outcome;
use super::failure::{Failure, add_counts, fallback, refused, run_original};
use super::feed::CHUNK_ROWS;
use crate::report::PipelineReport;

/// Where one output column comes from.
#[derive(Debug, Clone)]
pub enum Taken {
    /// A column of the source, taken on the host.
    Source(usize),
    /// The same value in every row.
    Constant(ScalarValue),
    /// An output of the pipeline.
    Computed(usize),
}

/// What a collect node computes, lowered.
#[derive(Debug, Clone)]
pub struct CollectPipeline {
    /// Where it reads from, with as many partitions.
    pub source: Arc<dyn ExecutionPlan>,
    /// What it computes.
    pub collect: Collect,
    /// Where each output column comes from.
    pub outputs: Vec<Taken>,
    /// The most rows of a partition.
    pub fetch: Option<usize>,
    /// The operators in the pipeline, top first.
    pub operators: Vec<String>,
    /// What statistics prove about source columns.
    pub known: Arc<HashMap<usize, Range>>,
}

/// Filters and projections that run on the GPU.
#[derive(Debug)]
pub struct GpuCollectExec {
    device: Device,
    /// The CPU subtree that this node replaced: fallback, explain and oracle.
    original: Arc<dyn ExecutionPlan>,
    pipeline: CollectPipeline,
    allow_fallback: bool,
    properties: Arc<PlanProperties>,
    /// What the partitions did, added up.
    outcome: Arc<Mutex<Option<Outcome>>>,
}

impl GpuCollectExec {
    /// A node that computes what `original` computes, partition by partition.
    pub fn new(
        device: Device,
        original: Arc<dyn ExecutionPlan>,
        pipeline: CollectPipeline,
        allow_fallback: bool,
    ) -> GpuCollectExec {
        // Rows keep their order and their partition, so what holds above does too.
        let properties = PlanProperties::new(
            original.equivalence_properties().clone(),
            original.output_partitioning().clone(),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        GpuCollectExec {
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

    /// What the last execution did; `None` before a partition is done.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome.lock().ok()?.clone()
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
        vec![&self.pipeline.source]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
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
            .map_err(|_| DataFusionError::Internal("GpuCollectExec has one child".into()))?;
        Ok(Arc::new(GpuCollectExec::new(
            self.device.clone(),
            Arc::clone(&self.original),
            CollectPipeline {
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
            pipeline: self.pipeline.clone(),
            batch_rows: context.session_config().batch_size().max(1),
        };
        let original = Arc::clone(&self.original);
        let outcome = Arc::clone(&self.outcome);
        let allow_fallback = self.allow_fallback;
        let mut builder = RecordBatchReceiverStream::builder(self.schema(), 2);
        let to = builder.tx();
        builder.spawn(async move {
            let mut n_emitted = 0;
            let reason = match job.run(&to, &mut n_emitted).await {
                Ok(report) => {
                    add_outcome(&outcome, Outcome::Ran(report));
                    return Ok(());
                }
                Err(Failure::User(error)) => return Err(error),
                Err(Failure::Device(reason)) => reason,
            };
            if !allow_fallback || n_emitted > 0 {
                return Err(refused(&original, &reason));
            }
            add_outcome(&outcome, Outcome::FellBack(fallback(&original, reason)));
            let mut rows = run_original(original, Some(partition), context)?;
            while let Some(batch) = rows.next().await {
                if to.send(batch).await.is_err() {
                    break;
                }
            }
            Ok(())
        });
        Ok(builder.build())
    }
}

/// Adds what one partition did; a fallback of one is what people must see.
fn add_outcome(slot: &Mutex<Option<Outcome>>, outcome: Outcome) {
    let Ok(mut slot) = slot.lock() else {
        return;
    };
    let sum = match (slot.take(), outcome) {
        (Some(Outcome::Ran(mut all)), Outcome::Ran(one)) => {
            all.add(&one);
            Outcome::Ran(all)
        }
        (Some(Outcome::FellBack(first)), _) => Outcome::FellBack(first),
        (_, outcome) => outcome,
    };
    *slot = Some(sum);
}

/// One partition: plain data, moved into the task that runs it.
struct Job {
    device: Device,
    rows: SendableRecordBatchStream,
    schema: SchemaRef,
    pipeline: CollectPipeline,
    batch_rows: usize,
}

impl Job {
    async fn run(
        mut self,
        to: &Sender<Result<RecordBatch>>,
        n_emitted: &mut usize,
    ) -> Result<PipelineReport, Failure> {
        let (device, pipeline) = (&self.device, &self.pipeline);
        let mut run = CollectRun::new(
            Arc::clone(&device.gpu),
            Arc::clone(&device.jit),
            &device.pinned,
            pipeline.collect.clone(),
            Arc::clone(&pipeline.known),
        )?;
        let mut report = PipelineReport {
            operators: pipeline.operators.clone(),
            device: device.name(),
            ..PipelineReport::default()
        };
        let mut left = pipeline.fetch.unwrap_or(usize::MAX);
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
            let chunk = concat_batches(&self.rows.schema(), &pending)?;
            pending.clear();
            pending_rows = 0;
            let (schema, outputs) = (Arc::clone(&self.schema), pipeline.outputs.clone());
            let permit = device.admission.acquire().await;
            // Staging, launching and taking block; a thread of the runtime must not.
            let (used, collected) = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                let collected = collect_chunk(&mut run, &chunk, &schema, &outputs);
                (run, collected)
            })
            .await
            .map_err(|e| DataFusionError::Internal(format!("the device thread ended: {e}")))?;
            run = used;
            let rows = collected?;
            report.staging_ms += started.elapsed().as_secs_f64() * 1e3;

            let n_rows = rows.num_rows().min(left);
            left -= n_rows;
            report.rows_out += n_rows as u64;
            for first in (0..n_rows).step_by(self.batch_rows) {
                let part = rows.slice(first, self.batch_rows.min(n_rows - first));
                *n_emitted += part.num_rows();
                if to.send(Ok(part)).await.is_err() {
                    // Nobody wants more.
                    done = true;
                    break;
                }
            }
        }
        report.kernel = run.kernel_name().unwrap_or_default().to_string();
        add_counts(&mut report, run.counts(), device);
        Ok(report)
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
