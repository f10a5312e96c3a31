//! Pages that are not what the format allows: each is an error that names file, column,
//! row group and page, and whatever the bytes are, the decoder ends and stays inside.

use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::DataType;
use kernels::error::Error;
use kernels::ir::Type;
use kernels::parquet::{Encoding, PageKind, Physical};
use parquet::arrow::ArrowWriter;
use parquet::basic::Encoding as FileEncoding;
use parquet::file::properties::{WriterProperties, WriterVersion};

use crate::files::{Body, Column, Device, column};

fn page(kind: PageKind, encoding: Encoding, n_values: u32, bytes: &[u8]) -> Body {
    Body {
        kind,
        encoding,
        n_values,
        bytes: bytes.to_vec(),
    }
}

/// A required column of one row group whose pages are these.
fn required(physical: Physical, ty: Type, n_rows: usize, pages: Vec<Body>) -> Column {
    Column {
        name: "c".into(),
        physical,
        ty,
        is_optional: false,
        chunks: vec![(n_rows, pages)],
    }
}

fn optional(column: Column) -> Column {
    Column {
        is_optional: true,
        ..column
    }
}

/// A delta encoding of blocks of 128 in 4 miniblocks: so many values, the first, then this.
fn delta(n: u8, first: u8, rest: &[u8]) -> Vec<u8> {
    [&[0x80, 1, 4, n, first], rest].concat()
}

