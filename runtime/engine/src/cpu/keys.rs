//! Numbers for the groups of a query that has few of them.
//!
//! A value of a key column becomes a 128-bit word, the word a code below 256, and the
//! codes of a row its group:
//!
//! ```text
//!   "A", "F"  ->  words  ->  codes 0 and 1  ->  pairs[0][1]  ->  group 2
//! ```
//!
//! Each arrow is one look into a small table, whatever the type. A text of up to 12
//! bytes is its word; the word of a longer one has its hash, and the text is compared.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, UInt8Array};
use datafusion::arrow::compute::{cast, take};
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::common::{Result, ScalarValue, internal_err};

/// There are at most so many groups, and values of one key column: each fits a byte.
pub const GROUPS_MAX: usize = 256;

/// So many more slots than values that the first one is usually right.
const N_SLOTS: usize = 1024;
/// The code of an empty slot, and the group of a new pair.
const NONE: u16 = u16::MAX;
/// The longest text that is its own word.
const SHORT_MAX: usize = 12;

/// Whether values of a type can be keys here.
pub fn is_key_type(data_type: &DataType) -> bool {
    use DataType::*;
    matches!(
        data_type,
        Utf8 | Utf8View
            | Int8
            | Int16
            | Int32
            | Int64
            | UInt8
            | UInt16
            | UInt32
            | UInt64
            | Date32
            | Decimal128(_, _)
    )
}

/// The groups that were seen, and what their keys are.
#[derive(Debug)]
pub struct Keys {
    first: Option<KeyColumn>,
    others: Vec<Level>,
    /// Groups that have rows.
    n_groups: usize,
}

/// A key column after the first.
#[derive(Debug)]
struct Level {
    column: KeyColumn,
    /// The group of a group of the columns before and a code of this one.
    pairs: Vec<u16>,
    /// The pair of each group.
    members: Vec<(u8, u8)>,
}

impl Keys {
    /// No groups yet; without keys, the one group of all rows.
    pub fn new(n_columns: usize) -> Self {
        let level = || Level {
            column: KeyColumn::new(),
            pairs: vec![NONE; GROUPS_MAX * GROUPS_MAX],
            members: Vec::new(),
        };
        Self {
            first: (n_columns > 0).then(KeyColumn::new),
            others: (1..n_columns).map(|_| level()).collect(),
            n_groups: usize::from(n_columns == 0),
        }
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.n_groups
    }

    /// Writes the group of every row. `false` when there are too many groups: they are
    /// then those of the calls before, and this was the last call.
    pub fn find(
        &mut self,
        arrays: &[ArrayRef],
        n_rows: usize,
        groups: &mut Vec<u8>,
        codes: &mut Vec<u8>,
    ) -> Result<bool> {
        let (Some(first), Some((array, arrays))) = (&mut self.first, arrays.split_first()) else {
            groups.clear();
            groups.resize(n_rows, 0);
            return Ok(true);
        };
        if !first.encode(array, groups)? {
            return Ok(false);
        }
        let mut n_groups = first.values.len();
        for (level, array) in self.others.iter_mut().zip(arrays) {
            if !level.column.encode(array, codes)? || !level.pair(groups, codes) {
                return Ok(false);
            }
            n_groups = level.members.len();
        }
        self.n_groups = n_groups;
        Ok(true)
    }

    /// A key column with a row for each group.
    pub fn column(&self, number: usize, data_type: &DataType) -> Result<ArrayRef> {
        let mut members: Vec<u8> = (0..self.n_groups).map(|group| group as u8).collect();
        for (before, level) in self.others.iter().enumerate().rev() {
            let pairs = members
                .iter()
                .map(|group| level.members[usize::from(*group)]);
            if before + 1 == number {
                members = pairs.map(|(_, code)| code).collect();
                return level.column.decode(members, data_type);
            }
            members = pairs.map(|(group, _)| group).collect();
        }
        match &self.first {
            Some(first) => first.decode(members, data_type),
            None => internal_err!("there are no keys"),
        }
    }
}

impl Level {
    /// Turns groups of the columns before into groups with this one.
    fn pair(&mut self, groups: &mut [u8], codes: &[u8]) -> bool {
        for (group, code) in groups.iter_mut().zip(codes) {
            let found = &mut self.pairs[usize::from(*group) * GROUPS_MAX + usize::from(*code)];
            if *found == NONE {
                if self.members.len() == GROUPS_MAX {
                    return false;
                }
                *found = self.members.len() as u16;
                self.members.push((*group, *code));
            }
            *group = *found as u8;
        }
        true
    }
}

/// The values of one column, each with a code.
#[derive(Debug)]
struct KeyColumn {
    slots: Vec<Slot>,
    values: Vec<ScalarValue>,
    null_code: Option<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    word: u128,
    code: u16,
}

impl KeyColumn {
    fn new() -> Self {
        let empty = Slot {
            word: 0,
            code: NONE,
        };
        Self {
            slots: vec![empty; N_SLOTS],
            values: Vec::new(),
            null_code: None,
        }
    }

    /// Writes the code of every row, or is `false` when there are too many values.
    fn encode(&mut self, array: &ArrayRef, codes: &mut Vec<u8>) -> Result<bool> {
        macro_rules! numbers {
            ($($pattern:pat => $type:ty),* $(,)?) => {
                match array.data_type() {
                    $($pattern => self.encode_numbers(array.as_primitive::<$type>(), array, codes),)*
                    DataType::Utf8 => self.encode_text(array, codes),
                    DataType::Utf8View => self.encode_views(array, codes),
                    other => internal_err!("a key of {other}"),
                }
            };
        }
        numbers!(
            DataType::Int8 => Int8Type,
            DataType::Int16 => Int16Type,
            DataType::Int32 => Int32Type,
            DataType::Int64 => Int64Type,
            DataType::UInt8 => UInt8Type,
            DataType::UInt16 => UInt16Type,
            DataType::UInt32 => UInt32Type,
            DataType::UInt64 => UInt64Type,
            DataType::Date32 => Date32Type,
            DataType::Decimal128(_, _) => Decimal128Type,
        )
    }

