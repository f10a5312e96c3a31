//! Parquet files that pipelines on the GPU read by themselves: what is read of them, what is
//! left to the CPU and why, and the answers.

mod support;

use std::path::Path;
use std::sync::Arc;

use arrow::array::*;
use engine::exec::{CachePart, Device, DeviceLimits};
use engine::report::ScanReport;
use engine::session::Session;
use engine::settings::{FallbackPolicy, Format, Settings, Stage};
use kernels::gpu::{HostOptions, open_host};
use kernels::jit::Jit;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use support::{rows, run, table};

const N_ROWS: i64 = 6000;

/// Rows of every kind of column; `first` makes those of another file differ.
fn batch(first: i64) -> RecordBatch {
    let rows = first..first + N_ROWS;
    let there = |row: &i64| row % 11 != 3;
    let all = |f: &dyn Fn(i64) -> i64| -> ArrayRef {
        Arc::new(
            rows.clone()
                .map(|r| there(&r).then(|| f(r)))
                .collect::<Int64Array>(),
        )
    };
    let texts = |f: &dyn Fn(i64) -> String| -> ArrayRef {
        Arc::new(
            rows.clone()
                .map(|r| there(&r).then(|| f(r)))
                .collect::<StringArray>(),
        )
    };
    let prices = rows.clone().map(|r| Some(i128::from(r * 17 % 100_000)));
    let prices = prices.collect::<Decimal128Array>();
    let days = rows.clone().map(|r| (r % 2500) as i32);
    RecordBatch::try_from_iter([
        (
            "id",
            Arc::new(Int64Array::from_iter_values(rows.clone())) as ArrayRef,
        ),
        ("k", all(&|r| r % 17)),
        ("big", all(&|r| r * 1_000_003)),
        (
            "price",
            Arc::new(prices.with_precision_and_scale(15, 2).unwrap()),
        ),
        ("day", Arc::new(Date32Array::from_iter_values(days))),
        (
            "x",
            Arc::new(Float64Array::from_iter_values(
                rows.clone().map(|r| (r % 64) as f64 / 4.0),
            )),
        ),
        (
            "yes",
            Arc::new(
                rows.clone()
                    .map(|r| there(&r).then_some(r % 3 == 0))
                    .collect::<BooleanArray>(),
            ),
        ),
        (
            "flag",
            texts(&|r| ["A", "N", "größer", "R"][(r % 4) as usize].to_string()),
        ),
        ("name", texts(&|r| format!("Customer#{r:09}"))),
    ])
    .unwrap()
}

fn write(file: &Path, rows: &RecordBatch, properties: WriterPropertiesBuilder) {
    let properties = properties.set_max_row_group_row_count(Some(2500)).build();
    let file = std::fs::File::create(file).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
}

/// Two files of three row groups each.
fn write_two(folder: &Path, properties: WriterPropertiesBuilder) {
    write(&folder.join("0.parquet"), &batch(0), properties.clone());
    write(&folder.join("1.parquet"), &batch(N_ROWS), properties);
}

async fn on_gpu(folder: &Path, limits: DeviceLimits, threads: usize) -> Session {
    let session = session_on_gpu(limits, threads);
    session
        .register_table(&table("t", folder, Format::Parquet))
        .await
        .unwrap();
    session
}

fn session_on_gpu(limits: DeviceLimits, threads: usize) -> Session {
    let device = Device::new(
        open_host(HostOptions::default()),
        Arc::new(Jit::new(None)),
        limits,
    );
    let settings = Settings {
        compute_threads: threads,
        fallback: FallbackPolicy::Fail,
        ..Settings::default()
    };
    Session::with_device(settings, device).unwrap()
}

/// The rows, sorted, and how scans were read.
async fn ask(session: &Session, sql: &str) -> (Vec<String>, Vec<ScanReport>) {
    let ran = run(session, &Stage::new("r", sql)).await;
    let ran = ran.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let mut rows = rows(&ran.report.preview);
    rows.sort();
    (rows, ran.report.scans)
}

