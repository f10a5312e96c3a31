//! Every way in which a batch's SQL can fail, and what its reader does next.
//!
//! A variant is one situation with its data. `Display` is the author's voice:
//! what to change, no internals. The chain of sources is the log's voice.
//! Nothing here decides on the text of another error, but for two that carry what matters
//! in no other way: the code of an S3 server's refusal, and a CSV value of the wrong type.

use std::fmt::Write as _;
use std::sync::Arc;

use datafusion::common::{DataFusionError, SchemaError};
use datafusion::parquet::errors::ParquetError;

use crate::words::{clean, csv_value, io_problem, sql_types, store_code, store_problem};

/// The result of everything fallible in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The cause of an error, kept for the log.
pub type Source = Arc<dyn std::error::Error + Send + Sync>;

/// What the reader of an error does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The author changes the SQL or its parameters.
    InvalidQuery,
    /// The author provides the data that is missing or damaged.
    InputMissing,
    /// The author or the operator gives the batch more memory or disk.
    OutOfResources,
    /// Nobody at first: trying again may help.
    Unavailable,
    /// Nobody: somebody asked for it.
    Cancelled,
    /// The author picks another output location or mode.
    OutputExists,
    /// The author looks at the data: overflow, division by zero, a bad cast.
    DataError,
    /// The author looks at the user function, its data or its limits.
    UdfFailed,
    /// The author allows the fallback or changes what causes it.
    FallbackRefused,
    /// We were wrong.
    Internal,
}

