//! `sum` that never wraps.
//!
//! DataFusion adds integers and decimals with wrapping arithmetic. Here integers
//! and 128-bit decimals are added in 128 bits and checked when the result is
//! taken, so the outcome depends neither on the order of the rows nor on how they
//! were split. The partial sum of integers is a `Decimal128(38, 0)`: it may be
//! larger than the result type while another part brings it back.

use std::mem::size_of_val;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Int64Array, PrimitiveArray,
    UInt64Array,
};
use datafusion::arrow::buffer::{BooleanBuffer, NullBuffer};
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal128Type, Field, FieldRef, Int64Type, UInt64Type,
};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, SetMonotonicity,
    Signature, StatisticsArgs,
};

use crate::error::Error;

const STATE: DataType = DataType::Decimal128(38, 0);

/// The `sum` aggregate of every session.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct CheckedSum {
    plain: Sum,
}

impl CheckedSum {
    /// The function under its usual name.
    pub fn new() -> Self {
        Self { plain: Sum::new() }
    }
}

impl Default for CheckedSum {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether values of a type are added in 128 bits here.
fn is_wide(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Int64 | DataType::UInt64 | DataType::Decimal128(_, _)
    )
}

impl AggregateUDFImpl for CheckedSum {
    fn name(&self) -> &str {
        "sum"
    }

    fn signature(&self) -> &Signature {
        self.plain.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.plain.return_type(arg_types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if !is_wide(args.return_type()) {
            return self.plain.accumulator(args);
        }
        let total = Total::new(args.return_type().clone());
        if args.is_distinct {
            Ok(Box::new(DistinctTotal {
                total,
                seen: Default::default(),
            }))
        } else {
            Ok(Box::new(total))
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if !is_wide(args.return_type()) || args.is_distinct {
            return self.plain.create_sliding_accumulator(args);
        }
        Ok(Box::new(Total::new(args.return_type().clone())))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let integers = matches!(args.return_type(), DataType::Int64 | DataType::UInt64);
        if integers && !args.is_distinct {
            return Ok(vec![Arc::new(Field::new(
                format_state_name(args.name, "sum"),
                STATE,
                true,
            ))]);
        }
        self.plain.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !args.is_distinct
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        if !is_wide(args.return_type()) {
            return self.plain.create_groups_accumulator(args);
        }
        Ok(Box::new(GroupTotals {
            result: args.return_type().clone(),
            totals: Vec::new(),
            seen: None,
            bound: 0,
            overflowed: false,
        }))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.plain.set_monotonicity(data_type)
    }

    // A sum taken from statistics was added by somebody else, so it is not used
    // for types that wrap.
    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        if is_wide(args.return_type) || matches!(args.statistics.num_rows, Precision::Absent) {
            return None;
        }
        self.plain.value_from_stats(args)
    }
}

fn overflow(result: &DataType) -> datafusion::common::DataFusionError {
    let data_type = match result {
        DataType::Int64 => "BIGINT".to_owned(),
        DataType::UInt64 => "BIGINT UNSIGNED".to_owned(),
        DataType::Decimal128(precision, scale) => format!("DECIMAL({precision}, {scale})"),
        other => other.to_string(),
    };
    Error::Overflow {
        expression: "sum".into(),
        data_type,
    }
    .into_datafusion()
}

fn fits(value: i128, result: &DataType) -> bool {
    match result {
        DataType::Int64 => i64::try_from(value).is_ok(),
        DataType::UInt64 => u64::try_from(value).is_ok(),
        DataType::Decimal128(precision, _) => {
            value.unsigned_abs() < 10_u128.pow(u32::from(*precision))
        }
        _ => false,
    }
}

/// What no sum of some of these values is further from zero than.
fn bound<V: Copy + Into<i128>>(values: &[V]) -> u128 {
    let spread = values.iter().fold(0, |spread: i128, value| {
        let value = (*value).into();
        spread | (value ^ (value >> 127))
    });
    // All bits up to the highest that is used; one more for the negative.
    let largest = u128::MAX.checked_shr(spread.leading_zeros()).unwrap_or(0) + 1;
    largest.saturating_mul(values.len() as u128)
}

/// Calls `each` with every value of an integer or decimal array that is not NULL.
fn for_each(values: &ArrayRef, mut each: impl FnMut(i128)) -> Result<()> {
    fn walk<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>, each: &mut impl FnMut(i128))
    where
        T::Native: Into<i128>,
    {
        if array.null_count() == 0 {
            array
                .values()
                .iter()
                .for_each(|value| each((*value).into()));
        } else {
            array.iter().flatten().for_each(|value| each(value.into()));
        }
    }
    match values.data_type() {
        DataType::Int64 => walk(values.as_primitive::<Int64Type>(), &mut each),
        DataType::UInt64 => walk(values.as_primitive::<UInt64Type>(), &mut each),
        DataType::Decimal128(_, _) => walk(values.as_primitive::<Decimal128Type>(), &mut each),
        other => return internal_err!("sum of {other}"),
    }
    Ok(())
}