pub fn each_fault_is_named(device: &mut Device) {
    use Encoding::*;
    use PageKind::{DataV1, DataV2, Dictionary as Entries};
    let v1 = |encoding, n, bytes: &[u8]| vec![page(DataV1, encoding, n, bytes)];
    let ints = |n, pages| {
        required(
            Physical::Int32,
            Type::Int(kernels::ir::IntWidth::W32),
            n,
            pages,
        )
    };
    let texts = |n, pages| required(Physical::ByteArray, Type::Utf8, n, pages);
    let small = Type::Int(kernels::ir::IntWidth::W8);
    let decimal = Type::Decimal {
        precision: 2,
        scale: 0,
    };
    let coded = |index: &[u8]| {
        vec![
            page(Entries, Plain, 1, &[7, 0, 0, 0]),
            page(DataV1, Dictionary, 2, index),
        ]
    };
    let cases: Vec<(&str, Column)> = vec![
        (
            "data page 0: the values end before the last one",
            ints(2, v1(Plain, 2, &[1, 0, 0, 0, 2, 0, 0])),
        ),
        (
            "data page 0: the definition levels end before the last value",
            optional(ints(2, v1(Plain, 2, &[1, 0]))),
        ),
        (
            "data page 0: the definition levels end before the last value",
            optional(ints(2, v1(Plain, 2, &[255, 255, 255, 255, 0]))),
        ),
        (
            "data page 0: the definition levels end before the last value",
            optional(ints(3, v1(Plain, 3, &[2, 0, 0, 0, 4, 1]))),
        ),
        (
            "data page 0: a definition level is above the column's largest",
            optional(ints(2, v1(Plain, 2, &[2, 0, 0, 0, 4, 3]))),
        ),
        (
            "data page 0: the levels reach past the end of the page",
            optional(ints(
                1,
                vec![page(DataV2 { level_bytes: 9 }, Plain, 1, &[1])],
            )),
        ),
        (
            "data page 0: an index is past the end of the dictionary",
            ints(2, coded(&[1, 4, 1])),
        ),
        (
            "data page 0: indices have more than 32 bits",
            ints(2, coded(&[33, 4, 1])),
        ),
        (
            "data page 0: the values end before the last one",
            ints(2, coded(&[1, 2, 0])),
        ),
        (
            "data page 0: the values end before the last one",
            ints(2, coded(&[])),
        ),
        (
            "data page 0: indices without a dictionary",
            ints(2, v1(Dictionary, 2, &[1, 4, 0])),
        ),
        (
            "data page 0: the delta encoding is cut off",
            ints(3, v1(DeltaBinaryPacked, 3, &delta(3, 2, &[]))),
        ),
        (
            "data page 0: the delta encoding is cut off",
            ints(3, v1(DeltaBinaryPacked, 3, &delta(2, 2, &[0, 0, 0, 0, 0]))),
        ),
        (
            "data page 0: the delta encoding is cut off",
            ints(3, v1(DeltaBinaryPacked, 3, &delta(3, 2, &[0, 33, 0, 0, 0]))),
        ),
        (
            "data page 0: the delta encoding is cut off",
            ints(3, v1(DeltaBinaryPacked, 3, &[0x80, 1, 0, 3, 2])),
        ),
        (
            "data page 0: the delta encoding is cut off",
            ints(3, v1(DeltaBinaryPacked, 3, &[0x80; 30])),
        ),
        (
            "data page 0: a length reaches past the end of the page",
            texts(1, v1(Plain, 1, &[5, 0, 0, 0, b'a'])),
        ),
        (
            "data page 0: the values end before the last one",
            texts(2, v1(Plain, 2, &[1, 0, 0, 0, b'a', 0])),
        ),
        (
            "data page 0: a length reaches past the end of the page",
            texts(
                1,
                v1(
                    DeltaLengthByteArray,
                    1,
                    &[&delta(1, 4, &[])[..], b"a"].concat(),
                ),
            ),
        ),
        (
            "data page 0: a length reaches past the end of the page",
            texts(
                1,
                v1(
                    DeltaLengthByteArray,
                    1,
                    &[&delta(1, 3, &[])[..], b"a"].concat(),
                ),
            ),
        ),
        (
            "data page 0: a value starts with more bytes than the value before it has",
            texts(
                1,
                v1(
                    DeltaByteArray,
                    1,
                    &[&delta(1, 2, &[])[..], &delta(1, 2, b"a")].concat(),
                ),
            ),
        ),
        (
            "data page 0: text is not UTF-8",
            texts(1, v1(Plain, 1, &[2, 0, 0, 0, 0xc0, 0x80])),
        ),
        (
            "data page 0: text is not UTF-8",
            texts(1, v1(Plain, 1, &[3, 0, 0, 0, 0xed, 0xa0, 0x80])),
        ),
        (
            "dictionary page: a dictionary has fewer bytes than values",
            ints(
                1,
                vec![
                    page(Entries, Plain, 9, &[0; 4]),
                    page(DataV1, Plain, 1, &[0; 4]),
                ],
            ),
        ),
        (
            "dictionary page: a length reaches past the end of the page",
            texts(
                1,
                vec![
                    page(Entries, Plain, 1, &[9, 0, 0, 0]),
                    page(DataV1, Dictionary, 1, &[0, 2]),
                ],
            ),
        ),
        (
            "dictionary page: a dictionary is not in PLAIN encoding",
            ints(
                1,
                vec![
                    page(Entries, DeltaBinaryPacked, 1, &[0; 4]),
                    page(DataV1, Plain, 1, &[0; 4]),
                ],
            ),
        ),
        (
            "data page 0: the values have an encoding that their type has not",
            ints(1, v1(DeltaByteArray, 1, &[0; 4])),
        ),
        (
            "data page 0: a length reaches past the end of the page",
            ints(1, v1(ByteStreamSplit, 1, &[0; 5])),
        ),
        (
            "data page 0: the value 300 does not fit i8",
            required(Physical::Int32, small, 1, v1(Plain, 1, &[44, 1, 0, 0])),
        ),
        (
            "data page 0: the value 300 does not fit decimal(2,0)",
            required(Physical::Int32, decimal, 1, v1(Plain, 1, &[44, 1, 0, 0])),
        ),
        (
            "data page 0: a value does not fit the column's type",
            required(
                Physical::ByteArray,
                decimal,
                1,
                v1(Plain, 1, &[2, 0, 0, 0, 1, 44]),
            ),
        ),
        (
            "data page 0: a decimal has no bytes",
            required(Physical::ByteArray, decimal, 1, v1(Plain, 1, &[0; 4])),
        ),
        (
            "all pages: 1 values for 2 rows",
            ints(2, v1(Plain, 1, &[0; 4])),
        ),
        (
            "data page 0: the pages have more values than the row group has rows",
            ints(1, v1(Plain, 2, &[0; 8])),
        ),
        ("all pages: 0 values for 2 rows", ints(2, vec![])),
    ];
    for (wanted, mut column) in cases {
        // A row group before it shows that the right one is named.
        let first = match column.physical {
            Physical::Int32 => page(DataV2 { level_bytes: 0 }, Plain, 1, &[1, 0, 0, 0]),
            _ => page(DataV2 { level_bytes: 0 }, Plain, 1, &[1, 0, 0, 0, 1]),
        };
        let first = match column.is_optional {
            true => page(DataV2 { level_bytes: 2 }, Plain, 1, &[2, 0]),
            false => first,
        };
        column.chunks.insert(0, (1, vec![first]));
        let error = column.decoded(device).expect_err(wanted);
        let message = error.to_string();
        let whole = format!("memory.parquet: column c, row group 1, {wanted}");
        assert!(message.starts_with(&whole), "{message}, not {whole}");
        assert!(matches!(error, Error::MalformedPage(_)));
    }
}

/// A generator of numbers: the same on every run.
pub struct Random(pub u64);

impl Random {
    /// A number below that.
    pub fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }
}