/// Why a stage, a table or an output failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something would run, or ran, on the CPU and the batch forbids it.
    #[error("{what}; allow it with `accelerator.fallback: cpu`")]
    FallbackRefused {
        /// What is not on the GPU, and why.
        what: String,
    },
    /// A GPU that cannot be used.
    #[error("the GPU cannot be used: {message}")]
    Device {
        /// What is wrong with it and how to mend it.
        message: String,
    },
    /// An error of one stage; the stage is named in front.
    #[error("stage `{stage}`: {source}")]
    Stage {
        /// The stage's name in the batch.
        stage: String,
        /// What happened in it.
        source: Box<Error>,
    },
    /// An error of a statement, with what it is about in the stage's SQL.
    #[error("{place}: {source}")]
    At {
        /// Line and column, or the expression.
        place: String,
        /// What is wrong there.
        source: Box<Error>,
    },
    /// The SQL text does not parse.
    #[error("the SQL does not parse: {message}")]
    Syntax {
        /// The parser's complaint.
        message: String,
    },
    /// A stage without a statement.
    #[error("there is no statement to run; write a SELECT")]
    NoStatement,
    /// A table that no source, stage or view provides.
    #[error("there is no table `{name}`{}", did_you_mean(.suggestion))]
    UnknownTable {
        /// As written.
        name: String,
        /// The nearest name that exists.
        suggestion: Option<String>,
    },
    /// A column that no table in reach has.
    #[error("there is no column `{name}`{}{}", did_you_mean(.suggestion), among(.available))]
    UnknownColumn {
        /// As written.
        name: String,
        /// The nearest name that exists.
        suggestion: Option<String>,
        /// Some of the names that exist.
        available: Vec<String>,
    },
    /// A function that does not exist.
    #[error("there is no function `{name}`{}", did_you_mean(.suggestion))]
    UnknownFunction {
        /// As written.
        name: String,
        /// The nearest name that exists.
        suggestion: Option<String>,
    },
    /// A name that could be one of several columns.
    #[error("the column `{name}` is ambiguous; put its table in front, as in `t.{name}`")]
    AmbiguousColumn {
        /// As written.
        name: String,
    },
    /// A `$name` without a value, or a value of the wrong type.
    #[error("parameter `${name}`: {problem}")]
    Parameter {
        /// Without the dollar sign.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// SQL that would be answered wrongly, or that writes where it may not.
    #[error("{what} is not accepted: {why}; {instead}")]
    Refused {
        /// The construct.
        what: String,
        /// What would go wrong.
        why: String,
        /// What to write.
        instead: String,
    },
    /// Any other fault of the query.
    #[error("{message}")]
    Query {
        /// For the author.
        message: String,
    },
    /// A location that cannot be understood.
    #[error("location `{location}`: {problem}")]
    Location {
        /// As written.
        location: String,
        /// What is wrong, and what to write.
        problem: String,
    },
    /// A storage setting that is missing or wrong.
    #[error("storage for `{location}`: {problem}")]
    StorageSettings {
        /// What was to be reached.
        location: String,
        /// What to set.
        problem: String,
    },
    /// Nothing at the location.
    #[error(
        "table `{table}`: there is no file or directory at `{location}`; correct its `location`, which starts at the current directory unless it is absolute or a URL"
    )]
    NoSuchInput {
        /// The table.
        table: String,
        /// As written.
        location: String,
    },
    /// A directory or pattern that has no data file in it.
    #[error(
        "table `{table}`: no data file at `{location}`: {hint}; correct its `location`, or provide the data"
    )]
    NoFiles {
        /// The table.
        table: String,
        /// As written.
        location: String,
        /// What is there instead.
        hint: String,
    },
    /// The storage refuses access.
    #[error("no permission for `{location}`; check the credentials and the bucket's policy")]
    NoPermission {
        /// What was to be reached.
        location: String,
    },
    /// A bucket that does not exist.
    #[error(
        "there is no bucket `{}`; create it, or correct the location `{location}`",
        bucket(.location)
    )]
    NoBucket {
        /// As written.
        location: String,
    },
    /// A file that is not what the table says it is.
    #[error("table `{table}`: {} {problem}", quoted_path(.file))]
    BadFile {
        /// The table.
        table: String,
        /// The file, or how many it may be one of.
        file: String,
        /// What is wrong with it: "is not a Parquet file", "is truncated".
        problem: String,
    },
    /// A file of some table that cannot be read as what it should be.
    #[error("a file {problem}")]
    Unreadable {
        /// What is wrong with it, as in [`Error::BadFile`].
        problem: String,
    },
    /// Two files of a table disagree about its columns.
    #[error(
        "table `{table}`: the files differ: {differences}; `{first}` against `{second}`. Rewrite one of them, or declare the table's `schema`"
    )]
    SchemasDiffer {
        /// The table.
        table: String,
        /// The file that set the expectation.
        first: String,
        /// The first file that differs.
        second: String,
        /// Column by column.
        differences: String,
    },
    /// The storage does not answer, or fails for now.
    #[error("storage does not answer for `{location}`: {message}")]
    StorageUnavailable {
        /// What was to be reached.
        location: String,
        /// The storage's words.
        message: String,
    },
    /// The output is there already.
    #[error(
        "the output `{location}` exists; use `mode: overwrite` or `mode: append`, or another location"
    )]
    OutputExists {
        /// As written.
        location: String,
    },
    /// An earlier attempt at the same write has not ended.
    #[error(
        "an earlier attempt is still writing to `{location}`; it is tried again once that has ended"
    )]
    OutputBusy {
        /// As written.
        location: String,
    },
    /// This attempt may no longer publish: it is not the current one.
    #[error(
        "nothing was published to `{location}`: this attempt is no longer the batch's current one"
    )]
    PublishRefused {
        /// As written.
        location: String,
    },
    /// Somebody else published to the output while this run was writing.
    #[error(
        "the output `{location}` appeared while this run was writing; nothing of this run was published"
    )]
    OutputConflict {
        /// As written.
        location: String,
    },
    /// An output that cannot be written as asked.
    #[error("output `{location}`: {problem}")]
    Output {
        /// As written.
        location: String,
        /// What is wrong, and what to change.
        problem: String,
    },
    /// The memory budget is used up.
    #[error("out of memory: the batch may use {} and this needs more; raise the memory or lower the number of cores. {detail}", bytes(*.limit_bytes))]
    OutOfMemory {
        /// The budget.
        limit_bytes: u64,
        /// Who asked for how much.
        detail: String,
    },
    /// A disk is full, or the spill budget is used up.
    #[error("out of disk space: {detail}")]
    OutOfDisk {
        /// What was to be written, and why it was not.
        detail: String,
    },
    /// A result that its type cannot hold.
    #[error("{expression} overflows {data_type}; {}", wider(.data_type))]
    Overflow {
        /// The function, or the operation with its values.
        expression: String,
        /// The type that is too narrow, in SQL's words.
        data_type: String,
    },
    /// Division by zero.
    #[error("division by zero; guard the divisor with NULLIF(divisor, 0)")]
    DivisionByZero,
    /// A value that is not of the type that it is cast to.
    #[error("{message}")]
    BadCast {
        /// For the author.
        message: String,
    },
    /// A value that cannot be computed.
    #[error("{message}")]
    Data {
        /// For the author.
        message: String,
    },
    /// A module of user functions that cannot be used.
    #[error("the module of user functions `{location}` cannot be used: {problem}")]
    UdfModule {
        /// Where it is.
        location: String,
        /// What is wrong with it and what to change.
        problem: String,
    },
    /// A user function failed or ran into a limit.
    #[error("{message}")]
    UdfFailed {
        /// Which function, where in the data, and why.
        message: String,
    },
    /// The run was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// A failure of the local machine.
    #[error("cannot {what}: {}", io_problem(.source))]
    Io {
        /// What was to be done, with the path: "create `/out`".
        what: String,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// A defect of ours, or of a library that we use.
    #[error("internal error: {message}")]
    Internal {
        /// For the log.
        message: String,
    },
}

