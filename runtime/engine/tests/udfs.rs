//! User functions in SQL: the fixture module of `udf-sdk`, against the same in plain SQL.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Decimal128Array, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::util::pretty::pretty_format_batches;
use datafusion::datasource::MemTable;
use engine::exec::{Device, DeviceLimits};
use engine::session::Session;
use engine::settings::{Settings, Stage, UdfErrors, UdfModule};
use engine::udf::Compiler;
use engine::{Cancel, Error, Kind};
use kernels::gpu::{HostOptions, open_host};
use kernels::jit::Jit;

const N_ROWS: usize = 20_000;

fn fixture() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../udf-sdk/fixture/fixture.wasm");
    let path = path.canonicalize().expect("the checked-in module");
    path.to_str().expect("UTF-8").to_owned()
}

fn settings() -> Settings {
    Settings {
        compute_threads: 3,
        batch_size: 1_000,
        preview_rows: 100,
        // Machine code is shared by the tests, each of which is a process of its own.
        cache_dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("udfs"),
        ..Settings::default()
    }
}

fn rows() -> RecordBatch {
    let ids = 0..N_ROWS as i64;
    let some = |i: i64| (i % 13 != 5).then_some(i);
    let words = ["hello world", "", "one", "zwei drei"];
    let columns: [(&str, ArrayRef); 4] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids.clone()))),
        (
            "x",
            Arc::new(
                ids.clone()
                    .map(|i| some(i).map(|i| (i % 97) as f64))
                    .collect::<Float64Array>(),
            ),
        ),
        (
            "s",
            Arc::new(
                ids.clone()
                    .map(|i| some(i).map(|i| words[i as usize % 4]))
                    .collect::<StringArray>(),
            ),
        ),
        (
            "price",
            Arc::new(
                Decimal128Array::from_iter_values(ids.map(|i| i128::from(i) * 7))
                    .with_precision_and_scale(12, 2)
                    .expect("a decimal"),
            ),
        ),
    ];
    RecordBatch::try_from_iter(columns).expect("rows")
}

async fn open(session: Session, modules: &[UdfModule]) -> Result<Session, Error> {
    let rows = rows();
    let parts = (0..4).map(|i| vec![rows.slice(i * N_ROWS / 4, N_ROWS / 4)]);
    let table = MemTable::try_new(rows.schema(), parts.collect()).expect("a table");
    session
        .context()
        .register_table("t", Arc::new(table))
        .expect("registered");
    session.open_modules(modules, &Compiler::InProcess).await?;
    Ok(session)
}

async fn session(modules: &[UdfModule]) -> Result<Session, Error> {
    open(Session::new(settings()).expect("a session"), modules).await
}

async fn with(functions: &[&str]) -> Session {
    let module = UdfModule::new(fixture(), functions);
    session(&[module]).await.expect("a module")
}

async fn answer(session: &Session, sql: &str) -> Result<String, Error> {
    let stage = Stage::new("answer", sql);
    let run = session.run_stage(&stage, &|_| {}, &Cancel::new()).await?;
    let text = pretty_format_batches(&run.report.preview).expect("text");
    Ok(text.to_string())
}

/// Whether two queries have the same rows.
#[track_caller]
fn same(found: String, expected: String) {
    assert_eq!(found, expected);
}

