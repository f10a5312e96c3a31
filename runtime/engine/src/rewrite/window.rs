//! Can this window node run on the GPU? If not, why not.
//!
//! [`super::window_frame`] lowers its frames; what only the evaluators of its functions know
//! is asked in [`super::window_evaluator`].

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::functions_window::cume_dist::CumeDist;
use datafusion::functions_window::lead_lag::WindowShift;
use datafusion::functions_window::nth_value::{NthValue, NthValueKind};
use datafusion::functions_window::ntile::Ntile;
use datafusion::functions_window::rank::Rank;
use datafusion::functions_window::row_number::RowNumber;
use datafusion::physical_expr::expressions::Literal as PhysicalLiteral;
use datafusion::physical_expr::window::{
    PlainAggregateWindowExpr, SlidingAggregateWindowExpr, StandardWindowExpr, WindowExpr,
};
use datafusion::physical_plan::udaf::AggregateFunctionExpr;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec, WindowUDFExpr};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PhysicalExpr};
use kernels::codegen::{check_sort, check_window};
use kernels::columns::type_of;
use kernels::ir::{
    Expr, Frame, Kind, Literal, Sort, SortKey, Type, Window, WindowCall, WindowFunction,
};

use super::mark::{known_ranges, of_type, refused, text_of};
use super::window_evaluator::{distance, nth_number};
use super::window_frame::frame;
use crate::exec::{Codes, DefaultText, Taken, WindowPipeline};
use crate::guard::extremes::Extreme;
use crate::guard::sliding_floats::SlidingFloats;
use crate::guard::sum::CheckedSum;
use crate::lower::{Inputs, LateValues, Origin, lower, lower_literal, reason, without_exchange};
use crate::report::Reason;

/// Rows and groups beyond this are past the end of every partition.
pub(super) const FAR: i64 = 1 << 32;

/// Lowers a window node with the sort below it; `None` for other nodes.
pub(super) fn mark_window(plan: &Arc<dyn ExecutionPlan>) -> Option<Result<WindowPipeline, Reason>> {
    if let Some(window) = plan.downcast_ref::<BoundedWindowAggExec>() {
        return Some(lower_window(plan, window.window_expr(), window.input()));
    }
    let window = plan.downcast_ref::<WindowAggExec>()?;
    Some(lower_window(plan, window.window_expr(), window.input()))
}

fn lower_window(
    plan: &Arc<dyn ExecutionPlan>,
    functions: &[Arc<dyn WindowExpr>],
    input: &Arc<dyn ExecutionPlan>,
) -> Result<WindowPipeline, Reason> {
    let first = functions
        .first()
        .ok_or_else(|| refused("unsupported-window", "a window without functions"))?;
    let keys = Keys::of(input, first.as_ref());
    let source = match keys.list.is_empty() {
        true => input,
        false => without_exchange(input),
    };
    let (late, schema) = (LateValues::default(), input.schema());
    let mut lowering = Lowering {
        inputs: Inputs::of_relation(&schema, 0, &late),
        input,
        codes: Codes::default(),
        ranked: Vec::new(),
        passed: Vec::new(),
        outputs: Vec::new(),
        default_text: None,
    };
    for (index, field) in schema.fields().iter().enumerate() {
        let text = text_of(&Origin::Column(index), field.data_type());
        let taken = match text {
            Some(text) => {
                let (codes, column) = lowering.codes.column(&text);
                lowering.passed.push(column);
                Taken::Text {
                    computed: index,
                    codes,
                }
            }
            None => {
                let value = lowering.inputs.column(index).cloned();
                let value = value.ok_or_else(|| refused("unsupported-type", field.name()))?;
                lowering.passed.push(of_type(value?, field)?);
                Taken::Computed(index)
            }
        };
        lowering.outputs.push(taken);
    }
    let mut sort = Vec::new();
    for (expr, options) in &keys.list {
        sort.push(SortKey {
            value: lowering.key(expr)?,
            descending: options.descending,
            nulls_first: options.nulls_first,
        });
    }
    let mut calls = Vec::new();
    let mut default_texts = Vec::new();
    for function in functions {
        let (call, codes) = lowering.call(function.as_ref())?;
        if let (Some(text), Some(codes)) = (lowering.default_text.take(), codes) {
            default_texts.push(DefaultText {
                call: calls.len(),
                codes,
                text,
            });
        }
        let computed = lowering.passed.len() + calls.len();
        lowering.outputs.push(match codes {
            Some(codes) => Taken::Text { computed, codes },
            None => Taken::Computed(computed),
        });
        calls.push(call);
    }
    let window = Window {
        sort: Sort { keys: sort },
        n_partition: keys.n_partition,
        n_peers: keys.n_peers,
        passed: lowering.passed,
        calls,
    };
    let told = |unsupported| reason(&unsupported, plan.name());
    let checked = window.map(&LateValues::unknown);
    check_sort(&checked.sort).map_err(told)?;
    check_window(&checked).map_err(told)?;
    Ok(WindowPipeline {
        source: Arc::clone(source),
        window,
        outputs: lowering.outputs,
        codes: lowering.codes,
        ranked: lowering.ranked,
        default_texts,
        late,
        keeps_order: keys.are_those_of_input,
        operators: vec!["GpuWindow".to_string(), "source".to_string()],
        known: Arc::new(known_ranges(source)),
    })
}

