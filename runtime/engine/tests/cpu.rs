//! Does the CPU path give DataFusion's answers where it goes its own way?
//!
//! Each query runs with one thread and with two, with record batches of two sizes, and
//! must give what DataFusion as it comes gives.

mod support;

use datafusion::physical_plan::displayable;
use engine::session::Session;
use engine::settings::{Format, Settings, Stage};
use support::*;

/// Numbers, texts short and long, decimals narrow and wide, and NULLs among them.
const ROWS: &str = "
    SELECT value AS n,
           CASE value % 3 WHEN 0 THEN 'A' WHEN 1 THEN 'B' END AS flag,
           CASE value % 5 WHEN 0 THEN NULL WHEN 1 THEN 'a text longer than twelve'
                WHEN 2 THEN 'a text longer than eleven' WHEN 3 THEN 'twelve bytes' ELSE '' END AS text,
           CAST(value % 7 AS INT) AS small,
           CAST(value % 1000 AS DECIMAL(15, 2)) AS price,
           CAST(0.07 AS DECIMAL(15, 2)) AS tax,
           CASE WHEN value % 11 > 0 THEN CAST(value AS DECIMAL(15, 2)) END AS gap,
           CAST(value AS DECIMAL(38, 0)) * CAST('10000000000000000000' AS DECIMAL(38, 0)) AS wide
    FROM generate_series(1, 30000)";

async fn check(query: &str) {
    let sql = format!("CREATE VIEW t AS {ROWS}; {query}");
    let theirs = theirs(&sql).await.unwrap();
    for (compute_threads, batch_size) in [(1, 8192), (2, 8192), (2, 1000)] {
        let session = Session::new(Settings {
            compute_threads,
            batch_size,
            preview_rows: usize::MAX,
            ..Settings::default()
        })
        .unwrap();
        let ours = ours_in(&session, &sql).await.unwrap();
        assert_eq!(ours, theirs, "{compute_threads} threads: {query}");
    }
}

async fn plan(query: &str) -> String {
    let sql = format!("CREATE VIEW t AS {ROWS}; {query}");
    let planned = session().plan_stage(&Stage::new("test", &sql)).await;
    let physical = planned.unwrap().physical;
    displayable(physical.as_ref()).indent(false).to_string()
}

#[tokio::test]
async fn few_groups_are_added_up_as_datafusion_does() {
    let functions = "sum(price), sum(price * (1 - tax)), sum(price * (1 - tax) * (1 + tax)), \
                     avg(price), avg(gap), sum(gap), count(gap), count(*), sum(n), sum(wide), \
                     min(price), max(text), sum(price) FILTER (WHERE n > 29990), \
                     sum(wide * 2), sum(CAST(small AS DECIMAL(10, 0)) * price)";
    let by_flag = format!("SELECT flag, {functions} FROM t GROUP BY flag ORDER BY flag");
    let planned = plan(&by_flag).await;
    assert!(planned.contains("FewGroupsExec"), "{planned}");
    check(&by_flag).await;
    for keys in ["text", "flag, text", "small, flag, text", "price % 4, text"] {
        check(&format!(
            "SELECT {keys}, {functions} FROM t GROUP BY {keys} ORDER BY {keys}"
        ))
        .await;
    }
}

#[tokio::test]
async fn no_keys_are_one_group() {
    let functions = "sum(price * tax), avg(gap), count(*), count(gap), sum(n)";
    check(&format!("SELECT {functions} FROM t")).await;
    check(&format!("SELECT {functions} FROM t WHERE n < 0")).await;
    check(&format!(
        "SELECT flag, {functions} FROM t WHERE n < 0 GROUP BY flag"
    ))
    .await;
    check("SELECT flag, sum(gap) FROM t WHERE gap IS NULL GROUP BY flag ORDER BY flag").await;
    check("SELECT sum(gap), avg(gap), count(gap) FROM t WHERE gap IS NULL").await;
}

#[tokio::test]
async fn too_many_groups_are_left_to_datafusion() {
    let functions = "sum(price * (1 - tax)), avg(gap), count(*), count(gap), min(text)";
    // At once, after a while when states are given out, and just not.
    for key in [
        "n",
        "CASE WHEN n > 29000 THEN n END",
        "n % 256",
        "n % 257",
        "CAST(n AS VARCHAR)",
        "CASE WHEN n > 29990 THEN repeat(text, 3) || n ELSE flag END",
    ] {
        for other in ["", ", flag", ", n % 2"] {
            check(&format!(
                "SELECT {key} AS k{other}, {functions} FROM t GROUP BY {key}{other} ORDER BY 1, 2, 3"
            ))
            .await;
        }
    }
}