/// The sum of one group or one window frame.
#[derive(Debug)]
struct Total {
    result: DataType,
    total: i128,
    overflowed: bool,
    n_values: u64,
}

impl Total {
    fn new(result: DataType) -> Self {
        Self {
            result,
            total: 0,
            overflowed: false,
            n_values: 0,
        }
    }

    fn add(&mut self, value: i128) {
        let (total, overflowed) = self.total.overflowing_add(value);
        self.total = total;
        self.overflowed |= overflowed;
        self.n_values += 1;
    }

    fn state_value(&self) -> Result<ScalarValue> {
        if self.overflowed {
            return Err(overflow(&self.result));
        }
        let total = (self.n_values > 0).then_some(self.total);
        Ok(match &self.result {
            DataType::Decimal128(precision, scale) => {
                ScalarValue::Decimal128(total, *precision, *scale)
            }
            _ => ScalarValue::Decimal128(total, 38, 0),
        })
    }
}

impl Accumulator for Total {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for_each(&values[0], |value| self.add(value))
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for_each(&values[0], |value| {
            let (total, overflowed) = self.total.overflowing_sub(value);
            self.total = total;
            self.overflowed |= overflowed;
            self.n_values -= 1;
        })
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.state_value()?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if self.n_values > 0 && (self.overflowed || !fits(self.total, &self.result)) {
            return Err(overflow(&self.result));
        }
        let total = (self.n_values > 0).then_some(self.total);
        Ok(match &self.result {
            DataType::Int64 => ScalarValue::Int64(total.map(|value| value as i64)),
            DataType::UInt64 => ScalarValue::UInt64(total.map(|value| value as u64)),
            _ => self.state_value()?,
        })
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// The sum of the distinct values of one group. Its state is the list of values.
#[derive(Debug)]
struct DistinctTotal {
    total: Total,
    seen: std::collections::HashSet<i128>,
}

impl Accumulator for DistinctTotal {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for_each(&values[0], |value| {
            if self.seen.insert(value) {
                self.total.add(value);
            }
        })
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for values in states[0].as_list::<i32>().iter().flatten() {
            self.update_batch(&[values])?;
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let scalars: Vec<ScalarValue> = self
            .seen
            .iter()
            .map(|value| match &self.total.result {
                DataType::Int64 => ScalarValue::Int64(Some(*value as i64)),
                DataType::UInt64 => ScalarValue::UInt64(Some(*value as u64)),
                DataType::Decimal128(precision, scale) => {
                    ScalarValue::Decimal128(Some(*value), *precision, *scale)
                }
                _ => ScalarValue::Null,
            })
            .collect();
        Ok(vec![ScalarValue::List(ScalarValue::new_list_nullable(
            &scalars,
            &self.total.result,
        ))])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.total.evaluate()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.seen.capacity() * size_of::<i128>() * 2
    }
}

/// The sums of many groups.
#[derive(Debug)]
struct GroupTotals {
    result: DataType,
    totals: Vec<i128>,
    /// Which groups had a value; `None` while all of them had.
    seen: Option<Vec<bool>>,
    /// No total is further from zero. While it fits 128 bits, none can have overflowed.
    bound: u128,
    overflowed: bool,
}

impl GroupTotals {
    fn add<T: ArrowPrimitiveType>(
        &mut self,
        values: &PrimitiveArray<T>,
        groups: &[usize],
        opt_filter: Option<&BooleanArray>,
        n_groups: usize,
    ) where
        T::Native: Into<i128>,
    {
        let n_before = self.totals.len();
        self.totals.resize(n_groups, 0);
        let all_count = values.null_count() == 0 && opt_filter.is_none();
        if !all_count && self.seen.is_none() {
            self.seen = Some(vec![true; n_before]);
        }
        if let Some(seen) = &mut self.seen {
            seen.resize(n_groups, false);
        }
        self.bound = self.bound.saturating_add(bound(values.values()));
        if all_count && self.seen.is_none() && self.bound <= i128::MAX as u128 {
            for (value, group) in values.values().iter().zip(groups) {
                self.totals[*group] += (*value).into();
            }
            return;
        }
        for (row, group) in groups.iter().enumerate() {
            let counts = values.is_valid(row)
                && opt_filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
            if counts {
                let (total, overflowed) =
                    self.totals[*group].overflowing_add(values.value(row).into());
                self.totals[*group] = total;
                self.overflowed |= overflowed;
                if let Some(seen) = &mut self.seen {
                    seen[*group] = true;
                }
            }
        }
    }

    /// Takes the totals of the groups to emit, and which of them are NULL.
    fn take(&mut self, emit_to: EmitTo) -> Result<(Vec<i128>, Option<NullBuffer>)> {
        if self.overflowed {
            return Err(overflow(&self.result));
        }
        let totals = emit_to.take_needed(&mut self.totals);
        let nulls = self
            .seen
            .as_mut()
            .map(|seen| NullBuffer::new(BooleanBuffer::from(emit_to.take_needed(seen))));
        if self.totals.is_empty() {
            self.seen = None;
        }
        Ok((totals, nulls))
    }

