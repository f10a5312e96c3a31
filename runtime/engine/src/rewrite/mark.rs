//! Can this node and its input run on the GPU? If not, why not.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::ScalarValue;
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::bool_and_or::{BoolAnd, BoolOr};
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::functions_aggregate::stddev::{Stddev, StddevPop};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::functions_aggregate::variance::{VariancePopulation, VarianceSample};
use datafusion::physical_expr::expressions::{CastExpr, Column, Literal as PhysicalLiteral};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::udaf::AggregateFunctionExpr;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use kernels::codegen::{check_collect, check_sort};
use kernels::columns::arrow_type;
use kernels::ir::{
    Aggregate, Call, Collect, Expr, Function, IntWidth, Kind, Literal, Range, Sort, SortKey,
    Spread, Type,
};

use super::sets;
use super::window::mark_window;
use crate::exec::{
    AggregatePipeline, Codes, CollectForm, CollectPipeline, KeyColumn, Output, SortPipeline, Taken,
    WindowPipeline, depth_of,
};
use crate::guard::extremes::Extreme;
use crate::guard::sum::CheckedSum;
use crate::lower::{
    Chain, Choice, DerivedText, Inputs, Join, LateValues, Origin, is_hint, lower, lower_chain,
    lower_exchanged, lower_literal, lower_source, reason, without_exchange,
};
use crate::report::Reason;
use crate::statistics::statistics_of;

