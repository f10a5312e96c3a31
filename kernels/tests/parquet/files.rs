//! Files in memory: the pages of their columns as the decoder takes them, and the same
//! columns as the `parquet` crate's Arrow reader gives them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::{cast, concat};
use arrow::datatypes::DataType;
use bytes::Bytes;
use kernels::columns::{read_column, type_of};
use kernels::error::Error;
use kernels::gpu::{DeviceBuffer, Gpu, Target};
use kernels::ir::Type;
use kernels::jit::Jit;
use kernels::parquet::{ColumnChunk, ColumnPages, Decoder, Encoding, Page, PageKind, Physical};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Encoding as FileEncoding, Type as FileType};
use parquet::column::page::{Page as FilePage, PageReader};
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::{SerializedFileReader, SerializedPageReader};

/// A device with a decoder on it.
pub struct Device {
    pub gpu: Arc<dyn Gpu>,
    pub decoder: Decoder,
}

impl Device {
    /// Whether it takes its time: fewer cases must do.
    pub fn is_slow(&self) -> bool {
        let info = self.gpu.info();
        info.target == Target::Host && info.warp_lanes > 1
    }

    pub fn new(gpu: Arc<dyn Gpu>) -> Device {
        let decoder = Decoder::new(&gpu, &Arc::new(Jit::new(None))).unwrap();
        Device { gpu, decoder }
    }
}

/// The body of a page before it is on the device.
#[derive(Clone)]
pub struct Body {
    pub kind: PageKind,
    pub encoding: Encoding,
    pub n_values: u32,
    pub bytes: Vec<u8>,
}

/// A column before it is on the device.
#[derive(Clone)]
pub struct Column {
    pub name: String,
    pub physical: Physical,
    pub ty: Type,
    pub is_optional: bool,
    /// For each row group its number of rows, and its pages.
    pub chunks: Vec<(usize, Vec<Body>)>,
}

fn encoding(encoding: FileEncoding) -> Encoding {
    match encoding {
        FileEncoding::PLAIN => Encoding::Plain,
        FileEncoding::PLAIN_DICTIONARY | FileEncoding::RLE_DICTIONARY => Encoding::Dictionary,
        FileEncoding::RLE => Encoding::Rle,
        FileEncoding::DELTA_BINARY_PACKED => Encoding::DeltaBinaryPacked,
        FileEncoding::DELTA_LENGTH_BYTE_ARRAY => Encoding::DeltaLengthByteArray,
        FileEncoding::DELTA_BYTE_ARRAY => Encoding::DeltaByteArray,
        FileEncoding::BYTE_STREAM_SPLIT => Encoding::ByteStreamSplit,
        other => panic!("{other}"),
    }
}

fn body(page: FilePage) -> Body {
    let (kind, encoding) = match &page {
        FilePage::DictionaryPage { .. } => (PageKind::Dictionary, Encoding::Plain),
        FilePage::DataPage { encoding: e, .. } => (PageKind::DataV1, encoding(*e)),
        FilePage::DataPageV2 {
            encoding: e,
            def_levels_byte_len,
            ..
        } => (
            PageKind::DataV2 {
                level_bytes: *def_levels_byte_len,
            },
            encoding(*e),
        ),
    };
    Body {
        kind,
        encoding,
        n_values: page.num_values(),
        bytes: page.buffer().to_vec(),
    }
}

/// The column of this number in a file, as this Arrow type.
pub fn column(file: &Bytes, index: usize, data_type: &DataType) -> Column {
    let reader = SerializedFileReader::new(file.clone()).unwrap();
    let metadata = reader.metadata();
    let described = metadata.file_metadata().schema_descr().column(index);
    let physical = match described.physical_type() {
        FileType::BOOLEAN => Physical::Boolean,
        FileType::INT32 => Physical::Int32,
        FileType::INT64 => Physical::Int64,
        FileType::INT96 => Physical::Int96,
        FileType::FLOAT => Physical::Float,
        FileType::DOUBLE => Physical::Double,
        FileType::BYTE_ARRAY => Physical::ByteArray,
        FileType::FIXED_LEN_BYTE_ARRAY => {
            Physical::FixedLenByteArray(described.type_length() as usize)
        }
    };
    let ty = match data_type {
        DataType::Float16 => Type::Float32,
        other => type_of(other).unwrap(),
    };
    let chunks = metadata.row_groups().iter().map(|group| {
        let n_rows = group.num_rows() as usize;
        let chunk = Arc::new(file.clone());
        let mut pages =
            SerializedPageReader::new(chunk, group.column(index), n_rows, None).unwrap();
        let mut bodies = Vec::new();
        while let Some(page) = pages.get_next_page().unwrap() {
            bodies.push(body(page));
        }
        (n_rows, bodies)
    });
    Column {
        name: described.path().string(),
        physical,
        ty,
        is_optional: described.max_def_level() == 1,
        chunks: chunks.collect(),
    }
}

impl Column {
    /// Brings the pages to the device, at odd addresses.
    pub fn on(&self, device: &Device) -> ColumnPages {
        let stream = device.decoder.stream();
        let numbered = self.chunks.iter().enumerate();
        let chunks = numbered.map(|(number, (n_rows, bodies))| {
            let mut all = Vec::new();
            let pages = bodies.iter().map(|body| {
                all.push(0xee);
                let start = all.len();
                all.extend_from_slice(&body.bytes);
                Page {
                    kind: body.kind,
                    encoding: body.encoding,
                    n_values: body.n_values,
                    bytes: start..all.len(),
                }
            });
            let pages = pages.collect();
            ColumnChunk {
                file: "memory.parquet".into(),
                row_group: number,
                n_rows: *n_rows,
                pages,
                bytes: DeviceBuffer::from_slice(&device.gpu, stream, &all).unwrap(),
            }
        });
        ColumnPages {
            name: self.name.clone(),
            physical: self.physical,
            ty: self.ty,
            is_optional: self.is_optional,
            chunks: chunks.collect(),
        }
    }

    /// What the decoder makes of it, at home again.
    pub fn decoded(&self, device: &mut Device) -> Result<ArrayRef, Error> {
        let pages = self.on(device);
        let decoded = device.decoder.decode(&pages, None)?;
        let n_rows = pages.n_rows();
        let array = read_column(device.decoder.stream(), &decoded.column, n_rows, self.ty)?;
        assert_eq!(array.null_count(), decoded.n_nulls);
        Ok(array)
    }
}

/// The rows of a file as the `parquet` crate reads them. INT96 is read in microseconds.
pub fn expected(file: &Bytes) -> RecordBatch {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone()).unwrap();
    let schema = builder.schema().clone();
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
    arrow::compute::concat_batches(&schema, &batches).unwrap()
}

/// The array as the decoder gives it: half floats are floats.
pub fn as_decoded(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Float16 => cast(array, &DataType::Float32).unwrap(),
        _ => concat(&[array.as_ref()]).unwrap(),
    }
}
