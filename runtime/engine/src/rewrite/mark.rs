//! Can this aggregate and its input run on the GPU? If not, why not.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::common::ScalarValue;
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::udaf::AggregateFunctionExpr;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use kernels::ir::{
    Aggregate, BinaryOp, Call, Expr, Function, IntWidth, Kind, Literal, Range, Type,
};

use crate::exec::{AggregatePipeline, Output};
use crate::guard::extremes::Extreme;
use crate::guard::sum::CheckedSum;
use crate::lower::{Inputs, lower, lower_literal};
use crate::report::Reason;

/// Lowers a complete aggregate (single, or final over its partial), or says why it
/// stays on the CPU. `None` for nodes that are no complete aggregate.
pub fn mark(plan: &Arc<dyn ExecutionPlan>) -> Option<Result<AggregatePipeline, Reason>> {
    let top = plan.downcast_ref::<AggregateExec>()?;
    let first = match top.mode() {
        AggregateMode::Single | AggregateMode::SinglePartitioned => top,
        AggregateMode::Final | AggregateMode::FinalPartitioned => partial_below(top.input())?,
        _ => return None,
    };
    Some(lower_aggregate(first))
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

    let mut keys = Vec::new();
    let mut encoded = Vec::new();
    let mut key_dictionaries = Vec::new();
    for (expr, _) in first.group_expr().expr() {
        let key = lower(expr, inputs)?;
        let (key, dictionary) = match (&key.kind, key.ty) {
            (Kind::Column(index), Type::Utf8) => {
                let code = Expr::column(*index, Type::Int(IntWidth::W32), key.nullable);
                if !encoded.contains(index) {
                    encoded.push(*index);
                }
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
    if let Some(column) = reads_encoded_text(&aggregate, &encoded) {
        return Err(refused(
            "unsupported-expression",
            &format!("column {column} is a text key and read by an expression too"),
        ));
    }
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
    if value.ty == Type::Utf8 {
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
    use datafusion::physical_expr::expressions::Literal;
    expr.downcast_ref::<Literal>()
        .is_some_and(|literal| !literal.value().is_null())
}

fn reads_encoded_text(aggregate: &Aggregate, encoded: &[usize]) -> Option<usize> {
    let mut found = None;
    let calls = aggregate
        .calls
        .iter()
        .flat_map(|call| call.arg.iter().chain(&call.filter));
    let all: Vec<&Expr> = aggregate
        .filter
        .iter()
        .chain(&aggregate.keys)
        .chain(calls)
        .collect();
    for expr in all {
        expr.walk(&mut |e| {
            if let Kind::Column(index) = e.kind
                && e.ty == Type::Utf8
                && encoded.contains(&index)
            {
                found = Some(index);
            }
        });
    }
    found
}

fn refused(code: &str, message: &str) -> Reason {
    Reason {
        code: code.to_string(),
        message: message.to_string(),
        fix: String::new(),
    }
}