/// What can run on the GPU, lowered.
pub enum Candidate {
    /// A complete aggregate over filters, projections and joins.
    Aggregate(AggregatePipeline),
    /// Filters, projections and joins that give rows back.
    Collect(CollectPipeline),
    /// A sort of all rows.
    Sort(SortPipeline),
    /// Window functions.
    Window(WindowPipeline),
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
    if let Some(marked) = mark_window(plan) {
        return Some(marked.map(Candidate::Window));
    }
    if plan.is::<FilterExec>() || plan.is::<ProjectionExec>() || Join::of(plan).is_some() {
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

/// Lowers the longest chain of filters, projections and joins that starts here. `None`
/// when it only renames, reorders or adds constants.
fn mark_collect(plan: &Arc<dyn ExecutionPlan>) -> Option<Result<CollectPipeline, Reason>> {
    let mut operators = vec!["GpuCollect".to_string()];
    let late = LateValues::default();
    let joins = match lower_exchanged(plan, &late, &mut Vec::new()) {
        Ok(chain) => !chain.joined.is_empty(),
        Err(reason) => return Some(Err(reason)),
    };
    let lowered = match joins {
        true => lower_exchanged(plan, &late, &mut operators),
        false => lower_chain(plan, &late, &mut operators),
    };
    let chain = match lowered {
        Ok(chain) => chain,
        Err(reason) => return Some(Err(reason)),
    };
    let schema = plan.schema();
    let checked = |form: CollectForm| {
        let collect = form.collect.map(&LateValues::unknown);
        match check_collect(&collect) {
            Ok(()) => Ok(form),
            Err(unsupported) => Err(reason(&unsupported, plan.name())),
        }
    };
    // Text that is computed has no streamed form.
    let streamed = match joins {
        true => None,
        false => match streamed_form(&chain, &schema) {
            Ok(form) if form.collect.steps.is_empty() && form.collect.outputs.is_empty() => {
                return None;
            }
            form => Some(form.and_then(checked)),
        },
    };
    let mut codes = Codes::default();
    let whole = whole_form(&chain, &schema, &mut codes).and_then(checked);
    let (streamed, whole) = match (streamed, whole) {
        (Some(Ok(streamed)), whole) => (Some(streamed), whole.ok()),
        (_, Ok(whole)) => (None, Some(whole)),
        (Some(Err(reason)), Err(_)) | (None, Err(reason)) => return Some(Err(reason)),
    };
    let depth = depth_of(plan, &chain.source);
    Some(Ok(CollectPipeline {
        known: Arc::new(known_ranges(&chain.source)),
        depth: depth.unwrap_or_default(),
        source: chain.source,
        joined: chain.joined,
        streamed,
        whole,
        codes,
        late,
        fetch: chain.fetch,
        operators,
    }))
}

/// The form that leaves columns on the host which are only passed through.
fn streamed_form(chain: &Chain, schema: &Schema) -> Result<CollectForm, Reason> {
    let mut computed = Vec::new();
    let mut outputs = Vec::new();
    for (field, (origin, value)) in schema.fields().iter().zip(chain.inputs.iter()) {
        outputs.push(match origin {
            Origin::Column(index) => Taken::Source(*index),
            Origin::Constant(value) => Taken::Constant(value.clone()),
            Origin::Text(_) | Origin::Choice(_) | Origin::Computed => {
                computed.push(of_type(value.clone()?, field)?);
                Taken::Computed(computed.len() - 1)
            }
        });
    }
    Ok(CollectForm {
        collect: Collect {
            steps: chain.steps.clone(),
            outputs: computed,
        },
        outputs,
    })
}

/// The form that has every column on the device.
fn whole_form(chain: &Chain, schema: &Schema, codes: &mut Codes) -> Result<CollectForm, Reason> {
    let mut computed = Vec::new();
    let mut outputs = Vec::new();
    for (field, (origin, value)) in schema.fields().iter().zip(chain.inputs.iter()) {
        let text = text_of(origin, field.data_type());
        outputs.push(match (origin, text) {
            (Origin::Constant(value), _) => Taken::Constant(value.clone()),
            (Origin::Choice(choice), _) if *field.data_type() == DataType::Utf8 => {
                computed.push(choice.code.clone());
                Taken::Text {
                    computed: computed.len() - 1,
                    codes: codes.fixed(&choice.texts),
                }
            }
            (_, Some(text)) => {
                let (number, column) = codes.column(&text);
                computed.push(column);
                Taken::Text {
                    computed: computed.len() - 1,
                    codes: number,
                }
            }
            _ => {
                computed.push(of_type(value.clone()?, field)?);
                Taken::Computed(computed.len() - 1)
            }
        });
    }
    Ok(CollectForm {
        collect: Collect {
            steps: chain.steps.clone(),
            outputs: computed,
        },
        outputs,
    })
}

/// The text as one of some constants, if it is that.
fn choice_of(origin: &Origin, expr: &Arc<dyn PhysicalExpr>, inputs: &Inputs) -> Option<Choice> {
    match origin {
        Origin::Choice(choice) => Some(choice.clone()),
        Origin::Constant(value) => {
            let literal: Arc<dyn PhysicalExpr> = Arc::new(PhysicalLiteral::new(value.clone()));
            Choice::of(&literal, inputs)
        }
        _ => Choice::of(expr, inputs),
    }
}

/// The text that codes can stand for, if a column is that.
pub(super) fn text_of(origin: &Origin, data_type: &DataType) -> Option<DerivedText> {
    match origin {
        _ if !is_text(data_type) => None,
        Origin::Column(index) => Some(DerivedText {
            column: *index,
            function: Arc::new(Column::new("text", 0)),
            of_missing: false,
        }),
        Origin::Text(text) if *data_type == DataType::Utf8 => Some(text.clone()),
        Origin::Text(_) | Origin::Constant(_) | Origin::Choice(_) | Origin::Computed => None,
    }
}

/// Whether values of the type are text, in a layout that a result of any size can have.
fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(keys, values) => {
            let is_wide = matches!(**keys, DataType::Int32 | DataType::Int64 | DataType::UInt32);
            is_wide && **values == DataType::Utf8
        }
        _ => false,
    }
}

/// A value that can be given out as this field.
pub(super) fn of_type(value: Expr, field: &Field) -> Result<Expr, Reason> {
    let gives = arrow_type(value.ty);
    if gives != *field.data_type() {
        let message = format!("{}, computed {gives}, cannot be given out", field.name());
        return Err(refused("unsupported-type", &message));
    }
    Ok(value)
}