fn did_you_mean(suggestion: &Option<String>) -> String {
    suggestion
        .as_ref()
        .map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

/// What to do about a type that is too narrow.
fn wider(data_type: &str) -> &'static str {
    if data_type.starts_with("DECIMAL") {
        "no decimal is wider, so CAST its operands to DOUBLE or to fewer digits"
    } else {
        "CAST its operands to a wider type, such as DECIMAL(38, 0)"
    }
}

/// A path in quotes; words about files stay as they are.
fn quoted_path(file: &str) -> String {
    if file.contains('/') {
        format!("`{file}`")
    } else {
        file.to_owned()
    }
}

/// The part of a URL that names a bucket.
fn bucket(location: &str) -> &str {
    let rest = location
        .split_once("://")
        .map_or(location, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

fn among(available: &[String]) -> String {
    const SHOWN_MAX: usize = 8;
    if available.is_empty() {
        return String::new();
    }
    let mut text = String::from(" (there are: ");
    text.push_str(
        &available
            .iter()
            .take(SHOWN_MAX)
            .cloned()
            .collect::<Vec<_>>()
            .join(", "),
    );
    if available.len() > SHOWN_MAX {
        let _ = write!(text, " and {} more", available.len() - SHOWN_MAX);
    }
    text.push(')');
    text
}

fn bytes(n_bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n_bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n_bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

impl Error {
    /// What the reader does next.
    pub fn kind(&self) -> Kind {
        match self {
            Error::Stage { source, .. } | Error::At { source, .. } => source.kind(),
            Error::FallbackRefused { .. } => Kind::FallbackRefused,
            Error::Device { .. } => Kind::Unavailable,
            Error::Syntax { .. }
            | Error::NoStatement
            | Error::UnknownTable { .. }
            | Error::UnknownColumn { .. }
            | Error::UnknownFunction { .. }
            | Error::AmbiguousColumn { .. }
            | Error::Parameter { .. }
            | Error::Refused { .. }
            | Error::Query { .. }
            | Error::Location { .. }
            | Error::StorageSettings { .. }
            | Error::UdfModule { .. }
            | Error::Output { .. } => Kind::InvalidQuery,
            Error::UdfFailed { .. } => Kind::UdfFailed,
            Error::NoSuchInput { .. }
            | Error::NoFiles { .. }
            | Error::NoPermission { .. }
            | Error::NoBucket { .. }
            | Error::BadFile { .. }
            | Error::Unreadable { .. }
            | Error::SchemasDiffer { .. } => Kind::InputMissing,
            Error::StorageUnavailable { .. }
            | Error::OutputBusy { .. }
            | Error::PublishRefused { .. } => Kind::Unavailable,
            Error::OutputExists { .. } | Error::OutputConflict { .. } => Kind::OutputExists,
            Error::OutOfMemory { .. } | Error::OutOfDisk { .. } => Kind::OutOfResources,
            Error::Overflow { .. }
            | Error::DivisionByZero
            | Error::BadCast { .. }
            | Error::Data { .. } => Kind::DataError,
            Error::Cancelled => Kind::Cancelled,
            Error::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::FileTooLarge => Kind::OutOfResources,
                std::io::ErrorKind::PermissionDenied => Kind::InputMissing,
                _ => Kind::Unavailable,
            },
            Error::Internal { .. } => Kind::Internal,
        }
    }

    /// Names the stage in which the error happened; the innermost name wins.
    #[must_use]
    pub fn in_stage(self, stage: &str) -> Error {
        match self {
            Error::Stage { .. } => self,
            source => Error::Stage {
                stage: stage.to_owned(),
                source: Box::new(source),
            },
        }
    }

    /// Says which part of the stage's SQL the error is about; the innermost place wins.
    #[must_use]
    pub(crate) fn at(self, place: impl Into<String>) -> Error {
        match self {
            Error::At { .. } => self,
            source => Error::At {
                place: place.into(),
                source: Box::new(source),
            },
        }
    }

    /// The error without the stage in front.
    pub fn without_stage(&self) -> &Error {
        match self {
            Error::Stage { source, .. } => source.without_stage(),
            other => other,
        }
    }

    /// The error without the stage and the place in front.
    pub fn root(&self) -> &Error {
        match self {
            Error::Stage { source, .. } | Error::At { source, .. } => source.root(),
            other => other,
        }
    }

    /// The system could not do something with a local file: `io("create", path, error)`.
    pub(crate) fn io(verb: &str, path: &std::path::Path, source: std::io::Error) -> Error {
        Error::from_io(format!("{verb} `{}`", path.display()), source)
    }

    fn from_io(what: String, source: std::io::Error) -> Error {
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Error::OutOfDisk {
                    detail: format!("cannot {what}: {}", io_problem(&source)),
                }
            }
            _ => Error::Io {
                what,
                source: Arc::new(source),
            },
        }
    }

    /// Wraps the error so that it travels through DataFusion unchanged.
    pub(crate) fn into_datafusion(self) -> DataFusionError {
        DataFusionError::External(Box::new(self))
    }

    /// An object store's error about `location`.
    pub fn from_store(location: &str, error: &object_store::Error) -> Error {
        use object_store::Error as Store;
        match error {
            Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => Error::NoPermission {
                location: location.to_owned(),
            },
            refused if is_no_bucket(refused) => Error::NoBucket {
                location: location.to_owned(),
            },
            refused if is_bad_identity(refused) => Error::NoPermission {
                location: location.to_owned(),
            },
            Store::NotFound { path, .. } => Error::Location {
                location: location.to_owned(),
                problem: if path == location {
                    "it is not there any more".to_owned()
                } else {
                    format!("`{path}` is not there")
                },
            },
            Store::InvalidPath { source } => Error::Location {
                location: location.to_owned(),
                problem: source.to_string(),
            },
            Store::NotSupported { .. } | Store::NotImplemented { .. } => Error::Location {
                location: location.to_owned(),
                problem: "this kind of storage cannot do that".to_owned(),
            },
            Store::UnknownConfigurationKey { key, .. } => Error::StorageSettings {
                location: location.to_owned(),
                problem: format!("there is no option `{key}`"),
            },
            Store::JoinError { source } if source.is_panic() => Error::Internal {
                message: source.to_string(),
            },
            other => {
                if let Some(io) = find_source::<std::io::Error>(other)
                    && io.raw_os_error().is_some()
                    && !is_of_the_network(io.kind())
                {
                    let copy = std::io::Error::new(io.kind(), io_problem(io));
                    return Error::from_io(format!("use `{location}`"), copy);
                }
                Error::StorageUnavailable {
                    location: location.to_owned(),
                    message: store_problem(other),
                }
            }
        }
    }

    /// DataFusion's error as ours. `limit_bytes` is the memory budget in force.
    pub(crate) fn from_datafusion(error: &DataFusionError, limit_bytes: u64) -> Error {
        use datafusion::arrow::error::ArrowError;
        match error {
            DataFusionError::External(source) => {
                if let Some(ours) = source.downcast_ref::<Error>() {
                    ours.clone()
                } else if let Some(inner) = source.downcast_ref::<DataFusionError>() {
                    Error::from_datafusion(inner, limit_bytes)
                } else if let Some(inner) = source.downcast_ref::<object_store::Error>() {
                    Error::from_store(subject(inner), inner)
                } else {
                    Error::Data {
                        message: clean(&source.to_string()),
                    }
                }
            }
            DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => {
                Error::from_datafusion(inner, limit_bytes)
            }
            DataFusionError::Shared(inner) => Error::from_datafusion(inner, limit_bytes),
            DataFusionError::Collection(errors) => errors.first().map_or(
                Error::Internal {
                    message: "an empty list of errors".into(),
                },
                |first| Error::from_datafusion(first, limit_bytes),
            ),
            DataFusionError::ArrowError(arrow, _) => match arrow.as_ref() {
                ArrowError::DivideByZero => Error::DivisionByZero,
                ArrowError::ArithmeticOverflow(detail) => overflow(detail),
                ArrowError::ExternalError(source) => match source.downcast_ref::<DataFusionError>()
                {
                    Some(inner) => Error::from_datafusion(inner, limit_bytes),
                    None => match source.downcast_ref::<Error>() {
                        Some(ours) => ours.clone(),
                        None => Error::Data {
                            message: clean(&source.to_string()),
                        },
                    },
                },
                ArrowError::MemoryError(detail) => Error::OutOfMemory {
                    limit_bytes,
                    detail: clean(detail),
                },
                ArrowError::IoError(_, io) => {
                    let copy = std::io::Error::new(io.kind(), io_problem(io));
                    Error::from_io("read or write temporary files".into(), copy)
                }
                ArrowError::CsvError(detail) | ArrowError::JsonError(detail) => Error::Unreadable {
                    problem: format!("cannot be read: {}", clean(detail)),
                },
                ArrowError::ParseError(detail) if csv_value(detail).is_some() => {
                    Error::Unreadable {
                        problem: csv_value(detail).unwrap_or_default(),
                    }
                }
                ArrowError::ParquetError(detail) => damaged(detail),
                ArrowError::CastError(detail) => Error::BadCast {
                    message: clean(detail),
                },
                other => Error::Data {
                    message: clean(&other.to_string()),
                },
            },
            DataFusionError::ParquetError(parquet) => match parquet.as_ref() {
                ParquetError::External(source) => {
                    if let Some(inner) = source.downcast_ref::<object_store::Error>() {
                        Error::from_store(subject(inner), inner)
                    } else {
                        damaged(&source.to_string())
                    }
                }
                other => damaged(&other.to_string()),
            },
            DataFusionError::ObjectStore(store) => Error::from_store(subject(store), store),
            DataFusionError::IoError(io) => {
                let copy = std::io::Error::new(io.kind(), io_problem(io));
                Error::from_io("read or write local files".into(), copy)
            }
            DataFusionError::SQL(parser, _) => Error::Syntax {
                message: clean(&parser.to_string()),
            },
            DataFusionError::SchemaError(schema, _) => match schema.as_ref() {
                SchemaError::FieldNotFound {
                    field,
                    valid_fields,
                } => {
                    let available: Vec<String> =
                        valid_fields.iter().map(|f| f.name().to_owned()).collect();
                    Error::UnknownColumn {
                        name: field.flat_name(),
                        suggestion: nearest(&field.name, available.iter().map(String::as_str)),
                        available,
                    }
                }
                SchemaError::AmbiguousReference { field } => Error::AmbiguousColumn {
                    name: field.name.clone(),
                },
                SchemaError::DuplicateQualifiedField { name, .. }
                | SchemaError::DuplicateUnqualifiedField { name } => Error::Query {
                    message: format!(
                        "two columns are called `{name}`; give one of them another name with AS"
                    ),
                },
            },
            DataFusionError::NotImplemented(detail) => Error::Query {
                message: format!("not supported: {}", clean(detail)),
            },
            DataFusionError::Plan(detail) | DataFusionError::Configuration(detail) => {
                Error::Query {
                    message: clean(detail),
                }
            }
            DataFusionError::Execution(detail) => Error::Data {
                message: clean(detail),
            },
            DataFusionError::ResourcesExhausted(detail) => Error::OutOfMemory {
                limit_bytes,
                detail: clean(detail),
            },
            DataFusionError::ExecutionJoin(join) => {
                if join.is_panic() {
                    Error::Internal {
                        message: "a task panicked".into(),
                    }
                } else {
                    Error::Cancelled
                }
            }
            DataFusionError::Internal(detail) => Error::Internal {
                message: clean(detail),
            },
            other => Error::Internal {
                message: clean(&other.to_string()),
            },
        }
    }
}

