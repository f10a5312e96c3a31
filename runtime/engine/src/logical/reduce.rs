//! Groups that no row will match are not made.
//!
//! A subquery per key, such as an average by part, is an aggregate over a whole table that
//! is then joined with the few keys that a filter left. The join drops all other groups, so
//! their rows can go before they are grouped:
//!
//! ```text
//!   Join  p_partkey = l_partkey                Join  p_partkey = l_partkey
//!     Filter p_brand = ...                       Filter p_brand = ...
//!       Scan part                                  Scan part
//!     Aggregate by l_partkey           ->        Aggregate by l_partkey
//!       Scan lineitem                              LeftSemi  l_partkey = p_partkey
//!                                                    Scan lineitem
//!                                                    Filter p_brand = ...
//!                                                      Scan part
//! ```
//!
//! The keys may come from anywhere on the other side: a column that joins make equal to the
//! key does as well, which is why a filtered table is looked for and not the other side
//! itself, which may hold joins of its own.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, ExprSchema, JoinType, NullEquality, Result};
use datafusion::logical_expr::{
    Aggregate, Expr, Join, LogicalPlan, LogicalPlanBuilder, Projection, SubqueryAlias,
};

use super::columns::{column_at, through};

/// Names the keys that an input was reduced to.
const KEYS: &str = "__keys_that_match";

/// The join over fewer groups, if one of its sides makes groups that it drops.
pub fn reduced(join: &Join) -> Result<Option<LogicalPlan>> {
    if join.null_equality != NullEquality::NullEqualsNothing || join.null_aware {
        return Ok(None);
    }
    if let Some(right) = reduce_side(join, Side::Right)? {
        let right = Arc::new(right);
        return Ok(Some(LogicalPlan::Join(Join {
            right,
            ..join.clone()
        })));
    }
    let left = reduce_side(join, Side::Left)?.map(Arc::new);
    Ok(left.map(|left| {
        LogicalPlan::Join(Join {
            left,
            ..join.clone()
        })
    }))
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Left,
    Right,
}

/// Whether rows of this side that match nothing leave no trace in the result.
fn drops_what_is_alone(join_type: JoinType, side: Side) -> bool {
    match side {
        Side::Right => matches!(
            join_type,
            JoinType::Inner | JoinType::Left | JoinType::LeftSemi | JoinType::RightSemi
        ),
        Side::Left => matches!(
            join_type,
            JoinType::Inner | JoinType::Right | JoinType::LeftSemi | JoinType::RightSemi
        ),
    }
}

/// The side with fewer groups, if it makes groups and the other side names the keys.
fn reduce_side(join: &Join, side: Side) -> Result<Option<LogicalPlan>> {
    if !drops_what_is_alone(join.join_type, side) {
        return Ok(None);
    }
    let (own, other) = match side {
        Side::Left => (&join.left, &join.right),
        Side::Right => (&join.right, &join.left),
    };
    for (left, right) in &join.on {
        let (key, other_key) = match side {
            Side::Left => (left, right),
            Side::Right => (right, left),
        };
        let (Expr::Column(key), Expr::Column(other_key)) = (key, other_key) else {
            continue;
        };
        if !makes_groups_by(own, key) {
            continue;
        }
        if let Some(keys) = filtered_table(other, other_key)?
            && let Some(reduced) = reduce_groups(own, key, &keys)?
        {
            return Ok(Some(reduced));
        }
    }
    Ok(None)
}

/// The column that an aggregate groups by to give this one.
fn group_column(aggregate: &Aggregate, column: &Column) -> Option<Column> {
    let index = aggregate.schema.maybe_index_of_column(column)?;
    match aggregate.group_expr.get(index)? {
        Expr::Column(column) => Some(column.clone()),
        _ => None,
    }
}

