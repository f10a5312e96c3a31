//! What Arrow's writer does not write: INT96, decimals as byte arrays, dictionary codes.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Int32Type, TimeUnit};
use bytes::Bytes;
use kernels::columns::read_column;
use kernels::ir::{IntWidth, Range, Type};
use kernels::parquet::PageKind;
use parquet::basic::Encoding;
use parquet::data_type::{ByteArray, ByteArrayType, DataType as FileDataType, Int96, Int96Type};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::files::{Device, column, expected};

/// The values of a row group, and its definition levels.
type Part<T> = (Vec<<T as FileDataType>::T>, Option<Vec<i16>>);

/// A file of one column; a row group for each of the parts.
fn write<T: FileDataType>(schema: &str, parts: &[Part<T>], properties: WriterProperties) -> Bytes {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, schema, Arc::new(properties)).unwrap();
    for (values, levels) in parts {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<T>()
            .write_batch(values, levels.as_deref(), None)
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    file.into()
}

fn versions() -> impl Iterator<Item = WriterProperties> {
    let all = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];
    let dictionary = [true, false];
    all.into_iter().flat_map(move |version| {
        dictionary.into_iter().map(move |dictionary| {
            WriterProperties::builder()
                .set_writer_version(version)
                .set_dictionary_enabled(dictionary)
                .set_encoding(Encoding::PLAIN)
                .set_data_page_row_count_limit(50)
                .set_write_batch_size(50)
                .build()
        })
    })
}

/// Nanoseconds of the day, then the Julian day.
fn int96(day: i64, nanos: u64) -> Int96 {
    let mut value = Int96::new();
    value.set_data(nanos as u32, (nanos >> 32) as u32, (day + 2_440_588) as u32);
    value
}

pub fn int96_is_read_in_the_unit_that_is_asked_for(device: &mut Device) {
    let days = [0i64, -719_162, 2_932_896, 18_000, -1];
    let nanos = [0u64, 1_000, 86_399_999_999_000, 43_200_000_000_000];
    let rows: Vec<(i64, u64)> = (0..300)
        .map(|row| (days[row % 5], nanos[row % 4]))
        .collect();
    let values: Vec<Int96> = rows.iter().map(|(day, n)| int96(*day, *n)).collect();
    for properties in versions() {
        let parts = [(values.clone(), None)];
        let file = write::<Int96Type>("message m { required int96 c; }", &parts, properties);
        let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
        let decoded = column(&file, 0, &micros).decoded(device).unwrap();
        let wanted = rows
            .iter()
            .map(|(day, n)| day * 86_400_000_000 + (n / 1000) as i64);
        let wanted: ArrayRef = Arc::new(TimestampMicrosecondArray::from_iter_values(wanted));
        assert!(decoded.to_data() == wanted.to_data());
        // Year 9999 in nanoseconds does not fit.
        let nanoseconds = DataType::Timestamp(TimeUnit::Nanosecond, None);
        let error = column(&file, 0, &nanoseconds).decoded(device);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("column c: a timestamp does not fit 64 bits"),
            "{error}"
        );
    }
}

pub fn decimals_of_any_number_of_bytes(device: &mut Device) {
    let numbers = [
        0i128,
        -1,
        127,
        128,
        -129,
        1 << 40,
        -(1 << 100),
        10i128.pow(37),
    ];
    let rows: Vec<Option<i128>> = (0..400)
        .map(|row| (row % 5 != 2).then(|| numbers[row % 8]))
        .collect();
    let short = |value: &i128| {
        let bytes = value.to_be_bytes();
        let is_spare = |at: usize| {
            let sign = if bytes[at + 1] & 0x80 == 0 { 0 } else { 0xff };
            bytes[at] == sign
        };
        let from = (0..15).find(|at| !is_spare(*at)).unwrap_or(15);
        ByteArray::from(bytes[from..].to_vec())
    };
    let values: Vec<ByteArray> = rows.iter().flatten().map(short).collect();
    let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.is_some())).collect();
    let wanted = Decimal128Array::from(rows)
        .with_precision_and_scale(38, 3)
        .unwrap();
    let schema = "message m { optional binary c (decimal(38, 3)); }";
    for encoding in [
        Encoding::PLAIN,
        Encoding::DELTA_LENGTH_BYTE_ARRAY,
        Encoding::DELTA_BYTE_ARRAY,
    ] {
        for properties in versions() {
            let is_dictionary = properties.dictionary_enabled(&"c".into());
            let properties = properties.into_builder().set_encoding(encoding).build();
            let parts = [
                (values.clone(), Some(levels.clone())),
                (vec![], Some(vec![0; 3])),
            ];
            let file = write::<ByteArrayType>(schema, &parts, properties);
            let decoded = column(&file, 0, wanted.data_type()).decoded(device);
            let decoded = decoded.unwrap();
            assert!(
                decoded.slice(0, 400).to_data() == wanted.to_data(),
                "{encoding} {is_dictionary}"
            );
            assert_eq!(decoded.slice(400, 3).null_count(), 3);
            assert!(decoded.to_data() == expected(&file).column(0).to_data());
        }
    }
}

