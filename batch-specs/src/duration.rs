//! Time limits, as in `4h` or `1h30m`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A span of whole seconds: one or more numbers with the units `d`, `h`, `m` and `s`, largest
/// first, as in `4h`, `90m`, `1h30m` or `3600s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration {
    seconds: u64,
}

impl Duration {
    /// So many seconds.
    pub fn from_seconds(seconds: u64) -> Self {
        Duration { seconds }
    }

    /// The span in seconds.
    pub fn seconds(self) -> u64 {
        self.seconds
    }
}

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a duration; write whole numbers with units, such as `4h`, `30m` or `1h30m`")]
pub struct DurationError(String);

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || DurationError(text.trim().to_owned());
        let mut rest = text.trim();
        let (mut seconds, mut unit_before) = (0u64, u64::MAX);
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let n_digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number: u64 = rest[..n_digits].parse().map_err(|_| wrong())?;
            let unit = match rest.as_bytes().get(n_digits) {
                Some(b'd') => 86_400,
                Some(b'h') => 3_600,
                Some(b'm') => 60,
                Some(b's') => 1,
                _ => return Err(wrong()),
            };
            if unit >= unit_before {
                return Err(wrong());
            }
            unit_before = unit;
            seconds = number
                .checked_mul(unit)
                .and_then(|n| n.checked_add(seconds))
                .ok_or_else(wrong)?;
            rest = &rest[n_digits + 1..];
        }
        Ok(Duration { seconds })
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.seconds;
        if left == 0 {
            return f.write_str("0s");
        }
        for (unit, letter) in [(86_400, 'd'), (3_600, 'h'), (60, 'm'), (1, 's')] {
            if left >= unit {
                write!(f, "{}{letter}", left / unit)?;
                left %= unit;
            }
        }
        Ok(())
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "time-span",
            "pattern": "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$",
            "examples": ["4h", "1h30m"]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_add_up_and_print_back() {
        assert_eq!("1h30m".parse::<Duration>().map(Duration::seconds), Ok(5400));
        assert_eq!("3600s".parse::<Duration>().map(Duration::seconds), Ok(3600));
        assert_eq!(Duration::from_seconds(90_061).to_string(), "1d1h1m1s");
        for wrong in [
            "",
            "4",
            "h",
            "30m1h",
            "1.5h",
            "4h ",
            "-4h",
            "99999999999999999999d",
            "4é",
        ] {
            assert_eq!(wrong.parse::<Duration>().is_ok(), wrong == "4h ", "{wrong}");
        }
    }
}
