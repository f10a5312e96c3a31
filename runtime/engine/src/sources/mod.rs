//! Tables: from a location to something that DataFusion can scan.
//!
//! A table is looked at once, when it is registered: which files there are, and
//! whether they agree. Files that appear later are not seen; files that vanish
//! fail the scan. Whether a file is hidden follows the usual rule: a name that
//! starts with `_` or `.` is not data.

mod nulls;
mod parquet;
pub mod pattern;
pub mod store;

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::DataFusionError;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::execution::SessionState;
use datafusion::object_store::path::Path;
use datafusion::object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use datafusion::parquet::errors::ParquetError;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};

pub use store::Location;

use crate::error::{Error, Result, find_source, is_no_bucket};
use crate::settings::{Format, Table};
use crate::words::{clean, io_problem, sql_types};

/// A table that was looked at and found readable.
#[derive(Debug)]
pub struct Source {
    /// What DataFusion scans.
    pub provider: Arc<dyn TableProvider>,
    /// Where its files are.
    pub location: Location,
    /// How many files it has.
    pub n_files: usize,
    /// What they weigh together.
    pub n_bytes: u64,
}

/// Looks at a table. The storage of its location is registered already.
pub async fn open(
    table: &Table,
    location: Location,
    state: &SessionState,
    readers: usize,
) -> Result<Source> {
    let store = state
        .runtime_env()
        .object_store_registry
        .get_store(&location.root)
        .map_err(|error| Error::Internal {
            message: format!(
                "the storage of `{}` is not registered: {error}",
                location.written
            ),
        })?;
    let files = list(table, &location, store.as_ref()).await?;
    let compression = compression_of(&files[0].location);
    if let Some(other) = files
        .iter()
        .find(|file| compression_of(&file.location) != compression)
    {
        return Err(Error::SchemasDiffer {
            table: table.name.clone(),
            first: location.display(&files[0].location),
            second: location.display(&other.location),
            differences: "they are compressed differently".into(),
        });
    }
    let format = file_format(table, state, compression);
    let schema = match &table.schema {
        Some(schema) => Arc::clone(schema),
        None => agree_on_schema(table, &location, &format, state, &store, &files, readers).await?,
    };

    let null_text = match &table.format {
        Format::Csv(csv) => csv.null.as_deref(),
        Format::Parquet | Format::Json => None,
    };
    // Where text stands for NULL, every column is read as text first.
    let read_as = if null_text.is_some() {
        nulls::all_text(&schema)
    } else {
        Arc::clone(&schema)
    };

    let urls = if table.partition_columns.is_empty() {
        files
            .iter()
            .map(|file| listing_url(&location, &location.url_of(&file.location)))
            .collect::<Result<Vec<_>>>()?
    } else {
        vec![listing_url(
            &location,
            &format!(
                "{}/",
                location.url_of(&location.prefix).trim_end_matches('/')
            ),
        )?]
    };
    let extension = if table.partition_columns.is_empty() {
        String::new()
    } else {
        extension_of(&files[0].location)
    };
    let options = ListingOptions::new(format)
        .with_file_extension(extension)
        .with_table_partition_cols(table.partition_columns.clone());
    let config = ListingTableConfig::new_with_multi_paths(urls)
        .with_listing_options(options)
        .with_schema(read_as);
    let cache = state.runtime_env().cache_manager.get_file_statistic_cache();
    let listing = ListingTable::try_new(config)
        .map_err(|error| Error::from_datafusion(&error, 0))?
        .with_cache(cache);
    let mut provider: Arc<dyn TableProvider> = Arc::new(listing);
    if let Some(text) = null_text {
        provider = nulls::view(&table.name, provider, &schema, text)?;
    }
    tracing::debug!(table = table.name, n_files = files.len(), "table opened");
    Ok(Source {
        provider,
        n_files: files.len(),
        n_bytes: files.iter().map(|file| file.size).sum(),
        location,
    })
}

