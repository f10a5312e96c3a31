//! Tables, stages and what they touch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_default;
use crate::{Duration, MemorySize};

/// How to reach the locations that start with a prefix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// Locations that start with this text, such as `s3://lake/`; the longest prefix wins.
    pub prefix: String,
    /// Address of the store, when it is not the cloud's own.
    #[serde(default, skip_serializing_if = "is_default")]
    pub endpoint: Option<String>,
    /// Region of the store.
    #[serde(default, skip_serializing_if = "is_default")]
    pub region: Option<String>,
    /// Who we are to the store; the machine's own identity unless given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub credentials: Option<Credentials>,
}

/// Where credentials come from. A spec names them and never holds them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Credentials {
    /// None: the data is public.
    Anonymous,
    /// The identity that the machine has.
    Machine,
    /// Environment variables that start with this prefix: `LAKE` reads `LAKE_ACCESS_KEY_ID`,
    /// `LAKE_SECRET_ACCESS_KEY` and, where there is one, `LAKE_SESSION_TOKEN`.
    Env(String),
}

/// A table that SQL can name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Its name in SQL.
    pub name: String,
    /// A file, a folder or a pattern: `s3://`, `gs://`, `az://`, `http(s)://`, `file://`, a path, or
    /// `tpch://SCALE/TABLE` for a generated TPC-H table.
    pub location: String,
    /// Format of its files; told from the file ending unless given, else `parquet`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub format: Option<Format>,
    /// Details of the format.
    #[serde(default, skip_serializing_if = "is_default")]
    pub options: TableOptions,
    /// Its columns; read from the files unless given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub schema: Option<Vec<Column>>,
    /// Columns that are spelt in folder names (`day=2024-01-31/`), outermost first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub partition_columns: Vec<Column>,
}

impl Table {
    /// The format of its files: as given, else as their ending says, else Parquet.
    pub fn file_format(&self) -> Format {
        let name = self.location.to_ascii_lowercase();
        let bare = name.strip_suffix(".gz").or(name.strip_suffix(".zst"));
        let told = match bare.unwrap_or(&name).rsplit('.').next() {
            Some("csv") => Format::Csv,
            Some("json" | "jsonl" | "ndjson") => Format::Json,
            _ => Format::Parquet,
        };
        self.format.unwrap_or(told)
    }
}

/// A file format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Apache Parquet.
    #[default]
    Parquet,
    /// Text with a delimiter.
    Csv,
    /// One JSON object a line.
    Json,
}

/// Details of a text format.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TableOptions {
    /// CSV: the first line holds names; true unless given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub header: Option<bool>,
    /// CSV: one character between fields; a comma unless given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub delimiter: Option<String>,
    /// CSV: one character around fields; a double quote unless given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub quote: Option<String>,
    /// CSV: one character before a quote inside a field; doubled quotes unless given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub escape: Option<String>,
    /// CSV: the text that means NULL; an empty field unless given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub null_value: Option<String>,
    /// CSV: one character that starts a line to be skipped.
    #[serde(default, skip_serializing_if = "is_default")]
    pub comment: Option<String>,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its SQL type, such as `bigint`, `decimal(15,2)`, `date` or `varchar`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it may hold NULL; true unless given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nullable: Option<bool>,
}

/// A WebAssembly module and the functions taken from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Udf {
    /// Location of the module.
    pub module: String,
    /// The SHA-256 that the module has to have, 64 hexadecimal digits; any unless given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sha256: Option<String>,
    /// Names of the functions that SQL may call.
    pub functions: Vec<String>,
    /// Memory that one instance may take, without the columns; 64m unless given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory: Option<MemorySize>,
    /// Time that one call may take, which handles one record batch; 5s unless given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub timeout: Option<Duration>,
    /// What a row costs for which a function fails, panics or traps.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_error: UdfErrors,
}

/// What happens when a function fails for a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UdfErrors {
    /// The batch fails.
    #[default]
    Fail,
    /// The row's value becomes NULL.
    NullOnError,
    /// The row is left out.
    SkipRow,
}

/// A step of the batch: a SQL statement or script.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Its name, unique in the batch.
    pub name: String,
    /// The SQL. It may start with `SET key=value;` lines.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sql: Option<String>,
    /// A file that holds the SQL, instead of `sql`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sql_file: Option<String>,
    /// Where the last statement's rows go; they are shown when this is absent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub output: Option<Output>,
}

/// Where rows go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The folder that the files are written below.
    pub location: String,
    /// Format of the files.
    #[serde(default, skip_serializing_if = "is_default")]
    pub format: Format,
    /// What happens when the location already holds something.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: WriteMode,
    /// Columns whose values become folder names.
    #[serde(default, skip_serializing_if = "is_default")]
    pub partition_by: Vec<String>,
    /// Size that files are cut near to.
    #[serde(default, skip_serializing_if = "is_default")]
    pub target_file_size: Option<MemorySize>,
    /// Compression inside Parquet, or of whole CSV and JSON files.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compression: Option<Compression>,
}

/// What happens to what is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    /// The stage fails if the location holds anything.
    #[default]
    Error,
    /// The new rows replace what is there, all at once.
    Overwrite,
    /// The new files join what is there.
    Append,
}

/// A codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// No compression.
    None,
    /// Snappy; Parquet only.
    Snappy,
    /// Zstandard; the default for Parquet.
    Zstd,
    /// LZ4 without frames; Parquet only.
    Lz4,
    /// Gzip.
    Gzip,
}
