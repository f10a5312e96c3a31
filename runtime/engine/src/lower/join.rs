//! Joins to probes.
//!
//! | Join | What is compared |
//! |---|---|
//! | hash | keys, and any condition on what has equal keys |
//! | nested loop | any condition on each pair of rows |
//! | cross | nothing |

use std::sync::Arc;

use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, JoinOnRef, NestedLoopJoinExec,
};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use kernels::ir::{Build, BuildKey, Expr, JoinKey, Kind, Probe, ProbeKind, Step, Type};

use super::chain::{Chain, Joined, Lowering, and, without_exchange};
use super::expr::lower;
use super::inputs::Inputs;
use crate::report::Reason;

/// A join, whichever node it is.
pub struct Join<'a> {
    name: &'static str,
    left: &'a Arc<dyn ExecutionPlan>,
    right: &'a Arc<dyn ExecutionPlan>,
    join_type: JoinType,
    /// Pairs of keys; none where each row meets every other.
    on: JoinOnRef<'a>,
    null_equal: bool,
    /// Whether it is a `NOT IN`.
    null_aware: bool,
    filter: Option<&'a JoinFilter>,
    /// The columns that are kept.
    projection: Option<&'a [usize]>,
    fetch: Option<usize>,
}

impl<'a> Join<'a> {
    /// The node as a join, if it is one that has a GPU form.
    pub fn of(plan: &'a Arc<dyn ExecutionPlan>) -> Option<Join<'a>> {
        if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
            return Some(Join {
                name: "GpuHashJoin",
                left: join.left(),
                right: join.right(),
                join_type: *join.join_type(),
                on: join.on(),
                null_equal: join.null_equality() == NullEquality::NullEqualsNull,
                null_aware: join.null_aware,
                filter: join.filter(),
                projection: join.projection.as_deref(),
                fetch: join.fetch(),
            });
        }
        if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
            return Some(Join {
                name: "GpuNestedLoopJoin",
                left: join.left(),
                right: join.right(),
                join_type: *join.join_type(),
                on: &[],
                null_equal: false,
                null_aware: false,
                filter: join.filter(),
                projection: join.projection().as_deref(),
                fetch: plan.fetch(),
            });
        }
        let join = plan.downcast_ref::<CrossJoinExec>()?;
        Some(Join {
            name: "GpuCrossJoin",
            left: join.left(),
            right: join.right(),
            join_type: JoinType::Inner,
            on: &[],
            null_equal: false,
            null_aware: false,
            filter: None,
            projection: None,
            fetch: plan.fetch(),
        })
    }
}