fn listing_url(location: &Location, url: &str) -> Result<ListingTableUrl> {
    // Spaces and the like must be escaped in a URL; object paths are plain text.
    let bad = |problem: String| Error::Location {
        location: location.written.clone(),
        problem,
    };
    let url = url::Url::parse(
        &url.replace('%', "%25")
            .replace('#', "%23")
            .replace('?', "%3F"),
    )
    .map_err(|error| bad(error.to_string()))?;
    ListingTableUrl::try_new(url, None).map_err(|error| bad(clean(&error.to_string())))
}

fn is_hidden(location: &Location, path: &Path) -> bool {
    let below = path.prefix_match(&location.prefix);
    below.is_some_and(|mut parts| {
        parts.any(|part| {
            let name = part.as_ref();
            name.starts_with('.') || (name.starts_with('_') && !name.contains('='))
        })
    })
}

async fn list(
    table: &Table,
    location: &Location,
    store: &dyn ObjectStore,
) -> Result<Vec<ObjectMeta>> {
    use datafusion::object_store::Error as Store;
    let no_such_input = || Error::NoSuchInput {
        table: table.name.clone(),
        location: location.written.clone(),
    };
    let failed = |error: Store| match error {
        ref absent @ Store::NotFound { .. } if !is_no_bucket(absent) => no_such_input(),
        other => Error::from_store(&location.written, &other),
    };

    if location.is_local() {
        // Object stores do not tell a missing directory from an empty one.
        let path = location.local_path();
        let unreadable = |error: &std::io::Error| Error::BadFile {
            table: table.name.clone(),
            file: path.display().to_string(),
            problem: format!("cannot be read: {}", io_problem(error)),
        };
        match std::fs::metadata(&path) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(no_such_input());
            }
            Err(error) => return Err(unreadable(&error)),
        }
        let opened = if path.is_dir() {
            std::fs::read_dir(&path).map(drop)
        } else {
            std::fs::File::open(&path).map(drop)
        };
        opened.map_err(|error| unreadable(&error))?;
    }
    if location.pattern.is_none() && !location.is_directory {
        match store.head(&location.prefix).await {
            Ok(file) => return Ok(vec![file]),
            Err(Store::NotFound { .. }) if !location.root.scheme().starts_with("http") => {}
            Err(error) if location.is_local() && location.local_path().is_dir() => drop(error),
            Err(error) => return Err(failed(error)),
        }
    }
    let prefix = (!location.prefix.as_ref().is_empty()).then_some(&location.prefix);
    let mut files: Vec<ObjectMeta> = store.list(prefix).try_collect().await.map_err(failed)?;
    let n_listed = files.len();
    files.retain(|file| {
        file.size > 0
            && !is_hidden(location, &file.location)
            && matches(location, table, &file.location)
    });
    files.sort_by(|a, b| a.location.cmp(&b.location));
    if files.is_empty() {
        if n_listed == 0 && !location.is_local() {
            return Err(no_such_input());
        }
        let hint = match (&location.pattern, n_listed) {
            (_, 0) => "the directory is empty".to_owned(),
            (Some(_), _) => "no file matches the pattern".to_owned(),
            (None, n) => format!(
                "{n} files are there, but none that ends in {}",
                extensions(&table.format).join(" or ")
            ),
        };
        return Err(Error::NoFiles {
            table: table.name.clone(),
            location: location.written.clone(),
            hint,
        });
    }
    Ok(files)
}

fn matches(location: &Location, table: &Table, path: &Path) -> bool {
    let below: Vec<String> = path
        .prefix_match(&location.prefix)
        .map(|parts| parts.map(|part| part.as_ref().to_owned()).collect())
        .unwrap_or_default();
    match &location.pattern {
        Some(pattern) => pattern.matches(&below),
        None => {
            let known = extensions(&table.format)
                .iter()
                .any(|extension| path.as_ref().ends_with(extension));
            // Sub-directories count only where they are partitions.
            let is_flat = below
                .iter()
                .rev()
                .skip(1)
                .all(|directory| directory.contains('='));
            known && is_flat
        }
    }
}