/// A Parquet file whose footer was read and whose pages cannot be.
fn damaged(detail: &str) -> Error {
    Error::Unreadable {
        problem: format!("is damaged ({}); write it again", clean(detail)),
    }
}

/// Arrow says `Overflow happened on: 9223372036854775807 + 1`; a kernel says what it is
/// that overflowed, or which total does not fit which type.
fn overflow(detail: &str) -> Error {
    let (expression, data_type) = if let Some((_, operation)) = detail.rsplit_once("on: ") {
        // More digits than the widest integer has.
        let is_decimal = operation
            .split(|c: char| !c.is_ascii_digit())
            .any(|digits| digits.len() > 20);
        let data_type = if is_decimal {
            "DECIMAL"
        } else {
            "its integer type"
        };
        (format!("`{}`", operation.trim()), data_type.to_owned())
    } else if let Some((_, rest)) = detail.split_once("does not fit ") {
        let data_type = rest.split(';').next().unwrap_or(rest);
        ("sum".to_owned(), sql_types(data_type))
    } else if detail.contains("decimal") {
        ("an operation".to_owned(), "DECIMAL".to_owned())
    } else {
        ("an operation".to_owned(), "its type".to_owned())
    };
    Error::Overflow {
        expression,
        data_type,
    }
}

/// What an object store's error is about, where nobody remembers what was asked of it.
fn subject(error: &object_store::Error) -> &str {
    use object_store::Error as Store;
    match error {
        Store::NotFound { path, .. }
        | Store::PermissionDenied { path, .. }
        | Store::Unauthenticated { path, .. } => path,
        _ => "a table's files",
    }
}

