//! `NOT IN (subquery)` with NULLs.
//!
//! `x NOT IN (S)` is NULL, hence no match, when `x` equals nothing in S but `x` or a
//! value of S is NULL. DataFusion's null-aware anti join covers the uncorrelated
//! `WHERE x NOT IN (S)`. It does not cover a correlated S, nor a place below OR,
//! where NULL is taken for false and then negated. Where a filter needs only
//! "certainly true", both are written as an EXISTS that counts the uncertain rows
//! as matches:
//!
//! ```text
//! x NOT IN (SELECT y ...)        NOT EXISTS (SELECT ... WHERE (y = x) IS NOT FALSE)
//! NOT (... x IN (SELECT y ...))      EXISTS (SELECT ... WHERE (y = x) IS NOT FALSE)
//! ```
//!
//! Where the NULL itself would be used (a SELECT list, CASE, IS NULL), the query is
//! refused.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::split_conjunction_owned;
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, Subquery, not,
};
use datafusion::optimizer::analyzer::AnalyzerRule;

use crate::error::Error;

/// The rule that makes NULLs count.
#[derive(Debug)]
pub struct RightNotIn;

impl AnalyzerRule for RightNotIn {
    fn name(&self) -> &str {
        "right_not_in"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let asks = |expr: &Expr| matches!(expr, Expr::InSubquery(_) | Expr::SetComparison(_));
        if !super::any_expression(&plan, asks)? {
            return Ok(plan);
        }
        Ok(plan.transform_up_with_subqueries(rewrite_node)?.data)
    }
}

/// What a NULL counts as where an expression stands.
#[derive(Clone, Copy, PartialEq)]
enum NullIs {
    False,
    True,
}

impl NullIs {
    fn negated(self) -> Self {
        match self {
            NullIs::False => NullIs::True,
            NullIs::True => NullIs::False,
        }
    }
}

fn rewrite_node(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let schema = super::input_schema(&plan)?;
    match plan {
        LogicalPlan::Filter(mut filter) => {
            let conjuncts = split_conjunction_owned(filter.predicate)
                .into_iter()
                .map(|conjunct| {
                    if is_covered(&conjunct) {
                        Ok(conjunct)
                    } else {
                        in_filter(conjunct, NullIs::False, &schema)
                    }
                })
                .collect::<Result<Vec<_>>>()?;
            let Some(predicate) = conjuncts.into_iter().reduce(Expr::and) else {
                return Err(Error::Internal {
                    message: "a filter without a predicate".into(),
                }
                .into_datafusion());
            };
            filter.predicate = predicate;
            Ok(Transformed::yes(LogicalPlan::Filter(filter)))
        }
        other => {
            for expr in other.expressions() {
                refuse_uncertain(&expr, &schema)?;
            }
            Ok(Transformed::no(other))
        }
    }
}

/// A conjunct that DataFusion's null-aware anti join answers rightly.
fn is_covered(conjunct: &Expr) -> bool {
    match conjunct {
        Expr::InSubquery(InSubquery { subquery, .. }) => subquery.outer_ref_columns.is_empty(),
        Expr::Not(inner) => is_covered(inner),
        _ => false,
    }
}

fn in_filter(expr: Expr, null_is: NullIs, schema: &DFSchema) -> Result<Expr> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: op @ (Operator::And | Operator::Or),
            right,
        }) => Expr::BinaryExpr(BinaryExpr {
            left: Box::new(in_filter(*left, null_is, schema)?),
            op,
            right: Box::new(in_filter(*right, null_is, schema)?),
        }),
        Expr::Not(inner) => not(in_filter(*inner, null_is.negated(), schema)?),
        Expr::InSubquery(membership) if !may_be_null(&membership, schema) => {
            Expr::InSubquery(membership)
        }
        Expr::InSubquery(InSubquery {
            expr,
            subquery,
            negated,
        }) => {
            // Whether a NULL must count as "is in" to come out as wanted.
            let null_is_in = (null_is == NullIs::True) != negated;
            if null_is_in {
                possibly_in(*expr, subquery, negated, schema)?
            } else {
                Expr::InSubquery(InSubquery {
                    expr,
                    subquery,
                    negated,
                })
            }
        }
        other => {
            refuse_uncertain(&other, schema)?;
            other
        }
    })
}

fn may_be_null(membership: &InSubquery, schema: &DFSchema) -> bool {
    membership.expr.nullable(schema).unwrap_or(true)
        || membership
            .subquery
            .subquery
            .schema()
            .fields()
            .iter()
            .any(|field| field.is_nullable())
}

/// `EXISTS (SELECT ... WHERE (y = x) IS NOT FALSE)`, negated or not.
fn possibly_in(expr: Expr, subquery: Subquery, negated: bool, schema: &DFSchema) -> Result<Expr> {
    let plan = subquery.subquery.as_ref().clone();
    let Some(value) = plan.schema().columns().into_iter().next() else {
        return Err(Error::Query {
            message: "IN needs a subquery with one column".into(),
        }
        .into_datafusion());
    };
    let mut outer_ref_columns = subquery.outer_ref_columns.clone();
    let outer = to_outer(expr, schema, &mut outer_ref_columns)?;
    let uncertain = Expr::IsNotFalse(Box::new(Expr::Column(value).eq(outer)));
    let plan = LogicalPlanBuilder::from(plan).filter(uncertain)?.build()?;
    let subquery = Subquery {
        subquery: Arc::new(plan),
        outer_ref_columns,
        spans: subquery.spans,
    };
    Ok(Expr::Exists(Exists { subquery, negated }))
}

/// An outer expression, as seen from inside the subquery.
fn to_outer(expr: Expr, schema: &DFSchema, outer_ref_columns: &mut Vec<Expr>) -> Result<Expr> {
    let expr = expr.transform_up(|expr| match expr {
        Expr::Column(column) => {
            let (_, field) = schema.qualified_field_from_column(&column)?;
            let outer = Expr::OuterReferenceColumn(Arc::clone(field), column);
            outer_ref_columns.push(outer.clone());
            Ok(Transformed::yes(outer))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(expr.data)
}

/// Refuses an IN whose NULL would be used as a value.
fn refuse_uncertain(expr: &Expr, schema: &DFSchema) -> Result<()> {
    expr.apply(|expr| match expr {
        Expr::InSubquery(membership) if may_be_null(membership, schema) => Err(Error::Refused {
            what: "IN (subquery) as a value".into(),
            why: "it would be false where it should be NULL".into(),
            instead: "join with the subquery, or use it as a condition of WHERE".into(),
        }
        .into_datafusion()),
        _ => Ok(TreeNodeRecursion::Continue),
    })?;
    Ok(())
}
