//! The types that cross the sandbox's border, their names in metadata, and their Arrow
//! counterparts.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, TimeUnit};

/// How deep lists and structs may nest.
pub const DEPTH_MAX: usize = 8;
/// How many fields a struct may have.
pub const FIELDS_MAX: usize = 64;

/// A type of an argument or a result.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Type {
    /// `bool`, a bitmap.
    Bool,
    /// `i8`
    I8,
    /// `i16`
    I16,
    /// `i32`
    I32,
    /// `i64`
    I64,
    /// `u8`
    U8,
    /// `u16`
    U16,
    /// `u32`
    U32,
    /// `u64`
    U64,
    /// `f32`
    F32,
    /// `f64`
    F64,
    /// `decimal128(precision,scale)`, an unscaled `i128`.
    Decimal(u8, i8),
    /// `date32`, days since 1970.
    Date32,
    /// `timestamp(unit)` with `s`, `ms`, `us` or `ns`; no zone.
    Timestamp(TimeUnit),
    /// `utf8`, 32-bit offsets.
    Utf8,
    /// `binary`, 32-bit offsets.
    Binary,
    /// `list(type)`, 32-bit offsets.
    List(Box<Type>),
    /// `struct(name type, ...)`
    Struct(Vec<(String, Type)>),
}

impl Type {
    /// The number in a `Column`.
    pub fn number(&self) -> u16 {
        match self {
            Type::Bool => 1,
            Type::I8 => 2,
            Type::I16 => 3,
            Type::I32 => 4,
            Type::I64 => 5,
            Type::U8 => 6,
            Type::U16 => 7,
            Type::U32 => 8,
            Type::U64 => 9,
            Type::F32 => 11,
            Type::F64 => 12,
            Type::Decimal(..) => 15,
            Type::Date32 => 17,
            Type::Timestamp(_) => 21,
            Type::Binary => 25,
            Type::Utf8 => 28,
            Type::List(_) => 31,
            Type::Struct(_) => 34,
        }
    }

    /// Bytes of a value; absent when it has no fixed number of whole bytes.
    pub fn width(&self) -> Option<usize> {
        Some(match self {
            Type::I8 | Type::U8 => 1,
            Type::I16 | Type::U16 => 2,
            Type::I32 | Type::U32 | Type::F32 | Type::Date32 => 4,
            Type::I64 | Type::U64 | Type::F64 | Type::Timestamp(_) => 8,
            Type::Decimal(..) => 16,
            Type::Bool | Type::Utf8 | Type::Binary | Type::List(_) | Type::Struct(_) => {
                return None;
            }
        })
    }

    /// What a `Column` says beside the number: the unit of a timestamp, else the width.
    pub(crate) fn unit(&self) -> u16 {
        match self {
            Type::Timestamp(TimeUnit::Second) => 0,
            Type::Timestamp(TimeUnit::Millisecond) => 1,
            Type::Timestamp(TimeUnit::Microsecond) => 2,
            Type::Timestamp(TimeUnit::Nanosecond) => 3,
            other => other.width().unwrap_or(0) as u16,
        }
    }

    /// The Arrow type of its columns.
    pub fn arrow(&self) -> DataType {
        match self {
            Type::Bool => DataType::Boolean,
            Type::I8 => DataType::Int8,
            Type::I16 => DataType::Int16,
            Type::I32 => DataType::Int32,
            Type::I64 => DataType::Int64,
            Type::U8 => DataType::UInt8,
            Type::U16 => DataType::UInt16,
            Type::U32 => DataType::UInt32,
            Type::U64 => DataType::UInt64,
            Type::F32 => DataType::Float32,
            Type::F64 => DataType::Float64,
            Type::Decimal(precision, scale) => DataType::Decimal128(*precision, *scale),
            Type::Date32 => DataType::Date32,
            Type::Timestamp(unit) => DataType::Timestamp(*unit, None),
            Type::Utf8 => DataType::Utf8,
            Type::Binary => DataType::Binary,
            Type::List(item) => DataType::List(Arc::new(Field::new_list_field(item.arrow(), true))),
            Type::Struct(fields) => DataType::Struct(
                fields
                    .iter()
                    .map(|(name, kind)| Field::new(name, kind.arrow(), true))
                    .collect::<Fields>(),
            ),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Type::Bool => "bool",
            Type::I8 => "i8",
            Type::I16 => "i16",
            Type::I32 => "i32",
            Type::I64 => "i64",
            Type::U8 => "u8",
            Type::U16 => "u16",
            Type::U32 => "u32",
            Type::U64 => "u64",
            Type::F32 => "f32",
            Type::F64 => "f64",
            Type::Date32 => "date32",
            Type::Utf8 => "utf8",
            Type::Binary => "binary",
            Type::Decimal(precision, scale) => {
                return write!(f, "decimal128({precision},{scale})");
            }
            Type::Timestamp(unit) => {
                return write!(
                    f,
                    "timestamp({})",
                    match unit {
                        TimeUnit::Second => "s",
                        TimeUnit::Millisecond => "ms",
                        TimeUnit::Microsecond => "us",
                        TimeUnit::Nanosecond => "ns",
                    }
                );
            }
            Type::List(item) => return write!(f, "list({item})"),
            Type::Struct(fields) => {
                f.write_str("struct(")?;
                for (i, (name, kind)) in fields.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{name} {kind}")?;
                }
                return f.write_str(")");
            }
        })
    }
}

