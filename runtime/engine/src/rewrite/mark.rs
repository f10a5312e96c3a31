//! Can this node and its input run on the GPU? If not, why not.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::common::ScalarValue;
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::physical_expr::expressions::{Column, Literal as PhysicalLiteral};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::udaf::AggregateFunctionExpr;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PhysicalExpr};
use kernels::codegen::{check_collect, check_sort};
use kernels::columns::arrow_type;
use kernels::ir::{
    Aggregate, BinaryOp, Call, Collect, Expr, Function, IntWidth, Kind, Literal, Range, Sort,
    SortKey, Type,
};

use crate::exec::{AggregatePipeline, CollectPipeline, KeyColumn, Output, SortPipeline, Taken};
use crate::guard::extremes::Extreme;
use crate::guard::sum::CheckedSum;
use crate::lower::{Inputs, Origin, lower, lower_literal, reason};
use crate::report::Reason;

/// What can run on the GPU, lowered.
pub enum Candidate {
    /// A complete aggregate over filters and projections.
    Aggregate(AggregatePipeline),
    /// Filters and projections that give rows back.
    Collect(CollectPipeline),
    /// A sort of all rows.
    Sort(SortPipeline),
}

/// Lowers a node and what belongs to it, or says why it stays on the CPU. `None` for
/// nodes that compute nothing and for those that have no GPU form at all.
pub fn mark(plan: &Arc<dyn ExecutionPlan>) -> Option<Result<Candidate, Reason>> {
    if let Some(top) = plan.downcast_ref::<AggregateExec>() {
        return mark_aggregate(top).map(|marked| marked.map(Candidate::Aggregate));
    }
    if plan.is::<SortExec>() || plan.is::<SortPreservingMergeExec>() {
        return mark_sort(plan).map(|marked| marked.map(Candidate::Sort));
    }
    if plan.is::<FilterExec>() || plan.is::<ProjectionExec>() {
        return mark_collect(plan).map(|marked| marked.map(Candidate::Collect));
    }
    None
}

/// Lowers a complete aggregate: single, or final over its partial.
fn mark_aggregate(top: &AggregateExec) -> Option<Result<AggregatePipeline, Reason>> {
    let first = match top.mode() {
        AggregateMode::Single | AggregateMode::SinglePartitioned => top,
        AggregateMode::Final | AggregateMode::FinalPartitioned => partial_below(top.input())?,
        _ => return None,
    };
    Some(lower_aggregate(first))
}

/// Lowers the longest chain of filters and projections that starts here. `None` when
/// it only renames, reorders or adds constants.
fn mark_collect(plan: &Arc<dyn ExecutionPlan>) -> Option<Result<CollectPipeline, Reason>> {
    let mut operators = vec!["GpuCollect".to_string()];
    let rows = match lower_rows(plan, &mut operators) {
        Ok(rows) => rows,
        Err(reason) => return Some(Err(reason)),
    };
    let mut computed = Vec::new();
    let mut outputs = Vec::new();
    for (field, (origin, value)) in plan.schema().fields().iter().zip(rows.inputs.iter()) {
        outputs.push(match (origin, value) {
            (Origin::Column(index), _) => Taken::Source(*index),
            (Origin::Constant(value), _) => Taken::Constant(value.clone()),
            (Origin::Computed, Err(reason)) => return Some(Err(reason.clone())),
            (Origin::Computed, Ok(value)) => {
                if arrow_type(value.ty) != *field.data_type() {
                    let message = format!(
                        "{} is {} here and {} on the GPU",
                        field.name(),
                        field.data_type(),
                        value.ty
                    );
                    return Some(Err(refused("unsupported-type", &message)));
                }
                computed.push(value.clone());
                Taken::Computed(computed.len() - 1)
            }
        });
    }
    if rows.filter.is_none() && computed.is_empty() {
        return None;
    }
    let collect = Collect {
        filter: rows.filter,
        outputs: computed,
    };
    if let Err(unsupported) = check_collect(&collect) {
        return Some(Err(reason(&unsupported, plan.name())));
    }
    Some(Ok(CollectPipeline {
        known: Arc::new(known_ranges(&rows.source)),
        source: rows.source,
        collect,
        outputs,
        fetch: rows.fetch,
        operators,
    }))
}

/// A chain that keeps rows in their partitions and in their order.
struct Rows {
    source: Arc<dyn ExecutionPlan>,
    inputs: Inputs,
    filter: Option<Expr>,
    fetch: Option<usize>,
}

