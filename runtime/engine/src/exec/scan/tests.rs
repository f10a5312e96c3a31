//! Files of other writers, column by column: the device gives the rows that DataFusion's
//! reader gives, or a reason, or an error that names the place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::concat;
use arrow::datatypes::DataType;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use kernels::columns::{read_column, type_of};
use kernels::gpu::{HostOptions, Stream, open_host};
use kernels::jit::Jit;

use super::*;
use crate::exec::DeviceLimits;
use crate::lower::without_exchange;
use crate::report::Reason;

fn device() -> Device {
    device_that(false)
}

fn device_that(unpacks_on_host: bool) -> Device {
    let gpu = open_host(HostOptions::default());
    let limits = DeviceLimits {
        unpacks_on_host,
        ..DeviceLimits::default()
    };
    Device::new(gpu, Arc::new(Jit::new(None)), limits)
}

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/parquet")
        .join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn session() -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(1)
        .set_str(
            "datafusion.execution.parquet.schema_force_view_types",
            "false",
        )
        .set_str("datafusion.execution.parquet.coerce_int96", "us")
        // Old writers do not say that their text is text.
        .set_str("datafusion.execution.parquet.binary_as_string", "true");
    SessionContext::new_with_config(config)
}

/// The scan of a file's columns; an error of its footer.
async fn scan_of(
    session: &SessionContext,
    file: &Path,
) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
    let options = ParquetReadOptions::default();
    let rows = session
        .read_parquet(file.to_str().unwrap(), options)
        .await?;
    Ok(Arc::clone(without_exchange(
        &rows.create_physical_plan().await?,
    )))
}

/// What became of one column.
enum Became {
    Rows(ArrayRef),
    Left(Reason),
}

/// Reads a column of a scan on the device.
async fn read(
    device: &Device,
    session: &SessionContext,
    plan: &Arc<dyn ExecutionPlan>,
    column: usize,
) -> Result<Became, Failure> {
    let context = session.task_ctx();
    let codes = Codes::default();
    let wanted = [(7, Wanted::Own(column))];
    device.scans.take();
    let Some(opened) = open(plan, &wanted, &codes, device, &context).await? else {
        let report = device
            .scans
            .take()
            .pop()
            .expect("what is left to the CPU is noted");
        return Ok(Became::Left(report.reason.expect("with a reason")));
    };
    let rows = opened
        .relation(&codes, Arc::default(), device, &context)
        .await?;
    let ty = type_of(plan.schema().field(column).data_type());
    let stream = Stream::new(&device.gpu).unwrap();
    let decoded = rows.rows.on_device().unwrap().column(7).unwrap();
    let ty = ty.unwrap_or_else(|e| panic!("{}", e.message));
    Ok(Became::Rows(read_column(
        &stream,
        decoded,
        rows.rows.on_device().unwrap().n_rows,
        ty,
    )?))
}

fn message(failure: Failure) -> String {
    match failure {
        Failure::User(error) => error.to_string(),
        Failure::Device(reason) => panic!("{}: {}", reason.code, reason.message),
    }
}

fn column_of(batches: &[RecordBatch], column: usize, data_type: &DataType) -> ArrayRef {
    let parts: Vec<&dyn Array> = batches.iter().map(|b| b.column(column).as_ref()).collect();
    match parts.is_empty() {
        true => arrow::array::new_empty_array(data_type),
        false => concat(&parts).unwrap(),
    }
}

/// Columns that the device must not read, with the reason's code.
const LEFT: &[(&str, &str, &str)] = &[
    ("datapage_v2.snappy.parquet", "e", "unsupported-type"),
    (
        "fixed_length_byte_array.parquet",
        "flba_field",
        "unsupported-type",
    ),
    ("float16_nonzeros_and_nans.parquet", "x", "unsupported-type"),
    // The year 290000, of which microseconds overflow.
    ("int96_from_spark.parquet", "a", "unsupported-at-run-time"),
    ("list_columns.parquet", "int64_list", "unsupported-type"),
    ("list_columns.parquet", "utf8_list", "unsupported-type"),
    ("nested_maps.snappy.parquet", "a", "unsupported-type"),
    ("nullable.impala.parquet", "int_array", "unsupported-type"),
    (
        "nullable.impala.parquet",
        "int_array_Array",
        "unsupported-type",
    ),
    ("nullable.impala.parquet", "int_map", "unsupported-type"),
    (
        "nullable.impala.parquet",
        "int_Map_Array",
        "unsupported-type",
    ),
    (
        "nullable.impala.parquet",
        "nested_struct",
        "unsupported-type",
    ),
    ("nulls.snappy.parquet", "b_struct", "unsupported-type"),
];

