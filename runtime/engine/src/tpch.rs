//! The TPC-H tables, generated as Parquet on first use.
//!
//! A table is a directory of part files. Parts are made in parallel; each worker
//! holds one row group, so memory does not grow with the scale. A table appears
//! under its name only when all its parts are on disk: a killed run leaves a hidden
//! directory that the next one removes, and finished tables are not made again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchReader};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_writer::ArrowWriterOptions;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;
use std::sync::Arc;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use crate::error::{Error, Result, find_source};
use crate::words::{clean, io_problem};

/// The tables, smallest first.
pub const TABLES: [&str; 8] = [
    "region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem",
];

/// Uncompressed bytes of a row group, at least, unless the table is smaller.
const ROW_GROUP_BYTES: u64 = 128 << 20;
/// Row groups in a part file, at most.
const ROW_GROUPS_MAX: u64 = 4;

/// Rows of a table at scale 1, and its uncompressed Parquet bytes per row.
fn shape(table: &str) -> Option<(f64, u64)> {
    Some(match table {
        "region" => (5.0, 200),
        "nation" => (25.0, 150),
        "supplier" => (10_000.0, 160),
        "customer" => (150_000.0, 165),
        "part" => (200_000.0, 68),
        "partsupp" => (800_000.0, 138),
        "orders" => (1_500_000.0, 74),
        "lineitem" => (6_000_000.0, 62),
        _ => return None,
    })
}

/// What generation has done so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The table that is being made.
    pub table: &'static str,
    /// Parts that are done, of this table.
    pub n_parts_done: usize,
    /// Parts in all, of this table.
    pub n_parts: usize,
}

/// Makes all tables below `dir`, each in a directory of its name, until `stop` is set.
pub fn generate(
    scale: f64,
    dir: &Path,
    parallelism: usize,
    progress: &(dyn Fn(Progress) + Sync),
    stop: &AtomicBool,
) -> Result<()> {
    for table in TABLES {
        generate_table(scale, table, dir, parallelism, progress, stop)?;
    }
    Ok(())
}

/// Makes one table below `dir` unless it is there, and returns its directory. Once `stop`
/// is set it ends with [`Error::Cancelled`] and leaves nothing.
pub fn generate_table(
    scale: f64,
    table: &str,
    dir: &Path,
    parallelism: usize,
    progress: &(dyn Fn(Progress) + Sync),
    stop: &AtomicBool,
) -> Result<PathBuf> {
    let name = TABLES.iter().find(|name| **name == table);
    let (Some(name), Some((rows_at_one, bytes_per_row))) = (name, shape(table)) else {
        return Err(Error::Location {
            location: format!("tpch://{scale}/{table}"),
            problem: format!("there is no such table; there are {}", TABLES.join(", ")),
        });
    };
    if !(scale > 0.0 && scale <= 100_000.0) {
        return Err(Error::Location {
            location: format!("tpch://{scale}/{table}"),
            problem: "the scale must be above 0 and at most 100000".into(),
        });
    }
    let done = dir.join(name);
    if done.is_dir() {
        return Ok(done);
    }
    std::fs::create_dir_all(dir).map_err(|error| Error::io("create", dir, error))?;
    sweep(dir, name);
    let staging = tempfile::Builder::new()
        .prefix(&format!(".{name}-"))
        .tempdir_in(dir)
        .map_err(|error| Error::io("create a directory in", dir, error))?;

    let n_rows = if matches!(*name, "region" | "nation") {
        rows_at_one
    } else {
        rows_at_one * scale
    } as u64;
    let rows_per_group = ROW_GROUP_BYTES / bytes_per_row;
    let n_groups = (n_rows / rows_per_group).max(1);
    let n_parts = n_groups
        .div_ceil(ROW_GROUPS_MAX)
        .max(n_groups.min(4 * parallelism as u64)) as usize;
    // Parts are not exactly equal; the margin keeps a small rest from becoming a row group.
    let groups_per_part = (n_groups / n_parts as u64).max(1);
    let rows_per_group = (n_rows / n_parts as u64 / groups_per_part + n_rows / 50 + 1024) as usize;

    let tell = |n_parts_done| {
        progress(Progress {
            table: name,
            n_parts_done,
            n_parts,
        });
    };
    tell(0);
    let next_part = AtomicUsize::new(0);
    let n_done = AtomicU64::new(0);
    let failure = std::sync::Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..parallelism.clamp(1, n_parts) {
            scope.spawn(|| {
                loop {
                    let part = next_part.fetch_add(1, Ordering::Relaxed);
                    if part >= n_parts || failure.lock().is_ok_and(|failure| failure.is_some()) {
                        return;
                    }
                    let path = staging.path().join(format!("part-{part:05}.parquet"));
                    let written = write_part(
                        &path,
                        scale,
                        name,
                        part as i32 + 1,
                        n_parts as i32,
                        rows_per_group,
                        stop,
                    );
                    if let (Err(error), Ok(mut failure)) = (written, failure.lock()) {
                        failure.get_or_insert(error);
                        return;
                    }
                    let n_parts_done = n_done.fetch_add(1, Ordering::Relaxed) as usize + 1;
                    tell(n_parts_done);
                }
            });
        }
    });
    if let Ok(Some(error)) = failure.into_inner() {
        return Err(error);
    }
    let staging = staging.keep();
    sync_directory(&staging)?;
    match std::fs::rename(&staging, &done) {
        Ok(()) => {}
        // Another run was first; its table is the same.
        Err(_) if done.is_dir() => {
            let _ = std::fs::remove_dir_all(&staging);
        }
        Err(error) => {
            let _ = std::fs::remove_dir_all(&staging);
            return Err(Error::io("publish", &done, error));
        }
    }
    sync_directory(dir)?;
    Ok(done)
}

