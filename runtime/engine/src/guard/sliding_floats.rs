//! `sum` and `avg` of floats over a frame that moves on.
//!
//! DataFusion takes what leaves the frame out by subtraction. A NaN or an infinity stays in
//! the sum for the rest of the partition then, and so does what a large value has rounded
//! off. Here nothing is subtracted: the frame is two stacks.
//!
//! ```text
//!   leaves <- [c+b+a  b+a  a] front   back [d e f] <- enters     back_sum = d+e+f
//!   sum = top of front + back_sum; when front is empty, back is turned over
//! ```
//!
//! Every value is turned over once, so a frame costs no more than before.

use std::mem::size_of_val;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray};
use datafusion::arrow::datatypes::{DataType, FieldRef, Float64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue, internal_err};
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, ExprSchemable, LogicalPlan, ReversedUDAF,
    Signature, WindowFunctionDefinition,
};
use datafusion::optimizer::AnalyzerRule;

use super::map_expressions;

/// The rule that puts [`SlidingFloats`] where a frame moves on.
#[derive(Debug)]
pub struct NothingSubtracted;

impl AnalyzerRule for NothingSubtracted {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let asked = |expr: &Expr| matches!(expr, Expr::WindowFunction(_));
        let plan = map_expressions(plan, asked, |expr, schema| {
            expr.transform_up(|expr| replaced(expr, schema))
        })?;
        Ok(plan.data)
    }

    fn name(&self) -> &str {
        "sliding_floats"
    }
}

fn replaced(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::WindowFunction(mut function) = expr else {
        return Ok(Transformed::no(expr));
    };
    let params = &function.params;
    let is_float = match params.args.as_slice() {
        [arg] => matches!(arg.get_type(schema), Ok(DataType::Float64)),
        _ => false,
    };
    let slides = !params.window_frame.is_ever_expanding() && !params.distinct;
    let plain = match function.fun.name() {
        "sum" if is_float && slides => SlidingFloats::sum(),
        "avg" if is_float && slides => SlidingFloats::average(),
        _ => return Ok(Transformed::no(Expr::WindowFunction(function))),
    };
    let udaf = Arc::new(AggregateUDF::new_from_impl(plain));
    function.fun = WindowFunctionDefinition::AggregateUDF(udaf);
    Ok(Transformed::yes(Expr::WindowFunction(function)))
}

/// The `sum` or the `avg` of floats over a frame that moves on.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct SlidingFloats {
    plain: Plain,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Plain {
    Sum(Sum),
    Average(Avg),
}

impl SlidingFloats {
    /// The sum.
    pub fn sum() -> SlidingFloats {
        SlidingFloats {
            plain: Plain::Sum(Sum::new()),
        }
    }

    /// The average.
    pub fn average() -> SlidingFloats {
        SlidingFloats {
            plain: Plain::Average(Avg::new()),
        }
    }

    /// Whether it is the average.
    pub fn is_average(&self) -> bool {
        matches!(self.plain, Plain::Average(_))
    }

    fn plain(&self) -> &dyn AggregateUDFImpl {
        match &self.plain {
            Plain::Sum(sum) => sum,
            Plain::Average(average) => average,
        }
    }
}

impl AggregateUDFImpl for SlidingFloats {
    fn name(&self) -> &str {
        self.plain().name()
    }

    fn signature(&self) -> &Signature {
        self.plain().signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.plain().return_type(arg_types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.plain().accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.plain().state_fields(args)
    }

    fn create_sliding_accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(FrameOfFloats {
            is_average: self.is_average(),
            front: Vec::new(),
            back: Vec::new(),
            back_sum: 0.0,
        }))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}

/// The values of a frame that are there.
#[derive(Debug)]
struct FrameOfFloats {
    is_average: bool,
    /// For each of the older values, the next to leave last: the sum of it and of those
    /// that leave after it.
    front: Vec<f64>,
    /// The newer values.
    back: Vec<f64>,
    back_sum: f64,
}

impl FrameOfFloats {
    fn leave(&mut self) -> Result<()> {
        if self.front.is_empty() {
            let mut sum = 0.0;
            self.front.extend(self.back.drain(..).rev().map(|value| {
                sum += value;
                sum
            }));
            self.back_sum = 0.0;
        }
        match self.front.pop() {
            Some(_) => Ok(()),
            None => internal_err!("a value left a frame that it was not in"),
        }
    }
}

impl Accumulator for FrameOfFloats {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<Float64Type>().iter().flatten() {
            self.back.push(value);
            self.back_sum += value;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for _ in values[0].as_primitive::<Float64Type>().iter().flatten() {
            self.leave()?;
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let n = self.front.len() + self.back.len();
        let sum = match self.front.last() {
            Some(front) => front + self.back_sum,
            None => self.back_sum,
        };
        let value = if self.is_average { sum / n as f64 } else { sum };
        Ok(ScalarValue::Float64((n > 0).then_some(value)))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        internal_err!("a frame is never split")
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        internal_err!("a frame is never split")
    }

    fn size(&self) -> usize {
        let stacks = self.front.capacity() + self.back.capacity();
        size_of_val(self) + stacks * size_of::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::Float64Array;

    #[test]
    fn what_has_left_leaves_nothing_behind() {
        let values = [1.0, f64::NAN, 2.0, 1e300, 3.0, f64::INFINITY, 4.0, 5.0];
        let batch =
            |at: usize| -> [ArrayRef; 1] { [Arc::new(Float64Array::from(vec![values[at]]))] };
        let mut frame = FrameOfFloats {
            is_average: false,
            front: Vec::new(),
            back: Vec::new(),
            back_sum: 0.0,
        };
        for at in 0..values.len() {
            frame.update_batch(&batch(at)).unwrap();
            if at >= 2 {
                frame.retract_batch(&batch(at - 2)).unwrap();
            }
            let first = at.saturating_sub(1);
            let expected: f64 = values[first..=at].iter().sum();
            let got = frame.evaluate().unwrap();
            let same = match got {
                ScalarValue::Float64(Some(got)) => {
                    got == expected || got.is_nan() && expected.is_nan()
                }
                _ => false,
            };
            assert!(same, "{got:?} for {expected}");
        }
        frame.retract_batch(&batch(6)).unwrap();
        frame.retract_batch(&batch(7)).unwrap();
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::Float64(None));
        assert!(frame.retract_batch(&batch(7)).is_err());
    }
}