#[tokio::test]
async fn distinct_rows_are_groups_without_functions() {
    check("SELECT DISTINCT flag, text FROM t ORDER BY flag, text").await;
    check("SELECT DISTINCT n FROM t ORDER BY n").await;
    check("SELECT flag, count(DISTINCT small), sum(price) FROM t GROUP BY flag ORDER BY flag")
        .await;
}

#[tokio::test]
async fn arithmetic_on_decimals_of_any_width_is_exact() {
    for expr in [
        "price + tax",
        "price * tax - gap",
        "gap * wide",
        "wide - price",
        "wide * 3 + small",
        "CAST(gap AS DECIMAL(20, 4)) * 2.5",
        "CAST(n AS DECIMAL(20, 3)) * 0.001",
        "CASE WHEN n % 2 = 0 THEN price * (1 - tax) ELSE 0 END",
    ] {
        check(&format!(
            "SELECT n, {expr} FROM t WHERE n % 97 = 0 ORDER BY n"
        ))
        .await;
        check(&format!(
            "SELECT n FROM t WHERE CAST({expr} AS DOUBLE) > 100.5 AND n % 7 = 1 ORDER BY n"
        ))
        .await;
        check(&format!("SELECT sum({expr}) FROM t WHERE n < 5000")).await;
    }
}

#[tokio::test]
async fn decimals_at_the_edge_of_64_bits_are_exact() {
    let edge = "SELECT CAST(x AS DECIMAL(38, 0)) AS x, CAST(y AS DECIMAL(38, 0)) AS y, g FROM (VALUES \
                ('9223372036854775807', '-9223372036854775808', 1), \
                ('9223372036854775808', '-9223372036854775809', 2), \
                ('4611686018427387903', '-4611686018427387904', 1), \
                ('3037000499', '3037000500', 2)) v(x, y, g)";
    for query in [
        "SELECT x + y, x - y, y - x, x * 1 FROM e",
        "SELECT x * y FROM e WHERE x < 3037000501",
        "SELECT x * y FROM e WHERE x < 4611686018427387904",
        "SELECT sum(x), sum(y), sum(x + y), avg(x) FROM e",
        "SELECT g, sum(x), sum(y), sum(x - y), avg(y) FROM e GROUP BY g ORDER BY g",
    ] {
        let sql = format!("CREATE VIEW e AS {edge}; {query}");
        assert_eq!(
            ours(&sql).await.unwrap(),
            theirs(&sql).await.unwrap(),
            "{query}"
        );
    }
}

#[tokio::test]
async fn text_keys_of_parquet_are_read_as_views() {
    let directory = tempfile::tempdir().unwrap();
    let session = session();
    let mut output = output(&directory.path().join("rows"));
    output.partition_by = vec!["small".into()];
    run(&session, &stage_to(ROWS, output)).await.unwrap();
    let mut rows = table("t", &directory.path().join("rows"), Format::Parquet);
    rows.partition_columns = vec![(
        "small".into(),
        datafusion::arrow::datatypes::DataType::Int32,
    )];
    session.register_table(&rows).await.unwrap();
    let aggregates = "sum(price * (1 - tax)), avg(gap), count(*)";
    for query in [
        format!("SELECT flag, text, {aggregates} FROM t GROUP BY flag, text ORDER BY flag, text"),
        format!(
            "SELECT flag, text, {aggregates} FROM t WHERE n > 700 GROUP BY flag, text ORDER BY flag, text"
        ),
        format!("SELECT flag, max(flag), {aggregates} FROM t GROUP BY flag ORDER BY flag"),
        format!("SELECT flag, {aggregates} FROM t WHERE flag < 'B' GROUP BY flag ORDER BY flag"),
        format!("SELECT text || n, flag, {aggregates} FROM t GROUP BY 1, 2 ORDER BY 1, 2"),
        format!(
            "SELECT flag, small, {aggregates} FROM t GROUP BY flag, small ORDER BY flag, small"
        ),
        format!(
            "SELECT text, CASE WHEN n > 29000 THEN n END AS m, {aggregates} FROM t GROUP BY 1, 2 ORDER BY 1, 2"
        ),
    ] {
        let ours = ours_in(&session, &query).await.unwrap();
        let sql = format!("CREATE VIEW t AS {ROWS}; {query}");
        let theirs = theirs(&sql).await.unwrap();
        assert_eq!(ours, theirs[..ours.len()], "{query}");
    }
}
