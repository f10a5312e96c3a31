//! Group keys that are text: each distinct value becomes a number.

use std::sync::{Arc, Mutex, PoisonError};

use ahash::RandomState;
use arrow::array::{Array, ArrayRef, AsArray, Int32Array, StringArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Int32Type};
use kernels::error::Error as KernelError;

use super::codes::internal;
use super::failure::Failure;

type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// Fewer rows than these are not worth a thread.
const THREAD_ROWS_MIN: usize = 1 << 16;

/// Numbers texts in the order they are first seen, over all chunks of a run.
#[derive(Debug, Default)]
pub struct Dictionary {
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    codes: HashMap<Arc<str>, i32>,
    values: Vec<Arc<str>>,
}

impl Dictionary {
    /// The code of a text, new if it was never seen. Codes end at 2^31: a run then has
    /// seen more text than memory holds.
    fn code(&self, text: &str) -> (Arc<str>, i32) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((text, code)) = seen.codes.get_key_value(text) {
            return (Arc::clone(text), *code);
        }
        let (shared, code): (Arc<str>, i32) = (text.into(), seen.values.len() as i32);
        seen.codes.insert(Arc::clone(&shared), code);
        seen.values.push(Arc::clone(&shared));
        (shared, code)
    }

    /// Every text, at the place of its code.
    pub fn texts(&self) -> StringArray {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        StringArray::from_iter_values(&seen.values)
    }
}

/// One task's view of a dictionary: what it has met needs no lock.
#[derive(Debug)]
pub struct Encoder {
    dictionary: Arc<Dictionary>,
    known: HashMap<Arc<str>, i32>,
}

impl Encoder {
    /// An encoder that has met nothing.
    pub fn new(dictionary: &Arc<Dictionary>) -> Encoder {
        Encoder {
            dictionary: Arc::clone(dictionary),
            known: HashMap::default(),
        }
    }

    /// The codes of an array of text, however it is laid out; null stays null.
    pub fn encode(&mut self, array: &dyn Array) -> ArrayRef {
        match array.data_type() {
            DataType::LargeUtf8 => self.codes(array.as_string::<i64>().iter()),
            DataType::Utf8View => self.codes(array.as_string_view().iter()),
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                let of_values = self.encode(dictionary.values().as_ref());
                let of_values = of_values.as_primitive::<Int32Type>();
                let keys = dictionary.normalized_keys().into_iter().enumerate();
                let codes = keys.map(|(row, key)| {
                    let is_there = !dictionary.keys().is_null(row) && of_values.is_valid(key);
                    is_there.then(|| of_values.value(key))
                });
                Arc::new(codes.collect::<Int32Array>())
            }
            _ => self.codes(array.as_string::<i32>().iter()),
        }
    }

    fn codes<'a>(&mut self, texts: impl Iterator<Item = Option<&'a str>>) -> ArrayRef {
        let codes = texts.map(|text| text.map(|text| self.code(text)));
        Arc::new(codes.collect::<Int32Array>())
    }

    fn code(&mut self, text: &str) -> i32 {
        if let Some(code) = self.known.get(text) {
            return *code;
        }
        let (shared, code) = self.dictionary.code(text);
        self.known.insert(shared, code);
        code
    }
}

/// The codes of `Utf8` arrays, one after another, and their texts. Codes follow the order
/// in which texts are first seen, that of `first` before all; null stays null.
///
/// Each thread numbers what it meets in its part of the rows; then its numbers are replaced
/// by those of all.
pub fn encode_all(
    parts: &[ArrayRef],
    first: Option<&str>,
    n_threads: usize,
) -> Result<(Int32Array, StringArray), Failure> {
    let parts = parts.iter().map(|part| {
        let texts = part.as_string_opt::<i32>();
        texts.ok_or_else(|| internal(format!("codes of {}", part.data_type())).into())
    });
    let parts: Vec<&StringArray> = parts.collect::<Result<_, Failure>>()?;
    let shares = shares(&parts, n_threads);
    let mut locals: Vec<Local<'_>> = std::thread::scope(|scope| {
        let threads: Vec<_> = shares
            .iter()
            .map(|share| scope.spawn(|| Local::of(share)))
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.collect::<std::result::Result<_, _>>()
    })
    .map_err(|_| internal("a thread that numbers texts ended".to_string()))?;

    let mut codes: HashMap<&str, i32> = HashMap::default();
    let mut texts: Vec<&str> = Vec::new();
    let mut n_bytes = 0;
    let mut number = |text| match codes.get(text) {
        Some(code) => *code,
        None => {
            let code = texts.len() as i32;
            n_bytes += str::len(text);
            texts.push(text);
            codes.insert(text, code);
            code
        }
    };
    first.map(&mut number);
    for local in &mut locals {
        local.numbers = local.texts.iter().map(|text| number(text)).collect();
    }
    // Offsets into all texts, and codes, are 32 bits.
    if i32::try_from(n_bytes.max(texts.len())).is_err() {
        let message = format!("{n_bytes} bytes of different texts in one column");
        return Err(KernelError::Unsupported(message).into());
    }
    std::thread::scope(|scope| {
        for local in &mut locals {
            scope.spawn(|| local.renumber());
        }
    });
    let values: Vec<i32> = match locals.as_mut_slice() {
        [local] => std::mem::take(&mut local.codes),
        _ => locals
            .iter()
            .flat_map(|local| &local.codes)
            .copied()
            .collect(),
    };
    let nulls = parts.iter().any(|part| part.null_count() > 0).then(|| {
        let all = parts
            .iter()
            .flat_map(|part| (0..part.len()).map(|row| part.is_valid(row)));
        NullBuffer::from_iter(all)
    });
    Ok((
        Int32Array::new(values.into(), nulls),
        StringArray::from_iter_values(texts),
    ))
}

