//! Sizes in memory and on disk, as in `16g` or `14336m`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A number of bytes, written as a whole number with a unit. Units are powers of 1024, as they
/// are for Spark: `k`, `m`, `g`, `t`, with or without a following `b` or `ib`, in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemorySize {
    bytes: u64,
}

impl MemorySize {
    /// So many bytes.
    pub fn from_bytes(bytes: u64) -> Self {
        MemorySize { bytes }
    }

    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Whole MiB, rounded down.
    pub fn mib(self) -> u64 {
        self.bytes >> 20
    }

    /// Whole GiB, rounded down.
    pub fn gib(self) -> u64 {
        self.bytes >> 30
    }
}

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemorySizeError {
    /// No unit.
    #[error("`{0}` has no unit; write `{0}g` or `{0}m`")]
    NoUnit(String),
    /// A fraction such as `14.5g`.
    #[error("`{0}` is a fraction; write a whole number of a smaller unit, such as `14848m`")]
    Fraction(String),
    /// An unknown unit.
    #[error("`{0}` has an unknown unit; the units are b, k, m, g and t")]
    Unit(String),
    /// Anything else.
    #[error("`{0}` is not a size; write a whole number and a unit, such as `16g` or `512m`")]
    Malformed(String),
    /// Too large for a machine.
    #[error("`{0}` is larger than any machine")]
    TooLarge(String),
}

impl FromStr for MemorySize {
    type Err = MemorySizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || text.trim().to_owned();
        let lower = text.trim().to_ascii_lowercase();
        let split = lower
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(lower.len());
        let (digits, unit) = (&lower[..split], lower[split..].trim());
        if digits.is_empty() || digits.starts_with('.') {
            return Err(MemorySizeError::Malformed(shown()));
        }
        if digits.contains('.') {
            return Err(MemorySizeError::Fraction(shown()));
        }
        let shift = match unit {
            "" => return Err(MemorySizeError::NoUnit(shown())),
            "b" => 0,
            "k" | "kb" | "ki" | "kib" => 10,
            "m" | "mb" | "mi" | "mib" => 20,
            "g" | "gb" | "gi" | "gib" => 30,
            "t" | "tb" | "ti" | "tib" => 40,
            _ => return Err(MemorySizeError::Unit(shown())),
        };
        let number: u64 = digits
            .parse()
            .map_err(|_| MemorySizeError::TooLarge(shown()))?;
        let bytes = number.checked_mul(1 << shift).filter(|b| *b <= 1 << 60);
        Ok(MemorySize {
            bytes: bytes.ok_or_else(|| MemorySizeError::TooLarge(shown()))?,
        })
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "t"), (30, "g"), (20, "m"), (10, "k")] {
            if self.bytes >= 1 << shift && self.bytes.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.bytes >> shift);
            }
        }
        write!(f, "{}b", self.bytes)
    }
}

impl Serialize for MemorySize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MemorySize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl JsonSchema for MemorySize {
    fn schema_name() -> Cow<'static, str> {
        "MemorySize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "memory-size",
            "pattern": "^\\s*[0-9]+\\s*([bB]|[kKmMgGtT]([iI]?[bB]|[iI])?)\\s*$",
            "examples": ["16g", "512m"]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_size_are_equal() {
        for text in ["14G", "14g", "14GB", "14336m", "14Gi", " 14 gib "] {
            assert_eq!(
                text.parse::<MemorySize>().map(MemorySize::mib),
                Ok(14336),
                "{text}"
            );
        }
        assert_eq!(MemorySize::from_bytes(14 << 30).to_string(), "14g");
    }

    #[test]
    fn what_is_no_size_says_why() {
        assert!(matches!(
            "14.5g".parse::<MemorySize>(),
            Err(MemorySizeError::Fraction(_))
        ));
        assert!(matches!(
            "375".parse::<MemorySize>(),
            Err(MemorySizeError::NoUnit(_))
        ));
        assert!(matches!(
            "3x".parse::<MemorySize>(),
            Err(MemorySizeError::Unit(_))
        ));
        assert!(matches!(
            "-1g".parse::<MemorySize>(),
            Err(MemorySizeError::Malformed(_))
        ));
        assert!(matches!(
            "99999999999999999999g".parse::<MemorySize>(),
            Err(MemorySizeError::TooLarge(_))
        ));
        assert!(matches!(
            "9999999999g".parse::<MemorySize>(),
            Err(MemorySizeError::TooLarge(_))
        ));
    }
}
