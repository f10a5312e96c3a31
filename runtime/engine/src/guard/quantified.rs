//! ANY and ALL over a table that the query reads too.
//!
//! `x > ANY (SELECT y ...)` becomes a subquery with `x > y` as its condition. Both sides are
//! then known by table and column alone:
//!
//! ```text
//!   FROM t WHERE t.v > ANY (SELECT v FROM t)      EXISTS (SELECT ... FROM t WHERE t.v > t.v)
//! ```
//!
//! which compares each row with itself. The subquery gets a name of its own, which no query
//! can give.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::SetComparison;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::analyzer::AnalyzerRule;

use super::any_expression;

const NAME: &str = "quantified subquery";

/// The rule.
#[derive(Debug)]
pub struct NamedApart;

impl AnalyzerRule for NamedApart {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !any_expression(&plan, |expr| matches!(expr, Expr::SetComparison(_)))? {
            return Ok(plan);
        }
        let plan = plan.transform_up_with_subqueries(|node| {
            node.map_expressions(|expr| expr.transform_up(named))
        })?;
        Ok(plan.data)
    }

    fn name(&self) -> &str {
        "quantified_subqueries_named_apart"
    }
}

fn named(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::SetComparison(comparison) = expr else {
        return Ok(Transformed::no(expr));
    };
    let SetComparison {
        expr,
        mut subquery,
        op,
        quantifier,
    } = comparison;
    let plan = Arc::unwrap_or_clone(subquery.subquery);
    let column = Column::from(plan.schema().qualified_field(0));
    let plan = LogicalPlanBuilder::from(plan)
        .project([Expr::Column(column).alias("value")])?
        .alias(NAME)?
        .build()?;
    subquery.subquery = Arc::new(plan);
    Ok(Transformed::yes(Expr::SetComparison(SetComparison {
        expr,
        subquery,
        op,
        quantifier,
    })))
}