#[tokio::test(flavor = "multi_thread")]
async fn good_files_have_the_rows_that_the_cpu_reads() {
    let (device, session) = (device(), session());
    let mut left = Vec::new();
    let mut n_columns = 0;
    for file in files("good") {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let plan = scan_of(&session, &file)
            .await
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let expected = collect(Arc::clone(&plan), session.task_ctx()).await;
        let expected = expected.unwrap_or_else(|e| panic!("{name}: {e}"));
        for (column, field) in plan.schema().fields().iter().enumerate() {
            let context = format!("{name}, column {}", field.name());
            match read(&device, &session, &plan, column).await {
                Ok(Became::Rows(rows)) => {
                    let expected = column_of(&expected, column, field.data_type());
                    assert!(rows.to_data() == expected.to_data(), "{context}");
                    n_columns += 1;
                }
                Ok(Became::Left(reason)) => {
                    left.push((name.clone(), field.name().clone(), reason.code));
                }
                Err(Failure::Device(reason)) => {
                    left.push((name.clone(), field.name().clone(), reason.code));
                }
                Err(failure) => panic!("{context}: {}", message(failure)),
            }
        }
    }
    let left: Vec<(&str, &str, &str)> = left
        .iter()
        .map(|(file, column, code)| (file.as_str(), column.as_str(), code.as_str()))
        .collect();
    assert_eq!(left, LEFT);
    assert!(n_columns > 100, "{n_columns}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_files_are_errors_that_name_the_place_or_rows_that_are_intact() {
    let (device, session) = (device(), session());
    let mut errors = Vec::new();
    for file in files("bad") {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let Ok(plan) = scan_of(&session, &file).await else {
            errors.push((name, "footer".to_string()));
            continue;
        };
        for (column, field) in plan.schema().fields().iter().enumerate() {
            let context = format!("{name}, column {}", field.name());
            match read(&device, &session, &plan, column).await {
                Ok(Became::Rows(rows)) => {
                    let one = session.read_parquet(file.to_str().unwrap(), Default::default());
                    let one = one.await.unwrap().select_columns(&[field.name()]).unwrap();
                    let expected = one.collect().await;
                    let expected = expected.unwrap_or_else(|e| panic!("{context}: {e}"));
                    let expected = column_of(&expected, 0, field.data_type());
                    assert!(rows.to_data() == expected.to_data(), "{context}");
                }
                Ok(Became::Left(reason)) => assert_eq!(reason.code, "unsupported-type"),
                Err(failure) => {
                    let message = message(failure);
                    let place = format!("/{name}: column {}, row group 0", field.name());
                    assert!(message.contains(&place), "{message}");
                    errors.push((name.clone(), field.name().clone()));
                }
            }
        }
    }
    let errors: Vec<(&str, &str)> = errors
        .iter()
        .map(|(f, c)| (f.as_str(), c.as_str()))
        .collect();
    let expected = [
        ("ARROW-GH-41317.parquet", "footer"),
        ("ARROW-RS-GH-6229-DICTHEADER.parquet", "name"),
        ("ARROW-RS-GH-6229-DICTHEADER.parquet", "region_key"),
        ("ARROW-RS-GH-6229-DICTHEADER.parquet", "comment_col"),
        ("PARQUET-1481.parquet", "footer"),
        ("nation.dict-malformed.parquet", "name"),
        ("nation.dict-malformed.parquet", "comment_col"),
    ];
    assert_eq!(errors, expected);
}

/// The folder that holds pyarrow where `infra/install-test-tools` puts it.
fn tools() -> PathBuf {
    let home = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")));
    cache
        .unwrap_or_default()
        .join("warpline/tools/pyarrow-26.0.1")
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_pyarrow_have_the_rows_that_pyarrow_reads() {
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parquet/write_with_pyarrow.py");
    let ran = std::process::Command::new("python3")
        .arg(script)
        .arg(folder.path())
        .env("PYTHONPATH", tools())
        .output();
    match ran {
        Ok(ran) if ran.status.success() => {}
        other => {
            let required = std::env::var_os("WARPLINE_REQUIRE_PYARROW").is_some();
            assert!(!required, "pyarrow is required: {other:?}");
            eprintln!("pyarrow is not installed; this test did not run");
            return;
        }
    }
    let (device, session) = (device(), session());
    let mut n_columns = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let file = entry.unwrap().path();
        if file
            .extension()
            .is_none_or(|extension| extension != "parquet")
        {
            continue;
        }
        let plan = scan_of(&session, &file).await.unwrap();
        let rows = std::fs::File::open(file.with_extension("arrow")).unwrap();
        let rows = arrow::ipc::reader::FileReader::try_new(rows, None).unwrap();
        let rows: Vec<RecordBatch> = rows.map(Result::unwrap).collect();
        for (column, field) in plan.schema().fields().iter().enumerate() {
            let context = format!("{}, column {}", file.display(), field.name());
            match read(&device, &session, &plan, column).await {
                Ok(Became::Rows(decoded)) => {
                    let expected = column_of(&rows, column, field.data_type());
                    assert!(decoded.to_data() == expected.to_data(), "{context}");
                    n_columns += 1;
                }
                Ok(Became::Left(reason)) => panic!("{context}: {reason:?}"),
                Err(failure) => panic!("{context}: {}", message(failure)),
            }
        }
    }
    assert!(n_columns > 1000, "{n_columns}");
}

/// A generator of numbers: the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }

    fn change(&mut self, byte: &mut u8) {
        *byte = match self.below(4) {
            0 => 0xff,
            1 => *byte ^ (1 << self.below(8)),
            _ => self.below(256) as u8,
        };
    }
}