/// Columns of every encoding, in small pages.
fn seeds() -> Vec<Column> {
    let n = 300usize;
    let is_there = |row: usize| row % 7 != 3;
    let ints: ArrayRef = Arc::new(
        (0..n)
            .map(|r| is_there(r).then_some((r * r) as i32))
            .collect::<Int32Array>(),
    );
    let longs: ArrayRef = Arc::new(
        (0..n)
            .map(|r| is_there(r).then_some((r * 77) as i64))
            .collect::<Int64Array>(),
    );
    let bools: ArrayRef = Arc::new(
        (0..n)
            .map(|r| is_there(r).then_some(r % 3 == 0))
            .collect::<BooleanArray>(),
    );
    let doubles: ArrayRef = Arc::new(
        (0..n)
            .map(|r| is_there(r).then_some(r as f64))
            .collect::<Float64Array>(),
    );
    let texts: ArrayRef = Arc::new(
        (0..n)
            .map(|r| is_there(r).then(|| format!("tëxt {}", r / 3)))
            .collect::<StringArray>(),
    );
    let decimals = (0..n).map(|r| is_there(r).then_some(r as i128 * 12_345_678_901_234_567_890));
    let decimals = decimals.collect::<Decimal128Array>();
    let decimals: ArrayRef = Arc::new(decimals.with_precision_and_scale(38, 2).unwrap());
    use FileEncoding::*;
    let all = [
        (
            ints,
            vec![
                None,
                Some(PLAIN),
                Some(DELTA_BINARY_PACKED),
                Some(BYTE_STREAM_SPLIT),
            ],
        ),
        (longs, vec![None, Some(DELTA_BINARY_PACKED)]),
        (bools, vec![Some(PLAIN), Some(RLE)]),
        (doubles, vec![Some(PLAIN), Some(BYTE_STREAM_SPLIT)]),
        (
            texts,
            vec![
                None,
                Some(PLAIN),
                Some(DELTA_LENGTH_BYTE_ARRAY),
                Some(DELTA_BYTE_ARRAY),
            ],
        ),
        (decimals, vec![None, Some(PLAIN), Some(DELTA_BYTE_ARRAY)]),
    ];
    let mut columns = Vec::new();
    for (array, encodings) in &all {
        for encoding in encodings {
            for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                let mut properties = WriterProperties::builder()
                    .set_writer_version(version)
                    .set_dictionary_enabled(encoding.is_none())
                    .set_data_page_row_count_limit(120)
                    .set_write_batch_size(60);
                if let Some(encoding) = encoding {
                    properties = properties.set_encoding(*encoding);
                }
                let rows = RecordBatch::try_from_iter([("c", array.clone())]).unwrap();
                let mut file = Vec::new();
                let properties = Some(properties.build());
                let mut writer =
                    ArrowWriter::try_new(&mut file, rows.schema(), properties).unwrap();
                writer.write(&rows).unwrap();
                writer.close().unwrap();
                let data_type: &DataType = array.data_type();
                columns.push(column(&file.into(), 0, data_type));
            }
        }
    }
    columns
}

/// Changes some bytes of some page, cuts it off, or changes what its header says.
fn mutate(column: &mut Column, random: &mut Random) {
    for _ in 0..1 + random.next(3) {
        let (_, pages) = &mut column.chunks[0];
        let at = random.next(pages.len());
        let body = &mut pages[at];
        let n = body.bytes.len();
        // The first bytes hold levels and headers: most faults are there.
        let place = match random.next(2) {
            0 => random.next(n.min(24)),
            _ => random.next(n),
        };
        match random.next(12) {
            0 => body.bytes.truncate(place),
            1 => body.bytes.extend((0..random.next(40)).map(|b| b as u8)),
            2 => {
                let level_bytes = random.next(2 * n + 1) as u32;
                if let PageKind::DataV2 { .. } = body.kind {
                    body.kind = PageKind::DataV2 { level_bytes };
                }
            }
            3 => {
                let all = [
                    Encoding::Plain,
                    Encoding::Dictionary,
                    Encoding::Rle,
                    Encoding::DeltaBinaryPacked,
                    Encoding::DeltaLengthByteArray,
                    Encoding::DeltaByteArray,
                    Encoding::ByteStreamSplit,
                ];
                body.encoding = all[random.next(all.len())];
            }
            4 => {
                let n_values = body.n_values as usize;
                body.n_values = random.next(2 * n_values) as u32;
            }
            5..8 if n > 0 => body.bytes[place] ^= 1 << random.next(8),
            8 if n > 0 => body.bytes[place] = 0xff,
            9 if n > 0 => body.bytes[place] = 0,
            _ if n > 0 => body.bytes[place] = random.next(256) as u8,
            _ => {}
        }
    }
}

pub fn whatever_the_bytes_are_the_decoder_ends_and_stays_inside(device: &mut Device) {
    let seeds = seeds();
    let mut random = Random(0x5eed_cafe_f00d_0001);
    let (mut n_errors, mut n_values) = (0, 0);
    let n_rounds = if device.is_slow() { 1200 } else { 12_000 };
    for round in 0..n_rounds {
        let mut column = seeds[round % seeds.len()].clone();
        mutate(&mut column, &mut random);
        match column.decoded(device) {
            // Changed bytes of values may still be values.
            Ok(array) => n_values += usize::from(array.len() == 300),
            Err(Error::MalformedPage(error)) => {
                assert_eq!(error.file, "memory.parquet");
                assert_eq!(error.row_group, 0);
                n_errors += 1;
            }
            Err(Error::Unsupported(_) | Error::OutOfMemory(_)) => n_errors += 1,
            Err(error) => panic!("round {round}: {error}"),
        }
    }
    assert!(
        n_errors > n_rounds / 4 && n_values > n_rounds / 12,
        "{n_errors} errors, {n_values} arrays"
    );
}
