//! Everything a session needs to know, as plain data: no spec, no live object.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::scalar::ScalarValue;

/// What one batch may use, and how it runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Partitions that compute at once.
    pub compute_threads: usize,
    /// Requests to storage in flight at once, per table.
    pub reader_threads: usize,
    /// The memory budget of all operators and writers together.
    pub memory_limit_bytes: u64,
    /// Where operators spill; the system's temporary directory when absent.
    pub spill_directory: Option<PathBuf>,
    /// The disk budget for spilling.
    pub spill_limit_bytes: u64,
    /// Rows in a record batch.
    pub batch_size: usize,
    /// Named ways to reach storage.
    pub storage: Vec<StorageOptions>,
    /// Where generated tables and kernels are kept between runs.
    pub cache_dir: PathBuf,
    /// What happens to a part that cannot run on the GPU.
    pub fallback: FallbackPolicy,
    /// Which lines `explain` prints.
    pub explain: ExplainMode,
    /// Float sums in a fixed order: slower, and equal from run to run.
    pub deterministic: bool,
    /// Whether inner joins are put in the order that is expected to cost least; else they run
    /// in the order in which a query names its tables.
    pub join_order: bool,
    /// How SQL text is read.
    pub dialect: Dialect,
    /// Rows kept of a result that has no output.
    pub preview_rows: usize,
}

impl Default for Settings {
    fn default() -> Self {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            compute_threads: n_cores,
            reader_threads: (4 * n_cores).clamp(8, 64),
            memory_limit_bytes: 4 << 30,
            spill_directory: None,
            spill_limit_bytes: 100 << 30,
            batch_size: 8192,
            storage: Vec::new(),
            cache_dir: std::env::temp_dir().join("warpline-cache"),
            fallback: FallbackPolicy::Cpu,
            explain: ExplainMode::NotOnGpu,
            deterministic: false,
            join_order: true,
            dialect: Dialect::Generic,
            preview_rows: 20,
        }
    }
}

/// What happens to a part that cannot run on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallbackPolicy {
    /// It runs on the CPU, and the report says so.
    Cpu,
    /// The stage fails.
    Fail,
}

/// Which lines `explain` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExplainMode {
    /// Every node.
    All,
    /// Nodes that do not run on the GPU.
    NotOnGpu,
    /// Nothing.
    None,
}

/// How SQL text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Standard SQL with PostgreSQL's habits.
    Generic,
    /// PostgreSQL.
    PostgreSql,
    /// DuckDB.
    DuckDb,
    /// Spark: nulls first, back-quoted names.
    Spark,
}

/// One named way to reach storage. Keys are those of the `object_store` crate,
/// such as `aws_access_key_id`, `aws_region` or `aws_endpoint`.
#[derive(Clone, Default)]
pub struct StorageOptions {
    /// What tables and outputs refer to.
    pub name: String,
    /// The options; the environment's variables fill what is absent.
    pub options: BTreeMap<String, String>,
}

impl std::fmt::Debug for StorageOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values may be secrets.
        f.debug_struct("StorageOptions")
            .field("name", &self.name)
            .field("options", &self.options.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// A table that stages read.
#[derive(Debug, Clone)]
pub struct Table {
    /// Its name in SQL.
    pub name: String,
    /// A file, directory or pattern: a path, `file://`, `s3://`, `gs://`, `az://`,
    /// `http(s)://`, or `tpch://SCALE/TABLE`.
    pub location: String,
    /// What the files are.
    pub format: Format,
    /// The columns; read from the files when absent.
    pub schema: Option<SchemaRef>,
    /// Columns that stand in the directory names, `day=2024-01-01/`.
    pub partition_columns: Vec<(String, DataType)>,
    /// The [`StorageOptions`] to use, by name.
    pub storage: Option<String>,
}

impl Table {
    /// A table whose columns are read from its files.
    pub fn new(name: impl Into<String>, location: impl Into<String>, format: Format) -> Self {
        Self {
            name: name.into(),
            location: location.into(),
            format,
            schema: None,
            partition_columns: Vec::new(),
            storage: None,
        }
    }
}

/// A module of user functions.
#[derive(Debug, Clone, PartialEq)]
pub struct UdfModule {
    /// Where it is: a path or a URL, as for tables.
    pub location: String,
    /// What it has to hash to.
    pub sha256: Option<String>,
    /// The functions that SQL may call.
    pub functions: Vec<String>,
    /// Memory that one instance may take, without the columns.
    pub memory_bytes: Option<u64>,
    /// Time that a call may take, for one record batch.
    pub call_time: Option<Duration>,
    /// What a row that fails costs.
    pub on_error: UdfErrors,
    /// The [`StorageOptions`] to use, by name.
    pub storage: Option<String>,
}

impl UdfModule {
    /// A module with the limits that nobody changed.
    pub fn new(location: impl Into<String>, functions: &[&str]) -> Self {
        Self {
            location: location.into(),
            sha256: None,
            functions: functions.iter().map(|name| (*name).to_owned()).collect(),
            memory_bytes: None,
            call_time: None,
            on_error: UdfErrors::Fail,
            storage: None,
        }
    }
}

/// What a row costs for which a user function fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UdfErrors {
    /// The query.
    #[default]
    Fail,
    /// Its value, which becomes NULL.
    Null,
}