fn good_file(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parquet/good");
    std::fs::read(folder.join(name)).unwrap()
}

/// Fails if a failure is one of the reader and not of the file.
fn is_of_the_file(failure: &Failure, round: usize) {
    match failure {
        Failure::Device(reason) => {
            let is_ours = reason.code.contains("error");
            assert!(!is_ours, "round {round}: {}", reason.message);
        }
        Failure::User(error) => {
            // A thread that panicked ends so.
            let error = error.to_string();
            assert!(!error.contains("ended"), "round {round}: {error}");
        }
    }
}

/// Bytes of pages and page headers of good files change; their footers do not. Rows that
/// come of pages that kernels decompressed are those that come of the crates' bytes.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_bytes_are_a_scan_ends_in_rows_or_in_an_error() {
    let (device, session) = (device(), session());
    let other = device_that(true);
    let folder = tempfile::tempdir().unwrap();
    let seeds = [
        "alltypes_plain.parquet",
        "alltypes_dictionary.parquet",
        "delta_encoding_optional_column.parquet",
        "datapage_v2.snappy.parquet",
        "byte_stream_split.zstd.parquet",
        "lz4_raw_compressed.parquet",
        "nulls.snappy.parquet",
        "sort_columns.parquet",
    ];
    let seeds = seeds.map(good_file);
    let mut random = Random(0x5eed_0000_1234_5678);
    let (mut n_rows, mut n_errors) = (0, 0);
    for round in 0..600 {
        let mut bytes = seeds[round % seeds.len()].clone();
        let footer = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap());
        let n_pages = bytes.len() - 8 - footer as usize;
        for _ in 0..1 + random.below(4) {
            let at = 4 + random.below(n_pages - 4);
            random.change(&mut bytes[at]);
        }
        let file = folder.path().join(format!("{round}.parquet"));
        std::fs::write(&file, &bytes).unwrap();
        let plan = scan_of(&session, &file).await.unwrap();
        let column = random.below(plan.schema().fields().len());
        match read(&device, &session, &plan, column).await {
            Ok(became) => {
                let Ok(expected) = read(&other, &session, &plan, column).await else {
                    panic!("round {round}: rows, where the CPU finds an error");
                };
                match (became, expected) {
                    (Became::Rows(own), Became::Rows(expected)) => {
                        assert!(own.to_data() == expected.to_data(), "round {round}");
                    }
                    (Became::Left(_), Became::Left(_)) => {}
                    _ => panic!("round {round}: read here and left there"),
                }
                n_rows += 1;
            }
            Err(failure) => {
                is_of_the_file(&failure, round);
                n_errors += 1;
            }
        }
    }
    assert!(
        n_rows > 50 && n_errors > 50,
        "{n_rows} rows, {n_errors} errors"
    );
}

