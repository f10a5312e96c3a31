//! Inner joins in the order that costs least.
//!
//! DataFusion 55 joins in the order in which a query names its tables. A maximal tree of
//! inner joins becomes relations and conditions, and [`super::enumerate`] says how to put
//! them together again. A tree changes only if the new one is expected to be clearly
//! cheaper: estimates err, and authors often know their data. (A tree that may also join
//! results of joins made fewer rows, but TPC-H at scale 30 took longer: they are laid out,
//! with the texts in them, before they are probed.)

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, JoinConstraint, JoinType, NullEquality, Result};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use super::enumerate::{Graph, RELATIONS_MAX, Tree};
use super::facts::{Facts, equal_part};

/// A new order is taken if it is expected to cost less than this part of the old one.
const WORTH_PART: f64 = 0.7;

/// The rule.
#[derive(Debug)]
pub struct JoinOrder {
    /// What is known of tables.
    pub facts: Arc<Facts>,
}

impl OptimizerRule for JoinOrder {
    fn name(&self) -> &str {
        "join_order"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        None
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        self.order_below(plan)
    }
}

impl JoinOrder {
    fn order_below(&self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        if !is_inner(&plan) {
            return plan.map_children(|child| self.order_below(child));
        }
        let mut joins = Joins::default();
        let written = joins.flatten(&plan);
        if joins.relations.len() < 3 || joins.relations.len() > RELATIONS_MAX {
            return self.order_in_relations(plan);
        }
        match self.ordered(&joins, &written, &plan)? {
            Some(ordered) => {
                // The relations may hold trees of their own.
                Ok(Transformed::yes(self.order_in_relations(ordered)?.data))
            }
            None => self.order_in_relations(plan),
        }
    }

    /// Orders what is in the relations of a tree, and leaves the tree.
    fn order_in_relations(&self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        match is_inner(&plan) || is_passed(&plan) {
            true => plan.map_children(|child| self.order_in_relations(child)),
            false => plan.map_children(|child| self.order_below(child)),
        }
    }

    fn ordered(
        &self,
        joins: &Joins,
        written: &Tree,
        plan: &LogicalPlan,
    ) -> Result<Option<LogicalPlan>> {
        let known = joins.relations.iter().map(|rows| self.facts.estimate(rows));
        let Some(known) = known.collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let Some(conditions) = joins.placed() else {
            return Ok(None);
        };
        let edges = conditions.iter().filter_map(|condition| {
            let Condition::Equal { left, right } = condition else {
                return None;
            };
            let part = equal_part(known[left.0].of(&left.1), known[right.0].of(&right.1));
            Some((left.0, right.0, part))
        });
        let n_rows = known.iter().map(|rows| rows.n_rows).collect();
        let graph = Graph::new(n_rows, &edges.collect::<Vec<_>>());
        let Some((tree, cost)) = graph.cheapest() else {
            return Ok(None);
        };
        if !cost.is_below(WORTH_PART, graph.cost(written)) {
            return Ok(None);
        }
        let mut left: Vec<Option<Condition>> = conditions.into_iter().map(Some).collect();
        let (ordered, _) = joins.build(&tree, &mut left)?;
        if left.iter().any(Option::is_some) {
            return Ok(None);
        }
        if ordered.schema().columns() == plan.schema().columns() {
            return Ok(Some(ordered));
        }
        let columns = plan.schema().columns().into_iter().map(Expr::Column);
        LogicalPlanBuilder::from(ordered)
            .project(columns)?
            .build()
            .map(Some)
    }
}

fn is_inner(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Join(join) => {
            join.join_type == JoinType::Inner
                && join.null_equality == NullEquality::NullEqualsNothing
                && !join.null_aware
        }
        _ => false,
    }
}

/// Whether this is a projection that only says which columns of a join are needed.
fn is_passed(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => {
            projection
                .expr
                .iter()
                .all(|expr| matches!(expr, Expr::Column(_)))
                && (is_inner(&projection.input) || is_passed(&projection.input))
        }
        _ => false,
    }
}

/// A tree of inner joins, taken apart.
#[derive(Debug, Default)]
struct Joins {
    relations: Vec<LogicalPlan>,
    equalities: Vec<(Expr, Expr)>,
    others: Vec<Expr>,
}

/// A condition of the joins, with the relations that it looks at.
#[derive(Debug, Clone)]
enum Condition {
    /// Two keys, each of one relation.
    Equal {
        left: (usize, Expr),
        right: (usize, Expr),
    },
    /// Any other, and the set of its relations.
    Other { relations: u64, expr: Expr },
}

