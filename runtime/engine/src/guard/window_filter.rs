//! `FILTER` of an aggregate over a window, as part of its argument.
//!
//! ```text
//!   sum(x) FILTER (WHERE c) OVER w     ->     sum(CASE WHEN c THEN x END) OVER w
//! ```
//!
//! The physical plan of DataFusion 55 tells nobody but the function itself that there is a
//! filter: whoever replaces the node would leave it out. All of these functions pass over
//! NULL, so the answer is the same.

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::{Expr, LogicalPlan, when};
use datafusion::optimizer::AnalyzerRule;

use super::map_expressions;

/// The functions that pass over NULL.
const PASS_OVER_NULL: [&str; 5] = ["count", "sum", "avg", "min", "max"];

/// The rule.
#[derive(Debug)]
pub struct FilterInArgument;

impl AnalyzerRule for FilterInArgument {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let asked = |expr: &Expr| matches!(expr, Expr::WindowFunction(_));
        let plan = map_expressions(plan, asked, |expr, _| expr.transform_up(moved))?;
        Ok(plan.data)
    }

    fn name(&self) -> &str {
        "window_filter_in_argument"
    }
}

fn moved(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::WindowFunction(mut function) = expr else {
        return Ok(Transformed::no(expr));
    };
    let fits = PASS_OVER_NULL.contains(&function.fun.name()) && function.params.args.len() == 1;
    let filter = match fits {
        true => function.params.filter.take(),
        false => None,
    };
    let Some(filter) = filter else {
        return Ok(Transformed::no(Expr::WindowFunction(function)));
    };
    let args = std::mem::take(&mut function.params.args);
    let args = args
        .into_iter()
        .map(|arg| when((*filter).clone(), arg).end());
    function.params.args = args.collect::<Result<_>>()?;
    Ok(Transformed::yes(Expr::WindowFunction(function)))
}