/// Lowers a sort: of all rows into one partition, which whoever merges sorted partitions
/// takes as well, or sorted partitions and their merge.
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
    Some(lower_sort(sort, sort.fetch()))
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
    // Text that is a key itself is there as its ranks, beside what expressions read.
    let ranked = |key: &Arc<dyn PhysicalExpr>| {
        let column = key.downcast_ref::<Column>()?;
        is_text(column.index()).then_some(column.index())
    };
    let computed = sort.expr().iter().map(|key| &key.expr);
    let computed = computed.filter(|key| ranked(key).is_none());
    let mut used: Vec<usize> = computed
        .flat_map(collect_columns)
        .map(|column| column.index())
        .collect();
    used.sort_unstable();
    used.dedup();
    let inputs = Inputs::numbered(&schema, &used, &LateValues::default());
    let mut key_columns: Vec<KeyColumn> = used
        .iter()
        .map(|index| KeyColumn {
            index: *index,
            is_text: false,
        })
        .collect();
    let mut keys = Vec::new();
    for key in sort.expr() {
        let value = match ranked(&key.expr) {
            Some(index) => {
                let nullable = schema.field(index).is_nullable();
                let ranks = Type::Int(IntWidth::W32);
                key_columns.push(KeyColumn {
                    index,
                    is_text: true,
                });
                Expr::column(key_columns.len() - 1, ranks, nullable)
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
    Ok(SortPipeline {
        source: Arc::clone(without_exchange(sort.input())),
        sort: lowered,
        key_columns,
        fetch,
        operators: vec!["GpuSort".to_string(), "source".to_string()],
    })
}

/// Whether a node computes nothing: it moves rows, leaves some out by their number, or
/// renames columns and adds constants.
pub fn computes_nothing(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let input = projection.input().schema();
        let is_same = |expr: &Arc<dyn PhysicalExpr>| match expr.downcast_ref::<CastExpr>() {
            Some(cast) => {
                let from = cast.expr().data_type(&input);
                cast.expr().is::<Column>() && from.is_ok_and(|from| from == *cast.cast_type())
            }
            None => expr.is::<Column>() || expr.is::<PhysicalLiteral>(),
        };
        return projection.expr().iter().all(|e| is_same(&e.expr));
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        return is_hint(filter.predicate());
    }
    plan.is::<CoalescePartitionsExec>()
        || plan.is::<ScalarSubqueryExec>()
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
    if first.limit_options().is_some() {
        return Err(refused(
            "unsupported-limit",
            "an aggregate that stops early is not on the GPU yet",
        ));
    }
    let mut operators = vec!["GpuAggregate".to_string()];
    let late = LateValues::default();
    let mut chain = lower_exchanged(first.input(), &late, &mut operators)?;
    if chain.fetch.is_some() || chain.is_full {
        // What counts its rows, or has them all first, is a pipeline of its own.
        chain = lower_source(first.input(), &late);
        operators.truncate(1);
        operators.push("source".to_string());
    }
    let inputs = &chain.inputs;

    let mut codes = Codes::default();
    let mut keys = Vec::new();
    let mut key_codes = Vec::new();
    for (expr, _) in first.group_expr().expr() {
        let origin = inputs.origin(expr);
        let data_type = expr
            .data_type(&first.input_schema())
            .unwrap_or(DataType::Null);
        let key = match text_of(&origin, &data_type) {
            Some(text) => {
                let (number, column) = codes.column(&text);
                key_codes.push(Some(number));
                column
            }
            None if data_type == DataType::Utf8
                && let Some(choice) = choice_of(&origin, expr, inputs) =>
            {
                key_codes.push(Some(codes.fixed(&choice.texts)));
                choice.code
            }
            None => {
                let key = lower(expr, inputs)?;
                if key.ty == Type::Utf8 {
                    let message = format!("the text key {expr} is not on the GPU yet");
                    return Err(refused("unsupported-key", &message));
                }
                key_codes.push(None);
                key
            }
        };
        keys.push(key);
    }

    let mut steps = chain.steps;
    let mut sets_without_keys = Vec::new();
    if first.group_expr().has_grouping_set() {
        let groups = first.group_expr().groups();
        let id = first.schema().field(keys.len()).data_type().clone();
        keys = sets::keys_of_sets(keys, groups, &id)?;
        key_codes.push(None);
        steps.push(sets::each_set(groups)?);
        sets_without_keys = sets::without_keys(groups);
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
            &mut codes,
            &mut calls,
            &first.input_schema(),
        )?);
    }
    let aggregate = Aggregate { steps, keys, calls };
    let known = known_ranges(&chain.source);
    Ok(AggregatePipeline {
        source: chain.source,
        joined: chain.joined,
        aggregate,
        codes,
        key_codes,
        late,
        outputs,
        sets_without_keys,
        operators,
        known: Arc::new(known),
    })
}