/// The same without a GPU.
async fn expected(folder: &Path, sql: &str) -> Vec<String> {
    let session = support::session();
    session
        .register_table(&table("t", folder, Format::Parquet))
        .await
        .unwrap();
    ask(&session, sql).await.0
}

/// What a stage may show of its result.
const QUERIES: &[&str] = &[
    "select count(*) from t where x > 3",
    "select count(k), sum(k), min(big), max(big), sum(price), min(day), max(day), sum(x), count(yes) from t",
    "select k, count(*), sum(price) from t group by k",
    "select flag, count(*), min(name), max(name) from t group by flag",
    "select name, sum(big) from t where id between 100 and 110 group by name",
    "select yes, count(*) from t where name like '%7' group by yes",
    "select upper(substr(name, 1, 12)) as short, count(*) from t where id < 30 group by short",
    "select a.k, count(*), sum(b.price) from t a join t b on a.id = b.big where a.flag = 'R' group by a.k",
    "select count(distinct flag), count(distinct k) from t",
    "select k, rank() over (partition by flag order by id) as r from t where id < 19",
];

fn layouts() -> Vec<(&'static str, WriterPropertiesBuilder)> {
    let plain = || WriterProperties::builder();
    vec![
        ("default", plain()),
        (
            "zstd",
            plain().set_compression(Compression::ZSTD(Default::default())),
        ),
        (
            "snappy, small pages",
            plain()
                .set_compression(Compression::SNAPPY)
                .set_data_page_row_count_limit(333)
                .set_write_batch_size(111),
        ),
        (
            "lz4, no dictionaries",
            plain()
                .set_compression(Compression::LZ4_RAW)
                .set_dictionary_enabled(false),
        ),
        (
            "version 2",
            plain()
                .set_writer_version(parquet::file::properties::WriterVersion::PARQUET_2_0)
                .set_dictionary_enabled(false),
        ),
        (
            "dictionaries that overflow",
            plain()
                .set_dictionary_page_size_limit(5000)
                .set_data_page_row_count_limit(500)
                .set_write_batch_size(100),
        ),
        (
            "text in deltas",
            plain()
                .set_column_dictionary_enabled("name".into(), false)
                .set_column_encoding("name".into(), Encoding::DELTA_BYTE_ARRAY),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_those_of_the_cpu_for_every_layout() {
    for (layout, properties) in layouts() {
        let folder = tempfile::tempdir().unwrap();
        write_two(folder.path(), properties);
        let session = on_gpu(folder.path(), DeviceLimits::default(), 2).await;
        for sql in QUERIES {
            let (rows, scans) = ask(&session, sql).await;
            assert_eq!(rows, expected(folder.path(), sql).await, "{layout}: {sql}");
            assert!(!scans.is_empty(), "{layout}: {sql}");
            for scan in scans {
                assert!(
                    scan.on_device && scan.reason.is_none(),
                    "{layout}: {sql}: {scan:?}"
                );
            }
        }
    }
}

/// Each codec by the kernels and by the CPU: the same answers, and the report says which.
#[tokio::test(flavor = "multi_thread")]
async fn pages_are_decompressed_where_the_report_says() {
    use parquet::file::properties::WriterVersion;
    let codecs = [
        (Compression::UNCOMPRESSED, None),
        (Compression::SNAPPY, Some(("snappy", true))),
        (Compression::ZSTD(Default::default()), Some(("zstd", true))),
        (Compression::LZ4_RAW, Some(("lz4_raw", true))),
        (Compression::GZIP(Default::default()), Some(("gzip", false))),
        (
            Compression::BROTLI(Default::default()),
            Some(("brotli", false)),
        ),
    ];
    for (compression, codec) in codecs {
        let versions = match codec {
            // Version 2 has levels in front that are not compressed.
            Some((_, true)) => vec![WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0],
            _ => vec![WriterVersion::PARQUET_1_0],
        };
        for version in versions {
            let folder = tempfile::tempdir().unwrap();
            let properties = WriterProperties::builder()
                .set_compression(compression)
                .set_writer_version(version)
                .set_column_dictionary_enabled("big".into(), false)
                .set_data_page_row_count_limit(900)
                .set_write_batch_size(300);
            write_two(folder.path(), properties);
            for unpacks_on_host in [false, true] {
                let limits = DeviceLimits {
                    unpacks_on_host,
                    ..DeviceLimits::default()
                };
                let session = on_gpu(folder.path(), limits, 2).await;
                for sql in [QUERIES[1], QUERIES[3]] {
                    let (rows, scans) = ask(&session, sql).await;
                    let context = format!("{compression}, {version:?}: {sql}");
                    assert_eq!(rows, expected(folder.path(), sql).await, "{context}");
                    let [scan] = &scans[..] else {
                        panic!("{context}: {scans:?}")
                    };
                    let Some((name, has_kernel)) = codec else {
                        assert!(scan.codecs.is_empty(), "{context}: {scan:?}");
                        continue;
                    };
                    let [own] = &scan.codecs[..] else {
                        panic!("{context}: {scan:?}")
                    };
                    let on_device = has_kernel && !unpacks_on_host;
                    assert_eq!((own.codec.as_str(), own.on_device), (name, on_device));
                    assert_eq!(own.reason.is_none(), on_device, "{context}: {own:?}");
                    assert!(own.bytes_packed > 0 && own.bytes > 0, "{context}: {own:?}");
                    assert_eq!(scan.bytes_decompressed_on_cpu == 0, on_device, "{context}");
                    assert!(scan.unpack_ms >= 0.0 && scan.decode_ms >= 0.0);
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_needed_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    write_two(
        folder.path(),
        WriterProperties::builder().set_compression(Compression::SNAPPY),
    );
    let session = on_gpu(folder.path(), DeviceLimits::default(), 2).await;
    let size: u64 = ["0.parquet", "1.parquet"]
        .map(|file| std::fs::metadata(folder.path().join(file)).unwrap().len())
        .iter()
        .sum();
    // Statistics rule out all but the last row group of the second file.
    let (rows, scans) = ask(&session, "select count(*), sum(k) from t where id >= 11500").await;
    assert_eq!(rows.len(), 1);
    let scan = &scans[0];
    assert_eq!(
        (scan.files, scan.row_groups, scan.row_groups_pruned),
        (2, 1, 5)
    );
    assert_eq!(scan.rows, 1000);
    assert!(
        scan.bytes_fetched < size / 20,
        "{} of {size}",
        scan.bytes_fetched
    );
    assert!(scan.bytes_decompressed_on_cpu == 0 && scan.bytes_of_pages > 0);
    // What is read is told with the statement too.
    let ran = run(&session, &Stage::new("r", "select sum(k) from t"))
        .await
        .unwrap();
    let sources = &ran.report.statements[0].sources;
    assert_eq!((sources.len(), sources[0].rows), (1, 2 * N_ROWS as u64));
    assert_eq!(sources[0].bytes, ran.report.scans[0].bytes_fetched);
    // Rows are counted by footers.
    let (rows, scans) = ask(&session, "select count(*) from t where 1 = 1").await;
    assert_eq!(rows, ["12000"]);
    assert!(
        scans.iter().all(|scan| scan.bytes_fetched == 0),
        "{scans:?}"
    );
}

/// Values that are within the statistics of every row group and in one of them only.
#[tokio::test(flavor = "multi_thread")]
async fn bloom_filters_rule_row_groups_out() {
    let sql = |name: &str| format!("select count(*), sum(big) from t where name = '{name}'");
    let in_one = sql("Customer#000001000");
    let in_none = sql("Customer#000001000x");
    for (has_filters, pruned) in [(false, [0, 0]), (true, [5, 6])] {
        let folder = tempfile::tempdir().unwrap();
        for first in [0, N_ROWS] {
            // Neighbours are far apart, so that every row group has small and large names.
            let rows = batch(first);
            let order = (0..N_ROWS).map(|row| (row * 2503 % N_ROWS) as u64);
            let order = UInt64Array::from_iter_values(order);
            let rows = arrow::compute::take_record_batch(&rows, &order).unwrap();
            let ends = StringArray::from(vec![Some("A"), Some("Z")]);
            let mut columns = rows.columns().to_vec();
            let names = columns.pop().unwrap();
            let places = (0..N_ROWS as usize).map(|row| match row % 2500 {
                0 => (1, 0),
                1 => (1, 1),
                _ => (0, row),
            });
            let places: Vec<(usize, usize)> = places.collect();
            columns.push(arrow::compute::interleave(&[&names, &ends], &places).unwrap());
            let rows = RecordBatch::try_new(rows.schema(), columns).unwrap();
            let properties = WriterProperties::builder()
                .set_column_bloom_filter_enabled("name".into(), has_filters)
                .set_compression(Compression::ZSTD(Default::default()));
            let file = folder.path().join(format!("{first}.parquet"));
            write(&file, &rows, properties);
        }
        let session = on_gpu(folder.path(), DeviceLimits::default(), 2).await;
        for (sql, n_pruned) in [&in_one, &in_none].into_iter().zip(pruned) {
            let (rows, scans) = ask(&session, sql).await;
            assert_eq!(rows, expected(folder.path(), sql).await, "{sql}");
            let pruned: u64 = scans.iter().map(|scan| scan.row_groups_pruned).sum();
            assert_eq!(pruned, n_pruned, "{sql}: {scans:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_device_reads_row_groups_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    write_two(folder.path(), WriterProperties::builder());
    let limits = DeviceLimits {
        memory_bytes: 600_000,
        ..DeviceLimits::default()
    };
    let session = on_gpu(folder.path(), limits, 1).await;
    let sql = "select k, count(*), sum(price), sum(big) from t group by k";
    let (rows, scans) = ask(&session, sql).await;
    assert_eq!(rows, expected(folder.path(), sql).await);
    assert!(scans[0].on_device);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_to_the_cpu_is_named() {
    // One file may have nulls where the other must not.
    let folder = tempfile::tempdir().unwrap();
    let other = batch(N_ROWS);
    let named = other.schema();
    let names = named.fields().iter().map(|field| field.name().clone());
    let nullable = names.zip(other.columns().iter().cloned());
    let nullable = nullable.map(|(name, column)| (name, column, true));
    let nullable = RecordBatch::try_from_iter_with_nullable(nullable).unwrap();
    write(
        &folder.path().join("0.parquet"),
        &batch(0),
        WriterProperties::builder(),
    );
    write(
        &folder.path().join("1.parquet"),
        &nullable,
        WriterProperties::builder(),
    );
    let session = on_gpu(folder.path(), DeviceLimits::default(), 2).await;
    let sql = "select count(*), sum(id) from t";
    let (rows, scans) = ask(&session, sql).await;
    assert_eq!(rows, expected(folder.path(), sql).await);
    let reason = scans[0].reason.as_ref().unwrap();
    assert_eq!(reason.code, "scan-schema");
    assert!(
        reason.message.contains("store a column differently"),
        "{}",
        reason.message
    );
    // Files of another kind.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("0.csv"), "k\n1\n2\n").unwrap();
    let session = session_on_gpu(DeviceLimits::default(), 2);
    let csv = table("c", folder.path(), Format::Csv(Default::default()));
    session.register_table(&csv).await.unwrap();
    let (rows, scans) = ask(&session, "select sum(k) from c").await;
    assert_eq!(rows, ["3"]);
    let reason = scans[0].reason.as_ref().unwrap();
    assert_eq!(reason.code, "scan-format");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_page_is_an_error_that_names_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("0.parquet");
    let properties = WriterProperties::builder().set_dictionary_enabled(false);
    write(&file, &batch(0), properties);
    // The last length of a text becomes a very long one.
    let mut bytes = std::fs::read(&file).unwrap();
    let last = "Customer#000005999".as_bytes();
    let at = bytes
        .windows(last.len())
        .position(|window| window == last)
        .unwrap();
    bytes[at - 1] = 0x7f;
    std::fs::write(&file, bytes).unwrap();
    let session = on_gpu(folder.path(), DeviceLimits::default(), 2).await;
    let error = run(
        &session,
        &Stage::new("r", "select name, count(*) from t group by name"),
    )
    .await;
    let error = error.unwrap_err().to_string();
    let place = "0.parquet: column name, row group 2, data page 0: a length reaches past the end of the page";
    assert!(error.contains(place), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_changed_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    write_two(folder.path(), WriterProperties::builder());
    let session = on_gpu(folder.path(), DeviceLimits::default(), 2).await;
    // The footer that the listing read is remembered, the file is another one.
    let sql = "select sum(k) from t";
    session.plan_stage(&Stage::new("p", sql)).await.unwrap();
    let (before, _) = ask(&session, sql).await;
    write(
        &folder.path().join("1.parquet"),
        &batch(0).slice(0, 3000),
        WriterProperties::builder(),
    );
    match run(&session, &Stage::new("r", sql)).await {
        // A listing that was made again sees the new file, and only that.
        Ok(ran) => assert_ne!(rows(&ran.report.preview), before),
        Err(error) => assert!(error.to_string().contains("changed"), "{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_of_directories_are_read_on_the_device_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = table("t", folder.path(), Format::Parquet);
    files.partition_columns = vec![
        ("day".into(), arrow::datatypes::DataType::Int32),
        ("kind".into(), arrow::datatypes::DataType::Utf8),
    ];
    for (number, directory) in ["day=3/kind=a", "day=3/kind=b", "day=7/kind=a"]
        .iter()
        .enumerate()
    {
        let directory = folder.path().join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        let mut rows = batch(number as i64 * N_ROWS);
        // A column of the files has that name.
        rows.remove_column(rows.schema().index_of("day").unwrap());
        write(
            &directory.join("0.parquet"),
            &rows,
            WriterProperties::builder(),
        );
    }
    let (gpu, cpu) = (
        session_on_gpu(DeviceLimits::default(), 2),
        support::session(),
    );
    gpu.register_table(&files).await.unwrap();
    cpu.register_table(&files).await.unwrap();
    for sql in [
        "select day, count(*), sum(k) from t group by day order by day",
        "select kind, flag, sum(day) from t group by kind, flag order by kind, flag",
        "select upper(kind) as u, min(day) from t where k < 5 group by u order by u",
        "select sum(day) from t",
        "select a.kind, count(*) from t a join t b on a.id = b.id where b.day = 7 and a.k = 3 group by a.kind",
    ] {
        let (rows, scans) = ask(&gpu, sql).await;
        assert_eq!(rows, ask(&cpu, sql).await.0, "{sql}");
        assert!(scans.iter().all(|scan| scan.on_device), "{sql}: {scans:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_columns_and_scans_agree() {
    let folder = tempfile::tempdir().unwrap();
    write_two(folder.path(), WriterProperties::builder());
    let limits = DeviceLimits {
        cache_part: CachePart(50),
        ..DeviceLimits::default()
    };
    let session = on_gpu(folder.path(), limits, 2).await;
    for sql in QUERIES {
        let (rows, _) = ask(&session, sql).await;
        assert_eq!(rows, expected(folder.path(), sql).await, "{sql}");
    }
}
