//! Every type x encoding x null pattern x page version x page size.

use std::sync::Arc;

use arrow::array::types::{ArrowPrimitiveType, Float16Type};
use arrow::array::*;
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::Encoding;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};

use crate::files::{Device, as_decoded, column, expected};

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// Rows of a file that has default pages; more than one block of a delta encoding.
const N_ROWS: usize = 3001;

/// A column that may have one of these encodings, `None` for a dictionary.
struct Case {
    name: &'static str,
    /// The value of a row, before nulls.
    column: fn(&[Option<u64>]) -> ArrayRef,
    encodings: &'static [Option<Encoding>],
}

const INTEGERS: &[Option<Encoding>] = &[
    None,
    Some(Encoding::PLAIN),
    Some(Encoding::DELTA_BINARY_PACKED),
    Some(Encoding::BYTE_STREAM_SPLIT),
];
const FLOATS: &[Option<Encoding>] = &[
    None,
    Some(Encoding::PLAIN),
    Some(Encoding::BYTE_STREAM_SPLIT),
];
const BOOLEANS: &[Option<Encoding>] = &[Some(Encoding::PLAIN), Some(Encoding::RLE)];
const TEXTS: &[Option<Encoding>] = &[
    None,
    Some(Encoding::PLAIN),
    Some(Encoding::DELTA_LENGTH_BYTE_ARRAY),
    Some(Encoding::DELTA_BYTE_ARRAY),
];
const FIXED: &[Option<Encoding>] = &[
    None,
    Some(Encoding::PLAIN),
    Some(Encoding::DELTA_BYTE_ARRAY),
    Some(Encoding::BYTE_STREAM_SPLIT),
];

macro_rules! primitive {
    ($array:ident, |$v:ident| $value:expr) => {
        |rows| {
            let values = rows.iter().map(|row| row.map(|$v: u64| $value));
            Arc::new(values.collect::<$array>())
        }
    };
}

macro_rules! decimal {
    ($precision:literal, $scale:literal, |$v:ident| $value:expr) => {
        |rows| {
            let values = rows.iter().map(|row| row.map(|$v: u64| $value));
            let array = values.collect::<Decimal128Array>();
            Arc::new(array.with_precision_and_scale($precision, $scale).unwrap())
        }
    };
}

