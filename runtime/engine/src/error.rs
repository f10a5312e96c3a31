//! Every way in which a batch's SQL can fail, and what its reader does next.
//!
//! A variant is one situation with its data. `Display` is the author's voice:
//! what to change, no internals. The chain of sources is the log's voice.
//! Nothing here decides on the text of another error.

use std::fmt::Write as _;
use std::sync::Arc;

use datafusion::common::{DataFusionError, SchemaError};
use datafusion::parquet::errors::ParquetError;

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
    /// The SQL text does not parse.
    #[error("the SQL does not parse: {message}")]
    Syntax {
        /// The parser's complaint, with line and column.
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
    #[error("table `{table}`: there is no file or directory at `{location}`")]
    NoSuchInput {
        /// The table.
        table: String,
        /// As written.
        location: String,
    },
    /// A directory or pattern that has no data file in it.
    #[error("table `{table}`: no data file at `{location}`; {hint}")]
    NoFiles {
        /// The table.
        table: String,
        /// As written.
        location: String,
        /// What counts as a data file.
        hint: String,
    },
    /// The storage refuses access.
    #[error(
        "no permission for `{location}`; check the credentials and the policy of the bucket or the mode of the file"
    )]
    NoPermission {
        /// What was to be reached.
        location: String,
    },
    /// A file that is not what the table says it is.
    #[error("table `{table}`: `{file}` {problem}")]
    BadFile {
        /// The table.
        table: String,
        /// The file.
        file: String,
        /// What is wrong with it: "is not a Parquet file", "is truncated".
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
        /// Where and how much.
        detail: String,
    },
    /// A result that its type cannot hold.
    #[error(
        "{expression} overflows {data_type}; cast its operands to a wider type, such as DECIMAL(38, 0)"
    )]
    Overflow {
        /// The expression or function.
        expression: String,
        /// The type that is too narrow.
        data_type: String,
    },
    /// Division by zero.
    #[error("division by zero; guard the divisor with NULLIF(divisor, 0)")]
    DivisionByZero,
    /// A value that cannot be computed.
    #[error("{message}")]
    Data {
        /// For the author.
        message: String,
    },
    /// The run was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// A failure of the local machine.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, with the path.
        doing: String,
        /// The system's error.
        source: Source,
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
            Error::Stage { source, .. } => source.kind(),
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
            | Error::Output { .. } => Kind::InvalidQuery,
            Error::NoSuchInput { .. }
            | Error::NoFiles { .. }
            | Error::NoPermission { .. }
            | Error::BadFile { .. }
            | Error::SchemasDiffer { .. } => Kind::InputMissing,
            Error::StorageUnavailable { .. } => Kind::Unavailable,
            Error::OutputExists { .. } | Error::OutputConflict { .. } => Kind::OutputExists,
            Error::OutOfMemory { .. } | Error::OutOfDisk { .. } => Kind::OutOfResources,
            Error::Overflow { .. } | Error::DivisionByZero | Error::Data { .. } => Kind::DataError,
            Error::Cancelled => Kind::Cancelled,
            Error::Io { source, .. } => match source
                .downcast_ref::<std::io::Error>()
                .map(std::io::Error::kind)
            {
                Some(std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded) => {
                    Kind::OutOfResources
                }
                Some(std::io::ErrorKind::PermissionDenied) => Kind::InputMissing,
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

    /// The error without the stage in front.
    pub fn root(&self) -> &Error {
        match self {
            Error::Stage { source, .. } => source.root(),
            other => other,
        }
    }

    pub(crate) fn io(doing: impl Into<String>, source: std::io::Error) -> Error {
        let doing = doing.into();
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Error::OutOfDisk {
                    detail: format!("{doing}: {source}"),
                }
            }
            std::io::ErrorKind::PermissionDenied => Error::NoPermission { location: doing },
            _ => Error::Io {
                doing,
                source: Arc::new(source),
            },
        }
    }

    /// Wraps the error so that it travels through DataFusion unchanged.
    pub(crate) fn into_datafusion(self) -> DataFusionError {
        DataFusionError::External(Box::new(self))
    }

    /// An object store's error about `location`.
    pub(crate) fn from_store(location: &str, error: &object_store::Error) -> Error {
        use object_store::Error as Store;
        match error {
            Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => Error::NoPermission {
                location: location.to_owned(),
            },
            Store::NotFound { path, .. } => Error::Location {
                location: location.to_owned(),
                problem: format!("`{path}` is not there"),
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
                if let Some(io) = find_source::<std::io::Error>(other) {
                    match io.kind() {
                        std::io::ErrorKind::PermissionDenied => {
                            return Error::NoPermission {
                                location: location.to_owned(),
                            };
                        }
                        std::io::ErrorKind::StorageFull => {
                            return Error::OutOfDisk {
                                detail: format!("writing `{location}`"),
                            };
                        }
                        _ => {}
                    }
                }
                Error::StorageUnavailable {
                    location: location.to_owned(),
                    message: other.to_string(),
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
                    Error::from_store("object storage", inner)
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
                ArrowError::IoError(detail, _) => Error::OutOfDisk {
                    detail: clean(detail),
                },
                other => Error::Data {
                    message: clean(&other.to_string()),
                },
            },
            DataFusionError::ParquetError(parquet) => match parquet.as_ref() {
                ParquetError::External(source) => {
                    if let Some(inner) = source.downcast_ref::<object_store::Error>() {
                        Error::from_store("object storage", inner)
                    } else {
                        Error::Data {
                            message: format!(
                                "a Parquet file cannot be read: {}",
                                clean(&source.to_string())
                            ),
                        }
                    }
                }
                other => Error::Data {
                    message: format!("a Parquet file is damaged: {}", clean(&other.to_string())),
                },
            },
            DataFusionError::ObjectStore(store) => Error::from_store("object storage", store),
            DataFusionError::IoError(io) => match io.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    Error::OutOfDisk {
                        detail: io.to_string(),
                    }
                }
                _ => Error::Io {
                    doing: "reading or writing local files".into(),
                    source: Arc::new(std::io::Error::new(io.kind(), io.to_string())),
                },
            },
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

/// Arrow says `Overflow happened on: 9223372036854775807 + 1`.
fn overflow(detail: &str) -> Error {
    let expression = detail.rsplit("on: ").next().unwrap_or(detail).trim();
    Error::Overflow {
        expression: format!("`{expression}`"),
        data_type: "its integer type".into(),
    }
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

/// A library's message without its own prefixes and advice. Only for show.
pub(crate) fn clean(message: &str) -> String {
    const PREFIXES: [&str; 16] = [
        "Arrow error: ",
        "Parquet error: ",
        "Parser error: ",
        "sql parser error: ",
        "SQL error: ",
        "ParserError(\"",
        "Error during planning: ",
        "Schema error: ",
        "Execution error: ",
        "External error: ",
        "Internal error: ",
        "Optimizer rule ",
        "Cast error: ",
        "Compute error: ",
        "Invalid argument error: ",
        "This feature is not implemented: ",
    ];
    let cut = [
        "This was likely caused by a bug in DataFusion",
        "This issue was likely caused by a bug in DataFusion",
        "\n\nbacktrace:",
    ]
    .iter()
    .filter_map(|marker| message.find(marker))
    .min()
    .unwrap_or(message.len());
    let mut text = message[..cut].trim();
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)) {
        text = rest.trim_start();
    }
    text.trim_end_matches(['.', ' ', '\n']).to_owned()
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
    fn library_wording_is_stripped() {
        let raw = "Arrow error: Cast error: Cannot cast string 'x' to value of Int32 type";
        assert_eq!(clean(raw), "Cannot cast string 'x' to value of Int32 type");
        let raw =
            "Internal error: odd.\nThis issue was likely caused by a bug in DataFusion's code.";
        assert_eq!(clean(raw), "odd");
    }

    #[test]
    fn our_error_survives_the_way_through_datafusion() {
        let shared = DataFusionError::Shared(Arc::new(Error::DivisionByZero.into_datafusion()));
        assert_eq!(Error::from_datafusion(&shared, 0).kind(), Kind::DataError);
    }
}
