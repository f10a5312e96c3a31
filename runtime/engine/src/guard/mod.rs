//! Right answers where DataFusion 55 gives wrong ones without saying so.
//!
//! Each file is one kind of wrong answer. It either makes the answer right or
//! refuses the query with a reason; nothing here makes a query faster. In the
//! order in which a query meets them:
//!
//! 1. [`statement`]: before planning, on the parsed text: what the planner would
//!    drop or read differently from what is written.
//! 2. [`not_in`]: right after analysis, while subqueries are still expressions
//!    and NULLs can still be told apart.
//!    Before it, `quantified`: what ANY and ALL look at has a name of its own.
//! 3. [`floats`]: after `not_in`, so that the comparisons it makes are covered:
//!    one zero, one NaN, and NaN sorts last.
//! 4. [`window_filter`]: keeps filters of window functions where the GPU rewrite sees
//!    them. [`sliding_floats`]: sums of floats over frames that move on.
//! 5. [`arithmetic`]: last in the analysis, before constants are folded; then back
//!    to plain nodes, now checked, as the first physical rule, so that every
//!    physical rule sees plain arithmetic.
//! 6. [`null_safe`]: around the logical rules that lose whether NULL equals NULL.
//!    (`when_asked` keeps one of them from plans that it would only copy.)
//! 7. [`pushdown`]: around the physical rules that move filters.
//! 8. [`sum`] and [`extremes`]: the aggregate functions, at run time.

pub mod arithmetic;
pub mod extremes;
pub mod floats;
pub mod not_in;
pub mod null_safe;
pub mod pushdown;
mod quantified;
pub mod sliding_floats;
pub mod statement;
pub mod sum;
mod when_asked;
pub mod window_filter;

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{AggregateUDF, Expr, LogicalPlan};
use datafusion::optimizer::Optimizer;
use datafusion::optimizer::analyzer::Analyzer;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

/// Puts every guard into a session. Call it after the default features and
/// before any rule that must see the guarded plan.
pub fn install(builder: SessionStateBuilder) -> SessionStateBuilder {
    let mut analyzer = Analyzer::new();
    analyzer.rules.push(Arc::new(quantified::NamedApart));
    analyzer.rules.push(Arc::new(not_in::RightNotIn));
    analyzer.rules.push(Arc::new(floats::OneZeroOneNan));
    analyzer
        .rules
        .push(Arc::new(window_filter::FilterInArgument));
    analyzer
        .rules
        .push(Arc::new(sliding_floats::NothingSubtracted));
    analyzer.rules.push(Arc::new(arithmetic::MarkChecked));

    let mut physical: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> =
        vec![Arc::new(arithmetic::UseChecked)];
    physical.extend(
        PhysicalOptimizer::new()
            .rules
            .into_iter()
            .map(pushdown::walled),
    );

    let logical = Optimizer::new().rules.into_iter();
    let logical = logical.map(null_safe::kept).map(when_asked::kept);

    builder
        .with_analyzer_rules(analyzer.rules)
        .with_optimizer_rules(logical.collect())
        .with_physical_optimizer_rules(physical)
}

/// The aggregate functions that replace DataFusion's of the same name.
pub fn aggregates() -> Vec<Arc<AggregateUDF>> {
    vec![
        Arc::new(AggregateUDF::new_from_impl(sum::CheckedSum::new())),
        Arc::new(AggregateUDF::new_from_impl(extremes::Extreme::max())),
        Arc::new(AggregateUDF::new_from_impl(extremes::Extreme::min())),
    ]
}

/// The schema that a node's expressions are typed against.
fn input_schema(plan: &LogicalPlan) -> Result<DFSchema> {
    let mut schema = DFSchema::empty();
    for input in plan.inputs() {
        schema.merge(input.schema());
    }
    if let LogicalPlan::TableScan(scan) = plan {
        schema.merge(&DFSchema::try_from_qualified_schema(
            scan.table_name.clone(),
            &scan.source.schema(),
        )?);
    }
    Ok(schema)
}

/// Whether a plan or one of its subqueries has an expression of this kind anywhere. To look
/// costs a part of what rewriting does, and most queries have none.
fn any_expression(plan: &LogicalPlan, of: impl Fn(&Expr) -> bool) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                found |= of(expr);
                Ok(match found {
                    true => TreeNodeRecursion::Stop,
                    false => TreeNodeRecursion::Continue,
                })
            })
        })?;
        Ok(match found {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(found)
}

/// Rewrites every expression of a plan and of its subqueries, if there is one that is `asked`
/// for; columns keep their names.
fn map_expressions(
    plan: LogicalPlan,
    asked: impl Fn(&Expr) -> bool,
    rewrite: impl Fn(Expr, &DFSchema) -> Result<Transformed<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    if !any_expression(&plan, asked)? {
        return Ok(Transformed::no(plan));
    }
    plan.transform_up_with_subqueries(|plan| {
        let schema = input_schema(&plan)?;
        let names = NamePreserver::new(&plan);
        plan.map_expressions(|expr| {
            let name = names.save(&expr);
            Ok(rewrite(expr, &schema)?.update_data(|expr| name.restore(expr)))
        })?
        .map_data(LogicalPlan::recompute_schema)
    })
}