/// The ranges of source columns by the statistics of its files. They pick widths that
/// fit every chunk; where a chunk's values leave them, the values are believed.
pub(super) fn known_ranges(source: &Arc<dyn ExecutionPlan>) -> HashMap<usize, Range> {
    let Some(statistics) = statistics_of(source.as_ref()) else {
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

fn lower_call(
    function: &AggregateFunctionExpr,
    filter: Option<Expr>,
    inputs: &Inputs,
    codes: &mut Codes,
    calls: &mut Vec<Call>,
    schema: &Schema,
) -> Result<Output, Reason> {
    let name = function.fun().name();
    if function.ignore_nulls() || !function.order_bys().is_empty() {
        return Err(refused(
            "unsupported-aggregate",
            &format!("{name} with ORDER BY or IGNORE NULLS is not on the GPU yet"),
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
    let spread = spread_of(function);
    let kind = if spread.is_some() {
        Function::Moments
    } else if is_average || inner.is::<Sum>() || inner.is::<CheckedSum>() {
        Function::Sum
    } else if inner.is::<Count>() {
        Function::Count
    } else if inner.is::<Min>() || inner.is::<BoolAnd>() || (inner.is::<Extreme>() && name == "min")
    {
        Function::Min
    } else if inner.is::<Max>() || inner.is::<BoolOr>() || (inner.is::<Extreme>() && name == "max")
    {
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
    let counts_rows = kind == Function::Count && is_literal(arg) && !function.is_distinct();
    if counts_rows {
        return Ok(Output::Value(add(Function::Count, None, filter)));
    }
    // What is told apart by DISTINCT; the largest of some values is that of the distinct.
    let (count, sum) = match function.is_distinct() {
        true => (Function::CountDistinct, Function::SumDistinct),
        false => (Function::Count, Function::Sum),
    };
    let kind = match kind {
        Function::Count => count,
        Function::Sum => sum,
        Function::Moments if function.is_distinct() => {
            let message = format!("{name} with DISTINCT is not on the GPU yet");
            return Err(refused("unsupported-aggregate", &message));
        }
        other => other,
    };
    let data_type = arg.data_type(schema).unwrap_or(DataType::Null);
    if let Some(text) = text_of(&inputs.origin(arg), &data_type) {
        match kind {
            Function::CountDistinct => {
                let (_, column) = codes.column(&text);
                return Ok(Output::Value(add(kind, Some(column), filter)));
            }
            // Of codes in the order of their texts the smallest is that of the smallest. A
            // row that is missing would need a code before they have an order.
            Function::Min | Function::Max if !text.of_missing => {
                let (codes, column) = codes.ordered_column(&text);
                let call = add(kind, Some(column), filter);
                return Ok(Output::Text { call, codes });
            }
            _ => {}
        }
    }
    let value = lower(arg, inputs)?;
    if value.ty == Type::Utf8 && kind != Function::Count {
        return Err(refused(
            "unsupported-type",
            &format!("{name} of text ({arg}) is not on the GPU yet"),
        ));
    }
    if let Some(spread) = spread {
        let call = add(kind, Some(value), filter);
        return Ok(Output::Spread { call, spread });
    }
    if !is_average {
        return Ok(Output::Value(add(kind, Some(value), filter)));
    }
    let scale = match arg.data_type(schema) {
        Ok(DataType::Decimal128(_, scale)) => scale,
        _ => 0,
    };
    let sum = add(sum, Some(value.clone()), filter.clone());
    let count = add(count, Some(value), filter);
    Ok(Output::Average { sum, count, scale })
}

/// The variance that a function gives, if it is one.
fn spread_of(function: &AggregateFunctionExpr) -> Option<Spread> {
    let inner = function.fun().inner();
    let is_sample = inner.is::<VarianceSample>() || inner.is::<Stddev>();
    let is_root = inner.is::<Stddev>() || inner.is::<StddevPop>();
    let is_one = is_sample || is_root || inner.is::<VariancePopulation>();
    is_one.then_some(Spread { is_sample, is_root })
}

/// `count(*)` is planned as a count of a literal that is not null.
fn is_literal(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.downcast_ref::<PhysicalLiteral>()
        .is_some_and(|literal| !literal.value().is_null())
}

pub(super) fn refused(code: &str, message: &str) -> Reason {
    Reason {
        code: code.to_string(),
        message: message.to_string(),
        fix: String::new(),
    }
}
