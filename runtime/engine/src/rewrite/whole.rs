//! Plans that run whole on the device, by a short way.
//!
//! Most of the time that DataFusion takes to turn a logical plan into one that runs goes
//! into spreading rows over cores: exchanges, the sorts and merges that they ask for, and
//! the rules that clean up after them. On a device one node handles all rows, and the
//! exchanges were taken out again. So the device comes first:
//!
//! ```text
//!   initial plan ── build sides, filters, limits, columns ── GPU nodes ── requirements
//!                                                                |
//!        all rules, GPU nodes last  <── something stays on the CPU
//! ```
//!
//! The CPU subtrees that GPU nodes keep are then not ready to run; [`finish_for_cpu`] makes
//! them so when they are needed after all.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_optimizer::{PhysicalOptimizerContext, PhysicalOptimizerRule};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::GpuRewrite;
use crate::explain::any_on_cpu;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// DataFusion's rules that a plan for the device needs, by name.
const NEEDED: [&str; 6] = [
    "use_checked_arithmetic",
    "aggregate_statistics",
    "join_selection",
    "FilterPushdown",
    "ProjectionPushdown",
    "LimitPushdown",
];

/// The short way.
#[derive(Debug)]
pub struct WholeOnDevice {
    rules: Vec<Rule>,
}

impl WholeOnDevice {
    /// The short way that places nodes with `rewrite`; `all` are the rules of the long way.
    pub fn new(rewrite: Arc<GpuRewrite>, all: &[Rule]) -> WholeOnDevice {
        let mut rules: Vec<Rule> = Vec::new();
        for rule in all {
            let is_new = rules.iter().all(|known| known.name() != rule.name());
            if NEEDED.contains(&rule.name()) && is_new {
                rules.push(Arc::clone(rule));
            }
        }
        rules.push(rewrite);
        rules.push(Arc::new(EnsureRequirements::new()));
        WholeOnDevice { rules }
    }

    /// The plan, if all that computes in it is on the device.
    pub fn plan(
        &self,
        initial: &Arc<dyn ExecutionPlan>,
        context: &dyn PhysicalOptimizerContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if !is_unordered(initial)? {
            return Ok(None);
        }
        let mut plan = Arc::clone(initial);
        for rule in &self.rules {
            plan = rule.optimize_with_context(plan, context)?;
        }
        if !any_on_cpu(&plan) {
            SanityCheckPlan::new().optimize_with_context(Arc::clone(&plan), context)?;
            return Ok(Some(plan));
        }
        Ok(None)
    }
}

/// Whether no node of the plan relies on rows that a later rule would gather or put in
/// order for it: a limit is one, unless a sort below it gives all rows in one partition.
fn is_unordered(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let mut all = true;
    plan.apply(|node| {
        all = node.is::<AggregateExec>()
            || node.is::<CoalescePartitionsExec>()
            || node.is::<DataSourceExec>()
            || node.is::<FilterExec>()
            || node.is::<HashJoinExec>()
            || node.is::<ProjectionExec>()
            || node.is::<ScalarSubqueryExec>()
            || node.is::<SortExec>()
            || node.is::<UnionExec>()
            || node
                .downcast_ref::<GlobalLimitExec>()
                .is_some_and(|limit| is_sorted(limit.input()));
        Ok(match all {
            true => TreeNodeRecursion::Continue,
            false => TreeNodeRecursion::Stop,
        })
    })?;
    Ok(all)
}

fn is_sorted(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match plan.downcast_ref::<ProjectionExec>() {
        Some(projection) => is_sorted(projection.input()),
        None => plan
            .downcast_ref::<SortExec>()
            .is_some_and(|sort| !sort.preserve_partitioning()),
    }
}

/// DataFusion's own rules, in a session's configuration.
#[derive(Debug)]
pub struct CpuRules(pub Vec<Rule>);

/// The subtree ready to run in one partition: its rows spread over the cores, gathered at
/// the end, in its order if it has one.
pub fn finish_for_cpu(
    plan: Arc<dyn ExecutionPlan>,
    context: &TaskContext,
) -> Result<Arc<dyn ExecutionPlan>> {
    let config: &ConfigOptions = context.session_config().options();
    let mut plan = plan;
    let is_ready = SanityCheckPlan::new()
        .optimize(Arc::clone(&plan), config)
        .is_ok();
    if let Some(rules) = context.session_config().get_extension::<CpuRules>()
        && !is_ready
    {
        for rule in &rules.0 {
            plan = rule.optimize(plan, config)?;
        }
    }
    if plan.output_partitioning().partition_count() == 1 {
        return Ok(plan);
    }
    Ok(match plan.output_ordering() {
        Some(order) => Arc::new(SortPreservingMergeExec::new(order.clone(), plan)),
        None => Arc::new(CoalescePartitionsExec::new(plan)),
    })
}
