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
    let gpu = open_host(HostOptions::default());
    Device::new(gpu, Arc::new(Jit::new(None)), DeviceLimits::default())
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
    let decoded = rows.rows.column(7).unwrap();
    let ty = ty.unwrap_or_else(|e| panic!("{}", e.message));
    Ok(Became::Rows(read_column(
        &stream,
        decoded,
        rows.rows.n_rows,
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
