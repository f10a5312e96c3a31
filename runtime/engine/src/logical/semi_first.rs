//! Semi joins before inner joins that keep every row.
//!
//! `o_orderkey IN (SELECT ...)` is a filter of orders, but it stands above all joins of its
//! query, where it sees the rows of every table that orders was joined with:
//!
//! ```text
//!   LeftSemi  o_orderkey = k               Join  o_orderkey = l_orderkey
//!     Join  o_orderkey = l_orderkey          LeftSemi  o_orderkey = k
//!       Scan orders                 ->         Scan orders
//!       Scan lineitem                          ... k
//!     ... k                                  Scan lineitem
//! ```
//!
//! It goes down to the table of its keys where nothing filters the tables that it passes:
//! such a join hardly makes rows fewer, so that the semi join has less to do below it.

use std::sync::Arc;

use datafusion::common::{Column, JoinType, Result};
use datafusion::logical_expr::{Expr, Join, LogicalPlan};

use super::columns::through;

/// What stands for a semi or anti join that can go down.
pub fn moved(join: &Join) -> Result<Option<LogicalPlan>> {
    let is_filter = matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti);
    if !is_filter || join.filter.is_some() || join.null_aware {
        return Ok(None);
    }
    match left_keys(join) {
        Some(keys) => moved_down(&join.left, &keys, join),
        None => Ok(None),
    }
}

fn left_keys(join: &Join) -> Option<Vec<Column>> {
    let keys = join.on.iter().map(|(left, _)| match left {
        Expr::Column(column) => Some(column.clone()),
        _ => None,
    });
    keys.collect::<Option<Vec<_>>>()
        .filter(|keys| !keys.is_empty())
}

/// `plan` with the semi join below at least one of its joins; `keys` are the columns of
/// `plan` that it compares. `None` where it cannot pass one.
fn moved_down(plan: &LogicalPlan, keys: &[Column], semi: &Join) -> Result<Option<LogicalPlan>> {
    match plan {
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
            let inner: Option<Vec<Column>> = keys.iter().map(|key| through(plan, key)).collect();
            let (Some(input), Some(inner)) = (plan.inputs().first().copied(), inner) else {
                return Ok(None);
            };
            let Some(input) = moved_down(input, &inner, semi)? else {
                return Ok(None);
            };
            plan.with_new_exprs(plan.expressions(), vec![input])
                .map(Some)
        }
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
            let has_all = |side: &LogicalPlan| {
                keys.iter()
                    .all(|key| side.schema().maybe_index_of_column(key).is_some())
            };
            let mut lower = join.clone();
            let (side, other) = match has_all(&join.left) {
                true => (&mut lower.left, &join.right),
                false if has_all(&join.right) => (&mut lower.right, &join.left),
                false => return Ok(None),
            };
            if !keeps_every_row(other) {
                return Ok(None);
            }
            *side = Arc::new(match moved_down(side, keys, semi)? {
                Some(further) => further,
                None => joined(side, keys, semi)?,
            });
            Ok(Some(LogicalPlan::Join(lower)))
        }
        _ => Ok(None),
    }
}

/// The semi join over these rows.
fn joined(rows: &Arc<LogicalPlan>, keys: &[Column], semi: &Join) -> Result<LogicalPlan> {
    let right = semi.on.iter().map(|(_, right)| right.clone());
    let left = keys.iter().cloned().map(Expr::Column);
    let join = Join::try_new(
        Arc::clone(rows),
        Arc::clone(&semi.right),
        left.zip(right).collect(),
        None,
        semi.join_type,
        semi.join_constraint,
        semi.null_equality,
        semi.null_aware,
    )?;
    Ok(LogicalPlan::Join(join))
}

/// Whether a plan gives all rows of its tables, joined.
fn keeps_every_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::TableScan(scan) => scan.filters.is_empty() && scan.fetch.is_none(),
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.inputs().into_iter().all(keeps_every_row)
        }
        LogicalPlan::Join(join) => {
            join.join_type == JoinType::Inner
                && join.filter.is_none()
                && keeps_every_row(&join.left)
                && keeps_every_row(&join.right)
        }
        _ => false,
    }
}