/// The rows of the parts, dealt to threads in their order; a part may go to several.
fn shares(parts: &[&StringArray], n_threads: usize) -> Vec<Vec<StringArray>> {
    let n_rows: usize = parts.iter().map(|part| part.len()).sum();
    let rows = n_rows.div_ceil(n_threads.max(1)).max(THREAD_ROWS_MIN);
    let mut shares: Vec<Vec<StringArray>> = vec![Vec::new()];
    let mut room = rows;
    for part in parts {
        let mut first = 0;
        while first < part.len() {
            if room == 0 {
                shares.push(Vec::new());
                room = rows;
            }
            let n = room.min(part.len() - first);
            if let Some(share) = shares.last_mut() {
                share.push(StringArray::slice(part, first, n));
            }
            first += n;
            room -= n;
        }
    }
    shares
}

/// What one thread met.
struct Local<'a> {
    /// A number of its own for each row; anything for null.
    codes: Vec<i32>,
    texts: Vec<&'a str>,
    /// For each of its numbers that of all.
    numbers: Vec<i32>,
}

impl<'a> Local<'a> {
    fn of(parts: &'a [StringArray]) -> Local<'a> {
        let mut known: HashMap<&str, i32> = HashMap::default();
        let mut texts: Vec<&str> = Vec::new();
        let mut codes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        for part in parts {
            codes.extend(part.iter().map(|text| match text {
                None => 0,
                Some(text) => match known.get(text) {
                    Some(code) => *code,
                    None => {
                        let code = texts.len() as i32;
                        texts.push(text);
                        known.insert(text, code);
                        code
                    }
                },
            }));
        }
        Local {
            codes,
            texts,
            numbers: Vec::new(),
        }
    }

    fn renumber(&mut self) {
        for code in &mut self.codes {
            // Rows that are null have a number although there may be no text.
            *code = self.numbers.get(*code as usize).copied().unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_same_for_every_encoder_and_null_stays_null() {
        let dictionary = Arc::new(Dictionary::default());
        let (mut one, mut other) = (Encoder::new(&dictionary), Encoder::new(&dictionary));
        let first = one.encode(&StringArray::from(vec![Some("R"), None, Some("A")]));
        let second = other.encode(&StringArray::from(vec![Some("A"), Some("N"), Some("R")]));
        let third = one.encode(&StringArray::from(vec![Some("N"), Some("R")]));
        let codes = |array: ArrayRef| {
            array
                .as_primitive::<arrow::datatypes::Int32Type>()
                .iter()
                .collect::<Vec<_>>()
        };
        assert_eq!(codes(first), [Some(0), None, Some(1)]);
        assert_eq!(codes(second), [Some(1), Some(2), Some(0)]);
        assert_eq!(codes(third), [Some(2), Some(0)]);
        assert_eq!(dictionary.texts(), StringArray::from(vec!["R", "A", "N"]));
    }

    #[test]
    fn threads_number_texts_as_one_would() {
        let part = |from: usize| -> ArrayRef {
            let rows = (from..from + THREAD_ROWS_MIN).map(|row| match row % 7 {
                0 => None,
                _ => Some(((row / 3) % 1009).to_string()),
            });
            Arc::new(rows.collect::<StringArray>())
        };
        let parts: Vec<ArrayRef> = (0..4).map(|at| part(at * 40_000)).collect();
        let of = |n_threads| {
            encode_all(&parts, Some("first"), n_threads).unwrap_or_else(|_| panic!("text"))
        };
        let (codes, texts) = of(4);
        assert_eq!((codes.clone(), texts.clone()), of(1));
        assert_eq!((texts.len(), texts.value(0)), (1010, "first"));
        let rows = parts.iter().flat_map(|part| part.as_string::<i32>());
        for (code, text) in codes.iter().zip(rows) {
            assert_eq!(code.map(|code| texts.value(code as usize)), text);
        }
    }

    #[test]
    fn one_large_part_keeps_several_threads_busy() {
        let texts =
            StringArray::from_iter_values((0..4 * THREAD_ROWS_MIN).map(|row| row.to_string()));
        let parts = shares(&[&texts], 4);
        assert_eq!(parts.len(), 4);
        let rows = parts.iter().flatten().flat_map(|part| part.iter());
        assert!(rows.eq(texts.iter()));
    }

    #[test]
    fn no_rows_and_only_nulls_have_no_texts() {
        let nulls: ArrayRef = Arc::new(StringArray::new_null(3));
        for parts in [vec![], vec![nulls]] {
            let Ok((codes, texts)) = encode_all(&parts, None, 4) else {
                panic!("text has codes");
            };
            assert_eq!((codes.null_count(), texts.len()), (codes.len(), 0));
        }
    }

    #[test]
    fn layouts_of_one_text_have_one_code() {
        use arrow::compute::cast;
        let dictionary = Arc::new(Dictionary::default());
        let mut encoder = Encoder::new(&dictionary);
        let texts: ArrayRef = Arc::new(StringArray::from(vec![
            Some("R"),
            None,
            Some("A"),
            Some("R"),
        ]));
        let plain = encoder.encode(texts.as_ref());
        let int = Box::new(DataType::Int32);
        for layout in [
            DataType::LargeUtf8,
            DataType::Utf8View,
            DataType::Dictionary(int, Box::new(DataType::Utf8)),
        ] {
            let other = cast(&texts, &layout).unwrap();
            assert_eq!(&encoder.encode(other.as_ref()), &plain, "{layout}");
            let none = other.slice(1, 1);
            assert_eq!(encoder.encode(none.as_ref()).null_count(), 1, "{layout}");
        }
    }
}
