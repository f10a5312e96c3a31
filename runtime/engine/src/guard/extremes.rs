//! `min` and `max` that do not lose NaN.
//!
//! NaN is the largest value. DataFusion's grouped `max` compares with `>`, which
//! is false for NaN, so a NaN that arrives later is lost. Here the grouped form for
//! floats uses the total order; [`super::floats`] has made every NaN positive
//! before it arrives. Everything else is DataFusion's.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, ArrowNativeTypeOp, AsArray, BooleanArray, PrimitiveArray,
};
use datafusion::arrow::buffer::{BooleanBuffer, NullBuffer};
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, FieldRef, Float32Type, Float64Type,
};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, SetMonotonicity,
    Signature, StatisticsArgs,
};

/// The `min` or the `max` aggregate of every session.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Extreme {
    plain: Plain,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Plain {
    Max(Max),
    Min(Min),
}

impl Extreme {
    /// The largest value.
    pub fn max() -> Self {
        Self {
            plain: Plain::Max(Max::new()),
        }
    }

    /// The smallest value.
    pub fn min() -> Self {
        Self {
            plain: Plain::Min(Min::new()),
        }
    }

    fn plain(&self) -> &dyn AggregateUDFImpl {
        match &self.plain {
            Plain::Max(max) => max,
            Plain::Min(min) => min,
        }
    }
}

impl AggregateUDFImpl for Extreme {
    fn name(&self) -> &str {
        self.plain().name()
    }

    fn signature(&self) -> &Signature {
        self.plain().signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.plain().return_type(arg_types)
    }

    fn return_field(&self, arg_fields: &[FieldRef]) -> Result<FieldRef> {
        self.plain().return_field(arg_fields)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if matches!(args.return_type(), DataType::Float64 | DataType::Float32) {
            let keep_larger = matches!(self.plain, Plain::Max(_));
            return Ok(Box::new(FloatExtreme {
                best: ScalarValue::try_from(args.return_type())?,
                keep_larger,
            }));
        }
        self.plain().accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.plain().state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.plain().groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let keep_larger = matches!(self.plain, Plain::Max(_));
        match args.return_type() {
            DataType::Float64 => Ok(Box::new(FloatExtremes::<Float64Type>::new(keep_larger))),
            DataType::Float32 => Ok(Box::new(FloatExtremes::<Float32Type>::new(keep_larger))),
            _ => self.plain().create_groups_accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.plain().create_sliding_accumulator(args)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.plain().order_sensitivity()
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.plain().reverse_expr()
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.plain().coerce_types(arg_types)
    }

    fn is_descending(&self) -> Option<bool> {
        self.plain().is_descending()
    }

    // Statistics of files leave NaN out.
    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        if args.return_type.is_floating() {
            None
        } else {
            self.plain().value_from_stats(args)
        }
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.plain().set_monotonicity(data_type)
    }
}

/// The extreme of all rows, in the total order.
#[derive(Debug)]
struct FloatExtreme {
    best: ScalarValue,
    keep_larger: bool,
}

impl Accumulator for FloatExtreme {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        fn best<T: ArrowPrimitiveType>(values: &ArrayRef, keep_larger: bool) -> Option<T::Native>
        where
            T::Native: ArrowNativeTypeOp,
        {
            values.as_primitive::<T>().iter().flatten().reduce(|a, b| {
                if a.compare(b).is_gt() == keep_larger {
                    a
                } else {
                    b
                }
            })
        }
        let candidate = match values[0].data_type() {
            DataType::Float32 => {
                ScalarValue::Float32(best::<Float32Type>(&values[0], self.keep_larger))
            }
            _ => ScalarValue::Float64(best::<Float64Type>(&values[0], self.keep_larger)),
        };
        let better = match (&self.best, &candidate) {
            (_, candidate) if candidate.is_null() => false,
            (best, _) if best.is_null() => true,
            (ScalarValue::Float64(Some(best)), ScalarValue::Float64(Some(new))) => {
                new.total_cmp(best).is_gt() == self.keep_larger
            }
            (ScalarValue::Float32(Some(best)), ScalarValue::Float32(Some(new))) => {
                new.total_cmp(best).is_gt() == self.keep_larger
            }
            _ => false,
        };
        if better {
            self.best = candidate;
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.best.clone()])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.best.clone())
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// The extremes of many groups, in the total order.
#[derive(Debug)]
struct FloatExtremes<T: ArrowPrimitiveType> {
    keep_larger: bool,
    best: Vec<T::Native>,
    seen: Vec<bool>,
}

impl<T: ArrowPrimitiveType> FloatExtremes<T> {
    fn new(keep_larger: bool) -> Self {
        Self {
            keep_larger,
            best: Vec::new(),
            seen: Vec::new(),
        }
    }

    fn take(&mut self, emit_to: EmitTo) -> ArrayRef {
        let best = emit_to.take_needed(&mut self.best);
        let seen = emit_to.take_needed(&mut self.seen);
        Arc::new(PrimitiveArray::<T>::new(
            best.into(),
            Some(NullBuffer::new(BooleanBuffer::from(seen))),
        ))
    }
}

impl<T: ArrowPrimitiveType + Send> GroupsAccumulator for FloatExtremes<T> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        let values = values[0].as_primitive::<T>();
        self.best.resize(total_num_groups, T::default_value());
        self.seen.resize(total_num_groups, false);
        for (row, group) in group_indices.iter().enumerate() {
            let counts = values.is_valid(row)
                && opt_filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
            if !counts {
                continue;
            }
            let value = values.value(row);
            if !self.seen[*group] || value.compare(self.best[*group]).is_gt() == self.keep_larger {
                self.best[*group] = value;
                self.seen[*group] = true;
            }
        }
        Ok(())
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.update_batch(values, group_indices, None, total_num_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        Ok(self.take(emit_to))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.take(emit_to)])
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let Some(filter) = opt_filter else {
            return Ok(vec![Arc::clone(&values[0])]);
        };
        let kept = match filter.nulls() {
            Some(nulls) => filter.values() & nulls.inner(),
            None => filter.values().clone(),
        };
        let array = values[0].as_primitive::<T>();
        let nulls = NullBuffer::union(array.nulls(), Some(&NullBuffer::new(kept)));
        Ok(vec![Arc::new(PrimitiveArray::<T>::new(
            array.values().clone(),
            nulls,
        ))])
    }

    fn size(&self) -> usize {
        self.best.capacity() * size_of::<T::Native>() + self.seen.capacity()
    }
}
