//! Record batches to the bytes of one file.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::json::LineDelimitedWriter;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_writer::ArrowWriterOptions;
use datafusion::parquet::basic::{Compression as ParquetCompression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;

use crate::error::{Error, Result};
use crate::settings::{Compression, OutputFormat};
use crate::words::clean;

/// A row group is closed at this many rows, or once it holds this much.
const ROW_GROUP_ROWS_MAX: usize = 1 << 20;
const ROW_GROUP_BYTES_MAX: usize = 128 << 20;

/// What has been encoded and not yet written.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

enum Format {
    Parquet(Box<ArrowWriter<Buffer>>),
    Csv(Box<csv::Writer<Buffer>>),
    Json(Box<LineDelimitedWriter<Buffer>>),
}

/// One file in the making.
pub struct Encoder {
    format: Format,
    buffer: Buffer,
    n_bytes_taken: u64,
}

fn failed(error: &dyn std::fmt::Display) -> Error {
    Error::Data {
        message: format!(
            "the result cannot be written: {}",
            clean(&error.to_string())
        ),
    }
}

impl Encoder {
    /// Starts a file.
    pub fn new(format: OutputFormat, compression: Compression, schema: &SchemaRef) -> Result<Self> {
        let buffer = Buffer::default();
        let format = match format {
            OutputFormat::Parquet => {
                let compression = match compression {
                    Compression::None => ParquetCompression::UNCOMPRESSED,
                    Compression::Zstd => ParquetCompression::ZSTD(
                        ZstdLevel::try_new(1).map_err(|error| failed(&error))?,
                    ),
                    Compression::Snappy => ParquetCompression::SNAPPY,
                    Compression::Lz4 => ParquetCompression::LZ4_RAW,
                };
                let properties = WriterProperties::builder()
                    .set_compression(compression)
                    .set_max_row_group_row_count(Some(ROW_GROUP_ROWS_MAX))
                    .set_created_by(concat!("warpline ", env!("CARGO_PKG_VERSION")).to_owned())
                    .build();
                let options = ArrowWriterOptions::new().with_properties(properties);
                let writer =
                    ArrowWriter::try_new_with_options(buffer.clone(), Arc::clone(schema), options)
                        .map_err(|error| failed(&error))?;
                Format::Parquet(Box::new(writer))
            }
            OutputFormat::Csv => {
                let mut writer = csv::WriterBuilder::new()
                    .with_header(true)
                    .build(buffer.clone());
                // The header also stands in a file without rows.
                let empty = RecordBatch::new_empty(Arc::clone(schema));
                writer.write(&empty).map_err(|error| failed(&error))?;
                Format::Csv(Box::new(writer))
            }
            OutputFormat::Json => Format::Json(Box::new(LineDelimitedWriter::new(buffer.clone()))),
        };
        Ok(Self {
            format,
            buffer,
            n_bytes_taken: 0,
        })
    }

    /// Adds rows.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        match &mut self.format {
            Format::Parquet(writer) => {
                writer.write(batch).map_err(|error| failed(&error))?;
                if writer.memory_size() > ROW_GROUP_BYTES_MAX {
                    writer.flush().map_err(|error| failed(&error))?;
                }
                Ok(())
            }
            Format::Csv(writer) => writer.write(batch).map_err(|error| failed(&error)),
            Format::Json(writer) => writer.write(batch).map_err(|error| failed(&error)),
        }
    }

    /// Closes the open row group, to free memory.
    pub fn flush(&mut self) -> Result<()> {
        match &mut self.format {
            Format::Parquet(writer) => writer.flush().map_err(|error| failed(&error)),
            Format::Csv(_) | Format::Json(_) => Ok(()),
        }
    }

    /// The size the file would have if it were closed now, about.
    pub fn n_bytes(&self) -> u64 {
        let open = match &self.format {
            Format::Parquet(writer) => writer.in_progress_size() as u64,
            Format::Csv(_) | Format::Json(_) => 0,
        };
        self.n_bytes_taken + self.buffer.len() as u64 + open
    }

    /// Memory in use.
    pub fn memory_bytes(&self) -> usize {
        let open = match &self.format {
            Format::Parquet(writer) => writer.memory_size(),
            Format::Csv(_) | Format::Json(_) => 0,
        };
        open + self.buffer.len()
    }

    /// Encoded bytes, once there are enough to be worth a write.
    pub fn take_full(&mut self) -> Option<Vec<u8>> {
        const WORTH_A_WRITE: usize = 1 << 20;
        (self.buffer.len() >= WORTH_A_WRITE).then(|| self.take())
    }

    fn take(&mut self) -> Vec<u8> {
        let bytes = self.buffer.take();
        self.n_bytes_taken += bytes.len() as u64;
        bytes
    }

    /// Ends the file and returns its last bytes.
    pub fn finish(self) -> Result<Vec<u8>> {
        match self.format {
            Format::Parquet(writer) => {
                writer.close().map_err(|error| failed(&error))?;
            }
            Format::Csv(writer) => drop(writer.into_inner()),
            Format::Json(mut writer) => writer.finish().map_err(|error| failed(&error))?,
        }
        Ok(self.buffer.take())
    }
}