/// Lowers the node, and what is below it as far as that can be lowered: the first node
/// that cannot is the source.
fn lower_rows(plan: &Arc<dyn ExecutionPlan>, operators: &mut Vec<String>) -> Result<Rows, Reason> {
    let n_before = operators.len();
    let below = |input: &Arc<dyn ExecutionPlan>, operators: &mut Vec<String>| -> Rows {
        let n_here = operators.len();
        lower_rows(input, operators).unwrap_or_else(|_| {
            operators.truncate(n_here);
            operators.push("source".to_string());
            source_rows(input)
        })
    };
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        operators.push("GpuProject".to_string());
        let mut rows = below(projection.input(), operators);
        let exprs = || projection.expr().iter().map(|e| &e.expr);
        rows.inputs = rows.inputs.project(exprs());
        for (origin, value) in rows.inputs.iter() {
            if let (Origin::Computed, Err(reason)) = (origin, value) {
                return Err(reason.clone());
            }
        }
        return Ok(rows);
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        operators.push("GpuFilter".to_string());
        let mut rows = below(filter.input(), operators);
        if rows.fetch.is_some() {
            // That limit counts rows before this filter: it is a pipeline of its own.
            operators.truncate(n_before + 1);
            operators.push("source".to_string());
            rows = source_rows(filter.input());
        }
        let condition = lower(filter.predicate(), &rows.inputs)?;
        rows.filter = Some(match rows.filter.take() {
            None => condition,
            Some(first) => and(first, condition),
        });
        if let Some(kept) = filter.projection().as_ref() {
            rows.inputs = rows.inputs.select(kept.iter().copied());
        }
        rows.fetch = filter.fetch();
        return Ok(rows);
    }
    operators.push("source".to_string());
    Ok(source_rows(plan))
}

fn source_rows(plan: &Arc<dyn ExecutionPlan>) -> Rows {
    Rows {
        source: Arc::clone(plan),
        inputs: Inputs::source(&plan.schema()),
        filter: None,
        fetch: None,
    }
}

/// Lowers a sort into one partition: a sort of one partition, or sorted partitions and
/// their merge.
fn mark_sort(plan: &Arc<dyn ExecutionPlan>) -> Option<Result<SortPipeline, Reason>> {
    if let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>() {
        // What keeps the sort below on the CPU is told there.
        let sort = merge.input().downcast_ref::<SortExec>()?;
        if sort.expr() != merge.expr() {
            return None;
        }
        let fetch = match (merge.fetch(), sort.fetch()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        return lower_sort(sort, fetch).ok().map(Ok);
    }
    let sort = plan.downcast_ref::<SortExec>()?;
    let marked = lower_sort(sort, sort.fetch());
    let spread = sort.input().output_partitioning().partition_count() > 1;
    if marked.is_ok() && sort.preserve_partitioning() && spread {
        return Some(Err(refused(
            "unsupported-sort",
            "a sort within partitions is not on the GPU yet",
        )));
    }
    Some(marked)
}

fn lower_sort(sort: &SortExec, fetch: Option<usize>) -> Result<SortPipeline, Reason> {
    let schema = sort.input().schema();
    let is_text = |index: usize| {
        let data_type = schema.field(index).data_type();
        matches!(
            data_type,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
        )
    };
    let mut used: Vec<usize> = sort
        .expr()
        .iter()
        .flat_map(|key| collect_columns(&key.expr))
        .map(|column| column.index())
        .collect();
    used.sort_unstable();
    used.dedup();
    let inputs = Inputs::numbered(&schema, &used);
    let mut keys = Vec::new();
    for key in sort.expr() {
        let text = key
            .expr
            .downcast_ref::<Column>()
            .filter(|column| is_text(column.index()));
        let value = match text {
            Some(column) => {
                let number = used.iter().position(|index| *index == column.index());
                let nullable = schema.field(column.index()).is_nullable();
                let ranks = Type::Int(IntWidth::W32);
                Expr::column(number.unwrap_or_default(), ranks, nullable)
            }
            None => lower(&key.expr, &inputs)?,
        };
        keys.push(SortKey {
            value,
            descending: key.options.descending,
            nulls_first: key.options.nulls_first,
        });
    }
    let lowered = Sort { keys };
    check_sort(&lowered).map_err(|unsupported| reason(&unsupported, "sort key"))?;
    let key_columns = used.iter().map(|index| KeyColumn {
        index: *index,
        is_text: is_text(*index),
    });
    Ok(SortPipeline {
        source: without_exchange(sort.input()),
        sort: lowered,
        key_columns: key_columns.collect(),
        fetch,
        operators: vec!["GpuSort".to_string(), "source".to_string()],
    })
}

/// What an exchange that only gathers or spreads rows reads from: the sort reads all
/// partitions itself, in an order that does not depend on which is faster.
fn without_exchange(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let is_one = plan.is::<CooperativeExec>() || plan.is::<CoalescePartitionsExec>();
    let has_limit = plan
        .downcast_ref::<CoalescePartitionsExec>()
        .is_some_and(|exchange| exchange.fetch().is_some());
    if (is_one || is_round_robin(plan))
        && !has_limit
        && let Some(child) = plan.children().first()
    {
        return without_exchange(child);
    }
    Arc::clone(plan)
}

/// Whether a node computes nothing: it moves rows, leaves some out by their number, or
/// renames columns and adds constants.
pub fn computes_nothing(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let mut exprs = projection.expr().iter();
        return exprs.all(|e| e.expr.is::<Column>() || e.expr.is::<PhysicalLiteral>());
    }
    plan.is::<CoalescePartitionsExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<CooperativeExec>()
        || plan.is::<SortPreservingMergeExec>()
        || plan.is::<GlobalLimitExec>()
        || plan.is::<LocalLimitExec>()
        || plan.is::<UnionExec>()
        || plan.is::<InterleaveExec>()
}