impl Condition {
    fn relations(&self) -> u64 {
        match self {
            Condition::Equal { left, right } => 1 << left.0 | 1 << right.0,
            Condition::Other { relations, .. } => *relations,
        }
    }
}

impl Joins {
    /// Takes a tree apart; gives its shape.
    fn flatten(&mut self, plan: &LogicalPlan) -> Tree {
        match plan {
            LogicalPlan::Join(join) if is_inner(plan) => {
                let left = self.flatten(&join.left);
                let right = self.flatten(&join.right);
                self.equalities.extend(join.on.iter().cloned());
                let others = join.filter.clone().map(split_conjunction_owned);
                self.others.extend(others.into_iter().flatten());
                Tree::Join(Box::new(left), Box::new(right))
            }
            LogicalPlan::Projection(projection) if is_passed(plan) => {
                self.flatten(&projection.input)
            }
            _ => {
                self.relations.push(plan.clone());
                Tree::Relation(self.relations.len() - 1)
            }
        }
    }

    /// The set of relations that an expression looks at; `None` where a column is of none or
    /// of several, or where it matters for how many rows it is computed.
    fn relations_of(&self, expr: &Expr) -> Option<u64> {
        if expr.is_volatile() {
            return None;
        }
        let mut set = 0;
        for column in expr.column_refs() {
            let mut owners = self.relations.iter().enumerate().filter(|(_, rows)| {
                let schema: &DFSchema = rows.schema();
                schema.maybe_index_of_column(column).is_some()
            });
            match (owners.next(), owners.next()) {
                (Some((owner, _)), None) => set |= 1 << owner,
                _ => return None,
            }
        }
        Some(set)
    }

    fn placed(&self) -> Option<Vec<Condition>> {
        let mut conditions = Vec::new();
        for (left, right) in &self.equalities {
            let (of_left, of_right) = (self.relations_of(left)?, self.relations_of(right)?);
            let is_pair =
                of_left.is_power_of_two() && of_right.is_power_of_two() && of_left != of_right;
            conditions.push(match is_pair {
                true => Condition::Equal {
                    left: (of_left.trailing_zeros() as usize, left.clone()),
                    right: (of_right.trailing_zeros() as usize, right.clone()),
                },
                false => Condition::Other {
                    relations: of_left | of_right,
                    expr: left.clone().eq(right.clone()),
                },
            });
        }
        for expr in &self.others {
            conditions.push(Condition::Other {
                relations: self.relations_of(expr)?,
                expr: expr.clone(),
            });
        }
        Some(conditions)
    }

    /// The plan of a tree. Each condition stands where all its relations first meet, and is
    /// taken out of `conditions`.
    fn build(
        &self,
        tree: &Tree,
        conditions: &mut [Option<Condition>],
    ) -> Result<(LogicalPlan, u64)> {
        let (left, right) = match tree {
            Tree::Relation(number) => {
                let set = 1 << number;
                let own = taken(conditions, |condition| condition.relations() & !set == 0);
                let own = own.into_iter().map(expression);
                let rows = self.relations[*number].clone();
                let plan = match conjunction(own) {
                    Some(predicate) => {
                        LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(rows))?)
                    }
                    None => rows,
                };
                return Ok((plan, set));
            }
            Tree::Join(left, right) => (left, right),
        };
        let (left, of_left) = self.build(left, conditions)?;
        let (right, of_right) = self.build(right, conditions)?;
        let set = of_left | of_right;
        let mut on = Vec::new();
        let mut filter = Vec::new();
        for condition in taken(conditions, |condition| condition.relations() & !set == 0) {
            match condition {
                Condition::Equal {
                    left: (number, one),
                    right: (_, other),
                } => on.push(match of_left >> number & 1 == 1 {
                    true => (one, other),
                    false => (other, one),
                }),
                Condition::Other { expr, .. } => filter.push(expr),
            }
        }
        let join = Join::try_new(
            Arc::new(left),
            Arc::new(right),
            on,
            conjunction(filter),
            JoinType::Inner,
            JoinConstraint::On,
            NullEquality::NullEqualsNothing,
            false,
        )?;
        Ok((LogicalPlan::Join(join), set))
    }
}

fn expression(condition: Condition) -> Expr {
    match condition {
        Condition::Equal { left, right } => left.1.eq(right.1),
        Condition::Other { expr, .. } => expr,
    }
}

fn taken(
    conditions: &mut [Option<Condition>],
    is_wanted: impl Fn(&Condition) -> bool,
) -> Vec<Condition> {
    let wanted = conditions
        .iter_mut()
        .filter(|condition| condition.as_ref().is_some_and(&is_wanted));
    wanted.filter_map(Option::take).collect()
}
