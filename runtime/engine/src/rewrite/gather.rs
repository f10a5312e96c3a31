//! Merge sorted partitions where they are sorted.
//!
//! ```text
//!   SortPreservingMerge          Projection
//!     Projection          ->       SortPreservingMerge
//!       Sort                         Sort
//! ```
//!
//! A projection gives rows in the order in which it gets them, so it may as well come
//! after the merge.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;

/// The plan with every such merge moved.
pub fn gather(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_down(|node| {
        let Some(merge) = node.downcast_ref::<SortPreservingMergeExec>() else {
            return Ok(Transformed::no(node));
        };
        match below_projections(merge.input(), merge.fetch())? {
            Some(moved) => Ok(Transformed::yes(moved)),
            None => Ok(Transformed::no(node)),
        }
    })
    .map(|gathered| gathered.data)
}

/// The projections with the merge below them, if a sort follows.
fn below_projections(
    plan: &Arc<dyn ExecutionPlan>,
    fetch: Option<usize>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(projection) = plan.downcast_ref::<ProjectionExec>() else {
        return Ok(None);
    };
    let input = projection.input();
    let merged: Arc<dyn ExecutionPlan> = match input.downcast_ref::<SortExec>() {
        Some(sort) if sort.preserve_partitioning() => Arc::new(
            SortPreservingMergeExec::new(sort.expr().clone(), Arc::clone(input)).with_fetch(fetch),
        ),
        Some(_) => return Ok(None),
        None => match below_projections(input, fetch)? {
            Some(moved) => moved,
            None => return Ok(None),
        },
    };
    let exprs = projection.expr().iter().cloned();
    let moved = ProjectionExec::try_new(exprs, merged)?;
    Ok(Some(Arc::new(moved)))
}
