//! Laying one Arrow array out for the device.

use arrow::array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::array::{Array, AsArray, PrimitiveArray, StringArray};
use arrow::buffer::Buffer;
use arrow::datatypes::{ArrowNativeType, DataType, TimeUnit};

use crate::codegen::{ColumnShape, Unsupported, ValueRegister};
use crate::ir::{IntWidth, Range, Type};

/// A column laid out in host memory, ready to be copied.
#[derive(Debug, Clone)]
pub struct StagedColumn {
    /// How the kernel reads it.
    pub shape: ColumnShape,
    /// Of an integral column: the interval of its values.
    pub range: Option<Range>,
    /// The elements, in the machine's byte order.
    pub values: Buffer,
    /// One bit a row, or nothing when no row is null.
    pub validity: Option<Vec<u8>>,
    /// Of text: one 32-bit offset a row into `values`, and the end.
    pub offsets: Option<Buffer>,
}

impl StagedColumn {
    /// Bytes of elements and validity.
    pub fn bytes(&self) -> usize {
        let offsets = self.offsets.as_ref().map_or(0, Buffer::len);
        self.values.len() + self.validity.as_ref().map_or(0, Vec::len) + offsets
    }
}

/// The pipeline type of an Arrow type.
pub fn type_of(data_type: &DataType) -> Result<Type, Unsupported> {
    Ok(match data_type {
        DataType::Boolean => Type::Bool,
        DataType::Int8 => Type::Int(IntWidth::W8),
        DataType::Int16 => Type::Int(IntWidth::W16),
        DataType::Int32 => Type::Int(IntWidth::W32),
        DataType::Int64 => Type::Int(IntWidth::W64),
        DataType::UInt8 => Type::UInt(IntWidth::W8),
        DataType::UInt16 => Type::UInt(IntWidth::W16),
        DataType::UInt32 => Type::UInt(IntWidth::W32),
        DataType::UInt64 => Type::UInt(IntWidth::W64),
        DataType::Float32 => Type::Float32,
        DataType::Float64 => Type::Float64,
        DataType::Decimal128(precision, scale) => Type::Decimal {
            precision: *precision,
            scale: *scale,
        },
        DataType::Date32 => Type::Date32,
        DataType::Timestamp(unit, None) => Type::Timestamp(*unit),
        DataType::Utf8 => Type::Utf8,
        other => return Err(Unsupported::data_type(other)),
    })
}

/// Lays out an array. Integral columns are stored in the narrowest element that
/// holds `known` (what statistics prove) or, without it, the values themselves.
pub fn stage(array: &dyn Array, known: Option<Range>) -> Result<StagedColumn, Unsupported> {
    let validity = validity_bits(array);
    let nullable = validity.is_some();
    let mut range = None;
    let mut integral_of = |(shape, values, measured): (ColumnShape, Buffer, Range)| {
        range = Some(measured);
        (shape, values)
    };
    let (shape, values) = match array.data_type() {
        DataType::Utf8 => return Ok(text(array.as_string::<i32>(), validity)),
        DataType::Boolean => {
            let values = array.as_boolean();
            let bytes = values.values().iter().map(u8::from);
            let register = ValueRegister::Bool;
            (shape(register, "u8", nullable), buffer(bytes))
        }
        // Floats are stored as they are: no copy.
        DataType::Float32 => {
            let values = array.as_primitive::<Float32Type>().values();
            (
                shape(ValueRegister::F32, "f32", nullable),
                values.inner().clone(),
            )
        }
        DataType::Float64 => {
            let values = array.as_primitive::<Float64Type>().values();
            (
                shape(ValueRegister::F64, "f64", nullable),
                values.inner().clone(),
            )
        }
        DataType::Int8 => integral_of(integral::<Int8Type>(array, known, nullable)),
        DataType::Int16 => integral_of(integral::<Int16Type>(array, known, nullable)),
        DataType::Int32 => integral_of(integral::<Int32Type>(array, known, nullable)),
        DataType::Int64 => integral_of(integral::<Int64Type>(array, known, nullable)),
        DataType::UInt8 => integral_of(integral::<UInt8Type>(array, known, nullable)),
        DataType::UInt16 => integral_of(integral::<UInt16Type>(array, known, nullable)),
        DataType::UInt32 => integral_of(integral::<UInt32Type>(array, known, nullable)),
        DataType::UInt64 => integral_of(integral::<UInt64Type>(array, known, nullable)),
        DataType::Date32 => integral_of(integral::<Date32Type>(array, known, nullable)),
        DataType::Decimal128(..) => integral_of(integral::<Decimal128Type>(array, known, nullable)),
        DataType::Timestamp(TimeUnit::Second, None) => {
            integral_of(integral::<TimestampSecondType>(array, known, nullable))
        }
        DataType::Timestamp(TimeUnit::Millisecond, None) => {
            integral_of(integral::<TimestampMillisecondType>(array, known, nullable))
        }
        DataType::Timestamp(TimeUnit::Microsecond, None) => {
            integral_of(integral::<TimestampMicrosecondType>(array, known, nullable))
        }
        DataType::Timestamp(TimeUnit::Nanosecond, None) => {
            integral_of(integral::<TimestampNanosecondType>(array, known, nullable))
        }
        other => return Err(Unsupported::data_type(other)),
    };
    Ok(StagedColumn {
        shape,
        range,
        values,
        validity,
        offsets: None,
    })
}

