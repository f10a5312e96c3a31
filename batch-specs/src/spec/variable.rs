//! Values that SQL refers to by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_default;

/// A typed value. SQL refers to it as `${name}`; it is bound, never pasted into the text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: VariableType,
    /// Its value, unless the submitter gives one (`--var name=value`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub value: Option<String>,
}

/// The types a variable can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VariableType {
    /// A calendar day, `1995-01-31`.
    Date,
    /// A day and time without zone, `1995-01-31 12:00:00.5`.
    Timestamp,
    /// A whole number of 64 bits.
    Integer,
    /// A number with floating point.
    Float,
    /// An exact number of up to 38 digits, `12.50`.
    Decimal,
    /// Text.
    String,
    /// `true` or `false`.
    Boolean,
    /// A name of a table or column; it may stand in back quotes and double quotes.
    Identifier,
    /// A piece of a longer quoted text, such as a part of a path; it may stand in quotes.
    Text,
}

impl VariableType {
    /// The word that specs use.
    pub fn word(self) -> &'static str {
        match self {
            VariableType::Date => "date",
            VariableType::Timestamp => "timestamp",
            VariableType::Integer => "integer",
            VariableType::Float => "float",
            VariableType::Decimal => "decimal",
            VariableType::String => "string",
            VariableType::Boolean => "boolean",
            VariableType::Identifier => "identifier",
            VariableType::Text => "text",
        }
    }
}
