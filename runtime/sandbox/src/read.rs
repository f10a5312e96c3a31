//! Results out of guest memory. Nothing that the guest wrote is believed: every length is
//! checked in 64 bits before a byte is looked at, and every array is made by a constructor
//! that checks.

use std::sync::Arc;

use arrow::array::ArrayData;
use arrow::array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Decimal128Array, ListArray, StringArray,
    StructArray, make_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field};

use crate::abi::{self, column, error};
use crate::types::{DEPTH_MAX, Type};
use crate::write::Place;

/// A `u32` at a place that lies inside the memory.
pub(crate) fn u32_at(memory: &[u8], at: usize) -> u32 {
    memory
        .get(at..at + 4)
        .and_then(|bytes| bytes.first_chunk())
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// What the guest left in its `Error`: row, code and message.
pub(crate) fn message(memory: &[u8], at: usize) -> (Option<usize>, u32, String) {
    let row = u32_at(memory, at + error::ROW);
    let length = (u32_at(memory, at + error::MESSAGE_LEN) as usize).min(abi::MESSAGE_BYTES);
    let from = at + error::MESSAGE;
    let bytes = memory.get(from..from + length).unwrap_or_default();
    // Control characters would let a guest write whole lines into a log.
    let text: String = String::from_utf8_lossy(bytes)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let row = (row != abi::NONE).then_some(row as usize);
    (
        row,
        u32_at(memory, at + error::CODE),
        text.trim().to_string(),
    )
}

/// The result at a place. `nulls` are the rows that are NULL whatever the guest says.
pub(crate) fn result(
    memory: &[u8],
    place: &Place,
    kind: &Type,
    n_rows: usize,
    nulls: Option<&NullBuffer>,
) -> Result<ArrayRef, String> {
    let valid = bytes(
        memory,
        place.validity as u64,
        n_rows.div_ceil(8) as u64,
        "validity",
    )?;
    let nulls = NullBuffer::union(nulls, known_nulls(valid, n_rows).as_ref());
    let whole = |length: usize, what| bytes(memory, place.values as u64, length as u64, what);
    match kind {
        Type::Bool => Ok(booleans(
            whole(n_rows.div_ceil(8), "values")?,
            n_rows,
            nulls,
        )),
        Type::Utf8 | Type::Binary => {
            let offsets = whole((n_rows + 1) * 4, "offsets")?;
            let content = guest_buffer(memory, place.column + column::BUF1, "bytes")?;
            variable(kind, offsets, content, nulls)
        }
        Type::List(item) => {
            let offsets = offsets(whole((n_rows + 1) * 4, "offsets")?)?;
            let child = place.children.first().ok_or("a list without an item")?;
            let n_items = offsets.last().copied().unwrap_or(0) as usize;
            let values = guest_column(memory, child.column, item, n_items, 1)?;
            list(offsets, values, nulls)
        }
        Type::Struct(fields) => {
            let columns = fields
                .iter()
                .zip(&place.children)
                .map(|((name, kind), child)| {
                    result(memory, child, kind, n_rows, None)
                        .map_err(|problem| format!("field `{name}`: {problem}"))
                })
                .collect::<Result<Vec<_>, String>>()?;
            structs(kind, columns, n_rows, nulls)
        }
        fixed => {
            let width = fixed.width().unwrap_or(0);
            fixed_width(fixed, whole(n_rows * width, "values")?, n_rows, nulls)
        }
    }
}

/// A column whose buffers the guest made itself, of a length that is known from outside.
fn guest_column(
    memory: &[u8],
    at: usize,
    kind: &Type,
    length: usize,
    depth: usize,
) -> Result<ArrayRef, String> {
    if depth > DEPTH_MAX {
        return Err(format!("it nests deeper than {DEPTH_MAX} levels"));
    }
    bytes(memory, at as u64, abi::COLUMN_BYTES as u64, "column")?;
    let said = u32_at(memory, at + column::LENGTH) as usize;
    if said != length {
        return Err(format!(
            "a column of {said} elements where {length} are needed"
        ));
    }
    let flags = u32_at(memory, at + column::TYPE) >> 16;
    let nulls = if flags & u32::from(column::HAS_VALIDITY) == 0 {
        None
    } else {
        let validity = guest_buffer(memory, at + column::VALIDITY, "validity")?;
        let valid = validity
            .get(..length.div_ceil(8))
            .ok_or_else(|| short("validity", validity.len(), length.div_ceil(8)))?;
        known_nulls(valid, length)
    };
    let values = |needed: usize, what: &str| {
        let buffer = guest_buffer(memory, at + column::BUF0, what)?;
        buffer
            .get(..needed)
            .ok_or_else(|| short(what, buffer.len(), needed))
    };
    match kind {
        Type::Bool => Ok(booleans(
            values(length.div_ceil(8), "values")?,
            length,
            nulls,
        )),
        Type::Utf8 | Type::Binary => {
            let offsets = values((length + 1) * 4, "offsets")?;
            let content = guest_buffer(memory, at + column::BUF1, "bytes")?;
            variable(kind, offsets, content, nulls)
        }
        Type::List(item) => {
            let offsets = offsets(values((length + 1) * 4, "offsets")?)?;
            let child = children(memory, at, 1)?;
            let n_items = offsets.last().copied().unwrap_or(0) as usize;
            let items = guest_column(memory, child, item, n_items, depth + 1)?;
            list(offsets, items, nulls)
        }
        Type::Struct(fields) => {
            let first = children(memory, at, fields.len())?;
            let columns = fields
                .iter()
                .enumerate()
                .map(|(i, (_, kind))| {
                    let child = first + i * abi::COLUMN_BYTES;
                    guest_column(memory, child, kind, length, depth + 1)
                })
                .collect::<Result<Vec<_>, String>>()?;
            structs(kind, columns, length, nulls)
        }
        fixed => {
            let bytes = values(length * fixed.width().unwrap_or(0), "values")?;
            fixed_width(fixed, bytes, length, nulls)
        }
    }
}

/// Where a column's children lie, if there are as many as the type has.
fn children(memory: &[u8], at: usize, n: usize) -> Result<usize, String> {
    let found = u32_at(memory, at + column::CHILDREN + 4) as usize;
    if found != n {
        return Err(format!("{found} children where the type has {n}"));
    }
    Ok(u32_at(memory, at + column::CHILDREN) as usize)
}

/// The buffer that a pointer and a length at a place tell of.
fn guest_buffer<'a>(memory: &'a [u8], at: usize, what: &str) -> Result<&'a [u8], String> {
    let (from, length) = (u32_at(memory, at), u32_at(memory, at + 4));
    if from == 0 && length > 0 {
        return Err(format!("a null pointer to {length} bytes of {what}"));
    }
    bytes(memory, u64::from(from), u64::from(length), what)
}

