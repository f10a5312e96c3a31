//! From a spec and its effective configuration to what the engine takes.
//!
//! What a spec may say and this build cannot do is refused here, by name. Nothing is
//! dropped in silence.

use std::path::{Path, PathBuf};
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use batch_specs::spec;
use batch_specs::{Binding, BoundValue, Effective, Loaded, Spec};
use datafusion::scalar::ScalarValue;
use engine::exec::{CachePart, DeviceLimits};
use engine::settings;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::run::Request;
use crate::{Failure, Kind};

/// A batch in the engine's terms.
#[derive(Debug)]
pub(crate) struct Wired {
    pub(crate) settings: settings::Settings,
    pub(crate) tables: Vec<settings::Table>,
    pub(crate) stages: Vec<settings::Stage>,
    pub(crate) udfs: Vec<settings::UdfModule>,
    /// The accelerator asked for; absent when the batch asks for none.
    pub(crate) accelerator: Option<String>,
    /// Whether the batch runs on the CPU instead where that is expected to be sooner.
    pub(crate) by_cost: bool,
    pub(crate) ttl: Option<Duration>,
}

/// Maps everything, or says the first thing that cannot be.
pub(crate) fn wire(request: &Request<'_>) -> Result<Wired, Failure> {
    let spec = accepted(request.loaded)?;
    let effective = &request.loaded.effective;
    if spec.dataproc.is_some() && spec.stages.is_empty() {
        return Err(absent("dataproc", "programs other than SQL stages"));
    }
    Ok(Wired {
        settings: session_settings(spec, effective, request)?,
        tables: spec
            .tables
            .iter()
            .map(|table| self::table(table, spec))
            .collect::<Result<_, _>>()?,
        stages: stages(request, spec)?,
        udfs: spec
            .udfs
            .iter()
            .enumerate()
            .map(|(i, udf)| self::udf(i, udf, spec))
            .collect::<Result<_, _>>()?,
        accelerator: accelerator(effective),
        by_cost: effective.switch("gpu.by_cost").unwrap_or(false),
        ttl: ttl(effective),
    })
}

/// The spec, which `batch_specs` gives whenever it found no error.
fn accepted(loaded: &Loaded) -> Result<&Spec, Failure> {
    loaded
        .spec
        .as_ref()
        .ok_or_else(|| Failure::new(Kind::InvalidSpec, "the spec has errors"))
}

fn absent(path: &str, what: &str) -> Failure {
    Failure::new(
        Kind::InvalidSpec,
        format!("`{path}`: {what} are not in this build"),
    )
}

fn invalid(path: &str, message: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::InvalidSpec, format!("`{path}`: {message}"))
}

/// Where generated tables are kept between runs: the user's cache folder.
pub fn cache_dir() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("warpline")
}

fn table(table: &spec::Table, spec: &Spec) -> Result<settings::Table, Failure> {
    let path = format!("tables.{}", table.name);
    let schema = match &table.schema {
        Some(columns) => {
            let fields = columns
                .iter()
                .map(|column| {
                    let nullable = column.nullable.unwrap_or(true);
                    Ok(Field::new(
                        &column.name,
                        data_type(column, &path)?,
                        nullable,
                    ))
                })
                .collect::<Result<Vec<_>, Failure>>()?;
            Some(Schema::new(fields).into())
        }
        None => None,
    };
    let partition_columns = table
        .partition_columns
        .iter()
        .map(|column| Ok((column.name.clone(), data_type(column, &path)?)))
        .collect::<Result<_, Failure>>()?;
    Ok(settings::Table {
        name: table.name.clone(),
        location: table.location.clone(),
        format: format(table, &path)?,
        schema,
        partition_columns,
        storage: storage_name(&table.location, spec),
    })
}

