//! Filters that keep to their column where two have one name.
//!
//! DataFusion moves filters down the physical plan by the names of columns:
//!
//! ```text
//!   Filter: l.s is null                  Right Join
//!     Projection: l.s, r.s       ->        l
//!       Right Join                         Filter: r.s is null
//! ```
//!
//! While its rule runs, a node whose columns share a name stands below a [`Wall`], which
//! no filter passes.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// The rule, with walls while it moves filters.
pub fn walled(rule: Rule) -> Rule {
    match rule.name().starts_with("FilterPushdown") {
        true => Arc::new(Walled(rule)),
        false => rule,
    }
}

#[derive(Debug)]
struct Walled(Rule);

impl PhysicalOptimizerRule for Walled {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let walls = plan.transform_up(|node| {
            Ok(match shares_a_name(&node) {
                true => Transformed::yes(Arc::new(Wall(node)) as Arc<dyn ExecutionPlan>),
                false => Transformed::no(node),
            })
        })?;
        let moved = self.0.optimize(walls.data, config)?;
        if !walls.transformed {
            return Ok(moved);
        }
        let plain = moved.transform_up(|node| {
            Ok(match node.downcast_ref::<Wall>() {
                Some(Wall(inner)) => Transformed::yes(Arc::clone(inner)),
                None => Transformed::no(node),
            })
        })?;
        Ok(plain.data)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

fn shares_a_name(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let schema = plan.schema();
    let mut names = HashSet::new();
    !schema
        .fields()
        .iter()
        .all(|field| names.insert(field.name()))
}

/// A node that lets no filter through; it is gone before anything runs.
#[derive(Debug)]
struct Wall(Arc<dyn ExecutionPlan>);

impl DisplayAs for Wall {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wall")
    }
}

impl ExecutionPlan for Wall {
    fn name(&self) -> &str {
        "Wall"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.0]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([child]) => Ok(Arc::new(Wall(child))),
            Err(_) => internal_err!("a wall stands above one node"),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("a wall is no part of a plan that runs")
    }
}
