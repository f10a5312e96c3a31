//! Filters, projections and joins down to the relations that they read.
//!
//! ```text
//!   HashJoin ── probe side ── HashJoin ── probe side ── scan        relation 0
//!      │                         └─ build side ── filter ── scan    relation 1
//!      └─ build side ── ...                                         relation 2
//! ```
//!
//! The side whose rows flow on is the probe side; for joins that keep all rows of one
//! side it is that side, whichever DataFusion would build its table of.

use std::sync::Arc;

use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use kernels::ir::{BinaryOp, Build, BuildKey, Expr, JoinKey, Kind, Probe, ProbeKind, Step, Type};

use super::expr::{is_hint, lower};
use super::inputs::Inputs;
use super::late::LateValues;
use crate::report::Reason;

/// A chain of operators, lowered.
#[derive(Debug)]
pub struct Chain {
    /// Relation 0: the rows that flow through the steps.
    pub source: Arc<dyn ExecutionPlan>,
    /// Relations 1 and so on.
    pub joined: Vec<Joined>,
    /// What happens to a row.
    pub steps: Vec<Step>,
    /// The columns after the steps.
    pub inputs: Inputs,
    /// The most rows that come out; of each partition where partitions are kept.
    pub fetch: Option<usize>,
    /// Whether its last step is a full join, whose rows are there only once all of them
    /// are: what reads them is another pipeline.
    pub is_full: bool,
}

/// A relation that rows are matched with.
#[derive(Debug, Clone)]
pub struct Joined {
    /// Where its rows come from.
    pub plan: Arc<dyn ExecutionPlan>,
    /// What its table is made of.
    pub build: Build,
}

/// Lowers the node and what is below it, as far as that can be lowered: the first node
/// that cannot is the source. Partitions and the order of rows are kept, so only
/// filters and projections are taken. Fails when the node itself cannot be lowered.
pub fn lower_chain(
    plan: &Arc<dyn ExecutionPlan>,
    late: &LateValues,
    operators: &mut Vec<String>,
) -> Result<Chain, Reason> {
    Lowering {
        late,
        keeps_partitions: true,
    }
    .chain(plan, operators)
}

/// As [`lower_chain`], for whoever takes all rows of all partitions in any order: also
/// passes exchanges and takes joins.
pub fn lower_exchanged(
    plan: &Arc<dyn ExecutionPlan>,
    late: &LateValues,
    operators: &mut Vec<String>,
) -> Result<Chain, Reason> {
    Lowering {
        late,
        keeps_partitions: false,
    }
    .chain(plan, operators)
}

/// The node alone, as the source of all its columns.
pub fn lower_source(plan: &Arc<dyn ExecutionPlan>, late: &LateValues) -> Chain {
    let lowering = Lowering {
        late,
        keeps_partitions: false,
    };
    lowering.source(without_exchange(plan))
}

/// What a node reads from that only gathers, spreads or orders rows.
pub fn without_exchange(plan: &Arc<dyn ExecutionPlan>) -> &Arc<dyn ExecutionPlan> {
    let moves = plan.is::<CoalescePartitionsExec>()
        || plan.is::<CooperativeExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<SortExec>()
        || plan.is::<SortPreservingMergeExec>();
    let moves_all = moves && plan.fetch().is_none();
    match plan.children().first() {
        Some(child) if moves_all => without_exchange(child),
        _ => plan,
    }
}

struct Lowering<'a> {
    late: &'a LateValues,
    keeps_partitions: bool,
}