/// The partial aggregate under exchanges.
fn partial_below(plan: &Arc<dyn ExecutionPlan>) -> Option<&AggregateExec> {
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        return (*aggregate.mode() == AggregateMode::Partial).then_some(aggregate);
    }
    if plan.is::<RepartitionExec>() || plan.is::<CoalescePartitionsExec>() {
        return partial_below(plan.children().first()?);
    }
    None
}

fn lower_aggregate(first: &AggregateExec) -> Result<AggregatePipeline, Reason> {
    if first.group_expr().has_grouping_set() {
        return Err(refused(
            "unsupported-grouping",
            "grouping sets are not on the GPU yet",
        ));
    }
    if first.limit_options().is_some() {
        return Err(refused(
            "unsupported-limit",
            "an aggregate that stops early is not on the GPU yet",
        ));
    }
    let mut operators = vec!["GpuAggregate".to_string()];
    let chain = lower_input(first.input(), &mut operators)?;
    let inputs = &chain.inputs;

    let n_source = chain.source.schema().fields().len();
    let mut keys = Vec::new();
    let mut encoded = Vec::new();
    let mut key_dictionaries = Vec::new();
    for (expr, _) in first.group_expr().expr() {
        let key = lower(expr, inputs)?;
        let (key, dictionary) = match (&key.kind, key.ty) {
            // A text key is a column of codes after the source's own.
            (Kind::Column(index), Type::Utf8) => {
                let place = encoded.iter().position(|known| known == index);
                let place = place.unwrap_or_else(|| {
                    encoded.push(*index);
                    encoded.len() - 1
                });
                let width = Type::Int(IntWidth::W32);
                let code = Expr::column(n_source + place, width, key.nullable);
                (code, Some(*index))
            }
            (_, Type::Utf8) => {
                return Err(refused(
                    "unsupported-key",
                    &format!("a computed text key ({expr}) is not on the GPU yet"),
                ));
            }
            _ => (key, None),
        };
        keys.push(key);
        key_dictionaries.push(dictionary);
    }

    let mut calls = Vec::new();
    let mut outputs = Vec::new();
    for (function, filter) in first.aggr_expr().iter().zip(first.filter_expr()) {
        let filter = filter
            .as_ref()
            .map(|filter| lower(filter, inputs))
            .transpose()?;
        outputs.push(lower_call(
            function,
            filter,
            inputs,
            &mut calls,
            &first.input_schema(),
        )?);
    }
    let aggregate = Aggregate {
        filter: chain.filter,
        keys,
        calls,
    };
    let known = known_ranges(&chain.source);
    Ok(AggregatePipeline {
        source: chain.source,
        aggregate,
        encoded,
        key_dictionaries,
        outputs,
        operators,
        known: Arc::new(known),
    })
}

/// The ranges of source columns by the statistics of its files. They pick widths that
/// fit every chunk; where a chunk's values leave them, the values are believed.
fn known_ranges(source: &Arc<dyn ExecutionPlan>) -> HashMap<usize, Range> {
    let statistics = StatisticsContext::new().compute(source.as_ref(), &StatisticsArgs::new());
    let Ok(statistics) = statistics else {
        return HashMap::new();
    };
    let columns = statistics.column_statistics.iter().enumerate();
    columns
        .filter_map(|(index, column)| {
            let min = integral(column.min_value.get_value()?)?;
            let max = integral(column.max_value.get_value()?)?;
            (min <= max).then(|| (index, Range::new(min, max)))
        })
        .collect()
}

/// The integer that holds a value on the device.
fn integral(value: &ScalarValue) -> Option<i128> {
    match lower_literal(value).ok()?.kind {
        Kind::Literal(Literal::Integer(value)) => Some(value),
        _ => None,
    }
}

struct Chain {
    source: Arc<dyn ExecutionPlan>,
    inputs: Inputs,
    filter: Option<Expr>,
}

