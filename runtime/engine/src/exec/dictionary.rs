//! Group keys that are text: each distinct value becomes a number.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array};

/// Numbers texts in the order they are first seen, over all chunks of a run.
#[derive(Debug, Default)]
pub struct Dictionary {
    codes: HashMap<Box<str>, i32>,
    values: Vec<Box<str>>,
}

impl Dictionary {
    /// The codes of a `Utf8` array; null stays null.
    pub fn encode(&mut self, array: &dyn Array) -> ArrayRef {
        let texts = array.as_string::<i32>();
        let codes: Int32Array = texts
            .iter()
            .map(|text| text.map(|text| self.code(text)))
            .collect();
        Arc::new(codes)
    }

    fn code(&mut self, text: &str) -> i32 {
        if let Some(code) = self.codes.get(text) {
            return *code;
        }
        // Keys beyond a few dozen values are refused before 2^31 of them exist.
        let code = self.values.len() as i32;
        self.codes.insert(text.into(), code);
        self.values.push(text.into());
        code
    }

    /// The text of a code.
    pub fn text(&self, code: i128) -> Option<&str> {
        self.values
            .get(usize::try_from(code).ok()?)
            .map(AsRef::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::StringArray;

    #[test]
    fn codes_are_stable_over_chunks_and_null_stays_null() {
        let mut dictionary = Dictionary::default();
        let first = dictionary.encode(&StringArray::from(vec![Some("R"), None, Some("A")]));
        let second = dictionary.encode(&StringArray::from(vec![Some("A"), Some("N"), Some("R")]));
        let codes = |array: ArrayRef| {
            array
                .as_primitive::<arrow::datatypes::Int32Type>()
                .iter()
                .collect::<Vec<_>>()
        };
        assert_eq!(codes(first), [Some(0), None, Some(1)]);
        assert_eq!(codes(second), [Some(1), Some(2), Some(0)]);
        assert_eq!(dictionary.text(2), Some("N"));
        assert_eq!(dictionary.text(3), None);
    }
}
