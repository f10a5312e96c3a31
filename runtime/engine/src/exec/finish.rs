//! Totals to the values of the result's columns.

use std::sync::Arc;

use arrow::array::{ArrayRef, PrimitiveBuilder, new_empty_array};
use arrow::datatypes::{DataType, Date32Type, Decimal128Type, Int32Type, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use kernels::ir::Spread;
use kernels::launch::Number;

/// A column of numbers as an array of this type.
pub fn column(
    numbers: impl Iterator<Item = Result<Option<Number>>>,
    data_type: &DataType,
) -> Result<ArrayRef> {
    // The types that long columns have are built without a value object a row.
    macro_rules! primitive {
        ($kind:ty, $narrow:expr) => {{
            let mut builder = PrimitiveBuilder::<$kind>::new();
            for number in numbers {
                match number? {
                    None => builder.append_null(),
                    Some(Number::Integer(v)) => {
                        builder.append_value($narrow(v).ok_or_else(|| overflow(v, data_type))?);
                    }
                    Some(Number::Float(_) | Number::Moments(_)) => {
                        return Err(mismatch(data_type));
                    }
                }
            }
            Ok(Arc::new(builder.finish().with_data_type(data_type.clone())) as ArrayRef)
        }};
    }
    match data_type {
        DataType::Int32 => primitive!(Int32Type, |v: i128| i32::try_from(v).ok()),
        DataType::Int64 => primitive!(Int64Type, |v: i128| i64::try_from(v).ok()),
        DataType::Date32 => primitive!(Date32Type, |v: i128| i32::try_from(v).ok()),
        DataType::Decimal128(precision, _) => {
            let bound = 10i128
                .checked_pow(u32::from(*precision))
                .unwrap_or(i128::MAX);
            primitive!(Decimal128Type, |v: i128| (v.unsigned_abs()
                < bound.unsigned_abs())
            .then_some(v))
        }
        _ => {
            let values = numbers
                .map(|number| value(number?, data_type))
                .collect::<Result<Vec<ScalarValue>>>()?;
            array(values, data_type)
        }
    }
}

/// Values of one type as an array, which may be empty.
pub fn array(values: Vec<ScalarValue>, data_type: &DataType) -> Result<ArrayRef> {
    if values.is_empty() {
        return Ok(new_empty_array(data_type));
    }
    ScalarValue::iter_to_array(values)
}

/// A number as a value of this type; null when there is none.
///
/// A number outside of the type is an overflow, which is an error: it is never
/// wrapped.
pub fn value(number: Option<Number>, data_type: &DataType) -> Result<ScalarValue> {
    match number {
        None => ScalarValue::try_from(data_type),
        Some(Number::Float(v)) => match data_type {
            DataType::Float64 => Ok(ScalarValue::Float64(Some(v))),
            DataType::Float32 => Ok(ScalarValue::Float32(Some(v as f32))),
            other => Err(mismatch(other)),
        },
        Some(Number::Integer(v)) => integer(v, data_type),
        Some(Number::Moments(_)) => Err(mismatch(data_type)),
    }
}

/// The average of a sum: a float, or a decimal with four more digits after the
/// point that is cut off, as on the CPU path.
pub fn average(
    sum: Option<Number>,
    count: i128,
    sum_scale: i8,
    data_type: &DataType,
) -> Result<ScalarValue> {
    match (sum, data_type) {
        (None, _) => ScalarValue::try_from(data_type),
        (Some(_), _) if count == 0 => ScalarValue::try_from(data_type),
        (Some(Number::Float(sum)), DataType::Float64) => {
            Ok(ScalarValue::Float64(Some(sum / count as f64)))
        }
        (Some(Number::Integer(sum)), DataType::Decimal128(_, scale)) => {
            let shift = u32::try_from(scale - sum_scale).map_err(|_| mismatch(data_type))?;
            let scaled = 10i128
                .checked_pow(shift)
                .and_then(|power| sum.checked_mul(power))
                .ok_or_else(|| overflow(sum, data_type))?;
            integer(scaled / count, data_type)
        }
        (Some(Number::Integer(sum)), DataType::Float64) => {
            let power = 10f64.powi(i32::from(sum_scale));
            Ok(ScalarValue::Float64(Some(
                sum as f64 / power / count as f64,
            )))
        }
        (_, other) => Err(mismatch(other)),
    }
}

/// The variance that these moments have, or the root of it.
pub fn spread(number: Option<Number>, spread: Spread) -> Result<Option<Number>> {
    match number {
        None => Ok(None),
        Some(Number::Moments(moments)) => Ok(moments.spread(spread).map(Number::Float)),
        Some(_) => Err(mismatch(&DataType::Float64)),
    }
}

fn integer(v: i128, data_type: &DataType) -> Result<ScalarValue> {
    let fits = |result: Option<ScalarValue>| result.ok_or_else(|| overflow(v, data_type));
    match data_type {
        DataType::Boolean => Ok(ScalarValue::Boolean(Some(v != 0))),
        DataType::Int8 => fits(v.try_into().ok().map(|v| ScalarValue::Int8(Some(v)))),
        DataType::Int16 => fits(v.try_into().ok().map(|v| ScalarValue::Int16(Some(v)))),
        DataType::Int32 => fits(v.try_into().ok().map(|v| ScalarValue::Int32(Some(v)))),
        DataType::Int64 => fits(v.try_into().ok().map(|v| ScalarValue::Int64(Some(v)))),
        DataType::UInt8 => fits(v.try_into().ok().map(|v| ScalarValue::UInt8(Some(v)))),
        DataType::UInt16 => fits(v.try_into().ok().map(|v| ScalarValue::UInt16(Some(v)))),
        DataType::UInt32 => fits(v.try_into().ok().map(|v| ScalarValue::UInt32(Some(v)))),
        DataType::UInt64 => fits(v.try_into().ok().map(|v| ScalarValue::UInt64(Some(v)))),
        DataType::Date32 => fits(v.try_into().ok().map(|v| ScalarValue::Date32(Some(v)))),
        DataType::Timestamp(unit, zone) => {
            let ticks = i64::try_from(v).map_err(|_| overflow(v, data_type))?;
            ScalarValue::Int64(Some(ticks)).cast_to(&DataType::Timestamp(*unit, zone.clone()))
        }
        DataType::Decimal128(precision, scale) => {
            let bound = 10i128
                .checked_pow(u32::from(*precision))
                .unwrap_or(i128::MAX);
            if v.unsigned_abs() >= bound.unsigned_abs() {
                return Err(overflow(v, data_type));
            }
            Ok(ScalarValue::Decimal128(Some(v), *precision, *scale))
        }
        other => Err(mismatch(other)),
    }
}

fn overflow(value: i128, data_type: &DataType) -> DataFusionError {
    let message = format!(
        "the total {value} (unscaled) does not fit {data_type}; cast the argument to a wider type"
    );
    DataFusionError::ArrowError(
        Box::new(arrow::error::ArrowError::ArithmeticOverflow(message)),
        None,
    )
}

fn mismatch(data_type: &DataType) -> DataFusionError {
    DataFusionError::Internal(format!(
        "an aggregate of the GPU cannot be held as {data_type}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_outside_their_type_are_errors() {
        let over = Some(Number::Integer(i128::from(i64::MAX) + 1));
        assert!(
            value(over, &DataType::Int64)
                .unwrap_err()
                .to_string()
                .contains("does not fit")
        );
        let digits = Some(Number::Integer(1000));
        assert!(value(digits, &DataType::Decimal128(3, 0)).is_err());
        assert!(value(digits, &DataType::Decimal128(4, 0)).is_ok());
    }

    #[test]
    fn a_decimal_average_is_cut_off() {
        // 0.01, 0.01, 0.02 averages to 0.013333.
        let average =
            average(Some(Number::Integer(4)), 3, 2, &DataType::Decimal128(19, 6)).unwrap();
        assert_eq!(average, ScalarValue::Decimal128(Some(13333), 19, 6));
    }
}