/// Values are a hash of the row, so they have no order; small ones repeat.
const CASES: &[Case] = &[
    Case {
        name: "bool",
        column: |rows| {
            let values = rows.iter().map(|row| row.map(|v| v % 7 < 3));
            Arc::new(values.collect::<BooleanArray>())
        },
        encodings: BOOLEANS,
    },
    Case {
        name: "long runs of bool",
        column: |rows| {
            let values = rows
                .iter()
                .enumerate()
                .map(|(at, row)| row.map(|_| at % 200 < 90));
            Arc::new(values.collect::<BooleanArray>())
        },
        encodings: BOOLEANS,
    },
    Case {
        name: "i8",
        column: primitive!(Int8Array, |v| v as i8),
        encodings: INTEGERS,
    },
    Case {
        name: "i16",
        column: primitive!(Int16Array, |v| v as i16),
        encodings: INTEGERS,
    },
    Case {
        name: "i32",
        column: primitive!(Int32Array, |v| v as i32),
        encodings: INTEGERS,
    },
    Case {
        name: "small i32",
        column: primitive!(Int32Array, |v| (v % 11) as i32 - 5),
        encodings: INTEGERS,
    },
    Case {
        name: "i64",
        column: primitive!(Int64Array, |v| v as i64),
        encodings: INTEGERS,
    },
    Case {
        name: "one i64",
        column: primitive!(Int64Array, |_v| -70_000),
        encodings: INTEGERS,
    },
    Case {
        name: "i64 in order",
        column: |rows| {
            let values = rows
                .iter()
                .enumerate()
                .map(|(at, row)| row.map(|v| at as i64 * 1000 + (v % 90) as i64));
            Arc::new(values.collect::<Int64Array>())
        },
        encodings: INTEGERS,
    },
    Case {
        name: "u8",
        column: primitive!(UInt8Array, |v| v as u8),
        encodings: INTEGERS,
    },
    Case {
        name: "u16",
        column: primitive!(UInt16Array, |v| v as u16),
        encodings: INTEGERS,
    },
    Case {
        name: "u32",
        column: primitive!(UInt32Array, |v| v as u32),
        encodings: INTEGERS,
    },
    Case {
        name: "u64",
        column: primitive!(UInt64Array, |v| v),
        encodings: INTEGERS,
    },
    Case {
        name: "f32",
        column: primitive!(Float32Array, |v| f32::from_bits(v as u32)),
        encodings: FLOATS,
    },
    Case {
        name: "f64",
        column: primitive!(Float64Array, |v| f64::from_bits(v)),
        encodings: FLOATS,
    },
    Case {
        name: "half",
        column: primitive!(Float16Array, |v| Half::from_bits(v as u16)),
        encodings: FIXED_HALF,
    },
    Case {
        name: "date",
        column: primitive!(Date32Array, |v| (v % 30_000) as i32 - 9000),
        encodings: INTEGERS,
    },
    Case {
        name: "timestamp(ms)",
        column: primitive!(TimestampMillisecondArray, |v| v as i64 >> 20),
        encodings: INTEGERS,
    },
    Case {
        name: "timestamp(us)",
        column: primitive!(TimestampMicrosecondArray, |v| v as i64 >> 10),
        encodings: INTEGERS,
    },
    Case {
        name: "timestamp(ns)",
        column: primitive!(TimestampNanosecondArray, |v| v as i64),
        encodings: INTEGERS,
    },
    Case {
        name: "decimal(7,2)",
        column: decimal!(7, 2, |v| (v % 19_999_999) as i128 - 9_999_999),
        encodings: INTEGERS,
    },
    Case {
        name: "decimal(15,2)",
        column: decimal!(15, 2, |v| (v % 2000) as i128 - 1000),
        encodings: INTEGERS,
    },
    Case {
        name: "decimal(38,10)",
        column: decimal!(38, 10, |v| (v as i64 as i128) * 1_000_000_000_000_000_003),
        encodings: FIXED,
    },
    Case {
        name: "narrow decimal(20,0)",
        column: decimal!(20, 0, |v| (v % 100) as i128 - 50),
        encodings: FIXED,
    },
    Case {
        name: "text",
        column: |rows| {
            let texts = rows.iter().map(|row| {
                row.map(|v| "abcdefghijklmnopqrstuvwxyz".repeat(9)[..(v % 77) as usize].to_string())
            });
            Arc::new(texts.collect::<StringArray>())
        },
        encodings: TEXTS,
    },
    Case {
        name: "few texts",
        column: |rows| {
            let texts = rows
                .iter()
                .map(|row| row.map(|v| ["", "a", "größer", "日本語", "𝄞"][(v % 5) as usize]));
            Arc::new(texts.collect::<StringArray>())
        },
        encodings: TEXTS,
    },
    Case {
        name: "texts with common starts",
        column: |rows| {
            let texts = rows
                .iter()
                .enumerate()
                .map(|(at, row)| row.map(|v| format!("customer/{:04}/{}", at / 7, v % 3)));
            Arc::new(texts.collect::<StringArray>())
        },
        encodings: TEXTS,
    },
];

const FIXED_HALF: &[Option<Encoding>] = &[
    None,
    Some(Encoding::PLAIN),
    Some(Encoding::BYTE_STREAM_SPLIT),
];

/// Whether a row is null.
type IsNull = fn(usize) -> bool;

/// `None`: the column is required.
const NULLS: &[(&str, Option<IsNull>)] = &[
    ("required", None),
    ("no nulls", Some(|_| false)),
    ("all null", Some(|_| true)),
    ("every third null", Some(|row| row % 3 == 1)),
    ("runs of nulls", Some(|row| row % 97 < 41)),
    ("few nulls", Some(|row| row % 500 == 499)),
];