/// What the reading of a type's name says when it cannot.
const KNOWN: &str = "the types are bool, i8 to i64, u8 to u64, f32, f64, decimal128(p,s), \
                     date32, timestamp(s|ms|us|ns), utf8, binary, list(type) and \
                     struct(name type, ...)";

impl FromStr for Type {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text.trim(), 1)
    }
}

fn parse(text: &str, depth: usize) -> Result<Type, String> {
    let unknown = || {
        let shown: String = text.chars().take(60).collect();
        format!("`{shown}` is not a type of ABI 1; {KNOWN}")
    };
    if depth > DEPTH_MAX {
        return Err(format!("a type nests deeper than {DEPTH_MAX} levels"));
    }
    let (name, inside) = match text.split_once('(') {
        Some((name, rest)) => (
            name.trim(),
            Some(rest.strip_suffix(')').ok_or_else(unknown)?),
        ),
        None => (text, None),
    };
    Ok(match (name, inside) {
        ("bool", None) => Type::Bool,
        ("i8", None) => Type::I8,
        ("i16", None) => Type::I16,
        ("i32", None) => Type::I32,
        ("i64", None) => Type::I64,
        ("u8", None) => Type::U8,
        ("u16", None) => Type::U16,
        ("u32", None) => Type::U32,
        ("u64", None) => Type::U64,
        ("f32", None) => Type::F32,
        ("f64", None) => Type::F64,
        ("date32", None) => Type::Date32,
        ("utf8", None) => Type::Utf8,
        ("binary", None) => Type::Binary,
        ("timestamp", Some(unit)) => Type::Timestamp(match unit.trim() {
            "s" => TimeUnit::Second,
            "ms" => TimeUnit::Millisecond,
            "us" => TimeUnit::Microsecond,
            "ns" => TimeUnit::Nanosecond,
            _ => return Err(unknown()),
        }),
        ("decimal128", Some(inside)) => {
            let (precision, scale) = inside.split_once(',').ok_or_else(unknown)?;
            let precision: u8 = precision.trim().parse().map_err(|_| unknown())?;
            let scale: i8 = scale.trim().parse().map_err(|_| unknown())?;
            if !(1..=38).contains(&precision) || scale < 0 || scale as u8 > precision {
                return Err(format!(
                    "`{text}`: a decimal128 has a precision of 1 to 38 and a scale of 0 to the \
                     precision"
                ));
            }
            Type::Decimal(precision, scale)
        }
        ("list", Some(item)) => Type::List(Box::new(parse(item.trim(), depth + 1)?)),
        ("struct", Some(inside)) => {
            let mut fields = Vec::new();
            for field in top_level_parts(inside) {
                let (name, kind) = field.trim().split_once(' ').ok_or_else(unknown)?;
                fields.push((name.to_string(), parse(kind.trim(), depth + 1)?));
                if fields.len() > FIELDS_MAX {
                    return Err(format!("a struct has more than {FIELDS_MAX} fields"));
                }
            }
            Type::Struct(fields)
        }
        _ => return Err(unknown()),
    })
}

/// Splits at the commas outside of parentheses.
fn top_level_parts(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0_usize, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_reads_its_own_name() {
        for name in [
            "bool",
            "i8",
            "u64",
            "f32",
            "f64",
            "decimal128(15,2)",
            "date32",
            "timestamp(us)",
            "utf8",
            "binary",
            "list(list(i32))",
            "struct(a i32, b struct(c utf8, d list(f64)), e decimal128(3,1))",
        ] {
            assert_eq!(name.parse::<Type>().map(|t| t.to_string()), Ok(name.into()));
        }
    }

    #[test]
    fn other_names_are_refused_with_those_that_exist() {
        for name in [
            "",
            "int",
            "decimal128",
            "decimal128(39,2)",
            "list(",
            "timestamp(h)",
            "struct()",
        ] {
            let refusal = name.parse::<Type>().unwrap_err();
            assert!(refusal.contains("decimal128"), "{name}: {refusal}");
        }
        let deep = format!("{}i8{}", "list(".repeat(9), ")".repeat(9));
        assert!(deep.parse::<Type>().unwrap_err().contains("deeper than 8"));
    }
}
