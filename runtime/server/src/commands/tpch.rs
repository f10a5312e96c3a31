//! `warpline tpch generate`: the eight tables of TPC-H as Parquet files.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::error::ArrowError;
use arrow::record_batch::RecordBatchReader;
use engine::words::io_problem;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use crate::arguments::Generate;
use crate::exit::Exit;
use crate::progress;

const RECORD_BATCH_ROWS: usize = 8 * 1024;

/// The tables, largest first so that no thread is left with a large one at the end.
const TABLES: [&str; 8] = [
    "lineitem", "orders", "partsupp", "part", "customer", "supplier", "nation", "region",
];

/// Why data could not be made.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot write `{}`: {}", path.display(), io_problem(source))]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot encode {path}: {source}")]
    Encode {
        path: PathBuf,
        source: parquet::errors::ParquetError,
    },
    #[error("cannot make the rows of {table}: {source}")]
    Rows {
        table: &'static str,
        source: ArrowError,
    },
}

/// One file to write: part `part` (from 1) of `n_parts` of a table.
struct Piece {
    table: &'static str,
    part: i32,
    n_parts: i32,
}

/// Runs the command.
pub fn generate(arguments: &Generate) -> Exit {
    let n_parts = arguments.parallel.map_or_else(
        || std::thread::available_parallelism().map_or(1, |cores| cores.get().min(1024) as i32),
        i32::from,
    );
    match write_tables(arguments.scale, &arguments.output, n_parts) {
        Ok(()) => {
            eprintln!(
                "wrote TPC-H at scale factor {} to {}",
                arguments.scale,
                arguments.output.display()
            );
            Exit::Done
        }
        Err(error) => {
            eprintln!("error: {error}");
            Exit::Failed
        }
    }
}

/// Writes every piece with `n_parts` threads. The first error stops the others after
/// the record batch they are at.
fn write_tables(scale: f64, folder: &Path, n_parts: i32) -> Result<(), Error> {
    let mut pieces = Vec::new();
    for table in TABLES {
        let path = folder.join(table);
        fs::create_dir_all(&path).map_err(|source| Error::Write { path, source })?;
        let n_parts = if is_fixed_size(table) { 1 } else { n_parts };
        pieces.extend((1..=n_parts).map(|part| Piece {
            table,
            part,
            n_parts,
        }));
    }
    let bar = progress::bar("tpch", pieces.len() as u64);
    pieces.reverse();
    let pieces = Mutex::new(pieces);
    let failure = Mutex::new(None);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..n_parts {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let next = pieces.lock().expect("no holder panics").pop();
                    let Some(piece) = next else { break };
                    if let Err(error) = write_piece(scale, folder, &piece, &stop) {
                        stop.store(true, Ordering::Relaxed);
                        failure
                            .lock()
                            .expect("no holder panics")
                            .get_or_insert(error);
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    match failure.into_inner().expect("no holder panics") {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Whether the table has the same few rows at every scale.
fn is_fixed_size(table: &str) -> bool {
    matches!(table, "nation" | "region")
}

/// Writes one file under a temporary name and then gives it its own, so that a file
/// that is there is whole.
fn write_piece(scale: f64, folder: &Path, piece: &Piece, stop: &AtomicBool) -> Result<(), Error> {
    let path = folder
        .join(piece.table)
        .join(format!("{}-{:05}.parquet", piece.table, piece.part));
    let partial = path.with_extension("parquet.partial");
    let written = write_file(&partial, piece.table, rows(scale, piece), stop);
    if written.is_err() || stop.load(Ordering::Relaxed) {
        // What is left is not data; failing to remove it changes nothing about that.
        let _ = fs::remove_file(&partial);
        return written;
    }
    fs::rename(&partial, &path).map_err(|source| Error::Write { path, source })
}

fn write_file(
    path: &Path,
    table: &'static str,
    rows: Box<dyn RecordBatchReader>,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let encode = |source| Error::Encode {
        path: path.to_path_buf(),
        source,
    };
    let file = File::create(path).map_err(|source| Error::Write {
        path: path.to_path_buf(),
        source,
    })?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).map_err(encode)?;
    for record_batch in rows {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let record_batch = record_batch.map_err(|source| Error::Rows { table, source })?;
        writer.write(&record_batch).map_err(encode)?;
    }
    writer.close().map_err(encode)?;
    Ok(())
}

/// The rows of a piece.
fn rows(scale: f64, piece: &Piece) -> Box<dyn RecordBatchReader> {
    macro_rules! reader {
        ($table:ident, $generator:ident) => {
            Box::new(
                $table::new($generator::new(scale, piece.part, piece.n_parts))
                    .with_batch_size(RECORD_BATCH_ROWS),
            )
        };
    }
    match piece.table {
        "lineitem" => reader!(LineItemArrow, LineItemGenerator),
        "orders" => reader!(OrderArrow, OrderGenerator),
        "partsupp" => reader!(PartSuppArrow, PartSuppGenerator),
        "part" => reader!(PartArrow, PartGenerator),
        "customer" => reader!(CustomerArrow, CustomerGenerator),
        "supplier" => reader!(SupplierArrow, SupplierGenerator),
        "nation" => reader!(NationArrow, NationGenerator),
        "region" => reader!(RegionArrow, RegionGenerator),
        other => unreachable!("{other} is not in TABLES"),
    }
}