    fn state_type(&self) -> DataType {
        match &self.result {
            DataType::Decimal128(_, _) => self.result.clone(),
            _ => STATE,
        }
    }

    fn state_array(&self, totals: Vec<i128>, nulls: Option<NullBuffer>) -> ArrayRef {
        Arc::new(Decimal128Array::new(totals.into(), nulls).with_data_type(self.state_type()))
    }
}

impl GroupsAccumulator for GroupTotals {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        match values[0].data_type() {
            DataType::Int64 => {
                self.add(
                    values[0].as_primitive::<Int64Type>(),
                    group_indices,
                    opt_filter,
                    total_num_groups,
                );
            }
            DataType::UInt64 => {
                self.add(
                    values[0].as_primitive::<UInt64Type>(),
                    group_indices,
                    opt_filter,
                    total_num_groups,
                );
            }
            DataType::Decimal128(_, _) => {
                self.add(
                    values[0].as_primitive::<Decimal128Type>(),
                    group_indices,
                    opt_filter,
                    total_num_groups,
                );
            }
            other => return internal_err!("sum of {other}"),
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
        let (totals, nulls) = self.take(emit_to)?;
        let is_null = |row: usize| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        if totals
            .iter()
            .enumerate()
            .any(|(row, total)| !is_null(row) && !fits(*total, &self.result))
        {
            return Err(overflow(&self.result));
        }
        Ok(match &self.result {
            DataType::Int64 => Arc::new(Int64Array::new(
                totals.iter().map(|total| *total as i64).collect(),
                nulls,
            )),
            DataType::UInt64 => Arc::new(UInt64Array::new(
                totals.iter().map(|total| *total as u64).collect(),
                nulls,
            )),
            _ => self.state_array(totals, nulls),
        })
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (totals, nulls) = self.take(emit_to)?;
        Ok(vec![self.state_array(totals, nulls)])
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let n_rows = values[0].len();
        let mut totals = vec![0_i128; n_rows];
        let kept = opt_filter.map(|filter| {
            NullBuffer::new(match filter.nulls() {
                Some(nulls) => filter.values() & nulls.inner(),
                None => filter.values().clone(),
            })
        });
        let nulls = NullBuffer::union(values[0].nulls(), kept.as_ref());
        match values[0].data_type() {
            DataType::Int64 => copy(values[0].as_primitive::<Int64Type>(), &mut totals),
            DataType::UInt64 => copy(values[0].as_primitive::<UInt64Type>(), &mut totals),
            DataType::Decimal128(_, _) => {
                copy(values[0].as_primitive::<Decimal128Type>(), &mut totals)
            }
            other => return internal_err!("sum of {other}"),
        }
        Ok(vec![self.state_array(totals, nulls)])
    }

    fn size(&self) -> usize {
        self.totals.capacity() * size_of::<i128>() + self.seen.as_ref().map_or(0, Vec::capacity)
    }
}

fn copy<T: ArrowPrimitiveType>(from: &PrimitiveArray<T>, to: &mut [i128])
where
    T::Native: Into<i128>,
{
    for (to, from) in to.iter_mut().zip(from.values()) {
        *to = (*from).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(result: DataType) -> GroupTotals {
        GroupTotals {
            result,
            totals: Vec::new(),
            seen: None,
            bound: 0,
            overflowed: false,
        }
    }

    #[test]
    fn a_sum_that_leaves_and_reenters_the_range_is_exact() {
        let mut groups = totals(DataType::Int64);
        let values: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX, 1, -1]));
        groups.update_batch(&[values], &[0, 0, 0], None, 1).unwrap();
        let sums = groups.evaluate(EmitTo::All).unwrap();
        assert_eq!(sums.as_primitive::<Int64Type>().value(0), i64::MAX);
    }

    #[test]
    fn a_group_of_nulls_is_null_also_when_it_comes_after_full_ones() {
        let mut groups = totals(DataType::Int64);
        let full: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        groups.update_batch(&[full], &[0, 1], None, 2).unwrap();
        let nulls: ArrayRef = Arc::new(Int64Array::from(vec![None, Some(5)]));
        groups.update_batch(&[nulls], &[2, 1], None, 3).unwrap();
        let sums = groups.evaluate(EmitTo::All).unwrap();
        assert_eq!(
            sums.as_ref(),
            &Int64Array::from(vec![Some(1), Some(7), None]) as &dyn Array
        );
    }

    #[test]
    fn filtered_rows_do_not_count_in_converted_state() {
        let groups = totals(DataType::Int64);
        let values: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let keep = BooleanArray::from(vec![Some(true), Some(false), None]);
        let state = groups.convert_to_state(&[values], Some(&keep)).unwrap();
        assert_eq!(state[0].null_count(), 2);
    }
}
