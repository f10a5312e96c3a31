//! Joins that keep what NULL means to them.
//!
//! `a.k IS NOT DISTINCT FROM b.k` becomes a join on `a.k = b.k` with the note that NULL
//! equals NULL. Two of DataFusion's rules forget whose note it is:
//!
//! ```text
//!   Join: b.k = c.k                       the rule that reorders inner joins gives all of
//!     Join: a.k = b.k, NULL = NULL        them the note of one
//!
//!   Join: a.k = b.k, NULL = NULL          the rule that finds keys in conditions makes
//!     Filter: a.x = b.x                   them keys under the same note
//! ```
//!
//! Neither rule is applied where that could happen.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{NullEquality, Result};
use datafusion::logical_expr::{Join, JoinType, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// The rule, kept from plans whose joins it would change.
pub fn kept(rule: Rule) -> Rule {
    let harms: fn(&LogicalPlan) -> Result<bool> = match rule.name() {
        "eliminate_cross_join" => |plan| any(plan, &|join| join.join_type == JoinType::Inner),
        "extract_equijoin_predicate" => |plan| match plan {
            LogicalPlan::Join(join) => Ok(is_null_safe(join) && join.filter.is_some()),
            _ => Ok(false),
        },
        _ => return rule,
    };
    Arc::new(Kept { rule, harms })
}

#[derive(Debug)]
struct Kept {
    rule: Rule,
    harms: fn(&LogicalPlan) -> Result<bool>,
}

impl OptimizerRule for Kept {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.rule.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        match (self.harms)(&plan)? {
            true => Ok(Transformed::no(plan)),
            false => self.rule.rewrite(plan, config),
        }
    }
}

fn is_null_safe(join: &Join) -> bool {
    join.null_equality == NullEquality::NullEqualsNull && !join.on.is_empty()
}

/// Whether a plan or one of its subqueries has such a null-safe join.
fn any(plan: &LogicalPlan, of: &dyn Fn(&Join) -> bool) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= matches!(node, LogicalPlan::Join(join) if is_null_safe(join) && of(join));
        Ok(match found {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(found)
}