async fn check(session: &Session, sql: &str, plain: &str) {
    let found = answer(session, sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    let expected = answer(session, plain).await.expect("an answer");
    same(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn scalar_functions_answer_as_plain_sql_does() {
    let session = with(&["add", "first_word", "with_tax", "either", "plus_or_zero"]).await;
    check(
        &session,
        "SELECT sum(add(id, 5)) AS a, count(first_word(s)) AS n FROM t WHERE add(id, 8) % 12 = 0",
        "SELECT sum(id + 5) AS a, count(s) AS n FROM t WHERE (id + 8) % 12 = 0",
    )
    .await;
    check(
        &session,
        "SELECT first_word(s) AS w, count(*) AS n FROM t GROUP BY w ORDER BY w",
        "SELECT split_part(s, ' ', 1) AS w, count(*) AS n FROM t GROUP BY w ORDER BY w",
    )
    .await;
    check(
        &session,
        "SELECT CAST(sum(with_tax(price)) * 100 AS BIGINT) AS p FROM t",
        "SELECT sum((id * 7 * 119 + 50) / 100) AS p FROM t",
    )
    .await;
    check(
        &session,
        "SELECT either(NULLIF(id, 3), 7) AS a, plus_or_zero(id, NULL) AS b FROM t \
         WHERE id < 5 ORDER BY id",
        "SELECT coalesce(NULLIF(id, 3), 7) AS a, id AS b FROM t WHERE id < 5 ORDER BY id",
    )
    .await;
    let report = session.module_reports().remove(0);
    assert_eq!(report.sha256.len(), 64);
    let add = &report.functions[0];
    assert_eq!((add.name.as_str(), add.traps), ("add", 0));
    assert!(
        add.calls > 0 && add.rows > 0 && add.instances <= 8,
        "{add:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn constant_calls_are_folded_while_planning() {
    let session = with(&["add", "first_word"]).await;
    let sql = "SELECT id FROM t WHERE id = add(40, 2) AND first_word('a b') = 'a'";
    let plan = session
        .plan_stage(&Stage::new("p", sql))
        .await
        .expect("a plan");
    let text = plan.logical.display_indent().to_string();
    let physical = datafusion::physical_plan::displayable(plan.physical.as_ref())
        .indent(false)
        .to_string();
    assert!(!physical.contains("add("), "{text}\n{physical}");
    check(&session, sql, "SELECT id FROM t WHERE id = 42").await;
    check(
        &session,
        "SELECT add(1, NULL) AS a",
        "SELECT CAST(NULL AS BIGINT) AS a",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregates_answer_as_plain_sql_does() {
    let session = with(&["population_variance", "longest_text"]).await;
    for (own, plain) in [
        (
            "SELECT round(population_variance(x), 6) AS v FROM t",
            "SELECT round(var_pop(x), 6) AS v FROM t",
        ),
        (
            "SELECT id % 50 AS k, round(population_variance(x), 6) AS v FROM t GROUP BY k ORDER BY k",
            "SELECT id % 50 AS k, round(var_pop(x), 6) AS v FROM t GROUP BY k ORDER BY k",
        ),
        (
            "SELECT id % 7 AS k, round(population_variance(x) FILTER (WHERE id > 500), 6) AS v \
             FROM t GROUP BY k ORDER BY k",
            "SELECT id % 7 AS k, round(var_pop(x) FILTER (WHERE id > 500), 6) AS v FROM t \
             GROUP BY k ORDER BY k",
        ),
        (
            "SELECT population_variance(x) AS v FROM t WHERE id < 0",
            "SELECT CAST(NULL AS DOUBLE) AS v",
        ),
        (
            "SELECT id, round(population_variance(x) OVER (ORDER BY id), 6) AS v FROM t \
             WHERE id < 30 ORDER BY id",
            "SELECT id, round(var_pop(x) OVER (ORDER BY id), 6) AS v FROM t WHERE id < 30 \
             ORDER BY id",
        ),
        (
            "SELECT longest_text(s) AS s FROM t",
            "SELECT 'hello world' AS s",
        ),
    ] {
        check(&session, own, plain).await;
    }
    // As many groups as rows: DataFusion gives up on grouping early and hands states on.
    check(
        &session,
        "SELECT count(*) AS n, sum(v) AS v FROM (SELECT id, population_variance(x) AS v FROM t \
         GROUP BY id)",
        "SELECT count(*) AS n, sum(x * 0) AS v FROM t",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_row_is_named_or_becomes_null() {
    let session = with(&["parse_port", "divide"]).await;
    let error = answer(&session, "SELECT parse_port(s) FROM t")
        .await
        .expect_err("an error");
    assert_eq!(error.kind(), Kind::UdfFailed);
    let text = error.to_string();
    assert!(
        text.contains("user function `parse_port` (sha256:"),
        "{text}"
    );
    assert!(text.ends_with(": invalid digit found in string"), "{text}");
    let error = answer(&session, "SELECT divide(id, id % 9 - 3) FROM t")
        .await
        .expect_err("one");
    let text = error.to_string();
    assert!(
        text.contains(" of 1000: it panicked: attempt to divide by zero"),
        "{text}"
    );

    let nulls = UdfModule {
        on_error: UdfErrors::Null,
        ..UdfModule::new(fixture(), &["divide"])
    };
    let session = self::session(&[nulls]).await.expect("a module");
    check(
        &session,
        "SELECT count(divide(id, id % 900 - 3)) AS n FROM t",
        "SELECT count(NULLIF(id % 900, 3)) AS n FROM t",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_arguments_are_told_with_what_to_write() {
    let session = with(&["add", "first_word", "population_variance"]).await;
    for (sql, expected) in [
        (
            "SELECT first_word(id) FROM t",
            "`first_word(s VARCHAR)` got BIGINT for `s`; CAST it to VARCHAR",
        ),
        (
            "SELECT add(id) FROM t",
            "`add(a BIGINT, b BIGINT)` takes 2 arguments and got 1",
        ),
        (
            "SELECT population_variance(s) FROM t",
            "`population_variance(x DOUBLE)` got VARCHAR for `x`; CAST it to DOUBLE",
        ),
        ("SELECT population_variance(DISTINCT x) FROM t", "DISTINCT"),
    ] {
        let error = answer(&session, sql).await.expect_err("a refusal");
        let text = error.to_string();
        assert!(text.contains(expected), "{sql}: {text}");
        assert_eq!(error.kind(), Kind::InvalidQuery, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_that_cannot_be_used_say_why() {
    let pinned = UdfModule {
        sha256: Some("0".repeat(64)),
        ..UdfModule::new(fixture(), &["add"])
    };
    let no_module = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for (module, expected) in [
        (pinned, "and the spec pins 000"),
        (
            UdfModule::new(fixture(), &["ad"]),
            "it has no function `ad`; it has add, ",
        ),
        (
            UdfModule::new("/nowhere/f.wasm", &["add"]),
            "there is no such file",
        ),
        (
            UdfModule::new("/nowhere/", &["add"]),
            "it has to be one file",
        ),
        (
            UdfModule::new(no_module, &["add"]),
            "it is not a WebAssembly module",
        ),
    ] {
        let error = session(&[module]).await.err().expect("a refusal");
        assert_eq!(error.kind(), Kind::InvalidQuery);
        let text = error.to_string();
        assert!(text.contains(expected), "{text}");
    }
    let twice = [
        UdfModule::new(fixture(), &["add"]),
        UdfModule::new(fixture(), &["add"]),
    ];
    let text = session(&twice).await.err().expect("a refusal").to_string();
    assert!(text.contains("SQL has a function `add` already"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_memory_for_guests_says_so() {
    let small = Settings {
        memory_limit_bytes: 1 << 20,
        ..settings()
    };
    let session = Session::new(small).expect("a session");
    let session = open(session, &[UdfModule::new(fixture(), &["add"])])
        .await
        .expect("a module");
    let error = answer(&session, "SELECT max(add(id, 1)) FROM t")
        .await
        .expect_err("an error");
    assert_eq!(error.kind(), Kind::OutOfResources, "{error}");
    assert!(error.to_string().contains("user function `add`"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_around_a_user_function_stays_on_the_device() {
    let device = Device::new(
        open_host(HostOptions::default()),
        Arc::new(Jit::new(None)),
        DeviceLimits::default(),
    );
    let on_device = Session::with_device(settings(), device).expect("a session");
    let functions = ["add", "first_word", "longest_text"];
    let module = UdfModule::new(fixture(), &functions);
    let on_device = open(on_device, &[module]).await.expect("a module");
    let plain = with(&functions).await;
    // Above an aggregate: the aggregate is the device's.
    let sql = "SELECT k, add(n, 1) AS n FROM (SELECT id % 5 AS k, sum(id) AS n FROM t \
               GROUP BY k) ORDER BY k";
    let stage = Stage::new("s", sql);
    let run = on_device
        .run_stage(&stage, &|_| {}, &Cancel::new())
        .await
        .expect("rows");
    let (pipelines, _) = engine::explain::outcomes(&run.plan);
    assert!(!pipelines.is_empty());
    let fallbacks = engine::explain::planned_fallbacks(&run.plan);
    let codes: Vec<&str> = fallbacks.iter().map(|f| f.reason.code.as_str()).collect();
    assert!(codes.contains(&"user-function"), "{fallbacks:?}");
    let found = pretty_format_batches(&run.report.preview)
        .expect("text")
        .to_string();
    same(found, answer(&plain, sql).await.expect("an answer"));
    // Below one, and an aggregate itself: the answer is the same.
    for sql in [
        "SELECT first_word(s) AS w, count(*) AS n, sum(id) AS i FROM t GROUP BY w ORDER BY w",
        "SELECT id % 5 AS k, longest_text(s) AS s FROM t WHERE id > 10 GROUP BY k ORDER BY k",
    ] {
        let found = answer(&on_device, sql).await.expect("an answer");
        same(found, answer(&plain, sql).await.expect("an answer"));
    }
}