fn extensions(format: &Format) -> &'static [&'static str] {
    match format {
        Format::Parquet => &[".parquet", ".parq", ".pq"],
        Format::Csv(_) => &[
            ".csv", ".csv.gz", ".csv.zst", ".tsv", ".tsv.gz", ".tbl", ".txt",
        ],
        Format::Json => &[
            ".json",
            ".json.gz",
            ".json.zst",
            ".jsonl",
            ".jsonl.gz",
            ".jsonl.zst",
            ".ndjson",
        ],
    }
}

fn extension_of(path: &Path) -> String {
    let name = path.filename().unwrap_or_default();
    let plain = name.trim_end_matches(".gz").trim_end_matches(".zst");
    let start = plain.rfind('.').unwrap_or(name.len());
    name[start..].to_owned()
}

fn compression_of(path: &Path) -> FileCompressionType {
    match path.filename().unwrap_or_default().rsplit('.').next() {
        Some("gz") => FileCompressionType::GZIP,
        Some("zst") => FileCompressionType::ZSTD,
        _ => FileCompressionType::UNCOMPRESSED,
    }
}

fn file_format(
    table: &Table,
    state: &SessionState,
    compression: FileCompressionType,
) -> Arc<dyn FileFormat> {
    match &table.format {
        Format::Parquet => {
            let options = state.default_table_options().parquet;
            Arc::new(parquet::CarefulParquet::new(
                ParquetFormat::new().with_options(options),
            ))
        }
        Format::Csv(csv) => Arc::new(
            CsvFormat::default()
                .with_has_header(csv.header)
                .with_delimiter(csv.delimiter)
                .with_quote(csv.quote)
                .with_escape(csv.escape)
                .with_null_regex(
                    csv.null
                        .as_ref()
                        .map(|text| format!("^({})?$", regex_escape(text))),
                )
                .with_newlines_in_values(true)
                .with_file_compression_type(compression),
        ),
        Format::Json => Arc::new(JsonFormat::default().with_file_compression_type(compression)),
    }
}

fn regex_escape(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if c.is_alphanumeric() {
                vec![c]
            } else {
                vec!['\\', c]
            }
        })
        .collect()
}

/// Reads the columns of every file and insists that they are the same.
async fn agree_on_schema(
    table: &Table,
    location: &Location,
    format: &Arc<dyn FileFormat>,
    state: &SessionState,
    store: &Arc<dyn ObjectStore>,
    files: &[ObjectMeta],
    readers: usize,
) -> Result<SchemaRef> {
    let looks: Vec<BoxFuture<'_, Result<(&ObjectMeta, Schema)>>> = files
        .iter()
        .map(|file| {
            async move {
                match format
                    .infer_schema(state, store, std::slice::from_ref(file))
                    .await
                {
                    Ok(schema) => Ok((file, plain(&schema))),
                    Err(error) => Err(bad_file(table, location, file, &error)),
                }
            }
            .boxed()
        })
        .collect();
    let mut schemas = futures::stream::iter(looks).buffered(readers.max(1));
    let mut agreed: Option<(&ObjectMeta, Schema)> = None;
    while let Some((file, schema)) = schemas.try_next().await? {
        let Some((first, expected)) = &mut agreed else {
            agreed = Some((file, schema));
            continue;
        };
        // Types of text files are guessed from their first rows, so they may be widened.
        let is_typed = table.format == Format::Parquet;
        let differences = differences(expected, &schema, is_typed);
        if !differences.is_empty() {
            return Err(Error::SchemasDiffer {
                table: table.name.clone(),
                first: location.display(&first.location),
                second: location.display(&file.location),
                differences: differences.join("; "),
            });
        }
        if !is_typed {
            *expected = widened(expected, &schema);
        } else if expected.fields() != schema.fields() {
            *expected = nullable_where_either(expected, &schema);
        }
    }
    let schema = agreed
        .map(|(_, schema)| schema)
        .unwrap_or_else(Schema::empty);
    if schema.fields().is_empty() {
        return Err(Error::BadFile {
            table: table.name.clone(),
            file: location.display(&files[0].location),
            problem: "has no columns".into(),
        });
    }
    Ok(Arc::new(schema))
}