/// The keys that rows are ordered by.
struct Keys {
    /// Those of partitions, those of the order, then those that only tell which of some
    /// peers comes first.
    list: Vec<(Arc<dyn PhysicalExpr>, SortOptions)>,
    n_partition: usize,
    n_peers: usize,
    /// Whether the rows that the node reads are ordered by exactly these, in each of their
    /// partitions.
    are_those_of_input: bool,
}

impl Keys {
    fn of(input: &Arc<dyn ExecutionPlan>, window: &dyn WindowExpr) -> Keys {
        let given = input.output_ordering();
        let given = given.into_iter().flat_map(|order| order.iter());
        let mut given = given.peekable();
        let mut partition: Vec<Arc<dyn PhysicalExpr>> = window.partition_by().to_vec();
        // A constant tells no rows apart.
        partition.retain(|expr| constant(expr).is_none());
        let mut list: Vec<(Arc<dyn PhysicalExpr>, SortOptions)> = Vec::new();
        let has = |list: &[(Arc<dyn PhysicalExpr>, SortOptions)], expr: &Arc<dyn PhysicalExpr>| {
            list.iter().any(|(known, _)| known == expr)
        };
        // Whatever comes first of a partition's keys, and in which direction, is the same
        // to the functions.
        while let Some(next) = given.peek()
            && partition.contains(&next.expr)
        {
            partition.retain(|expr| !expr.eq(&next.expr));
            list.push((Arc::clone(&next.expr), next.options));
            given.next();
        }
        let mut are_those_of_input = partition.is_empty();
        for expr in partition {
            if !has(&list, &expr) {
                list.push((expr, SortOptions::default()));
            }
        }
        let n_partition = list.len();
        for key in window.order_by() {
            if has(&list, &key.expr) || constant(&key.expr).is_some() {
                continue;
            }
            let same = given
                .peek()
                .is_some_and(|next| next.expr.eq(&key.expr) && next.options == key.options);
            are_those_of_input &= same;
            if same {
                given.next();
            }
            list.push((Arc::clone(&key.expr), key.options));
        }
        let n_peers = list.len();
        if are_those_of_input {
            list.extend(given.map(|key| (Arc::clone(&key.expr), key.options)));
        }
        Keys {
            list,
            n_partition,
            n_peers,
            are_those_of_input,
        }
    }
}

struct Lowering<'a> {
    inputs: Inputs,
    input: &'a Arc<dyn ExecutionPlan>,
    codes: Codes,
    ranked: Vec<(usize, usize)>,
    passed: Vec<Expr>,
    outputs: Vec<Taken>,
    /// What the last call gives where there is no row, if that is text.
    default_text: Option<String>,
}