/// Bytes of footers change. What the footer's reader takes is read, or is an error.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_footer_says_a_scan_ends_in_rows_or_in_an_error() {
    let (device, session) = (device(), session());
    let other = device_that(true);
    let folder = tempfile::tempdir().unwrap();
    let seeds = [
        "alltypes_plain.parquet",
        "datapage_v2.snappy.parquet",
        "byte_stream_split.zstd.parquet",
        "lz4_raw_compressed.parquet",
    ];
    let seeds = seeds.map(good_file);
    let mut random = Random(0x5eed_f007_e125_0001);
    let (mut n_rows, mut n_errors) = (0, 0);
    for round in 0..600 {
        let mut bytes = seeds[round % seeds.len()].clone();
        let end = bytes.len() - 8;
        let footer = u32::from_le_bytes(bytes[end..][..4].try_into().unwrap());
        let start = end - footer as usize;
        let at = start + random.below(end - start);
        random.change(&mut bytes[at]);
        let file = folder.path().join(format!("{round}.parquet"));
        std::fs::write(&file, &bytes).unwrap();
        let Ok(plan) = scan_of(&session, &file).await else {
            n_errors += 1;
            continue;
        };
        let column = random.below(plan.schema().fields().len());
        match read(&device, &session, &plan, column).await {
            Ok(Became::Rows(own)) => {
                let expected = read(&other, &session, &plan, column).await;
                let Ok(Became::Rows(expected)) = expected else {
                    panic!("round {round}: rows, where the CPU finds none");
                };
                assert!(own.to_data() == expected.to_data(), "round {round}");
                n_rows += 1;
            }
            Ok(Became::Left(_)) => n_errors += 1,
            Err(failure) => {
                is_of_the_file(&failure, round);
                n_errors += 1;
            }
        }
    }
    assert!(
        n_rows > 50 && n_errors > 50,
        "{n_rows} rows, {n_errors} errors"
    );
}

/// What is fetched from a store is what is needed.
#[tokio::test(flavor = "multi_thread")]
async fn a_wide_file_costs_what_its_touched_columns_cost() {
    use arrow::array::Int64Array;
    use parquet::arrow::ArrowWriter;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wide.parquet");
    let columns = (0..300i64).map(|column| {
        let values = (0..20_000i64).map(|row| (row * row + column).wrapping_mul(column + 7));
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(values));
        (format!("c{column}"), values)
    });
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_max_row_group_row_count(Some(5000))
        .set_dictionary_enabled(false)
        .build();
    let out = std::fs::File::create(&file).unwrap();
    let mut writer = ArrowWriter::try_new(out, rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    let (device, session) = (device(), session());
    let plan = scan_of(&session, &file).await.unwrap();
    let context = session.task_ctx();
    let codes = Codes::default();
    let wanted = [
        (0, Wanted::Own(3)),
        (1, Wanted::Own(4)),
        (2, Wanted::Own(290)),
    ];
    let opened = open(&plan, &wanted, &codes, &device, &context).await;
    let opened = opened
        .unwrap_or_else(|f| panic!("{}", message(f)))
        .expect("it is plain");
    let needed: usize = opened
        .pieces
        .pieces
        .iter()
        .map(|piece| piece.n_bytes())
        .sum();
    let read = opened
        .relation(&codes, Arc::default(), &device, &context)
        .await;
    let read = read.unwrap_or_else(|f| panic!("{}", message(f)));
    assert_eq!(read.rows.on_device().unwrap().n_rows, 20_000);
    let report = device.scans.take().pop().unwrap();
    let fetched = report.bytes_fetched as f64;
    // Nothing was compressed, so what is needed is what footers say.
    assert!(fetched <= needed as f64 * 1.1, "{fetched} of {needed}");
}