/// A piece of the memory, or why it is none.
fn bytes<'a>(memory: &'a [u8], from: u64, length: u64, what: &str) -> Result<&'a [u8], String> {
    let size = memory.len() as u64;
    let end = from.checked_add(length).filter(|end| *end <= size);
    match end {
        // Both are at most the memory's size.
        Some(end) => Ok(&memory[from as usize..end as usize]),
        None => Err(format!(
            "{length} bytes of {what} at {from}, and its memory has {size}"
        )),
    }
}

fn short(what: &str, found: usize, needed: usize) -> String {
    format!("{found} bytes of {what} where {needed} are needed")
}

/// The nulls of a bitmap; none when there are none.
fn known_nulls(valid: &[u8], length: usize) -> Option<NullBuffer> {
    let bits = BooleanBuffer::new(Buffer::from(valid), 0, length);
    let nulls = NullBuffer::new(bits);
    (nulls.null_count() > 0).then_some(nulls)
}

fn booleans(bits: &[u8], length: usize, nulls: Option<NullBuffer>) -> ArrayRef {
    Arc::new(BooleanArray::new(
        BooleanBuffer::new(Buffer::from(bits), 0, length),
        nulls,
    ))
}

fn fixed_width(
    kind: &Type,
    values: &[u8],
    length: usize,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, String> {
    let data = ArrayData::builder(kind.arrow())
        .len(length)
        .add_buffer(Buffer::from(values))
        .nulls(nulls)
        .build()
        .map_err(|error| error.to_string())?;
    if let Type::Decimal(precision, scale) = kind {
        let decimals = Decimal128Array::from(data.clone());
        let most = 10_u128.pow(u32::from(*precision)) - 1;
        // Only a value that is not NULL has to fit.
        let is_wide = |value: Option<i128>| value.is_some_and(|v| v.unsigned_abs() > most);
        if let Some(row) = decimals.iter().position(is_wide) {
            // Arrow's own words leave out the digits that are too many.
            let (value, point) = (decimals.value(row), 10_u128.pow(*scale as u32));
            let (whole, rest) = (value.unsigned_abs() / point, value.unsigned_abs() % point);
            let sign = if value < 0 { "-" } else { "" };
            let value = match scale {
                0 => format!("{sign}{whole}"),
                _ => format!("{sign}{whole}.{rest:0width$}", width = *scale as usize),
            };
            return Err(format!("{value} in row {row} has more digits than {kind}"));
        }
    }
    Ok(make_array(data))
}

/// Offsets that start at 0 or later and never decrease.
fn offsets(bytes: &[u8]) -> Result<Vec<i32>, String> {
    let mut before = 0;
    bytes
        .chunks_exact(4)
        .enumerate()
        .map(|(row, chunk)| {
            let offset = i32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
            if offset < before {
                return Err(format!("offset {row} is {offset}, after {before}"));
            }
            before = offset;
            Ok(offset)
        })
        .collect()
}

fn variable(
    kind: &Type,
    offset_bytes: &[u8],
    content: &[u8],
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, String> {
    let offsets = offsets(offset_bytes)?;
    let used = offsets.last().copied().unwrap_or(0) as usize;
    let content = content.get(..used).ok_or_else(|| {
        format!(
            "offsets up to {used}, and there are {} bytes",
            content.len()
        )
    })?;
    let text = if *kind == Type::Utf8 {
        Some(std::str::from_utf8(content).map_err(|error| {
            let byte = error.valid_up_to();
            not_utf8(&offsets, byte)
        })?)
    } else {
        None
    };
    // A boundary inside a character makes two broken texts of a whole one.
    if let Some(text) = text.filter(|text| !text.is_ascii())
        && let Some(bad) = offsets
            .iter()
            .find(|at| !text.is_char_boundary(**at as usize))
    {
        return Err(not_utf8(&offsets, *bad as usize));
    }
    let content = Buffer::from(content);
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    Ok(match kind {
        Type::Utf8 => Arc::new(
            StringArray::try_new(offsets, content, nulls).map_err(|error| error.to_string())?,
        ),
        _ => Arc::new(
            BinaryArray::try_new(offsets, content, nulls).map_err(|error| error.to_string())?,
        ),
    })
}

fn not_utf8(offsets: &[i32], byte: usize) -> String {
    let row = offsets
        .partition_point(|at| *at as usize <= byte)
        .saturating_sub(1);
    let start = offsets.get(row).copied().unwrap_or(0) as usize;
    format!(
        "invalid UTF-8 at row {row}, byte {}; return binary if it is not text",
        byte.saturating_sub(start)
    )
}

fn list(
    offsets: Vec<i32>,
    values: ArrayRef,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, String> {
    let item = Field::new_list_field(values.data_type().clone(), true);
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    ListArray::try_new(Arc::new(item), offsets, values, nulls)
        .map(|list| Arc::new(list) as ArrayRef)
        .map_err(|error| error.to_string())
}

fn structs(
    kind: &Type,
    columns: Vec<ArrayRef>,
    length: usize,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, String> {
    let DataType::Struct(fields) = kind.arrow() else {
        return Err(format!("{kind} has no fields"));
    };
    StructArray::try_new_with_length(fields, columns, nulls, length)
        .map(|all| Arc::new(all) as ArrayRef)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::Writer;
    use proptest::prelude::*;

    /// Types of every way to be read, three levels deep.
    fn kinds() -> impl Strategy<Value = Type> {
        let leaf = prop_oneof![
            Just(Type::Bool),
            Just(Type::I8),
            Just(Type::F64),
            Just(Type::Decimal(5, 2)),
            Just(Type::Utf8),
            Just(Type::Binary),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                inner.clone().prop_map(|item| Type::List(Box::new(item))),
                prop::collection::vec(inner, 1..3).prop_map(|fields| {
                    let named = fields.into_iter().enumerate();
                    Type::Struct(named.map(|(i, kind)| (format!("f{i}"), kind)).collect())
                }),
            ]
        })
    }

    proptest! {
        /// Whatever a guest leaves in its memory is a column or a refusal, never a panic.
        #[test]
        fn random_memory_never_hurts_the_host(
            kind in kinds(),
            n_rows in 0_usize..20,
            words in prop::collection::vec(
                prop_oneof![0_u32..6, 0_u32..4_000, any::<u32>()], 1_000
            ),
            keep in any::<bool>(),
        ) {
            let mut memory = vec![0; 8 << 10];
            let mut writer = Writer::new(&mut memory, 4_096..8_192);
            let at = writer.reserve(abi::COLUMN_BYTES).expect("room");
            let Ok(place) = writer.result(at, &kind, n_rows, None) else {
                return Ok(());
            };
            // Either all of it is the guest's writing, or what the host laid out stays.
            let end = if keep { 4_000 } else { memory.len() };
            for (slot, word) in memory[..end].chunks_exact_mut(4).zip(words.iter().cycle()) {
                slot.copy_from_slice(&word.to_le_bytes());
            }
            if let Ok(array) = result(&memory, &place, &kind, n_rows, None) {
                prop_assert_eq!(array.len(), n_rows);
                prop_assert_eq!(array.data_type(), &kind.arrow());
                array.to_data().validate_full().expect("a whole column");
            }
        }
    }
}
