//! What makes the CPU path fast: the last physical rule, which gives no other answers.
//!
//! 1. [`narrow`]: decimal arithmetic in 64 bits where the values fit.
//! 2. [`few_groups`]: aggregates of few groups, with [`keys`] and [`totals`]. It comes
//!    after, so that the aggregate that it falls back on has the arithmetic too.
//! 3. [`views`]: text keys of such aggregates read as views.
//!
//! Each piece tries the values at hand and leaves what it cannot do to DataFusion.

pub mod few_groups;
mod keys;
pub mod narrow;
mod totals;
mod views;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

use few_groups::FewGroupsExec;
use narrow::NarrowExpr;

/// The rule.
#[derive(Debug)]
pub struct FastOnCpu;

impl PhysicalOptimizerRule for FastOnCpu {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = plan.transform_up(narrow_inside)?.data;
        let few = plan.transform_down(|plan| {
            let node = match plan.downcast_ref::<AggregateExec>() {
                Some(aggregate) => FewGroupsExec::of(aggregate)?,
                None => None,
            };
            Ok(match node {
                Some(node) => Transformed::yes(Arc::new(node) as Arc<dyn ExecutionPlan>),
                None => Transformed::no(plan),
            })
        })?;
        Ok(few.data)
    }

    fn name(&self) -> &str {
        "fast_on_cpu"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The node with its decimal arithmetic tried in 64 bits first.
fn narrow_inside(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let predicate = Arc::clone(filter.predicate());
        let predicate = NarrowExpr::inside(predicate, &filter.input().schema())?;
        if predicate.transformed {
            let filter = FilterExecBuilder::from(filter)
                .with_predicate(predicate.data)
                .build()?;
            return Ok(Transformed::yes(Arc::new(filter)));
        }
    } else if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let schema = projection.input().schema();
        let mut changed = false;
        let mut narrow = |projected: &ProjectionExpr| -> Result<ProjectionExpr> {
            let expr = NarrowExpr::inside(Arc::clone(&projected.expr), &schema)?;
            changed |= expr.transformed;
            Ok(ProjectionExpr {
                expr: expr.data,
                alias: projected.alias.clone(),
            })
        };
        let exprs: Result<Vec<_>> = projection.expr().iter().map(&mut narrow).collect();
        let exprs = exprs?;
        if changed {
            let projection = ProjectionExec::try_new(exprs, Arc::clone(projection.input()))?;
            return Ok(Transformed::yes(Arc::new(projection)));
        }
    } else if let Some(aggregate) = plan.downcast_ref::<AggregateExec>()
        && aggregate.mode().input_mode() == AggregateInputMode::Raw
    {
        let schema = aggregate.input().schema();
        let mut changed = false;
        let mut functions = Vec::with_capacity(aggregate.aggr_expr().len());
        for function in aggregate.aggr_expr() {
            let args: Result<Vec<_>> = function
                .expressions()
                .into_iter()
                .map(|arg| NarrowExpr::inside(arg, &schema))
                .collect();
            let args = args?;
            let narrowed = args.iter().any(|arg| arg.transformed)
                && function.order_bys().is_empty()
                && !function.is_reversed();
            let args = args.into_iter().map(|arg| arg.data).collect();
            let replaced = match narrowed {
                true => function.with_new_expressions(args, Vec::new()),
                false => None,
            };
            changed |= replaced.is_some();
            functions.push(replaced.map_or_else(|| Arc::clone(function), Arc::new));
        }
        if changed {
            let aggregate = aggregate.with_new_aggr_exprs(functions);
            return Ok(Transformed::yes(Arc::new(aggregate)));
        }
    }
    Ok(Transformed::no(plan))
}
