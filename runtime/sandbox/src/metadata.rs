//! What a module says about its functions: JSON records in a custom section, read without
//! running anything.
//!
//! It is a claim, never a proof. The loader checks that the entry points exist; types and
//! lengths are checked on every record batch; a wrong `immutable` can change results within
//! a query and nothing else.

use serde::{Deserialize, Serialize};

use crate::abi;
use crate::error::{Error, Result};
use crate::types::Type;

/// Bytes of metadata that a module may carry.
pub const BYTES_MAX: usize = 1 << 20;
/// Functions that a module may have.
pub const FUNCTIONS_MAX: usize = 256;
/// Arguments that a function may have.
pub const ARGUMENTS_MAX: usize = 64;
/// Bytes of a function's name.
const NAME_BYTES_MAX: usize = 63;

/// What kind of function it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A value for each row.
    Scalar,
    /// A value for each group of rows.
    Aggregate,
    /// Rows for each call.
    Table,
}

/// What the function wants to know about NULL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nulls {
    /// The result is NULL where any argument is, and the function is not asked.
    #[default]
    Strict,
    /// The function sees NULL.
    Called,
}

/// When two calls with the same arguments have the same result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Volatility {
    /// Always.
    #[default]
    Immutable,
    /// Within a query.
    Stable,
    /// Never surely.
    Volatile,
}

/// An argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its name, for messages.
    pub name: String,
    /// Its type.
    pub kind: Type,
}

/// An example that the author wrote, in SQL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Example {
    /// The call.
    pub call: String,
    /// What it gives.
    pub result: String,
}

/// A function as its record describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// The name that SQL calls it by.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Its arguments.
    pub args: Vec<Argument>,
    /// The type of its result; a struct with a field for each column for a table function.
    pub returns: Type,
    /// What it wants to know about NULL.
    pub nulls: Nulls,
    /// Whether its results may be reused.
    pub volatility: Volatility,
    /// What it does, in the author's words.
    pub doc: String,
    /// Examples that the author wrote.
    pub examples: Vec<Example>,
}

impl Function {
    /// `name(argument type, ...) -> type`.
    pub fn signature(&self) -> String {
        let args: Vec<String> = self
            .args
            .iter()
            .map(|arg| format!("{} {}", arg.name, arg.kind))
            .collect();
        format!("{}({}) -> {}", self.name, args.join(", "), self.returns)
    }

    /// The exports that it needs.
    pub fn entry_points(&self) -> Vec<String> {
        match self.kind {
            Kind::Scalar => vec![abi::scalar_entry(&self.name)],
            Kind::Aggregate => abi::AGGREGATE_ENTRIES
                .iter()
                .map(|which| abi::aggregate_entry(&self.name, which))
                .collect(),
            Kind::Table => abi::TABLE_ENTRIES
                .iter()
                .map(|which| abi::table_entry(&self.name, which))
                .collect(),
        }
    }
}

/// A record as it is written. Unknown keys are allowed: they are later versions' additions.
#[derive(Deserialize)]
struct Record {
    abi: u32,
    name: String,
    kind: Kind,
    #[serde(default)]
    args: Vec<RecordArgument>,
    returns: String,
    #[serde(default)]
    nulls: Nulls,
    #[serde(default)]
    volatility: Volatility,
    #[serde(default)]
    doc: String,
    #[serde(default)]
    examples: Vec<Example>,
}

#[derive(Deserialize)]
struct RecordArgument {
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

/// Reads the contents of the section.
pub fn read(section: &[u8]) -> Result<Vec<Function>> {
    if section.len() > BYTES_MAX {
        return Err(Error::TooLarge {
            what: "bytes of metadata".into(),
            found: section.len() as u64,
            limit: BYTES_MAX as u64,
        });
    }
    let mut functions: Vec<Function> = Vec::new();
    let mut rest = section;
    while !rest.is_empty() {
        let n = functions.len() + 1;
        let (length, after) = rest
            .split_first_chunk::<4>()
            .ok_or_else(|| bad(format!("metadata record {n} is cut off")))?;
        let length = u32::from_le_bytes(*length) as usize;
        let record = after.get(..length).ok_or_else(|| {
            bad(format!(
                "metadata record {n} says that it has {length} bytes and {} are left",
                after.len()
            ))
        })?;
        rest = &after[length..];
        if functions.len() == FUNCTIONS_MAX {
            return Err(Error::TooLarge {
                what: "number of functions".into(),
                found: n as u64,
                limit: FUNCTIONS_MAX as u64,
            });
        }
        let function = function(record, n)?;
        if functions.iter().any(|known| known.name == function.name) {
            return Err(bad(format!("two functions are called `{}`", function.name)));
        }
        functions.push(function);
    }
    Ok(functions)
}

fn function(record: &[u8], n: usize) -> Result<Function> {
    // serde_json bounds the depth itself, at 128.
    let record: Record = serde_json::from_slice(record)
        .map_err(|error| bad(format!("metadata record {n} cannot be read: {error}")))?;
    if record.abi != abi::VERSION {
        return Err(bad(format!(
            "metadata record {n} is of ABI {}, and this build runs ABI {}; build the module \
             with a kit of that version",
            record.abi,
            abi::VERSION
        )));
    }
    if !is_name(&record.name) {
        let shown: String = record.name.chars().take(70).collect();
        return Err(bad(format!(
            "metadata record {n}: `{shown}` is not a function name; use up to {NAME_BYTES_MAX} of \
             a to z, 0 to 9 and _, starting with a letter or _"
        )));
    }
    if record.args.len() > ARGUMENTS_MAX {
        return Err(Error::TooLarge {
            what: format!("number of arguments of `{}`", record.name),
            found: record.args.len() as u64,
            limit: ARGUMENTS_MAX as u64,
        });
    }
    let place = |what: &str, problem: String| bad(format!("`{}`, {what}: {problem}", record.name));
    let args = record
        .args
        .iter()
        .map(|arg| {
            let kind = arg
                .kind
                .parse()
                .map_err(|problem| place(&format!("argument `{}`", arg.name), problem))?;
            Ok(Argument {
                name: arg.name.clone(),
                kind,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let returns: Type = record
        .returns
        .parse()
        .map_err(|problem| place("result", problem))?;
    if record.kind == Kind::Table && !matches!(returns, Type::Struct(_)) {
        return Err(place(
            "result",
            format!("a table function returns a struct, not {returns}"),
        ));
    }
    Ok(Function {
        kind: record.kind,
        args,
        returns,
        nulls: record.nulls,
        volatility: record.volatility,
        doc: record.doc.trim().to_string(),
        examples: record.examples,
        name: record.name,
    })
}

/// Whether functions may be called so.
pub fn is_name(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name
            .bytes()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_')
}

fn bad(problem: String) -> Error {
    Error::Metadata { problem }
}