/// Rows, and the most rows of a page.
const PAGES: &[(usize, usize)] = &[(0, 10), (1, 1), (67, 1), (501, 37), (N_ROWS, usize::MAX)];

fn hash(row: usize) -> u64 {
    let mixed = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn write(array: &ArrayRef, nullable: bool, properties: WriterProperties) -> Bytes {
    let field = Field::new("c", array.data_type().clone(), nullable);
    let schema = Arc::new(Schema::new(vec![field]));
    let rows = RecordBatch::try_new(schema.clone(), vec![array.clone()]).unwrap();
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, schema, Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    file.into()
}

pub fn columns_are_what_the_parquet_crate_reads(device: &mut Device) {
    let mut n_files = 0;
    for case in CASES {
        for (nulls, is_null) in NULLS {
            for (n_rows, page_rows) in PAGES {
                let rows: Vec<Option<u64>> = (0..*n_rows)
                    .map(|row| (!is_null.is_some_and(|is_null| is_null(row))).then(|| hash(row)))
                    .collect();
                let array = (case.column)(&rows);
                for encoding in case.encodings {
                    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                        n_files += 1;
                        // Of a number that no list here has as many members as.
                        if device.is_slow() && n_files % 7 != 0 {
                            continue;
                        }
                        let mut properties = WriterProperties::builder()
                            .set_writer_version(version)
                            .set_statistics_enabled(EnabledStatistics::None)
                            .set_dictionary_enabled(encoding.is_none())
                            .set_data_page_row_count_limit(*page_rows)
                            .set_write_batch_size((*page_rows).min(1024))
                            .set_max_row_group_row_count(Some(1400));
                        if let Some(encoding) = encoding {
                            properties = properties.set_encoding(*encoding);
                        }
                        let file = write(&array, is_null.is_some(), properties.build());
                        let context = format!(
                            "{}, {nulls}, {n_rows} rows, {page_rows} a page, {encoding:?}, {version:?}",
                            case.name
                        );
                        let pages = column(&file, 0, array.data_type());
                        let decoded = pages.decoded(device);
                        let decoded = decoded.unwrap_or_else(|e| panic!("{context}: {e}"));
                        let expected = as_decoded(expected(&file).column(0));
                        assert!(decoded.to_data() == expected.to_data(), "{context}");
                    }
                }
            }
        }
    }
    assert!(n_files > 5000, "{n_files}");
}

pub fn a_dictionary_that_overflows_goes_on_without_one(device: &mut Device) {
    let rows: Vec<Option<u64>> = (0..20_000)
        .map(|row| (row % 11 != 0).then(|| hash(row)))
        .collect();
    for case in CASES.iter().filter(|case| case.encodings[0].is_none()) {
        let properties = WriterProperties::builder()
            .set_dictionary_page_size_limit(2000)
            .set_data_page_row_count_limit(700)
            .set_write_batch_size(100)
            .build();
        let array = (case.column)(&rows);
        let file = write(&array, true, properties);
        let decoded = column(&file, 0, array.data_type()).decoded(device).unwrap();
        let expected = as_decoded(expected(&file).column(0));
        assert!(decoded.to_data() == expected.to_data(), "{}", case.name);
    }
}

/// Lengths are looked for in a window of the page: texts that are longer than it, and lengths
/// that lie across its end.
pub fn texts_of_all_lengths_are_found(device: &mut Device) {
    let texts = (0..3000usize).map(|row| {
        let n = match row % 50 {
            0 => 5000 + row,
            1..10 => 0,
            other => other * row % 97,
        };
        (row % 13 != 5).then(|| "lengths".repeat(n / 7 + 1)[..n].to_string())
    });
    let texts: ArrayRef = Arc::new(texts.collect::<StringArray>());
    let rows = RecordBatch::try_from_iter([("c", texts)]).unwrap();
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_data_page_row_count_limit(1777)
        .set_write_batch_size(100)
        .build();
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    let file = file.into();
    let decoded = column(&file, 0, &DataType::Utf8).decoded(device).unwrap();
    assert!(decoded.to_data() == expected(&file).column(0).to_data());
}
