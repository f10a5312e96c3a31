//! The CPU subtree that a GPU node replaced, and what became of the node.
//!
//! A node emits nothing before the device has done its part, so the subtree can run in its
//! place from the start; what was decided is told once, here.

use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::failure::Failure;
use crate::error::Error;
use crate::report::{Fallback, FallbackTime, PipelineReport, Reason};
use crate::rewrite::finish_for_cpu;

/// What happened in one execution.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The pipeline ran on the device.
    Ran(PipelineReport),
    /// The CPU subtree ran instead.
    FellBack(Fallback),
}

/// The subtree: fallback, explain and oracle. Clones share the outcome.
#[derive(Debug, Clone)]
pub struct Original {
    plan: Arc<dyn ExecutionPlan>,
    allow_fallback: bool,
    outcome: Arc<Mutex<Option<Outcome>>>,
}

impl Original {
    /// The subtree of a new node. Without `allow_fallback` it never runs.
    pub fn new(plan: Arc<dyn ExecutionPlan>, allow_fallback: bool) -> Original {
        Original {
            plan,
            allow_fallback,
            outcome: Arc::default(),
        }
    }

    /// Whether it may run instead.
    pub fn allows_fallback(&self) -> bool {
        self.allow_fallback
    }

    /// The subtree itself.
    pub fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.plan
    }

    /// What the node's execution did; `None` before it, or a partition of it, is done.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome.lock().ok()?.clone()
    }

    /// Adds what a partition did; a fallback of one is what people must see.
    pub fn record(&self, outcome: Outcome) {
        let Ok(mut slot) = self.outcome.lock() else {
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

    /// Records that the subtree runs for this reason, or fails if it must not.
    pub fn take_over(&self, reason: Reason) -> Result<()> {
        if !self.allow_fallback {
            let (node, why) = (self.plan.name(), &reason.message);
            let what = format!("{node} cannot run on the GPU: {why}");
            return Err(DataFusionError::External(Box::new(
                Error::FallbackRefused { what },
            )));
        }
        self.record(Outcome::FellBack(Fallback {
            node: self.plan.name().to_string(),
            when: FallbackTime::Run,
            reason,
            rows: None,
            cpu_ms: None,
        }));
        Ok(())
    }

    /// The only partition of a node: the rows that the device gives or, when it cannot go
    /// on, the subtree's.
    pub fn or_stream(
        &self,
        rows: impl Future<Output = Result<BoxStream<'static, Result<RecordBatch>>, Failure>>
        + Send
        + 'static,
        context: Arc<TaskContext>,
    ) -> SendableRecordBatchStream {
        let schema = self.plan.schema();
        let original = self.clone();
        let stream = futures::stream::once(async move {
            match rows.await {
                Ok(rows) => Ok(rows),
                Err(Failure::User(error)) => Err(error),
                Err(Failure::Device(reason)) => {
                    original.take_over(reason)?;
                    Ok(original.run(context)?.boxed())
                }
            }
        })
        .try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(schema, stream))
    }

    /// All rows by the subtree, for a node above that reads them, when it was the device
    /// that failed and the subtree may run.
    pub async fn or_batch(
        &self,
        failure: Failure,
        context: &Arc<TaskContext>,
    ) -> Result<RecordBatch, Failure> {
        match failure {
            Failure::Device(reason) if self.allow_fallback => {
                self.take_over(reason)?;
                let rows = self.run(Arc::clone(context))?;
                let batches: Vec<RecordBatch> = rows.try_collect().await?;
                Ok(concat_batches(&self.plan.schema(), &batches)?)
            }
            failure => Err(failure),
        }
    }

    /// Runs all partitions of the subtree from their start: the nodes that it shares with
    /// the pipeline's source have been executed once, and some of them can be only once. If
    /// its partitions are ordered they are merged, since a node may promise that order for
    /// all rows.
    fn run(&self, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let fresh = reset_plan_states(Arc::clone(&self.plan))?;
        finish_for_cpu(fresh, &context)?.execute(0, context)
    }
}

/// Refuses any partition but the first, for a node that has only that.
pub fn only_partition(node: &dyn ExecutionPlan, partition: usize) -> Result<()> {
    match partition {
        0 => Ok(()),
        _ => Err(DataFusionError::Internal(format!(
            "{} has no partition {partition}",
            node.name()
        ))),
    }
}

/// The rows of a record batch, so many at a time.
pub fn in_parts(batch: RecordBatch, rows: usize) -> BoxStream<'static, Result<RecordBatch>> {
    let n_rows = batch.num_rows();
    let firsts = (0..n_rows).step_by(rows);
    let parts = firsts.map(move |first| Ok(batch.slice(first, rows.min(n_rows - first))));
    futures::stream::iter(parts).boxed()
}