/// The same columns with strings and binaries in their plain layout, which is what
/// every operator of ours reads.
fn plain(schema: &Schema) -> Schema {
    let fields: Vec<Field> = schema
        .fields()
        .iter()
        .map(|field| {
            let data_type = match field.data_type() {
                DataType::Utf8View | DataType::LargeUtf8 => DataType::Utf8,
                DataType::BinaryView | DataType::LargeBinary => DataType::Binary,
                other => other.clone(),
            };
            field
                .as_ref()
                .clone()
                .with_data_type(data_type)
                .with_metadata(Default::default())
        })
        .collect();
    Schema::new(fields)
}

fn differences(expected: &Schema, found: &Schema, is_typed: bool) -> Vec<String> {
    let mut differences = Vec::new();
    for field in expected.fields() {
        match found.field_with_name(field.name()) {
            Err(_) => differences.push(format!(
                "column `{}` is missing in the second",
                field.name()
            )),
            Ok(other) if is_typed && other.data_type() != field.data_type() => {
                differences.push(format!(
                    "column `{}` is {} in the first and {} in the second",
                    field.name(),
                    sql_types(&field.data_type().to_string()),
                    sql_types(&other.data_type().to_string())
                ))
            }
            Ok(_) => {}
        }
    }
    for field in found.fields() {
        if expected.field_with_name(field.name()).is_err() {
            differences.push(format!("column `{}` is missing in the first", field.name()));
        }
    }
    differences
}

fn nullable_where_either(expected: &Schema, found: &Schema) -> Schema {
    let fields: Vec<Field> = expected
        .fields()
        .iter()
        .map(|field| {
            let nullable = found
                .field_with_name(field.name())
                .is_ok_and(Field::is_nullable);
            field
                .as_ref()
                .clone()
                .with_nullable(field.is_nullable() || nullable)
        })
        .collect();
    Schema::new(fields)
}

fn widened(expected: &Schema, found: &Schema) -> Schema {
    let fields: Vec<Field> = expected
        .fields()
        .iter()
        .map(|field| {
            let data_type = match found.field_with_name(field.name()).map(Field::data_type) {
                Ok(other) if other == field.data_type() || *other == DataType::Null => {
                    field.data_type().clone()
                }
                Ok(other) if *field.data_type() == DataType::Null => other.clone(),
                Ok(other) if other.is_numeric() && field.data_type().is_numeric() => {
                    DataType::Float64
                }
                Ok(_) => DataType::Utf8,
                Err(_) => field.data_type().clone(),
            };
            field.as_ref().clone().with_data_type(data_type)
        })
        .collect();
    Schema::new(fields)
}

fn bad_file(
    table: &Table,
    location: &Location,
    file: &ObjectMeta,
    error: &DataFusionError,
) -> Error {
    let name = location.display(&file.location);
    if let Some(store) = find_source::<datafusion::object_store::Error>(error) {
        return Error::from_store(&name, store);
    }
    let problem = match (&table.format, find_source::<ParquetError>(error)) {
        (Format::Parquet, Some(parquet)) => parquet_problem(location, file, parquet),
        _ => format!("cannot be read: {}", clean(&error.to_string())),
    };
    Error::BadFile {
        table: table.name.clone(),
        file: name,
        problem,
    }
}

/// A Parquet file starts and ends with the same four bytes, so the first four tell
/// a cut file from one that never was Parquet.
fn parquet_problem(location: &Location, file: &ObjectMeta, error: &ParquetError) -> String {
    const MAGIC: &[u8] = b"PAR1";
    if file.size < 12 {
        return format!("is not a Parquet file: it has {} bytes", file.size);
    }
    if location.is_local() {
        use std::io::Read;
        let mut start = [0_u8; 4];
        let read = std::fs::File::open(format!("/{}", file.location))
            .and_then(|mut file| file.read_exact(&mut start));
        if read.is_ok() && start == MAGIC {
            return "is truncated or damaged: it starts as a Parquet file and has no valid footer; write it again"
                .into();
        }
        if read.is_ok() {
            return "is not a Parquet file; correct the table's `location` or name its `format`"
                .into();
        }
    }
    format!(
        "is not a Parquet file, or is truncated: {}",
        clean(&error.to_string())
    )
}
