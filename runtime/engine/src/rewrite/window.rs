//! Can this window node run on the GPU? If not, why not.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
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
use datafusion::logical_expr::{WindowFrame, WindowFrameBound, WindowFrameUnits};
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
    Bound, Expr, Frame, FrameUnit, Kind, Literal, Sort, SortKey, Type, Window, WindowCall,
    WindowFunction,
};

use super::mark::{known_ranges, of_type, refused, text_of};
use crate::exec::{Codes, Taken, WindowPipeline};
use crate::guard::extremes::Extreme;
use crate::guard::sliding_floats::SlidingFloats;
use crate::guard::sum::CheckedSum;
use crate::lower::{Inputs, LateValues, Origin, lower, lower_literal, reason, without_exchange};
use crate::report::Reason;

/// Rows and groups beyond this are past the end of every partition.
const FAR: i64 = 1 << 32;

/// The most rows that the probe of `nth_value` looks at.
const NTH_MAX: i64 = 1 << 16;

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
    for function in functions {
        let (call, codes) = lowering.call(function.as_ref())?;
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
            if has(&list, &key.expr) {
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
}

impl Lowering<'_> {
    /// The number of the codes of a text, and their column, if it is one that has codes.
    fn text(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<(usize, Expr)> {
        let data_type = expr.data_type(&self.input.schema()).ok()?;
        let text = text_of(&self.inputs.origin(expr), &data_type)?;
        Some(self.codes.column(&text))
    }

    /// A key of the order: text by its rank.
    fn key(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Expr, Reason> {
        let Some((number, column)) = self.text(expr) else {
            return lower(expr, &self.inputs);
        };
        if let Kind::Column(codes) = column.kind
            && !self.ranked.contains(&(number, codes))
        {
            self.ranked.push((number, codes));
        }
        Ok(WindowPipeline::ranks(number))
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
            (self.aggregate(plain.get_aggregate_expr())?, None)
        } else if let Some(sliding) = window.as_any().downcast_ref::<SlidingAggregateWindowExpr>() {
            (self.aggregate(sliding.get_aggregate_expr())?, None)
        } else {
            self.standard(window)?
        };
        let ty = match codes {
            Some(_) => function.value().map_or(Type::Utf8, |value| value.ty),
            None => type_of(field.data_type()).map_err(|e| reason(&e, window.name()))?,
        };
        let frame = match reads_frame(&function) {
            true => frame(window.get_window_frame())?,
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
            let distance = distance(window).ok_or_else(|| ignores_nulls(window.name()))?;
            let (value, codes) = self.value(arg)?;
            let otherwise = match call.args().get(2).map(|arg| constant(arg)) {
                None => Expr::literal(Literal::Null, value.ty),
                Some(None) => return Err(unknown()),
                Some(Some(value_otherwise)) if value_otherwise.is_null() => {
                    Expr::literal(Literal::Null, value.ty)
                }
                Some(Some(_)) if codes.is_some() => {
                    let message = format!(
                        "{} with a default text is not on the GPU yet",
                        window.name()
                    );
                    return Err(refused("unsupported-window", &message));
                }
                Some(Some(otherwise)) => {
                    let data_type = arg.data_type(&self.input.schema());
                    let data_type = data_type.map_err(|_| unknown())?;
                    let otherwise = otherwise.cast_to(&data_type).map_err(|_| unknown())?;
                    lower_literal(&otherwise).map_err(|e| reason(&e, window.name()))?
                }
            };
            let shift = WindowFunction::Shift {
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
                NthValueKind::Nth => call.args().get(1).and_then(integer).and_then(|n| {
                    let n = i64::try_from(n).ok()?;
                    (n.abs() <= NTH_MAX).then_some(n)
                }),
            };
            let number = number.ok_or_else(unknown)?;
            let n = nth_number(window, nth.kind(), number)
                .ok_or_else(|| ignores_nulls(window.name()))?;
            let (value, codes) = self.value(arg)?;
            return Ok((WindowFunction::Nth { value, n }, codes));
        }
        Err(unknown())
    }

    fn aggregate(&mut self, call: &AggregateFunctionExpr) -> Result<WindowFunction, Reason> {
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
                return Ok(WindowFunction::Count(None));
            }
            return Ok(WindowFunction::Count(Some(self.value(arg)?.0)));
        }
        let value = lower(arg, &self.inputs)?;
        if value.ty == Type::Utf8 {
            return Err(refused(
                "unsupported-type",
                &format!("{name} of text ({arg}) over a window is not on the GPU yet"),
            ));
        }
        let sliding = inner.downcast_ref::<SlidingFloats>();
        let averages = sliding.map_or(inner.is::<Avg>(), SlidingFloats::is_average);
        Ok(if averages {
            let scale = match arg.data_type(&self.input.schema()) {
                Ok(DataType::Decimal128(_, scale)) => scale,
                _ => 0,
            };
            WindowFunction::Average { value, scale }
        } else if sliding.is_some() || inner.is::<Sum>() || inner.is::<CheckedSum>() {
            WindowFunction::Sum(value)
        } else if inner.is::<Min>() || (inner.is::<Extreme>() && name == "min") {
            WindowFunction::Min(value)
        } else if inner.is::<Max>() || (inner.is::<Extreme>() && name == "max") {
            WindowFunction::Max(value)
        } else {
            return Err(no_form(name));
        })
    }
}