impl Lowering<'_> {
    fn chain(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        operators: &mut Vec<String>,
    ) -> Result<Chain, Reason> {
        let plan = match self.keeps_partitions {
            true => plan,
            false => without_exchange(plan),
        };
        if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            return self.projection(projection, operators);
        }
        if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            return self.filter(filter, operators);
        }
        if let Some(join) = plan.downcast_ref::<HashJoinExec>()
            && !self.keeps_partitions
        {
            return self.join(join, operators);
        }
        operators.push("source".to_string());
        Ok(self.source(plan))
    }

    fn source(&self, plan: &Arc<dyn ExecutionPlan>) -> Chain {
        Chain {
            source: Arc::clone(plan),
            joined: Vec::new(),
            steps: Vec::new(),
            inputs: Inputs::of_relation(&plan.schema(), 0, self.late),
            fetch: None,
            is_full: false,
        }
    }

    /// The chain below, or the node below as a source when it cannot be lowered.
    fn below(&self, plan: &Arc<dyn ExecutionPlan>, operators: &mut Vec<String>) -> Chain {
        let n_here = operators.len();
        match self.chain(plan, operators) {
            Ok(chain) if !chain.is_full => chain,
            _ => {
                operators.truncate(n_here);
                operators.push("source".to_string());
                self.source(plan)
            }
        }
    }

    fn projection(
        &self,
        projection: &ProjectionExec,
        operators: &mut Vec<String>,
    ) -> Result<Chain, Reason> {
        operators.push("GpuProject".to_string());
        let below = self.below(projection.input(), operators);
        let exprs = projection.expr().iter().map(|e| &e.expr);
        let inputs = below.inputs.project(exprs);
        Ok(Chain { inputs, ..below })
    }

    fn filter(&self, filter: &FilterExec, operators: &mut Vec<String>) -> Result<Chain, Reason> {
        operators.push("GpuFilter".to_string());
        let n_here = operators.len();
        let mut below = self.below(filter.input(), operators);
        if below.fetch.is_some() {
            // That limit counts rows before this filter: it is a pipeline of its own.
            operators.truncate(n_here);
            operators.push("source".to_string());
            below = self.source(filter.input());
        }
        if !is_hint(filter.predicate()) {
            let condition = lower(filter.predicate(), &below.inputs)?;
            below.steps.push(Step::Filter(condition));
        }
        if let Some(kept) = filter.projection().as_ref() {
            below.inputs = below.inputs.select(kept.iter().copied());
        }
        below.fetch = filter.fetch();
        Ok(below)
    }

    fn join(&self, join: &HashJoinExec, operators: &mut Vec<String>) -> Result<Chain, Reason> {
        use ProbeKind::{Full, IfAny, IfNone, Matches, MatchesOrNull, NotIn};
        let (probe_side, kind) = match join.join_type() {
            JoinType::Inner => (JoinSide::Right, Matches),
            JoinType::Right => (JoinSide::Right, MatchesOrNull),
            JoinType::Full => (JoinSide::Right, Full),
            JoinType::RightSemi => (JoinSide::Right, IfAny),
            JoinType::RightAnti => (JoinSide::Right, IfNone),
            JoinType::Left => (JoinSide::Left, MatchesOrNull),
            JoinType::LeftSemi => (JoinSide::Left, IfAny),
            JoinType::LeftAnti if join.null_aware => (JoinSide::Left, NotIn),
            JoinType::LeftAnti => (JoinSide::Left, IfNone),
            other => return Err(refused(&format!("{other} join is not on the GPU yet"))),
        };
        if join.fetch().is_some() {
            return Err(refused("a join with a row limit is not on the GPU yet"));
        }
        let is_left = probe_side == JoinSide::Left;
        let (probe_plan, build_plan) = match is_left {
            true => (join.left(), join.right()),
            false => (join.right(), join.left()),
        };
        operators.push("GpuHashJoin".to_string());
        let n_here = operators.len();
        let mut chain = self.below(probe_plan, operators);
        // A constant of a row that is missing is null, as everything of it.
        let is_constant = kind == Full && chain.inputs.any_constant();
        if chain.fetch.is_some() || is_constant {
            operators.truncate(n_here);
            operators.push("source".to_string());
            chain = self.source(probe_plan);
        }
        let relation = chain.joined.len() + 1;
        let (built, build_inputs, filter) = self.build_side(build_plan, kind, operators);

        let null_equal = join.null_equality() == NullEquality::NullEqualsNull;
        let mut keys = Vec::new();
        let mut build_keys = Vec::new();
        for (left, right) in join.on() {
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
        let residual = match join.filter() {
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
            },
        });
        let inputs = match (kind.has_columns(), is_left) {
            (false, _) => chain.inputs,
            (true, true) => chain.inputs.then(build_inputs),
            (true, false) => build_inputs.then(chain.inputs),
        };
        chain.inputs = match &join.projection {
            Some(kept) => inputs.select(kept.iter().copied()),
            None => inputs,
        };
        chain.is_full = kind == Full;
        Ok(chain)
    }

    /// The relation that a table is made of: its plan, its columns numbered from 0, and
    /// the condition for its rows. Filters and projections below are taken with it.
    fn build_side(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        kind: ProbeKind,
        operators: &mut Vec<String>,
    ) -> (Arc<dyn ExecutionPlan>, Inputs, Option<Expr>) {
        let plan = without_exchange(plan);
        operators.push("GpuHashBuild".to_string());
        let mut below = Vec::new();
        let chain = self.below(plan, &mut below);
        // A row that is missing has null in every column, whatever computes it.
        let is_plain = !kind.may_miss() || chain.inputs.are_columns();
        if chain.joined.is_empty() && chain.fetch.is_none() && is_plain {
            let conditions = chain.steps.into_iter().filter_map(|step| match step {
                Step::Filter(condition) => Some(condition),
                Step::Probe(_) | Step::Lookup { .. } => None,
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

fn and(left: Expr, right: Expr) -> Expr {
    let nullable = left.nullable || right.nullable;
    Expr {
        kind: Kind::Binary(BinaryOp::And, Arc::new(left), Arc::new(right)),
        ty: Type::Bool,
        nullable,
    }
}

fn refused(message: &str) -> Reason {
    Reason {
        code: "unsupported-join".to_string(),
        message: message.to_string(),
        fix: String::new(),
    }
}