fn is_of_the_network(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::*;
    matches!(
        kind,
        ConnectionRefused
            | ConnectionReset
            | ConnectionAborted
            | NotConnected
            | HostUnreachable
            | NetworkUnreachable
            | AddrNotAvailable
            | TimedOut
            | BrokenPipe
            | UnexpectedEof
    )
}

/// Whether a storage answered that the bucket, not the object, is missing. Only the text
/// of its answer tells the two apart.
pub(crate) fn is_no_bucket(error: &object_store::Error) -> bool {
    store_code(&error.to_string()) == Some("NoSuchBucket")
}

/// Whether a storage does not believe who we are. `object_store` has a variant for that,
/// which a listing does not use.
fn is_bad_identity(error: &object_store::Error) -> bool {
    matches!(
        store_code(&error.to_string()),
        Some(
            "AccessDenied"
                | "SignatureDoesNotMatch"
                | "InvalidAccessKeyId"
                | "InvalidToken"
                | "ExpiredToken"
        )
    )
}

/// Finds an error of one type in a chain of sources.
pub(crate) fn find_source<'a, E: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(current) = next {
        if let Some(found) = current.downcast_ref::<E>() {
            return Some(found);
        }
        next = current.source();
    }
    None
}

/// The known name that is nearest to a misspelt one, if any is near.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let wanted = name.to_lowercase();
    let within = (wanted.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (distance(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= within)
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}

/// Edits between two words; neighbours swapped count as one edit.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let mut best = (rows[i - 1][j] + 1)
                .min(row[j - 1] + 1)
                .min(rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]));
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_finds_its_neighbour_and_a_strange_one_finds_nothing() {
        let known = ["l_orderkey", "l_partkey", "l_quantity"];
        assert_eq!(nearest("l_ordrekey", known).as_deref(), Some("l_orderkey"));
        assert_eq!(nearest("L_QUANTTY", known).as_deref(), Some("l_quantity"));
        assert_eq!(nearest("customer", known), None);
    }

    #[test]
    fn our_error_survives_the_way_through_datafusion() {
        let shared = DataFusionError::Shared(Arc::new(Error::DivisionByZero.into_datafusion()));
        assert_eq!(Error::from_datafusion(&shared, 0).kind(), Kind::DataError);
    }
}