impl Lowering<'_> {
    /// The number of the codes of a text, and their column, if it is one that has codes.
    fn text(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<(usize, Expr)> {
        let data_type = expr.data_type(&self.input.schema()).ok()?;
        let text = text_of(&self.inputs.origin(expr), &data_type)?;
        Some(self.codes.column(&text))
    }

    /// The ranks of a text, if it has codes, and the number of those.
    fn ranks(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<(usize, Expr)> {
        let (number, column) = self.text(expr)?;
        if let Kind::Column(codes) = column.kind
            && !self.ranked.contains(&(number, codes))
        {
            self.ranked.push((number, codes));
        }
        Some((number, WindowPipeline::ranks(number)))
    }

    /// A key of the order: text by its rank.
    fn key(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Expr, Reason> {
        match self.ranks(expr) {
            Some((_, ranks)) => Ok(ranks),
            None => lower(expr, &self.inputs),
        }
    }

    /// A value that a function passes on: of text its codes, whose number comes with it.
    fn value(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<(Expr, Option<usize>), Reason> {
        if let Some((number, column)) = self.text(expr) {
            return Ok((column, Some(number)));
        }
        Ok((lower(expr, &self.inputs)?, None))
    }

    fn call(&mut self, window: &dyn WindowExpr) -> Result<(WindowCall, Option<usize>), Reason> {
        let field = window.field().map_err(|error| {
            refused("unsupported-window", &format!("{}: {error}", window.name()))
        })?;
        let (function, codes) = if let Some(plain) =
            window.as_any().downcast_ref::<PlainAggregateWindowExpr>()
        {
            self.aggregate(plain.get_aggregate_expr())?
        } else if let Some(sliding) = window.as_any().downcast_ref::<SlidingAggregateWindowExpr>() {
            self.aggregate(sliding.get_aggregate_expr())?
        } else {
            self.standard(window)?
        };
        let ty = match codes {
            Some(_) => function.value().map_or(Type::Utf8, |value| value.ty),
            None => type_of(field.data_type()).map_err(|e| reason(&e, window.name()))?,
        };
        let frame = match reads_frame(&function) {
            true => {
                let key = window.order_by().first();
                let key = key.and_then(|key| lower(&key.expr, &self.inputs).ok());
                frame(window.get_window_frame(), key.map(|key| key.ty))?
            }
            false => Frame::WHOLE,
        };
        let call = WindowCall {
            function,
            frame,
            ty,
        };
        Ok((call, codes))
    }

    fn standard(
        &mut self,
        window: &dyn WindowExpr,
    ) -> Result<(WindowFunction, Option<usize>), Reason> {
        let call = window.as_any().downcast_ref::<StandardWindowExpr>();
        let call = call.map(StandardWindowExpr::get_standard_func_expr);
        let call = call.and_then(|call| call.as_any().downcast_ref::<WindowUDFExpr>());
        let unknown = || no_form(window.name());
        let call = call.ok_or_else(unknown)?;
        let function = call.fun().inner();
        let plain = if function.is::<RowNumber>() {
            Some(WindowFunction::RowNumber)
        } else if function.is::<CumeDist>() {
            Some(WindowFunction::CumeDist)
        } else if function.is::<Rank>() {
            Some(match call.fun().name() {
                "rank" => WindowFunction::Rank,
                "dense_rank" => WindowFunction::DenseRank,
                "percent_rank" => WindowFunction::PercentRank,
                _ => return Err(unknown()),
            })
        } else if function.is::<Ntile>() {
            let n = call.args().first().and_then(integer).ok_or_else(unknown)?;
            // With more buckets than rows each row has its own.
            let n = i64::try_from(n.min(i128::from(FAR)))
                .ok()
                .filter(|n| *n > 0);
            Some(WindowFunction::Ntile(n.ok_or_else(unknown)?))
        } else {
            None
        };
        if let Some(plain) = plain {
            return Ok((plain, None));
        }
        let arg = call.args().first().ok_or_else(unknown)?;
        if function.is::<WindowShift>() {
            let (distance, over_nulls) = distance(window).ok_or_else(unknown)?;
            let (value, codes) = self.value(arg)?;
            let otherwise = match call.args().get(2).map(|arg| constant(arg)) {
                None => Expr::literal(Literal::Null, value.ty),
                Some(None) => return Err(unknown()),
                Some(Some(value_otherwise)) if value_otherwise.is_null() => {
                    Expr::literal(Literal::Null, value.ty)
                }
                Some(Some(otherwise)) if codes.is_some() => {
                    let text = otherwise.cast_to(&DataType::Utf8).map_err(|_| unknown())?;
                    let ScalarValue::Utf8(Some(text)) = text else {
                        return Err(unknown());
                    };
                    self.default_text = Some(text);
                    // Its code is known when all texts are.
                    Expr::literal(Literal::Integer(0), value.ty)
                }
                Some(Some(otherwise)) => {
                    let data_type = arg.data_type(&self.input.schema());
                    let data_type = data_type.map_err(|_| unknown())?;
                    let otherwise = otherwise.cast_to(&data_type).map_err(|_| unknown())?;
                    lower_literal(&otherwise).map_err(|e| reason(&e, window.name()))?
                }
            };
            let shift = WindowFunction::Shift {
                over_nulls: over_nulls && value.nullable,
                value,
                distance,
                otherwise,
            };
            return Ok((shift, codes));
        }
        if let Some(nth) = function.downcast_ref::<NthValue>() {
            let number = match nth.kind() {
                NthValueKind::First => Some(1),
                NthValueKind::Last => Some(-1),
                NthValueKind::Nth => call
                    .args()
                    .get(1)
                    .and_then(integer)
                    .and_then(|n| i64::try_from(n).ok()),
            };
            let number = number.ok_or_else(unknown)?;
            let (n, over_nulls) = nth_number(window, nth.kind(), number).ok_or_else(unknown)?;
            let (value, codes) = self.value(arg)?;
            let nth = WindowFunction::Nth {
                over_nulls: over_nulls && value.nullable,
                value,
                n,
            };
            return Ok((nth, codes));
        }
        Err(unknown())
    }

    /// An aggregate, and the number of the codes of its result when that is text.
    fn aggregate(
        &mut self,
        call: &AggregateFunctionExpr,
    ) -> Result<(WindowFunction, Option<usize>), Reason> {
        let name = call.fun().name();
        if call.is_distinct() || call.ignore_nulls() || !call.order_bys().is_empty() {
            return Err(refused(
                "unsupported-window",
                &format!(
                    "{name} with DISTINCT, ORDER BY or IGNORE NULLS over a window is not on the \
                     GPU yet"
                ),
            ));
        }
        // A filter stands in the argument by now: `guard::window_filter`.
        let args = call.expressions();
        let [arg] = args.as_slice() else {
            return Err(no_form(name));
        };
        let inner = call.fun().inner();
        if inner.is::<Count>() {
            if constant(arg).is_some_and(|value| !value.is_null()) {
                return Ok((WindowFunction::Count(None), None));
            }
            return Ok((WindowFunction::Count(Some(self.value(arg)?.0)), None));
        }
        let is_min = inner.is::<Min>() || (inner.is::<Extreme>() && name == "min");
        let is_max = inner.is::<Max>() || (inner.is::<Extreme>() && name == "max");
        if is_min || is_max {
            // Of texts, the one of the smallest or largest rank.
            let (value, codes) = match self.ranks(arg) {
                Some((number, ranks)) => (ranks, Some(WindowPipeline::codes_of_ranks(number))),
                None => (lower(arg, &self.inputs)?, None),
            };
            let extreme = match is_min {
                true => WindowFunction::Min(value),
                false => WindowFunction::Max(value),
            };
            return Ok((extreme, codes));
        }
        let value = lower(arg, &self.inputs)?;
        let sliding = inner.downcast_ref::<SlidingFloats>();
        let averages = sliding.map_or(inner.is::<Avg>(), SlidingFloats::is_average);
        let function = if averages {
            let scale = match arg.data_type(&self.input.schema()) {
                Ok(DataType::Decimal128(_, scale)) => scale,
                _ => 0,
            };
            WindowFunction::Average { value, scale }
        } else if sliding.is_some() || inner.is::<Sum>() || inner.is::<CheckedSum>() {
            WindowFunction::Sum(value)
        } else {
            return Err(no_form(name));
        };
        Ok((function, None))
    }
}

fn no_form(name: &str) -> Reason {
    let message = format!("the window function {name} is not on the GPU yet");
    refused("unsupported-window", &message)
}

fn reads_frame(function: &WindowFunction) -> bool {
    matches!(
        function,
        WindowFunction::Nth { .. }
            | WindowFunction::Count(_)
            | WindowFunction::Sum(_)
            | WindowFunction::Average { .. }
            | WindowFunction::Min(_)
            | WindowFunction::Max(_)
    )
}

pub(super) fn constant(expr: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    Some(expr.downcast_ref::<PhysicalLiteral>()?.value())
}

/// A constant integer; null is 0, as in DataFusion's window functions.
pub(super) fn integer(expr: &Arc<dyn PhysicalExpr>) -> Option<i128> {
    let value = constant(expr)?;
    if value.is_null() {
        return Some(0);
    }
    match lower_literal(value).ok()?.kind {
        Kind::Literal(Literal::Integer(n)) => Some(n),
        _ => None,
    }
}