/// What a table's files are.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    /// Apache Parquet.
    Parquet,
    /// Comma-separated values, also as `.gz` or `.zst`.
    Csv(CsvOptions),
    /// One JSON object per line, also as `.gz` or `.zst`.
    Json,
}

/// How a CSV file is read.
#[derive(Debug, Clone, PartialEq)]
pub struct CsvOptions {
    /// Whether the first line names the columns.
    pub header: bool,
    /// The byte between fields.
    pub delimiter: u8,
    /// The byte around fields that hold a delimiter.
    pub quote: u8,
    /// The byte that takes the next one literally, if any.
    pub escape: Option<u8>,
    /// Text that stands for NULL, beside the empty field.
    pub null: Option<String>,
}

impl Default for CsvOptions {
    fn default() -> Self {
        Self {
            header: true,
            delimiter: b',',
            quote: b'"',
            escape: None,
            null: None,
        }
    }
}

/// One step of a batch.
#[derive(Debug, Clone)]
pub struct Stage {
    /// Its name; later stages read its result under it.
    pub name: String,
    /// One statement, or several with `;` between them. The last SELECT is the result.
    pub sql: String,
    /// Values for `$name` in the SQL. They are bound, never spliced.
    pub parameters: Vec<(String, ScalarValue)>,
    /// Where the result goes; without it the result stays in the session.
    pub output: Option<Output>,
}

impl Stage {
    /// A stage without parameters or output.
    pub fn new(name: impl Into<String>, sql: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            sql: sql.into(),
            parameters: Vec::new(),
            output: None,
        }
    }
}

/// Where a result goes.
#[derive(Debug, Clone)]
pub struct Output {
    /// A directory: a path or a URL.
    pub location: String,
    /// What the files are.
    pub format: OutputFormat,
    /// What happens to what is there already.
    pub mode: WriteMode,
    /// Columns that become directories, `day=2024-01-01/`, and leave the files.
    pub partition_by: Vec<String>,
    /// A file is closed once it has grown to about this size.
    pub target_file_bytes: u64,
    /// How files are compressed.
    pub compression: Compression,
    /// The [`StorageOptions`] to use, by name.
    pub storage: Option<String>,
    /// What tells this write from any other; absent when it will not be repeated.
    pub write_id: Option<WriteId>,
}

/// The name of one write, shared by every attempt at it, so that what an earlier attempt
/// has published is not published twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteId {
    /// Sixteen hexadecimal digits; part of the files' names.
    pub id: String,
    /// Whether there may have been an earlier attempt.
    pub is_repeated: bool,
}

impl Output {
    /// Zstandard-compressed Parquet that fails when the location is taken.
    pub fn new(location: impl Into<String>) -> Self {
        Self {
            location: location.into(),
            format: OutputFormat::Parquet,
            mode: WriteMode::Error,
            partition_by: Vec::new(),
            target_file_bytes: 512 << 20,
            compression: Compression::Zstd,
            storage: None,
            write_id: None,
        }
    }
}

/// What an output's files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    /// Apache Parquet.
    Parquet,
    /// Comma-separated values with a header line.
    Csv,
    /// One JSON object per line.
    Json,
}

/// What happens to what is at an output's location already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// It stays, and the stage fails before it runs.
    Error,
    /// It is replaced once the new result is complete.
    Overwrite,
    /// It stays, and the new files come beside it.
    Append,
}

/// How an output's files are compressed. CSV and JSON are written plain unless
/// told otherwise; see [`Output::compression`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// Zstandard, level 1 (Parquet only).
    Zstd,
    /// Snappy (Parquet only).
    Snappy,
    /// LZ4 (Parquet only).
    Lz4,
}