/// Whether a plan is an aggregate of whose keys this column is one.
fn makes_groups_by(plan: &LogicalPlan, column: &Column) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => group_column(aggregate, column).is_some(),
        _ => through(plan, column).is_some_and(|column| {
            plan.inputs()
                .first()
                .is_some_and(|input| makes_groups_by(input, &column))
        }),
    }
}

/// The plan with an aggregate whose input has only rows with these keys.
fn reduce_groups(plan: &LogicalPlan, key: &Column, keys: &Keys) -> Result<Option<LogicalPlan>> {
    let (input, key) = match plan {
        LogicalPlan::Aggregate(aggregate) => {
            let Some(key) = group_column(aggregate, key) else {
                return Ok(None);
            };
            let Some(input) = reduce_rows(&aggregate.input, &key, keys)? else {
                return Ok(None);
            };
            let reduced = Aggregate::try_new_with_schema(
                Arc::new(input),
                aggregate.group_expr.clone(),
                aggregate.aggr_expr.clone(),
                Arc::clone(&aggregate.schema),
            )?;
            return Ok(Some(LogicalPlan::Aggregate(reduced)));
        }
        _ => match (plan.inputs().first(), through(plan, key)) {
            (Some(input), Some(key)) => (*input, key),
            _ => return Ok(None),
        },
    };
    let Some(input) = reduce_groups(input, &key, keys)? else {
        return Ok(None);
    };
    plan.with_new_exprs(plan.expressions(), vec![input])
        .map(Some)
}

/// The rows of a plan that have one of these keys: a semi join as near as can be to the
/// table that the key comes from. `None` where they were reduced before.
fn reduce_rows(plan: &LogicalPlan, key: &Column, keys: &Keys) -> Result<Option<LogicalPlan>> {
    match plan {
        LogicalPlan::Join(join) if is_reduced(join) => return Ok(None),
        LogicalPlan::Join(join) => {
            let in_left = join.left.schema().maybe_index_of_column(key).is_some();
            let side = match in_left {
                true => Side::Left,
                false => Side::Right,
            };
            // A row of the side goes on with its own key, or not at all.
            let keeps_key = match join.join_type {
                JoinType::Inner => true,
                JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti => side == Side::Left,
                JoinType::Right | JoinType::RightSemi | JoinType::RightAnti => side == Side::Right,
                JoinType::Full | JoinType::LeftMark | JoinType::RightMark => false,
            };
            if keeps_key {
                let mut reduced = join.clone();
                let input = match side {
                    Side::Left => &mut reduced.left,
                    Side::Right => &mut reduced.right,
                };
                let Some(smaller) = reduce_rows(input, key, keys)? else {
                    return Ok(None);
                };
                *input = Arc::new(smaller);
                return Ok(Some(LogicalPlan::Join(reduced)));
            }
        }
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
            if let (Some(input), Some(inner)) = (plan.inputs().first(), through(plan, key)) {
                let Some(input) = reduce_rows(input, &inner, keys)? else {
                    return Ok(None);
                };
                return plan
                    .with_new_exprs(plan.expressions(), vec![input])
                    .map(Some);
            }
        }
        LogicalPlan::Filter(filter) if !is_leaf(&filter.input) => {
            let Some(input) = reduce_rows(&filter.input, key, keys)? else {
                return Ok(None);
            };
            return plan
                .with_new_exprs(plan.expressions(), vec![input])
                .map(Some);
        }
        _ => {}
    }
    let key_type = plan.schema().data_type(key)?;
    if keys.plan.schema().data_type(&keys.column)? != key_type {
        return Ok(None);
    }
    let reduced = LogicalPlanBuilder::from(plan.clone()).join(
        keys.plan.clone(),
        JoinType::LeftSemi,
        (vec![key.clone()], vec![keys.column.clone()]),
        None,
    )?;
    reduced.build().map(Some)
}

/// Whether this join is one that this rule made.
fn is_reduced(join: &Join) -> bool {
    join.join_type == JoinType::LeftSemi && is_keys(&join.right)
}

