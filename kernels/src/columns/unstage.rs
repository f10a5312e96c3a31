//! What a kernel wrote, back to the exact Arrow array.

use std::sync::Arc;

use arrow::array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::array::{ArrayRef, BooleanArray, PrimitiveArray, StringArray};
use arrow::buffer::{BooleanBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, TimeUnit};
use arrow::error::ArrowError;

use super::DeviceColumn;
use crate::codegen::{ColumnShape, OutputShape, ValueRegister};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, Stream};
use crate::ir::{IntWidth, Type};

/// The bytes of a column that a kernel wrote.
#[derive(Debug, Clone)]
pub struct WrittenColumn {
    /// How its elements are held.
    pub shape: OutputShape,
    /// The elements.
    pub values: Vec<u8>,
    /// One byte a row: 0 where the value is missing. Absent when none can be.
    pub validity: Option<Vec<u8>>,
}

/// The Arrow type of a pipeline type.
pub fn arrow_type(ty: Type) -> DataType {
    match ty {
        Type::Bool => DataType::Boolean,
        Type::Int(IntWidth::W8) => DataType::Int8,
        Type::Int(IntWidth::W16) => DataType::Int16,
        Type::Int(IntWidth::W32) => DataType::Int32,
        Type::Int(IntWidth::W64) => DataType::Int64,
        Type::UInt(IntWidth::W8) => DataType::UInt8,
        Type::UInt(IntWidth::W16) => DataType::UInt16,
        Type::UInt(IntWidth::W32) => DataType::UInt32,
        Type::UInt(IntWidth::W64) => DataType::UInt64,
        Type::Float32 => DataType::Float32,
        Type::Float64 => DataType::Float64,
        Type::Decimal { precision, scale } => DataType::Decimal128(precision, scale),
        Type::Date32 => DataType::Date32,
        Type::Timestamp(unit) => DataType::Timestamp(unit, None),
        Type::Utf8 => DataType::Utf8,
    }
}

/// The array of this type. A value outside of the type is an overflow: it is never
/// cut off.
pub fn unstage(column: &WrittenColumn, ty: Type) -> Result<ArrayRef> {
    let nulls = column
        .validity
        .as_ref()
        .map(|bytes| NullBuffer::new(bits(bytes)));
    array(&column.values, column.shape.column(), nulls, ty)
}

/// Copies the first `n_rows` of a column home, as an array of this type.
pub fn read_column(
    stream: &Stream,
    column: &DeviceColumn,
    n_rows: usize,
    ty: Type,
) -> Result<ArrayRef> {
    let (values, validity) = column.buffers();
    let nulls = match validity {
        None => None,
        Some(bits) => {
            let bits = bits.read::<u8>(stream, 0, n_rows.div_ceil(8))?;
            Some(NullBuffer::new(BooleanBuffer::new(bits.into(), 0, n_rows)))
        }
    };
    if let Some(offsets) = column.offsets() {
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        return text(stream, values, offsets, nulls, n_rows, column.shape.stored);
    }
    let values = values.read::<u8>(stream, 0, n_rows * column.shape.stored_bytes())?;
    array(&values, column.shape, nulls, ty)
}

/// The array of a column that is laid out in host memory.
#[cfg(test)]
pub(super) fn staged_array(
    column: &super::StagedColumn,
    n_rows: usize,
    ty: Type,
) -> Result<ArrayRef> {
    let nulls = column.validity.clone();
    let nulls = nulls.map(|bits| NullBuffer::new(BooleanBuffer::new(bits, 0, n_rows)));
    array(&column.values, column.shape, nulls, ty)
}

/// The first rows of a column of text. Offsets of an array have 32 bits, so a column with
/// more bytes has none.
fn text(
    stream: &Stream,
    bytes: &DeviceBuffer,
    offsets: &DeviceBuffer,
    nulls: Option<NullBuffer>,
    n_rows: usize,
    stored: &str,
) -> Result<ArrayRef> {
    if stored != "text" {
        return Err(Error::Unsupported(
            "more than 2 GiB of text in one array".into(),
        ));
    }
    let offsets: Vec<i32> = offsets.read(stream, 0, n_rows + 1)?;
    let n_bytes = offsets.last().copied().unwrap_or(0);
    let n_bytes = usize::try_from(n_bytes).unwrap_or(0).min(bytes.bytes());
    let bytes: Vec<u8> = bytes.read(stream, 0, n_bytes)?;
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    let texts = StringArray::try_new(offsets, bytes.into(), nulls)?;
    Ok(Arc::new(texts))
}