impl Lowering<'_> {
    /// Lowers a join and what is below its sides.
    pub(super) fn join(
        &self,
        join: &Join<'_>,
        operators: &mut Vec<String>,
    ) -> Result<Chain, Reason> {
        use ProbeKind::{Full, IfAny, IfNone, Mark, Matches, MatchesOrNull, NotIn};
        let (probe_side, kind) = match join.join_type {
            JoinType::Inner => (JoinSide::Right, Matches),
            JoinType::Right => (JoinSide::Right, MatchesOrNull),
            JoinType::Full => (JoinSide::Right, Full),
            JoinType::RightSemi => (JoinSide::Right, IfAny),
            JoinType::RightAnti => (JoinSide::Right, IfNone),
            JoinType::RightMark => (JoinSide::Right, Mark),
            JoinType::Left => (JoinSide::Left, MatchesOrNull),
            JoinType::LeftSemi => (JoinSide::Left, IfAny),
            JoinType::LeftAnti if join.null_aware => (JoinSide::Left, NotIn),
            JoinType::LeftAnti => (JoinSide::Left, IfNone),
            JoinType::LeftMark => (JoinSide::Left, Mark),
        };
        let is_left = probe_side == JoinSide::Left;
        let (probe_plan, build_plan) = match is_left {
            true => (join.left, join.right),
            false => (join.right, join.left),
        };
        operators.push(join.name.to_string());
        let n_here = operators.len();
        let mut chain = self.below(probe_plan, operators);
        // A constant of a row that is missing is null, as everything of it.
        let is_constant = kind == Full && chain.inputs.any_constant();
        if chain.fetch.is_some() || is_constant {
            operators.truncate(n_here);
            operators.push("source".to_string());
            chain = self.source(probe_plan);
        }
        let has_keys = !join.on.is_empty();
        let relation = chain.joined.len() + 1;
        let (built, build_inputs, filter) = self.build_side(build_plan, kind, has_keys, operators);

        let null_equal = join.null_equal;
        let mut keys = Vec::new();
        let mut build_keys = Vec::new();
        for (left, right) in join.on {
            let (probe, build) = match is_left {
                true => (left, right),
                false => (right, left),
            };
            let (probe, value) = (lower(probe, &chain.inputs)?, lower(build, &build_inputs)?);
            check_key(&probe, &value)?;
            keys.push(JoinKey {
                probe,
                build: value.of_relation(relation),
                null_equal,
            });
            build_keys.push(BuildKey { value, null_equal });
        }
        let may_miss = kind.may_miss();
        let build_inputs = build_inputs.in_relation(relation, may_miss);
        let residual = match join.filter {
            None => None,
            Some(filter) => {
                let mut inputs = chain.inputs.select([]);
                for column in filter.column_indices() {
                    let side = match column.side {
                        JoinSide::None => {
                            return Err(refused("a join condition on a mark"));
                        }
                        side if side == probe_side => &chain.inputs,
                        _ => &build_inputs,
                    };
                    inputs = inputs.then(side.select([column.index]));
                }
                let condition: &Arc<dyn PhysicalExpr> = filter.expression();
                Some(lower(condition, &inputs)?)
            }
        };
        let only_exists = residual.is_none() && matches!(kind, IfAny | IfNone | NotIn);
        chain.steps.push(Step::Probe(Probe {
            relation,
            keys,
            residual,
            kind,
        }));
        chain.joined.push(Joined {
            plan: built,
            build: Build {
                filter,
                keys: build_keys,
                only_exists,
            },
        });
        let inputs = match (kind.has_columns(), is_left) {
            (false, _) if kind == Mark => {
                let mark = Expr {
                    kind: Kind::Matched(relation),
                    ty: Type::Bool,
                    nullable: false,
                };
                chain.inputs.then_computed(mark)
            }
            (false, _) => chain.inputs,
            (true, true) => chain.inputs.then(build_inputs),
            (true, false) => build_inputs.then(chain.inputs),
        };
        chain.inputs = match join.projection {
            Some(kept) => inputs.select(kept.iter().copied()),
            None => inputs,
        };
        chain.is_full = kind == Full;
        chain.fetch = join.fetch;
        Ok(chain)
    }

    /// The relation that a table is made of: its plan, its columns numbered from 0, and
    /// the condition for its rows. Filters and projections below are taken with it.
    fn build_side(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        kind: ProbeKind,
        has_keys: bool,
        operators: &mut Vec<String>,
    ) -> (Arc<dyn ExecutionPlan>, Inputs, Option<Expr>) {
        let plan = without_exchange(plan);
        if has_keys {
            operators.push("GpuHashBuild".to_string());
        }
        let mut below = Vec::new();
        let chain = self.below(plan, &mut below);
        // A row that is missing has null in every column, whatever computes it.
        let is_plain = !kind.may_miss() || chain.inputs.are_columns();
        // Without keys every row is looked at each time, so those that a filter drops are
        // better left out once.
        let is_table = has_keys || chain.steps.is_empty();
        if chain.joined.is_empty() && chain.fetch.is_none() && is_plain && is_table {
            let conditions = chain.steps.into_iter().filter_map(|step| match step {
                Step::Filter(condition) => Some(condition),
                Step::Probe(_) | Step::Lookup { .. } | Step::EachSet(_) => None,
            });
            let filter = conditions.reduce(and);
            return (chain.source, chain.inputs, filter);
        }
        let source = self.source(plan);
        (source.source, source.inputs, None)
    }
}

/// Whether two keys can be compared by their hash.
fn check_key(probe: &Expr, build: &Expr) -> Result<(), Reason> {
    let same = match (probe.ty, build.ty) {
        (Type::Decimal { scale: a, .. }, Type::Decimal { scale: b, .. }) => a == b,
        (a, b) => a == b,
    };
    if same {
        return Ok(());
    }
    let message = format!(
        "a join of {} with {} is not on the GPU yet",
        probe.ty, build.ty
    );
    Err(refused(&message))
}

fn refused(message: &str) -> Reason {
    Reason {
        code: "unsupported-join".to_string(),
        message: message.to_string(),
        fix: String::new(),
    }
}
