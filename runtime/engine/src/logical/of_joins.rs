//! Rules that look at one join at a time.

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Join, LogicalPlan};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// A rule that is shown every join, those below it first.
#[derive(Debug)]
pub struct OfJoins {
    /// Its name.
    pub name: &'static str,
    /// What stands for a join from then on; `None` leaves it.
    pub rewrite: fn(&Join) -> Result<Option<LogicalPlan>>,
}

impl OptimizerRule for OfJoins {
    fn name(&self) -> &str {
        self.name
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let rewritten = match &plan {
            LogicalPlan::Join(join) => (self.rewrite)(join)?,
            _ => None,
        };
        Ok(match rewritten {
            Some(rewritten) => Transformed::yes(rewritten),
            None => Transformed::no(plan),
        })
    }
}