fn is_keys(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => alias.alias.table() == KEYS,
        // What columns are needed may have been said again since.
        LogicalPlan::Projection(projection) => is_keys(&projection.input),
        _ => false,
    }
}

/// A plan whose one column has every key that can match.
struct Keys {
    plan: LogicalPlan,
    column: Column,
}

/// The filtered table below `plan` that has every value which the column can have, itself or
/// under the name of a column that joins make equal to it.
fn filtered_table(plan: &LogicalPlan, column: &Column) -> Result<Option<Keys>> {
    match plan {
        LogicalPlan::Filter(filter) if is_leaf(&filter.input) => keys_of(plan, column),
        LogicalPlan::TableScan(scan) if !scan.filters.is_empty() => keys_of(plan, column),
        LogicalPlan::Filter(_) | LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
            match (plan.inputs().first(), through(plan, column)) {
                (Some(input), Some(column)) => filtered_table(input, &column),
                _ => Ok(None),
            }
        }
        LogicalPlan::Join(join) => of_join(join, column),
        _ => Ok(None),
    }
}

fn of_join(join: &Join, column: &Column) -> Result<Option<Keys>> {
    let in_left = join.left.schema().maybe_index_of_column(column).is_some();
    // A row that goes on has matched on both sides, or the sides say nothing of each other.
    let (own_counts, other_counts) = match join.join_type {
        JoinType::Inner => (true, true),
        JoinType::LeftSemi => (in_left, in_left),
        JoinType::RightSemi => (!in_left, !in_left),
        JoinType::Left | JoinType::LeftAnti => (in_left, false),
        JoinType::Right | JoinType::RightAnti => (!in_left, false),
        JoinType::Full | JoinType::LeftMark | JoinType::RightMark => (false, false),
    };
    let (own, other) = match in_left {
        true => (&join.left, &join.right),
        false => (&join.right, &join.left),
    };
    if own_counts && let Some(keys) = filtered_table(own, column)? {
        return Ok(Some(keys));
    }
    if !other_counts || join.null_equality != NullEquality::NullEqualsNothing || is_reduced(join) {
        return Ok(None);
    }
    for (left, right) in &join.on {
        let (Expr::Column(left), Expr::Column(right)) = (left, right) else {
            continue;
        };
        let (mine, equal) = match in_left {
            true => (left, right),
            false => (right, left),
        };
        if mine == column
            && let Some(keys) = filtered_table(other, equal)?
        {
            return Ok(Some(keys));
        }
    }
    Ok(None)
}

/// A scan of a table, whatever columns of it.
fn is_leaf(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::TableScan(_) => true,
        LogicalPlan::Projection(Projection { input, expr, .. }) => {
            expr.iter().all(|expr| matches!(expr, Expr::Column(_))) && is_leaf(input)
        }
        LogicalPlan::SubqueryAlias(SubqueryAlias { input, .. }) => is_leaf(input),
        _ => false,
    }
}

/// The column of a filtered table, evaluated once more. `None` where that could give other
/// rows the second time.
fn keys_of(plan: &LogicalPlan, column: &Column) -> Result<Option<Keys>> {
    let mut is_stable = true;
    plan.apply_expressions(|expr| {
        is_stable &= !expr.is_volatile() && !has_subquery(expr);
        Ok(TreeNodeRecursion::Continue)
    })?;
    if !is_stable {
        return Ok(None);
    }
    let plan = LogicalPlanBuilder::from(plan.clone())
        .project([Expr::Column(column.clone())])?
        .alias(KEYS)?
        .build()?;
    let column = column_at(plan.schema(), 0);
    Ok(Some(Keys { plan, column }))
}

fn has_subquery(expr: &Expr) -> bool {
    use datafusion::common::tree_node::TreeNode;
    expr.exists(|expr| {
        Ok(matches!(
            expr,
            Expr::ScalarSubquery(_)
                | Expr::InSubquery(_)
                | Expr::Exists(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..)
        ))
    })
    .unwrap_or(true)
}