fn array(
    bytes: &[u8],
    shape: ColumnShape,
    nulls: Option<NullBuffer>,
    ty: Type,
) -> Result<ArrayRef> {
    let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
    match (ty, shape.register) {
        (Type::Bool, ValueRegister::Bool) => Ok(Arc::new(BooleanArray::new(bits(bytes), nulls))),
        (Type::Float32, ValueRegister::F32) => {
            let values = elements(bytes, f32::from_ne_bytes);
            primitive::<Float32Type>(values.collect(), nulls, ty)
        }
        (Type::Float64, ValueRegister::F64) => {
            let values = elements(bytes, f64::from_ne_bytes);
            primitive::<Float64Type>(values.collect(), nulls, ty)
        }
        (_, ValueRegister::Integer(..)) if ty.is_integral() => match shape.stored {
            "i8" => integral(elements(bytes, i8::from_ne_bytes), nulls, ty),
            "i16" => integral(elements(bytes, i16::from_ne_bytes), nulls, ty),
            "i32" => integral(elements(bytes, i32::from_ne_bytes), nulls, ty),
            "i64" => integral(elements(bytes, i64::from_ne_bytes), nulls, ty),
            _ => integral(elements(bytes, i128::from_ne_bytes), nulls, ty),
        },
        (ty, register) => Err(Error::Internal(format!(
            "a {ty} column was written as {}",
            register.name()
        ))),
    }
}

fn elements<'a, T: 'a, const N: usize>(
    bytes: &'a [u8],
    element: impl Fn([u8; N]) -> T + 'a,
) -> impl Iterator<Item = T> + 'a {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().map(move |chunk| element(*chunk))
}

fn bits(bytes: &[u8]) -> BooleanBuffer {
    BooleanBuffer::collect_bool(bytes.len(), |row| bytes[row] != 0)
}

fn integral<V>(
    values: impl Iterator<Item = V>,
    nulls: Option<NullBuffer>,
    ty: Type,
) -> Result<ArrayRef>
where
    V: Copy + Into<i128>,
{
    use IntWidth::{W8, W16, W32, W64};
    match ty {
        Type::Int(W8) => converted::<Int8Type, V>(values, nulls, ty),
        Type::Int(W16) => converted::<Int16Type, V>(values, nulls, ty),
        Type::Int(W32) => converted::<Int32Type, V>(values, nulls, ty),
        Type::Int(W64) => converted::<Int64Type, V>(values, nulls, ty),
        Type::UInt(W8) => converted::<UInt8Type, V>(values, nulls, ty),
        Type::UInt(W16) => converted::<UInt16Type, V>(values, nulls, ty),
        Type::UInt(W32) => converted::<UInt32Type, V>(values, nulls, ty),
        Type::UInt(W64) => converted::<UInt64Type, V>(values, nulls, ty),
        Type::Date32 => converted::<Date32Type, V>(values, nulls, ty),
        Type::Decimal { .. } => converted::<Decimal128Type, V>(values, nulls, ty),
        Type::Timestamp(TimeUnit::Second) => converted::<TimestampSecondType, V>(values, nulls, ty),
        Type::Timestamp(TimeUnit::Millisecond) => {
            converted::<TimestampMillisecondType, V>(values, nulls, ty)
        }
        Type::Timestamp(TimeUnit::Microsecond) => {
            converted::<TimestampMicrosecondType, V>(values, nulls, ty)
        }
        Type::Timestamp(TimeUnit::Nanosecond) => {
            converted::<TimestampNanosecondType, V>(values, nulls, ty)
        }
        Type::Bool | Type::Float32 | Type::Float64 | Type::Utf8 => Err(Error::Internal(format!(
            "a {ty} column was written as integers"
        ))),
    }
}

fn converted<T, V>(
    values: impl Iterator<Item = V>,
    nulls: Option<NullBuffer>,
    ty: Type,
) -> Result<ArrayRef>
where
    T: ArrowPrimitiveType,
    T::Native: TryFrom<i128> + Default,
    V: Into<i128>,
{
    let range = ty
        .full_range()
        .ok_or_else(|| Error::Internal(format!("{ty} has no range")))?;
    let mut all = Vec::with_capacity(values.size_hint().0);
    for (row, value) in values.enumerate() {
        let value: i128 = value.into();
        // What stands under a null is anything.
        let there = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
        let native = (value >= range.min && value <= range.max)
            .then(|| T::Native::try_from(value).ok())
            .flatten();
        match native {
            Some(native) => all.push(native),
            None if !there => all.push(T::Native::default()),
            None => {
                let message = format!("the value {value} (unscaled) does not fit {ty}");
                return Err(ArrowError::ArithmeticOverflow(message).into());
            }
        }
    }
    primitive::<T>(all, nulls, ty)
}

fn primitive<T: ArrowPrimitiveType>(
    values: Vec<T::Native>,
    nulls: Option<NullBuffer>,
    ty: Type,
) -> Result<ArrayRef> {
    let array = PrimitiveArray::<T>::try_new(ScalarBuffer::from(values), nulls)?;
    Ok(Arc::new(array.with_data_type(arrow_type(ty))))
}
