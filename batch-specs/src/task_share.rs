//! The part of a GPU that one task may claim.

use std::borrow::Cow;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A share of one GPU: a decimal such as `0.125`, or a ratio such as `1/8`. At most a half, or
/// the whole GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaskShare(f64);

impl TaskShare {
    /// The share as a number between 0 and 1.
    pub fn value(self) -> f64 {
        self.0
    }

    /// How many tasks of this share fit on one GPU.
    pub fn slots(self) -> u64 {
        // The small addend keeps 1/(1/3) from becoming 2.
        (1.0 / self.0 + 1e-9).floor() as u64
    }

    /// Reads a decimal only, which is what Spark's own key allows.
    pub fn from_decimal(text: &str) -> Result<Self, TaskShareError> {
        let text = text.trim();
        let value: f64 = text
            .parse()
            .map_err(|_| TaskShareError::Malformed(text.to_owned()))?;
        Self::new(value, text)
    }

    fn new(value: f64, text: &str) -> Result<Self, TaskShareError> {
        if !value.is_finite() || value <= 0.0 {
            return Err(TaskShareError::Malformed(text.to_owned()));
        }
        if value > 1.0 {
            return Err(TaskShareError::SeveralGpus(text.to_owned()));
        }
        if value > 0.5 && value < 1.0 {
            return Err(TaskShareError::OverHalf(text.to_owned()));
        }
        if value < 1e-6 {
            return Err(TaskShareError::Malformed(text.to_owned()));
        }
        Ok(TaskShare(value))
    }
}

/// Why a text is no share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskShareError {
    /// Not a positive number.
    #[error("`{0}` is not a share of a GPU; write a number above 0, such as `0.125`")]
    Malformed(String),
    /// Between a half and a whole.
    #[error("`{0}` lies between 0.5 and 1; one task per GPU is `1`, two are `0.5`")]
    OverHalf(String),
    /// More than a whole.
    #[error("`{0}` asks for more than one GPU a task; a worker process drives exactly one")]
    SeveralGpus(String),
}

impl FromStr for TaskShare {
    type Err = TaskShareError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let Some((above, below)) = text.split_once('/') else {
            return Self::from_decimal(text);
        };
        let whole = |part: &str| part.trim().parse::<u32>().ok().filter(|n| *n > 0);
        match (whole(above), whole(below)) {
            (Some(a), Some(b)) => Self::new(f64::from(a) / f64::from(b), text),
            _ => Err(TaskShareError::Malformed(text.to_owned())),
        }
    }
}

impl Serialize for TaskShare {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TaskShare {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl JsonSchema for TaskShare {
    fn schema_name() -> Cow<'static, str> {
        "TaskShare".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number"], "format": "gpu-share", "examples": ["1/8", 0.125] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_the_rounding_that_spark_users_know() {
        for (text, slots) in [
            ("0.0833", 12),
            ("0.166", 6),
            ("0.17", 5),
            ("0.0417", 23),
            ("1/3", 3),
            ("1", 1),
        ] {
            assert_eq!(
                text.parse::<TaskShare>().map(TaskShare::slots),
                Ok(slots),
                "{text}"
            );
        }
    }

    #[test]
    fn impossible_shares_are_refused() {
        for text in ["0", "-1", "abc", "0.7", "2", "1/0", "nan", "inf", "3/4"] {
            assert!(text.parse::<TaskShare>().is_err(), "{text}");
        }
        assert!(TaskShare::from_decimal("1/8").is_err());
    }
}