fn format(table: &spec::Table, path: &str) -> Result<settings::Format, Failure> {
    let format = table
        .format
        .unwrap_or_else(|| format_of_name(&table.location));
    let options = &table.options;
    Ok(match format {
        spec::Format::Parquet => settings::Format::Parquet,
        spec::Format::Json => settings::Format::Json,
        spec::Format::Csv => {
            if options.comment.is_some() {
                return Err(absent(
                    &format!("{path}.options.comment"),
                    "comment lines in CSV",
                ));
            }
            let byte = |text: &Option<String>, name: &str| match text.as_deref().map(str::as_bytes)
            {
                None => Ok(None),
                Some([byte]) => Ok(Some(*byte)),
                Some(_) => Err(invalid(
                    &format!("{path}.options.{name}"),
                    "write one ASCII character",
                )),
            };
            settings::Format::Csv(settings::CsvOptions {
                header: options.header.unwrap_or(true),
                delimiter: byte(&options.delimiter, "delimiter")?.unwrap_or(b','),
                quote: byte(&options.quote, "quote")?.unwrap_or(b'"'),
                escape: byte(&options.escape, "escape")?,
                null: options.null_value.clone(),
            })
        }
    })
}

/// The format that a location's ending tells, with or without a compression behind it.
fn format_of_name(location: &str) -> spec::Format {
    let name = location.to_ascii_lowercase();
    let name = [".gz", ".zst"]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(&name);
    if name.ends_with(".csv") {
        spec::Format::Csv
    } else if [".json", ".jsonl", ".ndjson"]
        .iter()
        .any(|end| name.ends_with(end))
    {
        spec::Format::Json
    } else {
        spec::Format::Parquet
    }
}

/// The storage entry with the longest prefix of the location; its prefix is its name.
pub(crate) fn storage_name(location: &str, spec: &Spec) -> Option<String> {
    spec.storage
        .iter()
        .map(|storage| &storage.prefix)
        .filter(|prefix| location.starts_with(prefix.as_str()))
        .max_by_key(|prefix| prefix.len())
        .cloned()
}

fn udf(i: usize, udf: &spec::Udf, spec: &Spec) -> Result<settings::UdfModule, Failure> {
    let on_error = match udf.on_error {
        spec::UdfErrors::Fail => settings::UdfErrors::Fail,
        spec::UdfErrors::NullOnError => settings::UdfErrors::Null,
        spec::UdfErrors::SkipRow => {
            return Err(invalid(
                &format!("udfs[{i}].on_error"),
                "rows cannot be left out in this build; use `null_on_error` and filter the NULLs",
            ));
        }
    };
    Ok(settings::UdfModule {
        location: udf.module.clone(),
        sha256: udf.sha256.clone(),
        functions: udf.functions.clone(),
        memory_bytes: udf.memory.map(|size| size.bytes()),
        call_time: udf.timeout.map(|time| Duration::from_secs(time.seconds())),
        on_error,
        storage: storage_name(&udf.module, spec),
    })
}

/// A column's SQL type as Arrow's.
fn data_type(column: &spec::Column, path: &str) -> Result<DataType, Failure> {
    let text = column.kind.trim().to_ascii_lowercase();
    let (name, arguments) = match text.split_once('(') {
        Some((name, rest)) => (name.trim(), rest.trim_end().strip_suffix(')')),
        None => (text.as_str(), None),
    };
    let unknown = || {
        invalid(
            path,
            format!(
                "column `{}` has the unknown type `{}`",
                column.name, column.kind
            ),
        )
    };
    Ok(match name {
        "tinyint" => DataType::Int8,
        "smallint" => DataType::Int16,
        "int" | "integer" => DataType::Int32,
        "bigint" => DataType::Int64,
        "real" | "float" => DataType::Float32,
        "double" | "double precision" => DataType::Float64,
        "boolean" | "bool" => DataType::Boolean,
        "date" => DataType::Date32,
        "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, None),
        "varchar" | "char" | "string" | "text" => DataType::Utf8View,
        "binary" | "varbinary" | "bytea" => DataType::BinaryView,
        "decimal" | "numeric" => {
            let (precision, scale) = match arguments {
                None => (38, 10),
                Some(arguments) => {
                    let (precision, scale) = arguments.split_once(',').unwrap_or((arguments, "0"));
                    let precision: u8 = precision.trim().parse().map_err(|_| unknown())?;
                    let scale: i8 = scale.trim().parse().map_err(|_| unknown())?;
                    (precision, scale)
                }
            };
            if !(1..=38).contains(&precision) || scale < 0 || scale as u8 > precision {
                return Err(unknown());
            }
            DataType::Decimal128(precision, scale)
        }
        _ => return Err(unknown()),
    })
}