    fn encode_numbers<T: ArrowPrimitiveType>(
        &mut self,
        numbers: &PrimitiveArray<T>,
        array: &ArrayRef,
        codes: &mut Vec<u8>,
    ) -> Result<bool>
    where
        T::Native: Into<i128>,
    {
        let values = numbers.values();
        self.encode_words(array, codes, |row| {
            let value: i128 = values[row].into();
            Ok(value as u128)
        })
    }

    fn encode_text(&mut self, array: &ArrayRef, codes: &mut Vec<u8>) -> Result<bool> {
        let texts = array.as_string::<i32>();
        let (offsets, bytes) = (texts.value_offsets(), texts.value_data());
        self.encode_words(array, codes, |row| {
            let text = &bytes[offsets[row] as usize..offsets[row + 1] as usize];
            if text.len() > SHORT_MAX {
                return Err(text);
            }
            // Laid out as in a view, so that both make the same word of a text.
            let mut word = [0; 16];
            word[..4].copy_from_slice(&(text.len() as u32).to_le_bytes());
            word[4..4 + text.len()].copy_from_slice(text);
            Ok(u128::from_le_bytes(word))
        })
    }

    fn encode_views(&mut self, array: &ArrayRef, codes: &mut Vec<u8>) -> Result<bool> {
        let texts = array.as_string_view();
        let views = texts.views();
        self.encode_words(array, codes, |row| {
            let view = views[row];
            if view as u32 as usize > SHORT_MAX {
                return Err(texts.value(row).as_bytes());
            }
            Ok(view)
        })
    }

    /// `word` gives the word of a row, or its text if that is too long to be one.
    fn encode_words<'a>(
        &mut self,
        array: &ArrayRef,
        codes: &mut Vec<u8>,
        word: impl Fn(usize) -> std::result::Result<u128, &'a [u8]>,
    ) -> Result<bool> {
        codes.clear();
        codes.resize(array.len(), 0);
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
        for (row, code) in codes.iter_mut().enumerate() {
            if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                if self.null_code.is_none() {
                    self.null_code = self.insert(array, row)?;
                }
                match self.null_code {
                    Some(null) => *code = null,
                    None => return Ok(false),
                }
                continue;
            }
            match word(row) {
                Ok(word) => match self.find(word, array, row)? {
                    Some(found) => *code = found,
                    None => return Ok(false),
                },
                Err(text) => match self.find(word_of_long(text), array, row)? {
                    // Two texts may have one hash. Others can tell them apart.
                    Some(found) if self.is_text(found, text) => *code = found,
                    _ => return Ok(false),
                },
            }
        }
        Ok(true)
    }

    /// The code of a word, new or known, unless there are too many.
    #[inline]
    fn find(&mut self, word: u128, array: &ArrayRef, row: usize) -> Result<Option<u8>> {
        let at = slot_of(word);
        let slot = &self.slots[at];
        if slot.word == word && slot.code != NONE {
            return Ok(Some(slot.code as u8));
        }
        self.find_further(at, word, array, row)
    }

    #[cold]
    fn find_further(
        &mut self,
        mut at: usize,
        word: u128,
        array: &ArrayRef,
        row: usize,
    ) -> Result<Option<u8>> {
        loop {
            let slot = self.slots[at];
            if slot.code == NONE {
                let code = self.insert(array, row)?;
                if let Some(code) = code {
                    let code = u16::from(code);
                    self.slots[at] = Slot { word, code };
                }
                return Ok(code);
            }
            if slot.word == word {
                return Ok(Some(slot.code as u8));
            }
            at = (at + 1) % N_SLOTS;
        }
    }

    /// A code for a value that was not there, unless there are too many.
    fn insert(&mut self, array: &ArrayRef, row: usize) -> Result<Option<u8>> {
        if self.values.len() == GROUPS_MAX {
            return Ok(None);
        }
        self.values.push(ScalarValue::try_from_array(array, row)?);
        Ok(Some((self.values.len() - 1) as u8))
    }

    fn is_text(&self, code: u8, text: &[u8]) -> bool {
        matches!(
            &self.values[usize::from(code)],
            ScalarValue::Utf8(Some(known)) | ScalarValue::Utf8View(Some(known))
                if known.as_bytes() == text
        )
    }

    fn decode(&self, codes: Vec<u8>, data_type: &DataType) -> Result<ArrayRef> {
        if self.values.is_empty() {
            return Ok(datafusion::arrow::array::new_empty_array(data_type));
        }
        let values = ScalarValue::iter_to_array(self.values.iter().cloned())?;
        let values = cast(&values, data_type)?;
        Ok(take(&values, &UInt8Array::from(codes), None)?)
    }
}

fn slot_of(word: u128) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (word as u64) ^ ((word >> 64) as u64).rotate_left(23);
    (mixed.wrapping_mul(SPREAD) >> 54) as usize % N_SLOTS
}

/// A word that no short text or other length has: length, then a hash.
fn word_of_long(text: &[u8]) -> u128 {
    const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;
    let mut hash = 0_u64;
    for part in text.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        hash = (hash ^ u64::from_le_bytes(bytes)).wrapping_mul(SPREAD);
        hash ^= hash >> 32;
    }
    (u128::from(hash) << 64) | text.len() as u128
}
