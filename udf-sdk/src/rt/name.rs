//! Metadata, put together by the compiler.

/// A short text that is made while compiling.
#[derive(Clone, Copy)]
pub struct Name {
    text: &'static str,
    /// `(precision,scale)` behind the text.
    digits: Option<(u8, i8)>,
}

impl Name {
    /// This text.
    pub const fn new(text: &'static str) -> Self {
        Name { text, digits: None }
    }

    /// A decimal type.
    pub const fn decimal(precision: u8, scale: i8) -> Self {
        assert!(
            precision >= 1 && precision <= 38,
            "a Decimal has 1 to 38 digits"
        );
        assert!(
            scale >= 0 && scale as u8 <= precision,
            "a Decimal's scale is 0 to its number of digits"
        );
        Name {
            text: "decimal128",
            digits: Some((precision, scale)),
        }
    }

    const fn length(&self) -> usize {
        self.text.len()
            + match self.digits {
                Some((precision, scale)) => 3 + n_digits(precision) + n_digits(scale as u8),
                None => 0,
            }
    }
}

const fn n_digits(number: u8) -> usize {
    if number < 10 { 1 } else { 2 }
}

/// The word of the metadata for how a function takes NULL.
pub const fn nulls(sees: &[bool]) -> Name {
    let mut i = 0;
    while i < sees.len() {
        if sees[i] {
            return Name::new("called");
        }
        i += 1;
    }
    Name::new("strict")
}

/// Bytes of a record, its length's included.
pub const fn record_length(parts: &[Name]) -> usize {
    let (mut length, mut i) = (4, 0);
    while i < parts.len() {
        length += parts[i].length();
        i += 1;
    }
    length
}

/// A record: its length and its text.
pub const fn record<const N: usize>(parts: &[Name]) -> [u8; N] {
    let mut bytes = [0; N];
    let length = ((N - 4) as u32).to_le_bytes();
    let (mut at, mut i) = (0, 0);
    while at < 4 {
        bytes[at] = length[at];
        at += 1;
    }
    while i < parts.len() {
        let text = parts[i].text.as_bytes();
        let mut j = 0;
        while j < text.len() {
            bytes[at] = text[j];
            at += 1;
            j += 1;
        }
        if let Some((precision, scale)) = parts[i].digits {
            bytes[at] = b'(';
            at = number(&mut bytes, at + 1, precision);
            bytes[at] = b',';
            at = number(&mut bytes, at + 1, scale as u8);
            bytes[at] = b')';
            at += 1;
        }
        i += 1;
    }
    bytes
}

const fn number<const N: usize>(bytes: &mut [u8; N], mut at: usize, number: u8) -> usize {
    if number >= 10 {
        bytes[at] = b'0' + number / 10;
        at += 1;
    }
    bytes[at] = b'0' + number % 10;
    at + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_its_length_and_its_parts() {
        const PARTS: &[Name] = &[Name::new("ab"), Name::decimal(15, 2), Name::new("c")];
        const LENGTH: usize = record_length(PARTS);
        let record = record::<LENGTH>(PARTS);
        assert_eq!(&record[..4], (LENGTH as u32 - 4).to_le_bytes());
        assert_eq!(&record[4..], b"abdecimal128(15,2)c");
    }
}