fn no_form(name: &str) -> Reason {
    let message = format!("the window function {name} is not on the GPU yet");
    refused("unsupported-window", &message)
}

fn ignores_nulls(name: &str) -> Reason {
    let message = format!("{name} with IGNORE NULLS is not on the GPU yet");
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

fn frame(frame: &WindowFrame) -> Result<Frame, Reason> {
    let unit = match frame.units {
        WindowFrameUnits::Rows => FrameUnit::Rows,
        WindowFrameUnits::Groups => FrameUnit::Groups,
        WindowFrameUnits::Range => FrameUnit::Range,
    };
    let offset = |value: &ScalarValue| -> Result<Expr, Reason> {
        if unit == FrameUnit::Range {
            return lower_literal(value).map_err(|e| reason(&e, frame));
        }
        let n = lower_literal(value).map_err(|e| reason(&e, frame))?;
        Ok(match n.kind {
            Kind::Literal(Literal::Integer(n)) => {
                Expr::literal(Literal::Integer(n.min(i128::from(FAR))), Type::I64)
            }
            _ => n,
        })
    };
    let bound = |bound: &WindowFrameBound| {
        Ok(match bound {
            bound if bound.is_unbounded() => Bound::Unbounded,
            WindowFrameBound::CurrentRow => Bound::Current,
            WindowFrameBound::Preceding(n) => Bound::Before(offset(n)?),
            WindowFrameBound::Following(n) => Bound::After(offset(n)?),
        })
    };
    Ok(Frame {
        unit,
        start: bound(&frame.start_bound)?,
        end: bound(&frame.end_bound)?,
    })
}

fn constant(expr: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    Some(expr.downcast_ref::<PhysicalLiteral>()?.value())
}

/// A constant integer; null is 0, as in DataFusion's window functions.
fn integer(expr: &Arc<dyn PhysicalExpr>) -> Option<i128> {
    let value = constant(expr)?;
    if value.is_null() {
        return Some(0);
    }
    match lower_literal(value).ok()?.kind {
        Kind::Literal(Literal::Integer(n)) => Some(n),
        _ => None,
    }
}

/// How far on `lag` and `lead` look, `None` when they pass over nulls. The planner may have
/// turned the order around and with it the function, which tells nobody but its evaluator.
fn distance(window: &dyn WindowExpr) -> Option<i64> {
    let call = window.as_any().downcast_ref::<StandardWindowExpr>()?;
    let call = call.get_standard_func_expr();
    let arguments = call.as_any().downcast_ref::<WindowUDFExpr>()?.args();
    let n = match arguments.get(1) {
        None => 1,
        Some(n) => integer(n)?,
    };
    let n = i64::try_from(n.unsigned_abs()).unwrap_or(FAR).min(FAR);
    if n == 0 {
        // Which of the two it is, and whether it passes over nulls, shows only in a default.
        let has_default = arguments
            .get(2)
            .and_then(constant)
            .is_some_and(|d| !d.is_null());
        return (!has_default).then_some(0);
    }
    // The rows that it asks for around the middle of many.
    let (middle, all) = (1 << 40, 1 << 41);
    let range = call.create_evaluator().ok()?.get_range(middle, all).ok()?;
    if range.start < middle {
        (range.start > 0).then_some(-n)
    } else {
        (range.end < all).then_some(n)
    }
}

/// The number of the row that `first_value`, `last_value` and `nth_value` take, `None` when
/// they pass over nulls. As for [`distance`], the evaluator knows.
fn nth_number(window: &dyn WindowExpr, kind: &NthValueKind, n: i64) -> Option<i64> {
    if n == 0 {
        return Some(0);
    }
    let call = window.as_any().downcast_ref::<StandardWindowExpr>()?;
    let call = call.get_standard_func_expr();
    let far = n.unsigned_abs();
    // Row number i of 2n has the value i, but the row that is taken first has none.
    let rows = 2 * far as i64;
    let taken = |missing: Option<i64>| {
        let values = (0..rows).map(|at| (Some(at) != missing).then_some(at));
        let values: ArrayRef = Arc::new(Int64Array::from_iter(values));
        let value = call
            .create_evaluator()
            .ok()?
            .evaluate(&[values], &(0..rows as usize));
        match value.ok()? {
            ScalarValue::Int64(value) => Some(value),
            _ => None,
        }
    };
    let first = taken(None)??;
    if taken(Some(first))?.is_some() {
        return None;
    }
    match kind {
        NthValueKind::First => (first == 0).then_some(1),
        NthValueKind::Last => (first == rows - 1).then_some(-1),
        NthValueKind::Nth if first == n.abs() - 1 => Some(n.abs()),
        NthValueKind::Nth => (first == rows - n.abs()).then_some(-n.abs()),
    }
}
