//! What becomes of window nodes: which sorts and exchanges go, and what is told when the
//! device cannot go on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use datafusion::physical_plan::displayable;
use engine::explain::outcomes;
use engine::session::Session;
use engine::settings::Stage;
use tests::layout::Layout;
use tests::routes::{Route, run};
use tests::rows::Rows;

fn cache() -> PathBuf {
    std::env::var_os("WARPLINE_CACHE").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).join("warpline"),
        PathBuf::from,
    )
}

fn table(n: i32) -> RecordBatch {
    let id = Int32Array::from_iter_values(0..n);
    let key = Int32Array::from_iter((0..n).map(|id| (id % 5 != 0).then_some(id * 7 % 11)));
    let text = StringArray::from_iter((0..n).map(|id| Some(format!("t{}", id * 3 % 7))));
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(id) as ArrayRef, false),
        ("k", Arc::new(key), true),
        ("s", Arc::new(text), true),
    ])
    .unwrap()
}

async fn session(route: Route, rows: &RecordBatch, files: &Path) -> Session {
    let session = route.session(&cache());
    let registered = Layout::Sevenths.register(&session, "t", rows, files);
    registered.await.unwrap();
    session
}

/// The plan of a query, one node a line.
async fn plan(session: &Session, sql: &str) -> Vec<String> {
    let plan = session.plan_stage(&Stage::new("plan", sql)).await.unwrap();
    let shown = displayable(plan.physical.as_ref())
        .indent(false)
        .to_string();
    let names = shown.lines().map(|line| {
        let line = line.trim();
        line.split([':', ' ']).next().unwrap_or(line).to_string()
    });
    names.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_takes_the_sorts_and_exchanges_below() {
    let files = tempfile::tempdir().unwrap();
    let session = session(Route::GpuOnly, &table(100), files.path()).await;
    let both = "select id, row_number() over (partition by k order by id) as a, \
                sum(id) over (partition by s order by id desc) as b from t";
    let nodes = plan(&session, both).await;
    let count = |nodes: &[String], name: &str| nodes.iter().filter(|n| n.ends_with(name)).count();
    assert_eq!(count(&nodes, "GpuWindowExec"), 2, "{nodes:?}");
    assert_eq!(count(&nodes, "SortExec"), 0, "{nodes:?}");
    assert_eq!(count(&nodes, "WindowAggExec"), 0, "{nodes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_a_window_serves_the_query() {
    let files = tempfile::tempdir().unwrap();
    let rows = table(100);
    let gpu = session(Route::GpuOnly, &rows, files.path()).await;
    let cpu = session(Route::Cpu, &rows, files.path()).await;
    for (sql, n_sorts) in [
        (
            "select k, id, rank() over (partition by k order by id) as r from t order by k, id",
            0,
        ),
        (
            "select s, id, rank() over (partition by s order by id desc) as r from t \
             order by s, id desc",
            0,
        ),
        (
            "select id, row_number() over (order by k nulls first, id) as n from t order by n",
            0,
        ),
        // Here the order is another.
        (
            "select k, id, rank() over (partition by k order by id) as r from t order by id",
            1,
        ),
    ] {
        let nodes = plan(&gpu, sql).await;
        let sorts = nodes
            .iter()
            .filter(|node| node.ends_with("SortExec"))
            .count();
        assert_eq!(sorts, n_sorts, "{sql}: {nodes:?}");
        let [got, expected] = [&gpu, &cpu].map(|session| run(session, sql));
        let [got, expected] = [got.await.unwrap(), expected.await.unwrap()];
        let got = Rows::of(&got.report.preview).unwrap();
        let expected = Rows::of(&expected.report.preview).unwrap();
        assert_eq!(got.difference(&expected, true), None, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_does_not_fit_says_so_and_runs_on_the_cpu() {
    let files = tempfile::tempdir().unwrap();
    let rows = table(3000);
    let tight = session(Route::TightGpu, &rows, files.path()).await;
    let cpu = session(Route::Cpu, &rows, files.path()).await;
    for sql in [
        "select id, row_number() over (partition by k order by id) from t",
        "select k, id, rank() over (partition by k order by id) as r from t order by k, id",
        "select s, id, lag(id) over (partition by s order by id desc) as l from t \
         order by s, id desc",
        "select k, id * 2 as d, rank() over (partition by k order by id) + 1 as r from t order by k, id",
        "select k, max(n) from (select k, ntile(4) over (partition by s order by id) as n from t) \
         group by k",
    ] {
        let ran = run(&tight, sql).await.unwrap();
        let (_, fallbacks) = outcomes(&ran.plan);
        let told = fallbacks
            .iter()
            .any(|fell| fell.node.ends_with("WindowAggExec"));
        assert!(told, "{fallbacks:?}");
        let expected = run(&cpu, sql).await.unwrap();
        let got = Rows::of(&ran.report.preview).unwrap();
        let expected = Rows::of(&expected.report.preview).unwrap();
        // Nothing above sorts what is in the window's order already, also when the CPU
        // gives it.
        let ordered = sql.contains(" from t order by");
        assert_eq!(got.difference(&expected, ordered), None, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_without_a_device_form_keeps_the_window_on_the_cpu() {
    let files = tempfile::tempdir().unwrap();
    let session = session(Route::GpuOnly, &table(10), files.path()).await;
    let sql = "select row_number() over (order by id), make_array(id) from t";
    // The list is made above the window: the window itself can run.
    let refused = run(&session, sql).await.unwrap_err().to_string();
    assert!(!refused.contains("WindowAggExec"), "{refused}");
    let sql =
        "select row_number() over (order by id), l from (select id, make_array(id) as l from t)";
    let refused = run(&session, sql).await.unwrap_err().to_string();
    assert!(refused.contains("accelerator.fallback"), "{refused}");
}