/// Filters and projections down to the source, inlined.
fn lower_input(
    plan: &Arc<dyn ExecutionPlan>,
    operators: &mut Vec<String>,
) -> Result<Chain, Reason> {
    let passes_rows_on =
        plan.is::<CooperativeExec>() || plan.is::<CoalescePartitionsExec>() || is_round_robin(plan);
    if passes_rows_on && let Some(child) = plan.children().first() {
        return lower_input(child, operators);
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        operators.push("GpuProject".to_string());
        let below = lower_input(projection.input(), operators)?;
        let inputs = below
            .inputs
            .project(projection.expr().iter().map(|e| &e.expr));
        return Ok(Chain { inputs, ..below });
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        if filter.fetch().is_some() {
            return Err(refused(
                "unsupported-limit",
                "a filter with a row limit is not on the GPU yet",
            ));
        }
        operators.push("GpuFilter".to_string());
        let below = lower_input(filter.input(), operators)?;
        let condition = lower(filter.predicate(), &below.inputs)?;
        let both = match below.filter {
            None => condition,
            Some(lower) => and(lower, condition),
        };
        let inputs = match filter.projection().as_ref() {
            None => below.inputs,
            Some(kept) => below.inputs.select(kept.iter().copied()),
        };
        return Ok(Chain {
            source: below.source,
            inputs,
            filter: Some(both),
        });
    }
    operators.push("source".to_string());
    Ok(Chain {
        source: Arc::clone(plan),
        inputs: Inputs::source(&plan.schema()),
        filter: None,
    })
}

/// An exchange that only spreads rows: it has no meaning of its own.
fn is_round_robin(plan: &Arc<dyn ExecutionPlan>) -> bool {
    use datafusion::physical_plan::Partitioning;
    plan.downcast_ref::<RepartitionExec>()
        .is_some_and(|exchange| matches!(exchange.partitioning(), Partitioning::RoundRobinBatch(_)))
}

fn and(left: Expr, right: Expr) -> Expr {
    let nullable = left.nullable || right.nullable;
    Expr {
        kind: Kind::Binary(BinaryOp::And, Arc::new(left), Arc::new(right)),
        ty: Type::Bool,
        nullable,
    }
}

fn lower_call(
    function: &AggregateFunctionExpr,
    filter: Option<Expr>,
    inputs: &Inputs,
    calls: &mut Vec<Call>,
    schema: &Schema,
) -> Result<Output, Reason> {
    let name = function.fun().name();
    if function.is_distinct() || function.ignore_nulls() || !function.order_bys().is_empty() {
        return Err(refused(
            "unsupported-aggregate",
            &format!("{name} with DISTINCT, ORDER BY or IGNORE NULLS is not on the GPU yet"),
        ));
    }
    let args = function.expressions();
    let [arg] = args.as_slice() else {
        return Err(refused(
            "unsupported-aggregate",
            &format!("{name} of several arguments is not on the GPU yet"),
        ));
    };
    let inner = function.fun().inner();
    let is_average = inner.is::<Avg>();
    let kind = if is_average || inner.is::<Sum>() || inner.is::<CheckedSum>() {
        Function::Sum
    } else if inner.is::<Count>() {
        Function::Count
    } else if inner.is::<Min>() || (inner.is::<Extreme>() && name == "min") {
        Function::Min
    } else if inner.is::<Max>() || (inner.is::<Extreme>() && name == "max") {
        Function::Max
    } else {
        return Err(refused(
            "unsupported-aggregate",
            &format!("aggregate {name} is not on the GPU yet"),
        ));
    };
    let mut add = |function, arg, filter| {
        let call = Call {
            function,
            arg,
            filter,
        };
        calls
            .iter()
            .position(|known| *known == call)
            .unwrap_or_else(|| {
                calls.push(call);
                calls.len() - 1
            })
    };
    let counts_rows = kind == Function::Count && is_literal(arg);
    if counts_rows {
        return Ok(Output::Value(add(Function::Count, None, filter)));
    }
    let value = lower(arg, inputs)?;
    if value.ty == Type::Utf8 && kind != Function::Count {
        return Err(refused(
            "unsupported-type",
            &format!("{name} of text ({arg}) is not on the GPU yet"),
        ));
    }
    if !is_average {
        return Ok(Output::Value(add(kind, Some(value), filter)));
    }
    let scale = match arg.data_type(schema) {
        Ok(DataType::Decimal128(_, scale)) => scale,
        _ => 0,
    };
    let sum = add(Function::Sum, Some(value.clone()), filter.clone());
    let count = add(Function::Count, Some(value), filter);
    Ok(Output::Average { sum, count, scale })
}

/// `count(*)` is planned as a count of a literal that is not null.
fn is_literal(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.downcast_ref::<PhysicalLiteral>()
        .is_some_and(|literal| !literal.value().is_null())
}

fn refused(code: &str, message: &str) -> Reason {
    Reason {
        code: code.to_string(),
        message: message.to_string(),
        fix: String::new(),
    }
}
