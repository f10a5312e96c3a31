//! Scans of files under the GPU rewrite: they read columns and compute nothing.

mod support;

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::physical_plan::displayable;
use engine::exec::{CachePart, Device, DeviceLimits};
use engine::session::Session;
use engine::settings::{FallbackPolicy, Format, Settings, Stage};
use kernels::gpu::{HostOptions, open_host};
use kernels::jit::Jit;
use parquet::arrow::ArrowWriter;
use support::{rows, run, table};

/// Two files: the texts of the first are ASCII, one of the second is not.
fn write(folder: &Path) {
    for (name, keys, texts) in [
        ("0.parquet", [1, 2], ["a", "b"]),
        ("1.parquet", [3, 4], ["c", "é"]),
    ] {
        let columns: [(&str, ArrayRef); 3] = [
            ("unread", Arc::new(Int64Array::from(vec![0, 0]))),
            ("k", Arc::new(Int64Array::from(keys.to_vec()))),
            ("s", Arc::new(StringArray::from(texts.to_vec()))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let file = std::fs::File::create(folder.join(name)).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
}

async fn session(folder: &Path, fallback: FallbackPolicy) -> Session {
    session_on(folder, fallback, DeviceLimits::default(), 2).await
}

async fn session_on(
    folder: &Path,
    fallback: FallbackPolicy,
    limits: DeviceLimits,
    compute_threads: usize,
) -> Session {
    let gpu = open_host(HostOptions::default());
    let device = Device::new(gpu, Arc::new(Jit::new(None)), limits);
    let settings = Settings {
        compute_threads,
        fallback,
        ..Settings::default()
    };
    let session = Session::with_device(settings, device).unwrap();
    let files = table("t", folder, Format::Parquet);
    session.register_table(&files).await.unwrap();
    session
}

#[tokio::test]
async fn scans_compute_nothing() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let session = session(folder.path(), FallbackPolicy::Fail).await;
    let sql = "select k * 2 as twice, s, k, k + 1 as next from t";
    let plan = session.plan_stage(&Stage::new("p", sql)).await.unwrap();
    let shown = displayable(plan.physical.as_ref())
        .indent(false)
        .to_string();
    assert!(
        shown.contains("operators=[GpuCollect, GpuProject"),
        "{shown}"
    );
    assert!(shown.contains("projection=[k, s]"), "{shown}");
    let ran = run(&session, &Stage::new("r", sql)).await.unwrap();
    let mut got = rows(&ran.report.preview);
    got.sort();
    assert_eq!(got, ["2|a|1|2", "4|b|2|3", "6|c|3|4", "8|é|4|5"]);
}

/// Columns of many files that different queries brought to the device stand beside one
/// another: row for row they are of the same files. Files differ in length, so partitions
/// that took files over from one another would change the order.
#[tokio::test(flavor = "multi_thread")]
async fn columns_that_stay_on_the_device_have_one_order() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..24i64 {
        let n = 1 + (number * 37) % 11 * 400;
        let first = number * 10_000;
        let a = Int64Array::from_iter_values(first..first + n);
        let twice = Int64Array::from_iter_values((first..first + n).map(|v| 2 * v));
        let text = (first..first + n).map(|v| format!("t{}", v % 100));
        let columns: [(&str, ArrayRef); 3] = [
            ("a", Arc::new(a)),
            ("twice", Arc::new(twice)),
            ("s", Arc::new(StringArray::from_iter_values(text))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let file = std::fs::File::create(folder.path().join(format!("{number}.parquet")));
        let mut writer = ArrowWriter::try_new(file.unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
    let limits = DeviceLimits {
        cache_part: CachePart(60),
        ..DeviceLimits::default()
    };
    for _ in 0..5 {
        let session = session_on(folder.path(), FallbackPolicy::Fail, limits, 4).await;
        let ask = async |sql: &str| {
            let ran = run(&session, &Stage::new("r", sql)).await.unwrap();
            rows(&ran.report.preview)
        };
        ask("select count(*) from t where a > 5").await;
        ask("select s, count(*) from t group by s").await;
        assert_eq!(
            ask("select count(*) from t where twice <> 2 * a").await,
            ["0"]
        );
        let sql = "select count(*) from (select s, min(a % 100) l, max(a % 100) h from t group by s) g where l <> h";
        assert_eq!(ask(sql).await, ["0"]);
    }
}
