//! Columns into the arena.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute;
use arrow::datatypes::DataType;

use crate::abi::{self, column};
use crate::types::Type;

/// The arena has no room for what was to be written.
#[derive(Debug)]
pub(crate) struct Full;

/// Hands out the arena from its start.
pub(crate) struct Writer<'a> {
    memory: &'a mut [u8],
    at: usize,
    end: usize,
    /// Bytes of columns copied so far.
    pub(crate) n_copied: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(memory: &'a mut [u8], arena: std::ops::Range<usize>) -> Self {
        let end = arena.end.min(memory.len());
        Writer {
            memory,
            at: arena.start,
            end,
            n_copied: 0,
        }
    }

    /// Room of this size, aligned and padded; what it holds is left from before.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<usize, Full> {
        let at = self.at;
        let room = self.end.saturating_sub(at);
        if bytes > room || abi::padded(bytes) > room {
            return Err(Full);
        }
        self.at += abi::padded(bytes);
        Ok(at)
    }

    /// Room of this size, filled with a byte.
    pub(crate) fn filled(&mut self, bytes: usize, with: u8) -> Result<usize, Full> {
        let at = self.reserve(bytes)?;
        self.memory[at..at + bytes].fill(with);
        Ok(at)
    }

    /// A copy of these bytes.
    fn copy(&mut self, bytes: &[u8]) -> Result<usize, Full> {
        let at = self.reserve(bytes.len())?;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        self.n_copied += bytes.len();
        Ok(at)
    }

    /// All that is left.
    pub(crate) fn rest(&self) -> (usize, usize) {
        (self.at, self.end.saturating_sub(self.at))
    }

    pub(crate) fn put_u16(&mut self, at: usize, value: u16) {
        self.memory[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn put_u32(&mut self, at: usize, value: usize) {
        // Every place in a 32-bit memory and every length in it fits.
        self.memory[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
    }

    pub(crate) fn put_u64(&mut self, at: usize, value: u64) {
        self.memory[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Writes a pointer and a length.
    fn put_buffer(&mut self, at: usize, buffer: usize, length: usize) {
        self.put_u32(at, buffer);
        self.put_u32(at + 4, length);
    }

    /// The parts of a `Column` that follow from its type.
    fn describe(&mut self, at: usize, kind: &Type, flags: u16, length: usize, nulls: u32) {
        self.memory[at..at + abi::COLUMN_BYTES].fill(0);
        self.put_u16(at + column::TYPE, kind.number());
        self.put_u16(at + column::FLAGS, flags);
        if let Type::Decimal(precision, scale) = kind {
            self.memory[at + column::PRECISION] = *precision;
            self.memory[at + column::SCALE] = *scale as u8;
        }
        self.put_u16(at + column::UNIT, kind.unit());
        self.put_u32(at + column::LENGTH, length);
        self.put_u32(at + column::NULLS, nulls as usize);
    }

    fn bits(&mut self, bits: &BooleanBuffer) -> Result<(usize, usize), Full> {
        let shifted = bits.sliced();
        let bytes = &shifted.as_slice()[..bits.len().div_ceil(8)];
        Ok((self.copy(bytes)?, bytes.len()))
    }

    /// Writes a column behind its descriptor. `array` is of the type's own layout.
    pub(crate) fn column(
        &mut self,
        at: usize,
        array: &dyn Array,
        kind: &Type,
        is_constant: bool,
    ) -> Result<(), Full> {
        let length = array.len();
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
        let mut flags = column::NULLABLE;
        if nulls.is_some() {
            flags |= column::HAS_VALIDITY;
        }
        if is_constant {
            flags |= column::CONSTANT;
        }
        if *kind == Type::Utf8 {
            flags |= column::UTF8_CHECKED;
        }
        let n_nulls = nulls.map_or(0, NullBuffer::null_count) as u32;
        self.describe(at, kind, flags, length, n_nulls);
        if let Some(nulls) = nulls {
            let (buffer, bytes) = self.bits(nulls.inner())?;
            self.put_buffer(at + column::VALIDITY, buffer, bytes);
        }
        match kind {
            Type::Bool => {
                let (buffer, bytes) = self.bits(array.as_boolean().values())?;
                self.put_buffer(at + column::BUF0, buffer, bytes);
            }
            Type::Utf8 => {
                let text = array.as_string::<i32>();
                self.variable(at, text.value_offsets(), text.value_data())?;
            }
            Type::Binary => {
                let binary = array.as_binary::<i32>();
                self.variable(at, binary.value_offsets(), binary.value_data())?;
            }
            Type::List(item) => {
                let list = array.as_list::<i32>();
                let (first, last) = self.offsets(at, list.value_offsets())?;
                let child = self.reserve(abi::COLUMN_BYTES)?;
                self.put_buffer(at + column::CHILDREN, child, 1);
                let values = list.values().slice(first, last - first);
                self.column(child, values.as_ref(), item, false)?;
            }
            Type::Struct(fields) => {
                let columns = array.as_struct().columns();
                let children = self.reserve(abi::COLUMN_BYTES * fields.len())?;
                self.put_buffer(at + column::CHILDREN, children, fields.len());
                for (i, ((_, kind), values)) in fields.iter().zip(columns).enumerate() {
                    let child = children + i * abi::COLUMN_BYTES;
                    self.column(child, values.as_ref(), kind, false)?;
                }
            }
            fixed => {
                let width = fixed.width().unwrap_or(0);
                let data = array.to_data();
                let from = data.offset() * width;
                let bytes = match data.buffers().first() {
                    Some(values) => &values.as_slice()[from..from + length * width],
                    None => &[],
                };
                let buffer = self.copy(bytes)?;
                self.put_buffer(at + column::BUF0, buffer, length * width);
            }
        }
        Ok(())
    }

    fn variable(&mut self, at: usize, offsets: &[i32], bytes: &[u8]) -> Result<(), Full> {
        let (first, last) = self.offsets(at, offsets)?;
        let buffer = self.copy(&bytes[first..last])?;
        self.put_buffer(at + column::BUF1, buffer, last - first);
        Ok(())
    }

    /// Writes offsets that start at 0; returns where those of the array start and end.
    fn offsets(&mut self, at: usize, offsets: &[i32]) -> Result<(usize, usize), Full> {
        // Arrow's offsets are never negative, and an empty array may have none.
        let first = offsets.first().copied().unwrap_or(0);
        let last = offsets.last().copied().unwrap_or(0);
        let n_bytes = offsets.len().max(1) * 4;
        let buffer = self.reserve(n_bytes)?;
        self.memory[buffer..buffer + 4].fill(0);
        let slots = self.memory[buffer..buffer + n_bytes].chunks_exact_mut(4);
        for (slot, offset) in slots.zip(offsets) {
            slot.copy_from_slice(&(offset - first).to_le_bytes());
        }
        self.n_copied += n_bytes;
        self.put_buffer(at + column::BUF0, buffer, n_bytes);
        Ok((first as usize, last as usize))
    }

    /// Makes room for a result. Its validity says that nothing is NULL but what `nulls`
    /// says.
    pub(crate) fn result(
        &mut self,
        at: usize,
        kind: &Type,
        n_rows: usize,
        nulls: Option<&NullBuffer>,
    ) -> Result<Place, Full> {
        let flags = column::NULLABLE | column::HAS_VALIDITY;
        self.describe(at, kind, flags, n_rows, abi::NONE);
        let n_bits = n_rows.div_ceil(8);
        let validity = match nulls {
            Some(nulls) => self.bits(nulls.inner())?.0,
            None => self.filled(n_bits, 0xff)?,
        };
        self.put_buffer(at + column::VALIDITY, validity, n_bits);
        let mut place = Place {
            column: at,
            validity,
            values: 0,
            children: Vec::new(),
        };
        match kind {
            Type::Bool => {
                place.values = self.filled(n_bits, 0)?;
                self.put_buffer(at + column::BUF0, place.values, n_bits);
            }
            Type::Utf8 | Type::Binary | Type::List(_) => {
                place.values = self.filled((n_rows + 1) * 4, 0)?;
                self.put_buffer(at + column::BUF0, place.values, (n_rows + 1) * 4);
                if let Type::List(item) = kind {
                    let child = self.reserve(abi::COLUMN_BYTES)?;
                    self.describe(child, item, column::NULLABLE, 0, abi::NONE);
                    self.put_buffer(at + column::CHILDREN, child, 1);
                    place.values_child(child);
                }
            }
            Type::Struct(fields) => {
                let children = self.reserve(abi::COLUMN_BYTES * fields.len())?;
                self.put_buffer(at + column::CHILDREN, children, fields.len());
                for (i, (_, kind)) in fields.iter().enumerate() {
                    let child = children + i * abi::COLUMN_BYTES;
                    place.children.push(self.result(child, kind, n_rows, None)?);
                }
            }
            fixed => {
                let bytes = n_rows * fixed.width().unwrap_or(0);
                place.values = self.reserve(bytes)?;
                self.put_buffer(at + column::BUF0, place.values, bytes);
            }
        }
        Ok(place)
    }
}

/// Where a result's buffers lie. The host keeps this and never asks the guest for it.
#[derive(Debug)]
pub(crate) struct Place {
    /// The `Column`, where the guest says what it made itself.
    pub(crate) column: usize,
    pub(crate) validity: usize,
    /// The values, or the offsets.
    pub(crate) values: usize,
    /// A struct's fields, or a list's item, whose buffers are the guest's.
    pub(crate) children: Vec<Place>,
}

impl Place {
    fn values_child(&mut self, column: usize) {
        self.children.push(Place {
            column,
            validity: 0,
            values: 0,
            children: Vec::new(),
        });
    }
}

/// An array in the layout that the type has in the arena: views and large offsets become
/// 32-bit offsets, dictionaries their values.
pub(crate) fn in_layout(array: &ArrayRef, kind: &Type) -> Result<ArrayRef, String> {
    let wanted = kind.arrow();
    if has_layout(array.data_type(), &wanted) {
        return Ok(ArrayRef::clone(array));
    }
    if !is_same_kind(array.data_type(), &wanted) {
        return Err(format!("{} is not {kind}", array.data_type()));
    }
    compute::cast(array, &wanted).map_err(|error| error.to_string())
}

/// Whether a column of this type can be written as it is. Names and nullability of the
/// inner fields do not matter.
fn has_layout(found: &DataType, wanted: &DataType) -> bool {
    match (found, wanted) {
        (DataType::List(found), DataType::List(wanted)) => {
            has_layout(found.data_type(), wanted.data_type())
        }
        (DataType::Struct(found), DataType::Struct(wanted)) => {
            found.len() == wanted.len()
                && found
                    .iter()
                    .zip(wanted)
                    .all(|(found, wanted)| has_layout(found.data_type(), wanted.data_type()))
        }
        (DataType::Timestamp(found, _), DataType::Timestamp(wanted, _)) => found == wanted,
        (found, wanted) => found == wanted,
    }
}

/// Whether the values are the same and only their layout differs.
fn is_same_kind(found: &DataType, wanted: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Dictionary, LargeBinary, LargeList, LargeUtf8, List, Null, Struct,
        Utf8, Utf8View,
    };
    match (found, wanted) {
        (Null, _) => true,
        (Dictionary(_, values), wanted) => is_same_kind(values, wanted),
        (Utf8 | LargeUtf8 | Utf8View, Utf8) => true,
        (Binary | LargeBinary | BinaryView, Binary) => true,
        (List(found) | LargeList(found), List(wanted)) => {
            is_same_kind(found.data_type(), wanted.data_type())
        }
        (Struct(found), Struct(wanted)) => {
            found.len() == wanted.len()
                && found
                    .iter()
                    .zip(wanted)
                    .all(|(found, wanted)| is_same_kind(found.data_type(), wanted.data_type()))
        }
        (found, wanted) => has_layout(found, wanted),
    }
}