/// The stages with an SQL script. The statements come with their variables bound.
fn stages(request: &Request<'_>, spec: &Spec) -> Result<Vec<settings::Stage>, Failure> {
    let output_of = |name: &str| {
        let stage = spec.stages.iter().find(|stage| stage.name == name);
        let output = stage.and_then(|stage| stage.output.as_ref());
        output
            .map(|output| self::output(output, name, spec))
            .transpose()
    };
    request
        .loaded
        .scripts
        .iter()
        .enumerate()
        .map(|(i, script)| {
            let mut stage = settings::Stage::new(&script.stage, "");
            for statement in &script.statements {
                if !stage.sql.is_empty() {
                    stage.sql.push(';');
                }
                move_to(&mut stage.sql, statement.line, statement.column);
                stage.sql.push_str(&statement.sql);
                bind(&mut stage, &statement.bindings)?;
            }
            stage.output = output_of(&script.stage)?;
            if let (Some(output), Some(attempt)) = (&mut stage.output, request.attempt) {
                output.write_id = Some(settings::WriteId {
                    id: write_id(&attempt.batch_uid, i),
                    is_repeated: attempt.number > 1,
                });
            }
            Ok(stage)
        })
        .collect()
}

/// The name under which every attempt at a batch writes the output of a stage.
fn write_id(batch_uid: &str, stage: usize) -> String {
    let hash = Sha256::digest(format!("{batch_uid}/{stage}"));
    hash.iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Fills up with blanks to a place, so that the engine's errors name the place in the text
/// that the author wrote.
fn move_to(sql: &mut String, line: usize, column: usize) {
    let n_lines = sql.matches('\n').count() + 1;
    if n_lines < line {
        sql.push_str(&"\n".repeat(line - n_lines));
    } else if !sql.is_empty() {
        sql.push(' ');
    }
    let last = sql.rsplit('\n').next().unwrap_or_default();
    let n_columns = last.chars().count() + 1;
    sql.push_str(&" ".repeat(column.saturating_sub(n_columns)));
}

/// Adds the values of one statement. Statements of a script share their placeholders.
fn bind(stage: &mut settings::Stage, bindings: &[Binding]) -> Result<(), Failure> {
    for binding in bindings {
        let value = scalar(&binding.value);
        match stage
            .parameters
            .iter()
            .find(|(name, _)| *name == binding.placeholder)
        {
            None => stage.parameters.push((binding.placeholder.clone(), value)),
            Some((_, known)) if *known == value => {}
            Some(_) => {
                let message = format!(
                    "two statements bind `${}` to different values",
                    binding.placeholder
                );
                return Err(Failure::new(Kind::Internal, message).in_stage(&stage.name));
            }
        }
    }
    Ok(())
}

fn scalar(value: &BoundValue) -> ScalarValue {
    match value {
        BoundValue::Date(days) => ScalarValue::Date32(Some(*days)),
        BoundValue::Timestamp(microseconds) => {
            ScalarValue::TimestampMicrosecond(Some(*microseconds), None)
        }
        BoundValue::Integer(number) => ScalarValue::Int64(Some(*number)),
        BoundValue::Float(number) => ScalarValue::Float64(Some(*number)),
        BoundValue::Decimal {
            unscaled,
            precision,
            scale,
        } => ScalarValue::Decimal128(Some(*unscaled), *precision, *scale),
        BoundValue::String(text) => ScalarValue::Utf8(Some(text.clone())),
        BoundValue::Boolean(truth) => ScalarValue::Boolean(Some(*truth)),
    }
}

fn output(output: &spec::Output, stage: &str, spec: &Spec) -> Result<settings::Output, Failure> {
    let path = format!("stages.{stage}.output");
    let format = match output.format {
        spec::Format::Parquet => settings::OutputFormat::Parquet,
        spec::Format::Csv => settings::OutputFormat::Csv,
        spec::Format::Json => settings::OutputFormat::Json,
    };
    let compression = match (output.compression, output.format) {
        (None, spec::Format::Parquet) => settings::Compression::Zstd,
        (None, _) | (Some(spec::Compression::None), _) => settings::Compression::None,
        (Some(spec::Compression::Zstd), spec::Format::Parquet) => settings::Compression::Zstd,
        (Some(spec::Compression::Snappy), spec::Format::Parquet) => settings::Compression::Snappy,
        (Some(spec::Compression::Lz4), spec::Format::Parquet) => settings::Compression::Lz4,
        (Some(spec::Compression::Gzip), spec::Format::Parquet) => {
            return Err(absent(
                &format!("{path}.compression"),
                "gzip-compressed Parquet outputs",
            ));
        }
        (Some(_), _) => {
            return Err(absent(
                &format!("{path}.compression"),
                "compressed CSV and JSON outputs",
            ));
        }
    };
    let mut wired = settings::Output::new(output.location.clone());
    wired.format = format;
    wired.compression = compression;
    wired.mode = match output.mode {
        spec::WriteMode::Error => settings::WriteMode::Error,
        spec::WriteMode::Overwrite => settings::WriteMode::Overwrite,
        spec::WriteMode::Append => settings::WriteMode::Append,
    };
    wired.partition_by = output.partition_by.clone();
    if let Some(size) = output.target_file_size {
        wired.target_file_bytes = size.bytes();
    }
    wired.storage = storage_name(&output.location, spec);
    Ok(wired)
}

/// The entries of `storage` in the names that the `object_store` crate uses.
pub(crate) fn storage(spec: &Spec) -> Result<Vec<settings::StorageOptions>, Failure> {
    spec.storage
        .iter()
        .map(|storage| {
            let mut options = std::collections::BTreeMap::new();
            let mut set =
                |name: &str, value: &str| options.insert(name.to_string(), value.to_string());
            if let Some(endpoint) = &storage.endpoint {
                set("aws_endpoint", endpoint);
                if endpoint.starts_with("http://") {
                    set("aws_allow_http", "true");
                }
            }
            if let Some(region) = &storage.region {
                set("aws_region", region);
            }
            match &storage.credentials {
                None | Some(spec::Credentials::Machine) => {}
                Some(spec::Credentials::Anonymous) => {
                    set("aws_skip_signature", "true");
                }
                Some(spec::Credentials::Env(prefix)) => {
                    for (suffix, option, needed) in [
                        ("ACCESS_KEY_ID", "aws_access_key_id", true),
                        ("SECRET_ACCESS_KEY", "aws_secret_access_key", true),
                        ("SESSION_TOKEN", "aws_session_token", false),
                    ] {
                        let variable = format!("{prefix}_{suffix}");
                        match std::env::var(&variable) {
                            Ok(value) => {
                                set(option, &value);
                            }
                            Err(_) if !needed => {}
                            Err(_) => {
                                let message =
                                    format!("the environment variable {variable} is not set");
                                return Err(invalid("storage.credentials", message));
                            }
                        }
                    }
                }
            }
            Ok(settings::StorageOptions {
                name: storage.prefix.clone(),
                options,
            })
        })
        .collect()
}

/// The effective configuration as JSON: each name with `value`, `from` and `rule`, the last
/// `null` where somebody gave the value.
pub fn effective_json(loaded: &Loaded) -> Value {
    let mut effective = serde_json::to_value(&loaded.effective).unwrap_or_default();
    for (_, entry) in effective.as_object_mut().into_iter().flatten() {
        if let Some(entry) = entry.as_object_mut() {
            entry.entry("rule").or_insert(Value::Null);
        }
    }
    effective
}

/// What the batch may use of a device: never more memory than the accelerator it asked
/// for has, whatever card it lands on. Where several stages may read the same table, its
/// columns may stay there in between.
pub fn device_limits(loaded: &Loaded) -> DeviceLimits {
    let effective = &loaded.effective;
    let bytes = |name: &str| {
        let mib = usize::try_from(effective.count(name)?).ok()?;
        mib.checked_mul(1 << 20)
    };
    let spec = loaded.spec.as_ref();
    let has_later_stages = spec.is_some_and(|spec| spec.stages.len() > 1);
    let keeps_columns = effective.switch("accelerator.column_cache") != Some(false);
    let default = DeviceLimits::default();
    DeviceLimits {
        memory_bytes: bytes("gpu.memory_mib").unwrap_or(default.memory_bytes),
        pinned_bytes: bytes("memory.pinned_mib")
            .filter(|bytes| *bytes > 0)
            .unwrap_or(default.pinned_bytes),
        concurrent_chunks: effective
            .count("gpu.concurrent_tasks")
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(default.concurrent_chunks),
        cache_part: match has_later_stages && keeps_columns {
            true => CACHE_PART,
            false => CachePart(0),
        },
        ..default
    }
}

/// What columns that stay may take of the device memory: the rest is for tables, groups
/// and results.
const CACHE_PART: CachePart = CachePart(60);

/// The accelerator that the batch asks for; absent when it asks for none.
fn accelerator(effective: &Effective) -> Option<String> {
    let name = effective.text("gpu.type").unwrap_or("none");
    (name != "none").then(|| name.to_string())
}

/// The engine's settings. The batch's executors all run in this process, so their cores
/// and memory add up, within what the machine has.
fn session_settings(
    spec: &Spec,
    effective: &Effective,
    request: &Request<'_>,
) -> Result<settings::Settings, Failure> {
    let n_executors = effective.count("executors.instances").unwrap_or(1).max(1);
    let threads = effective
        .count("compute.threads")
        .map_or(request.machine.cores, |threads| {
            usize::try_from(threads.saturating_mul(n_executors)).unwrap_or(usize::MAX)
        });
    let mut settings = settings::Settings {
        compute_threads: threads.clamp(1, request.machine.cores.max(1)),
        storage: storage(spec)?,
        cache_dir: cache_dir(),
        preview_rows: request.preview_rows,
        deterministic: effective
            .switch("accelerator.deterministic")
            .unwrap_or(false),
        join_order: effective.switch("plan.join_order").unwrap_or(true),
        ..settings::Settings::default()
    };
    if let Some(threads) = effective.count("scan.reader_threads") {
        settings.reader_threads = usize::try_from(threads.max(1)).unwrap_or(usize::MAX);
    }
    if let Some(mib) = effective.count("memory.pool_mib") {
        settings.memory_limit_bytes = mib.saturating_mul(n_executors).saturating_mul(1 << 20);
    }
    if let Some(memory) = request.machine.memory_bytes {
        settings.memory_limit_bytes = settings.memory_limit_bytes.min(memory);
    }
    if let Some(gb) = effective.count("spill.limit_gb") {
        settings.spill_limit_bytes = gb.saturating_mul(n_executors).saturating_mul(1 << 30);
    }
    if effective.text("accelerator.fallback") == Some("fail") {
        settings.fallback = settings::FallbackPolicy::Fail;
    }
    settings.explain = match effective.text("explain.mode") {
        Some("ALL") => settings::ExplainMode::All,
        Some("NONE") => settings::ExplainMode::None,
        _ => settings::ExplainMode::NotOnGpu,
    };
    Ok(settings)
}

fn ttl(effective: &Effective) -> Option<Duration> {
    effective.count("limits.ttl_s").map(Duration::from_secs)
}
