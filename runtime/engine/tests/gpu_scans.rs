//! Scans of files under the GPU rewrite: they read columns and compute nothing.

mod support;

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::physical_plan::displayable;
use engine::exec::{Device, DeviceLimits};
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
    let gpu = open_host(HostOptions::default());
    let device = Device::new(gpu, Arc::new(Jit::new(None)), DeviceLimits::default());
    let settings = Settings {
        compute_threads: 2,
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
