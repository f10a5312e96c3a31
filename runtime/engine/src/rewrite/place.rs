//! Swap a marked subtree for a GPU node that keeps it.

use std::sync::{Arc, Mutex};

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::physical_expr::expressions::UnKnownColumn;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, Partitioning, PhysicalExpr,
};

use super::choose::{choose, not_worth_it};
use super::gather::gather;
use super::mark::{Candidate, mark};
use crate::exec::{Device, GpuAggregateExec, GpuCollectExec, GpuSortExec, GpuWindowExec};
use crate::report::{Fallback, FallbackTime, Reason};

/// The rule: runs last, once a plan.
#[derive(Debug)]
pub struct GpuRewrite {
    device: Device,
    allow_fallback: bool,
    refused: Mutex<Vec<Fallback>>,
}

impl GpuRewrite {
    /// A rule that places pipelines on this device. Without `allow_fallback` a node
    /// whose device cannot go on fails instead of running its CPU subtree.
    pub fn new(device: Device, allow_fallback: bool) -> GpuRewrite {
        GpuRewrite {
            device,
            allow_fallback,
            refused: Mutex::new(Vec::new()),
        }
    }

    /// What stayed on the CPU since the last call, and why.
    pub fn take_refused(&self) -> Vec<Fallback> {
        self.refused
            .lock()
            .map(|mut refused| std::mem::take(&mut *refused))
            .unwrap_or_default()
    }

    fn place(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        let pipeline = match mark(&plan) {
            None => return Ok(Transformed::no(plan)),
            Some(Err(reason)) => {
                self.refuse(plan.name(), reason);
                return Ok(Transformed::no(plan));
            }
            Some(Ok(pipeline)) => pipeline,
        };
        if !choose(&pipeline, self.allow_fallback) {
            self.refuse(plan.name(), not_worth_it());
            return Ok(Transformed::no(plan));
        }
        let original = Arc::clone(&plan);
        let device = self.device.clone();
        let node: Arc<dyn ExecutionPlan> = match pipeline {
            Candidate::Aggregate(pipeline) => Arc::new(GpuAggregateExec::new(
                device,
                original,
                pipeline,
                self.allow_fallback,
            )),
            Candidate::Collect(pipeline) => Arc::new(GpuCollectExec::new(
                device,
                original,
                pipeline,
                self.allow_fallback,
            )),
            Candidate::Window(pipeline) => Arc::new(GpuWindowExec::new(
                device,
                original,
                pipeline,
                self.allow_fallback,
            )),
            Candidate::Sort(pipeline) => Arc::new(GpuSortExec::new(
                device,
                original,
                pipeline,
                self.allow_fallback,
            )),
        };
        let node = self.keep_promises(&plan, node)?;
        // What is below the pipeline may hold aggregates of its own.
        Ok(Transformed::new(node, true, TreeNodeRecursion::Continue))
    }

    /// What is above a node may rely on its rows being spread by a key, or ordered; a
    /// node that gives all rows in one partition, in any order, needs that done after it.
    fn keep_promises(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        node: Arc<dyn ExecutionPlan>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut node = node;
        if let Some(order) = plan.output_ordering()
            && node.output_ordering().is_none()
        {
            let sort: Arc<dyn ExecutionPlan> = Arc::new(SortExec::new(order.clone(), node));
            node = self.place(sort)?.data;
        }
        if let Partitioning::Hash(keys, n) = plan.output_partitioning()
            && node.output_partitioning().partition_count() != *n
            // A key that is no column any more is nothing to rely on.
            && !keys.iter().any(has_unknown_column)
        {
            let spread = Partitioning::Hash(keys.clone(), *n);
            // Rows of one partition keep their order while they are spread.
            node = Arc::new(RepartitionExec::try_new(node, spread)?);
        }
        Ok(node)
    }

    fn refuse(&self, node: &str, reason: Reason) {
        let fallback = Fallback {
            node: node.to_string(),
            when: FallbackTime::Plan,
            reason,
            rows: None,
            cpu_ms: None,
        };
        if let Ok(mut refused) = self.refused.lock() {
            refused.push(fallback);
        }
    }
}

fn has_unknown_column(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.is::<UnKnownColumn>() || expr.children().into_iter().any(has_unknown_column)
}

impl PhysicalOptimizerRule for GpuRewrite {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        gather(plan)?
            .transform_down(|node| self.place(node))
            .map(|placed| placed.data)
    }

    fn name(&self) -> &str {
        "gpu_rewrite"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
