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

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use kernels::ir::{BinaryOp, Build, Expr, Kind, Step, Type};

use super::expr::{is_hint, lower};
use super::inputs::Inputs;
use super::join::Join;
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

pub(super) struct Lowering<'a> {
    pub(super) late: &'a LateValues,
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
        if let Some(join) = Join::of(plan)
            && !self.keeps_partitions
        {
            return self.join(&join, operators);
        }
        operators.push("source".to_string());
        Ok(self.source(plan))
    }

    pub(super) fn source(&self, plan: &Arc<dyn ExecutionPlan>) -> Chain {
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
    pub(super) fn below(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        operators: &mut Vec<String>,
    ) -> Chain {
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
}

pub(super) fn and(left: Expr, right: Expr) -> Expr {
    let nullable = left.nullable || right.nullable;
    Expr {
        kind: Kind::Binary(BinaryOp::And, Arc::new(left), Arc::new(right)),
        ty: Type::Bool,
        nullable,
    }
}