pub fn codes_stand_for_the_same_texts_in_every_row_group(device: &mut Device) {
    let texts = |words: &[&str], n: usize| -> Vec<ByteArray> {
        (0..n)
            .map(|row| ByteArray::from(words[row % words.len()]))
            .collect()
    };
    let parts = [
        (texts(&["a", "b", "c"], 200), None),
        (texts(&["c", "d"], 7), None),
        (texts(&["d", "a"], 120), None),
    ];
    for properties in versions().filter(|p| p.dictionary_enabled(&"c".into())) {
        let schema = "message m { required binary c (utf8); }";
        let file = write::<ByteArrayType>(schema, &parts, properties);
        let pages = column(&file, 0, &DataType::Utf8);
        // The texts "a", "b", "c", "d" have the codes 0 to 3.
        let codes = [vec![0, 1, 2], vec![2, 3], vec![3, 0]];
        let pages_on = pages.on(device);
        let decoded = device.decoder.decode_codes(&pages_on, &codes).unwrap();
        assert_eq!(decoded.column.range, Some(Range::new(0, 3)));
        assert_eq!(decoded.column.shape.stored, "i8");
        let int = Type::Int(IntWidth::W32);
        let stream = device.decoder.stream();
        let codes = read_column(stream, &decoded.column, 327, int).unwrap();
        let codes = codes.as_primitive::<Int32Type>();
        let all = expected(&file);
        let texts = all.column(0).as_string::<i32>();
        for row in 0..327 {
            assert_eq!(
                ["a", "b", "c", "d"][codes.value(row) as usize],
                texts.value(row)
            );
        }
        // Codes that a chunk's pages do not have are an error, and so are pages without.
        let short = [vec![0, 1], vec![2, 3], vec![3, 0]];
        let error = device.decoder.decode_codes(&pages_on, &short).unwrap_err();
        let message = "memory.parquet: column c, row group 0, data page 0: an index is past the end of the dictionary";
        assert_eq!(error.to_string(), message);
        let mut plain = pages.clone();
        for (_, bodies) in &mut plain.chunks {
            for body in bodies
                .iter_mut()
                .filter(|body| body.kind != PageKind::Dictionary)
            {
                body.encoding = kernels::parquet::Encoding::Plain;
            }
        }
        let plain = plain.on(device);
        let error = device.decoder.decode_codes(&plain, &short).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("some of whose pages have no dictionary"),
            "{error}"
        );
    }
}

pub fn known_intervals_make_the_same_shape_of_every_chunk(device: &mut Device) {
    let values: Vec<i64> = (0..100).map(|row| row % 5).collect();
    let file = write::<parquet::data_type::Int64Type>(
        "message m { required int64 c; }",
        &[(values, None)],
        WriterProperties::default(),
    );
    let pages = column(&file, 0, &DataType::Int64).on(device);
    for (known, stored) in [
        (None, "i8"),
        (Some(Range::new(-40_000, 40_000)), "i32"),
        // Statistics that the values contradict are not believed.
        (Some(Range::new(0, 3)), "i8"),
    ] {
        let decoded = device.decoder.decode(&pages, known).unwrap();
        assert_eq!(decoded.column.shape.stored, stored);
        assert_eq!(decoded.column.range, Some(Range::new(0, 4)));
        let stream = device.decoder.stream();
        let array = read_column(stream, &decoded.column, 100, Type::I64).unwrap();
        assert_eq!(
            array
                .as_primitive::<arrow::datatypes::Int64Type>()
                .value(99),
            4
        );
    }
}
