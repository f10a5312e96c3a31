//! What falls back while it runs goes on with the rows that the device did not get to, and
//! with no others.

mod support;

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::datasource::MemTable;
use engine::exec::{Device, DeviceLimits};
use engine::explain::outcomes;
use engine::session::Session;
use engine::settings::{FallbackPolicy, Format, Settings, Stage};
use kernels::gpu::{HostOptions, open_host};
use kernels::jit::Jit;
use parquet::arrow::ArrowWriter;
use support::{rows, run, table};

/// Upper case of text beyond ASCII has no device form, which shows when the rows are there.
const FALLS_BACK: &str = "upper(s) >= 'A'";

fn session(compute_threads: usize) -> Session {
    let gpu = open_host(HostOptions::default());
    let device = Device::new(gpu, Arc::new(Jit::new(None)), DeviceLimits::default());
    let settings = Settings {
        compute_threads,
        fallback: FallbackPolicy::Cpu,
        ..Settings::default()
    };
    Session::with_device(settings, device).unwrap()
}

fn batch(first: i64, texts: Vec<&str>) -> RecordBatch {
    let keys = Int64Array::from_iter_values(first..first + texts.len() as i64);
    let texts = StringArray::from(texts);
    let columns: [(&str, ArrayRef); 2] = [("k", Arc::new(keys)), ("s", Arc::new(texts))];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn write(path: &Path, batch: &RecordBatch) {
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// Partitions of a scan take files over from one another.
#[tokio::test]
async fn a_partition_that_falls_back_has_its_own_rows() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("0.parquet"), &batch(1, vec!["a", "b"]));
    write(&folder.path().join("1.parquet"), &batch(3, vec!["c", "é"]));
    let session = session(2);
    let files = table("t", folder.path(), Format::Parquet);
    session.register_table(&files).await.unwrap();
    let sql = format!("select k from t where {FALLS_BACK}");
    for _ in 0..5 {
        let ran = run(&session, &Stage::new("r", sql.as_str())).await.unwrap();
        assert_eq!(outcomes(&ran.plan).1.len(), 1);
        let mut got = rows(&ran.report.preview);
        got.sort();
        assert_eq!(got, ["1", "2", "3", "4"]);
    }
}

/// The first chunk has left the node when the second cannot be done.
#[tokio::test]
async fn the_cpu_goes_on_at_any_chunk() {
    let session = session(1);
    let ascii = batch(0, vec!["a"; 1 << 18]);
    let beyond = batch(1 << 18, vec!["é", "b", "ü"]);
    let n_rows = ascii.num_rows() + beyond.num_rows();
    let source = MemTable::try_new(ascii.schema(), vec![vec![ascii, beyond]]).unwrap();
    let context = session.context();
    context.register_table("t", Arc::new(source)).unwrap();
    let sql = format!("select k from t where {FALLS_BACK}");
    let ran = run(&session, &Stage::new("r", sql.as_str())).await.unwrap();
    assert_eq!(outcomes(&ran.plan).1.len(), 1);
    assert_eq!(ran.report.rows, n_rows as u64);
    let counted = "select count(*), count(distinct k), sum(k) from r";
    let ran = run(&session, &Stage::new("c", counted)).await.unwrap();
    let sum = n_rows * (n_rows - 1) / 2;
    let expected = format!("{n_rows}|{n_rows}|{sum}");
    assert_eq!(rows(&ran.report.preview), [expected]);
}
