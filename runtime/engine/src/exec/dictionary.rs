//! Group keys that are text: each distinct value becomes a number.

use std::sync::{Arc, Mutex, PoisonError};

use ahash::RandomState;
use arrow::array::{Array, ArrayRef, AsArray, Int32Array, StringArray};
use arrow::datatypes::{DataType, Int32Type};
type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

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