/// One bit a row from bit 0 on, whatever the array's own bit offset is.
fn validity_bits(array: &dyn Array) -> Option<Vec<u8>> {
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0)?;
    let mut bits = vec![0u8; nulls.len().div_ceil(8)];
    for row in nulls.valid_indices() {
        bits[row / 8] |= 1 << (row % 8);
    }
    Some(bits)
}

/// Bytes and offsets of a slice that starts at its own first byte.
fn text(array: &StringArray, validity: Option<Vec<u8>>) -> StagedColumn {
    let offsets = array.value_offsets();
    let (from, to) = (offsets[0], offsets[offsets.len() - 1]);
    let bytes = array
        .values()
        .slice_with_length(from as usize, (to - from) as usize);
    let offsets = buffer(offsets.iter().map(|offset| offset - from));
    StagedColumn {
        shape: shape(ValueRegister::Text, "text", validity.is_some()),
        range: None,
        values: bytes,
        validity,
        offsets: Some(offsets),
    }
}

fn shape(register: ValueRegister, stored: &'static str, nullable: bool) -> ColumnShape {
    ColumnShape {
        register,
        stored,
        nullable,
    }
}

fn buffer<T: ArrowNativeType>(values: impl ExactSizeIterator<Item = T>) -> Buffer {
    let mut elements = Vec::with_capacity(values.len());
    elements.extend(values);
    Buffer::from_vec(elements)
}

fn integral<T>(
    array: &dyn Array,
    known: Option<Range>,
    nullable: bool,
) -> (ColumnShape, Buffer, Range)
where
    T: ArrowPrimitiveType,
    T::Native: Into<i128> + PartialOrd,
{
    let array = array.as_primitive::<T>();
    let measured = measure(array).unwrap_or(Range::point(0));
    let range = known.filter(|known| known.min <= measured.min && known.max >= measured.max);
    let range = range.unwrap_or(measured).rounded();
    let values = array.values();
    // What stands under a null is cut off like any value; nobody reads it.
    let wide = |v: &T::Native| -> i128 { (*v).into() };
    let (stored, values) = match bits(range) {
        8 => ("i8", buffer(values.iter().map(|v| wide(v) as i8))),
        16 => ("i16", buffer(values.iter().map(|v| wide(v) as i16))),
        32 => ("i32", buffer(values.iter().map(|v| wide(v) as i32))),
        64 => ("i64", buffer(values.iter().map(|v| wide(v) as i64))),
        _ => ("i128", buffer(values.iter().map(wide))),
    };
    let register = ValueRegister::Integer(range.register(), range);
    (shape(register, stored, nullable), values, measured)
}

/// The interval of the values that are not null; what stands under a null is anything
/// and must not widen the column.
fn measure<T>(array: &PrimitiveArray<T>) -> Option<Range>
where
    T: ArrowPrimitiveType,
    T::Native: Into<i128> + PartialOrd,
{
    let fold = |mut values: Box<dyn Iterator<Item = T::Native> + '_>| {
        let first = values.next()?;
        let (mut min, mut max) = (first, first);
        for value in values {
            if value < min {
                min = value;
            }
            if value > max {
                max = value;
            }
        }
        Some(Range::new(min.into(), max.into()))
    };
    if array.null_count() > 0 {
        return fold(Box::new(array.iter().flatten()));
    }
    let values = array.values();
    let first = *values.first()?;
    // Without calls in it this loop works on whole vectors of values.
    let (min, max) = values.iter().fold((first, first), |(min, max), value| {
        (
            if *value < min { *value } else { min },
            if *value > max { *value } else { max },
        )
    });
    Some(Range::new(min.into(), max.into()))
}

/// The narrowest element that holds the range, in bits.
fn bits(range: Range) -> u32 {
    [8, 16, 32, 64]
        .into_iter()
        .find(|bits| range.fits(*bits))
        .unwrap_or(128)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Decimal128Array, Int64Array};

    #[test]
    fn decimals_are_stored_as_narrow_as_their_values() {
        let array = Decimal128Array::from(vec![Some(0), Some(10), None])
            .with_precision_and_scale(15, 2)
            .unwrap();
        let column = stage(&array, None).unwrap();
        assert_eq!(column.shape.stored, "i8");
        assert_eq!(column.values.as_slice(), [0, 10, 0]);
        assert_eq!(column.validity, Some(vec![0b011]));
    }

    #[test]
    fn a_slice_with_a_bit_offset_starts_at_row_zero() {
        let array = Int64Array::from(
            (0..20)
                .map(|i| (i % 3 != 0).then_some(i * 1000))
                .collect::<Vec<_>>(),
        );
        let slice = array.slice(5, 11);
        let column = stage(&slice, None).unwrap();
        assert_eq!(column.shape.stored, "i16");
        let bits = column.validity.unwrap();
        for row in 0..11 {
            assert_eq!(
                bits[row / 8] >> (row % 8) & 1 == 1,
                (row + 5) % 3 != 0,
                "row {row}"
            );
        }
        let third = i16::from_ne_bytes([column.values[4], column.values[5]]);
        assert_eq!(third, 7000);
    }

    #[test]
    fn statistics_that_the_values_contradict_are_not_believed() {
        let array = Int64Array::from(vec![1, 300]);
        let column = stage(&array, Some(Range::new(0, 10))).unwrap();
        assert_eq!(column.shape.stored, "i16");
    }
}
