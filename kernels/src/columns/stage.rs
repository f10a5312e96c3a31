//! Laying one Arrow array out for the device.

use std::sync::{Mutex, PoisonError};

use arrow::array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::array::{Array, AsArray, BooleanBufferBuilder, PrimitiveArray, StringArray};
use arrow::buffer::Buffer;
use arrow::datatypes::{ArrowNativeType, DataType, TimeUnit};

use crate::codegen::{ColumnShape, Unsupported, ValueRegister};
use crate::ir::{IntWidth, Range, Type};
use crate::threads::on_threads;

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
    pub validity: Option<Buffer>,
    /// Of text: one offset a row into `values`, and the end.
    pub offsets: Option<Buffer>,
}

impl StagedColumn {
    /// Bytes of elements and validity.
    pub fn bytes(&self) -> usize {
        let offsets = self.offsets.as_ref().map_or(0, Buffer::len);
        self.values.len() + self.validity.as_ref().map_or(0, Buffer::len) + offsets
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
    stage_parts(&[array], array.data_type(), known, 1)
}

/// As [`stage`], for an array that comes in parts, on `n_threads` threads.
pub fn stage_parts(
    parts: &[&dyn Array],
    data_type: &DataType,
    known: Option<Range>,
    n_threads: usize,
) -> Result<StagedColumn, Unsupported> {
    let validity = validity_bits(parts);
    let nullable = validity.is_some();
    let mut range = None;
    let mut integral_of = |(shape, values, measured): (ColumnShape, Buffer, Range)| {
        range = Some(measured);
        (shape, values)
    };
    macro_rules! integral {
        ($kind:ty) => {
            integral_of(integral::<$kind>(parts, known, nullable, n_threads))
        };
    }
    let (shape, values) = match data_type {
        DataType::Utf8 => return Ok(text(parts, validity)),
        DataType::Boolean => {
            let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
            for part in parts {
                bytes.extend(part.as_boolean().values().iter().map(u8::from));
            }
            let register = ValueRegister::Bool;
            (shape(register, "u8", nullable), Buffer::from_vec(bytes))
        }
        DataType::Float32 => (
            shape(ValueRegister::F32, "f32", nullable),
            floats::<Float32Type>(parts),
        ),
        DataType::Float64 => (
            shape(ValueRegister::F64, "f64", nullable),
            floats::<Float64Type>(parts),
        ),
        DataType::Int8 => integral!(Int8Type),
        DataType::Int16 => integral!(Int16Type),
        DataType::Int32 => integral!(Int32Type),
        DataType::Int64 => integral!(Int64Type),
        DataType::UInt8 => integral!(UInt8Type),
        DataType::UInt16 => integral!(UInt16Type),
        DataType::UInt32 => integral!(UInt32Type),
        DataType::UInt64 => integral!(UInt64Type),
        DataType::Date32 => integral!(Date32Type),
        DataType::Decimal128(..) => integral!(Decimal128Type),
        DataType::Timestamp(TimeUnit::Second, None) => integral!(TimestampSecondType),
        DataType::Timestamp(TimeUnit::Millisecond, None) => integral!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, None) => integral!(TimestampMicrosecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, None) => integral!(TimestampNanosecondType),
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

/// One part is taken as it is: no copy.
fn floats<T: ArrowPrimitiveType>(parts: &[&dyn Array]) -> Buffer {
    if let [part] = parts {
        return part.as_primitive::<T>().values().inner().clone();
    }
    let mut values = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    for part in parts {
        values.extend_from_slice(part.as_primitive::<T>().values());
    }
    Buffer::from_vec(values)
}

/// One bit a row from bit 0 on, whatever the parts' own bit offsets are.
fn validity_bits(parts: &[&dyn Array]) -> Option<Buffer> {
    if parts.iter().all(|part| part.null_count() == 0) {
        return None;
    }
    let n_rows: usize = parts.iter().map(|part| part.len()).sum();
    let mut bits = BooleanBufferBuilder::new(n_rows);
    for part in parts {
        match part.nulls() {
            Some(nulls) => bits.append_buffer(nulls.inner()),
            None => bits.append_n(part.len(), true),
        }
    }
    Some(bits.finish().into_inner())
}

/// Bytes and offsets that start at the first byte. Offsets have 32 bits where those hold
/// them, and 64 otherwise.
fn text(parts: &[&dyn Array], validity: Option<Buffer>) -> StagedColumn {
    let parts: Vec<&StringArray> = parts.iter().map(|part| part.as_string::<i32>()).collect();
    let ends = |part: &StringArray| -> (usize, usize) {
        let own = part.value_offsets();
        (own[0] as usize, own[own.len() - 1] as usize)
    };
    let bytes: Vec<Buffer> = parts
        .iter()
        .map(|part| {
            let (from, to) = ends(part);
            part.values().slice_with_length(from, to - from)
        })
        .collect();
    let n_bytes: usize = bytes.iter().map(Buffer::len).sum();
    let values = match bytes.as_slice() {
        [one] => one.clone(),
        many => {
            let mut all = Vec::with_capacity(n_bytes);
            for part in many {
                all.extend_from_slice(part);
            }
            Buffer::from_vec(all)
        }
    };
    let (stored, offsets) = if i32::try_from(n_bytes).is_ok() {
        ("text", Buffer::from_vec(offsets(&parts, |at| at as i32)))
    } else {
        (
            "long_text",
            Buffer::from_vec(offsets(&parts, |at| at as i64)),
        )
    };
    StagedColumn {
        shape: shape(ValueRegister::Text, stored, validity.is_some()),
        range: None,
        values,
        validity,
        offsets: Some(offsets),
    }
}

/// Where each row of all parts starts, and the end.
fn offsets<T>(parts: &[&StringArray], element: impl Fn(usize) -> T) -> Vec<T> {
    let n_rows: usize = parts.iter().map(|part| part.len()).sum();
    let mut all = Vec::with_capacity(n_rows + 1);
    let mut before = 0;
    all.push(element(0));
    for part in parts {
        let own = part.value_offsets();
        let from = own[0] as usize;
        all.extend(
            own[1..]
                .iter()
                .map(|at| element(before + *at as usize - from)),
        );
        before += own[own.len() - 1] as usize - from;
    }
    all
}

fn shape(register: ValueRegister, stored: &'static str, nullable: bool) -> ColumnShape {
    ColumnShape {
        register,
        stored,
        nullable,
    }
}

fn integral<T>(
    parts: &[&dyn Array],
    known: Option<Range>,
    nullable: bool,
    n_threads: usize,
) -> (ColumnShape, Buffer, Range)
where
    T: ArrowPrimitiveType,
    T::Native: Into<i128> + PartialOrd,
{
    let parts: Vec<&PrimitiveArray<T>> = parts.iter().map(|part| part.as_primitive()).collect();
    let measured = on_threads(&parts, n_threads, |part| measure(part));
    let measured = measured.into_iter().flatten().reduce(Range::union);
    let measured = measured.unwrap_or(Range::point(0));
    let range = known.filter(|known| known.min <= measured.min && known.max >= measured.max);
    let range = range.unwrap_or(measured).rounded();
    // What stands under a null is cut off like any value; nobody reads it.
    let wide = |v: &T::Native| -> i128 { (*v).into() };
    let (stored, values) = match bits(range) {
        8 => ("i8", narrow(&parts, n_threads, |v| wide(v) as i8)),
        16 => ("i16", narrow(&parts, n_threads, |v| wide(v) as i16)),
        32 => ("i32", narrow(&parts, n_threads, |v| wide(v) as i32)),
        64 => ("i64", narrow(&parts, n_threads, |v| wide(v) as i64)),
        _ => ("i128", narrow(&parts, n_threads, wide)),
    };
    let register = ValueRegister::Integer(range.register(), range);
    (shape(register, stored, nullable), values, measured)
}

/// Every value of all parts, converted.
fn narrow<T, N>(
    parts: &[&PrimitiveArray<T>],
    n_threads: usize,
    convert: impl Fn(&T::Native) -> N + Sync,
) -> Buffer
where
    T: ArrowPrimitiveType,
    N: ArrowNativeType,
{
    let n_rows = parts.iter().map(|part| part.len()).sum();
    if n_threads < 2 {
        let mut values = Vec::with_capacity(n_rows);
        for part in parts {
            values.extend(part.values().iter().map(&convert));
        }
        return Buffer::from_vec(values);
    }
    let mut values = vec![N::default(); n_rows];
    let mut rest = values.as_mut_slice();
    let mut pieces = Vec::with_capacity(parts.len());
    for part in parts {
        let (piece, after) = rest.split_at_mut(part.len());
        pieces.push(Mutex::new((*part, piece)));
        rest = after;
    }
    on_threads(&pieces, n_threads, |piece| {
        let mut piece = piece.lock().unwrap_or_else(PoisonError::into_inner);
        let (part, piece) = &mut *piece;
        for (to, from) in piece.iter_mut().zip(part.values().iter()) {
            *to = convert(from);
        }
    });
    Buffer::from_vec(values)
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
pub(crate) fn bits(range: Range) -> u32 {
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
        assert_eq!(column.validity.unwrap().as_slice(), [0b011]);
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
    fn text_in_parts_starts_at_the_first_byte() {
        let array = StringArray::from(vec![Some("ab"), None, Some("cde"), Some("")]);
        let (first, last) = (array.slice(1, 2), array.slice(0, 1));
        let parts: [&dyn Array; 2] = [&first, &last];
        let column = stage_parts(&parts, &DataType::Utf8, None, 2).unwrap();
        assert_eq!(column.shape.stored, "text");
        assert_eq!(column.values.as_slice(), b"cdeab");
        assert_eq!(column.offsets.unwrap().typed_data::<i32>(), [0, 0, 3, 5]);
        assert_eq!(column.validity.unwrap().as_slice(), [0b110]);
        let own: Vec<&StringArray> = vec![&first, &last];
        assert_eq!(offsets(&own, |at| at as i64), [0i64, 0, 3, 5]);
    }

    #[test]
    fn statistics_that_the_values_contradict_are_not_believed() {
        let array = Int64Array::from(vec![1, 300]);
        let column = stage(&array, Some(Range::new(0, 10))).unwrap();
        assert_eq!(column.shape.stored, "i16");
    }
}