/// Removes what runs that were killed more than a day ago have left.
fn sweep(dir: &Path, table: &str) {
    const ABANDONED_AFTER: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let is_ours = entry
            .file_name()
            .to_string_lossy()
            .starts_with(&format!(".{table}-"));
        let is_old = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > ABANDONED_AFTER));
        if is_ours && is_old {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn sync_directory(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| Error::io("write", dir, error))
}

fn reader(scale: f64, table: &str, part: i32, n_parts: i32) -> Box<dyn RecordBatchReader + Send> {
    match table {
        "region" => Box::new(RegionArrow::new(RegionGenerator::new(scale, part, n_parts))),
        "nation" => Box::new(NationArrow::new(NationGenerator::new(scale, part, n_parts))),
        "supplier" => Box::new(SupplierArrow::new(SupplierGenerator::new(
            scale, part, n_parts,
        ))),
        "customer" => Box::new(CustomerArrow::new(CustomerGenerator::new(
            scale, part, n_parts,
        ))),
        "part" => Box::new(PartArrow::new(PartGenerator::new(scale, part, n_parts))),
        "partsupp" => Box::new(PartSuppArrow::new(PartSuppGenerator::new(
            scale, part, n_parts,
        ))),
        "orders" => Box::new(OrderArrow::new(OrderGenerator::new(scale, part, n_parts))),
        _ => Box::new(LineItemArrow::new(LineItemGenerator::new(
            scale, part, n_parts,
        ))),
    }
}

/// The schema with plain strings.
fn plain(schema: &Schema) -> SchemaRef {
    let fields: Vec<Field> = schema
        .fields()
        .iter()
        .map(|field| match field.data_type() {
            DataType::Utf8View => field.as_ref().clone().with_data_type(DataType::Utf8),
            _ => field.as_ref().clone(),
        })
        .collect();
    Arc::new(Schema::new(fields))
}

fn write_part(
    path: &Path,
    scale: f64,
    table: &str,
    part: i32,
    n_parts: i32,
    rows_per_group: usize,
    stop: &AtomicBool,
) -> Result<()> {
    let failed = |error: &(dyn std::error::Error + 'static)| {
        // A full disk comes as the writer's error.
        let source = match find_source::<std::io::Error>(error) {
            Some(io) => std::io::Error::new(io.kind(), io_problem(io)),
            None => std::io::Error::other(clean(&error.to_string())),
        };
        Error::io("write", path, source)
    };
    let file = File::create(path).map_err(|error| Error::io("create", path, error))?;
    let batches = reader(scale, table, part, n_parts);
    let schema = plain(&batches.schema());
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(
            ZstdLevel::try_new(1).map_err(|error| failed(&error))?,
        ))
        .set_max_row_group_row_count(Some(rows_per_group))
        .build();
    let options = ArrowWriterOptions::new()
        .with_properties(properties)
        .with_skip_arrow_metadata(true);
    let mut writer = ArrowWriter::try_new_with_options(file, Arc::clone(&schema), options)
        .map_err(|error| failed(&error))?;
    for batch in batches {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let batch = batch
            .and_then(|batch| plain_batch(&batch, &schema))
            .map_err(|error| failed(&error))?;
        writer.write(&batch).map_err(|error| failed(&error))?;
    }
    let file = writer.into_inner().map_err(|error| failed(&error))?;
    file.sync_all()
        .map_err(|error| Error::io("write", path, error))
}

fn plain_batch(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let columns: Vec<ArrayRef> = batch
        .columns()
        .iter()
        .zip(schema.fields())
        .map(|(column, field)| cast(column, field.data_type()))
        .collect::<Result<_, _>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns)
}
