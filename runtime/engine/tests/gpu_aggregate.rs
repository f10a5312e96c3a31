//! Aggregates through the GPU rewrite on the host target, against the same query
//! with the rewrite off. Fallbacks are failures here, unless a case expects one.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Date32Array, Decimal128Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use arrow::compute::concat_batches;
use arrow::util::pretty::pretty_format_batches;
use datafusion::datasource::MemTable;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use engine::exec::{Device, DeviceLimits, GpuAggregateExec, Outcome};
use engine::report::Fallback;
use engine::rewrite::GpuRewrite;
use kernels::gpu::{HostOptions, open_cuda, open_host};
use kernels::jit::Jit;

struct Run {
    rows: String,
    outcomes: Vec<Outcome>,
    refused: Vec<Fallback>,
}

/// The host target, or with `WARPLINE_TEST_GPU=N` the GPU of that number.
fn device(limits: DeviceLimits) -> Device {
    let gpu = match std::env::var("WARPLINE_TEST_GPU") {
        Ok(ordinal) => open_cuda(ordinal.parse().expect("a number")).expect("a GPU"),
        Err(_) => open_host(HostOptions::default()),
    };
    Device::new(gpu, Arc::new(Jit::new(None)), limits)
}

async fn run(sql: &str, table: &RecordBatch, parts: usize, gpu: bool) -> Result<Run, String> {
    run_on(device(DeviceLimits::default()), sql, table, parts, gpu).await
}

async fn run_on(
    device: Device,
    sql: &str,
    table: &RecordBatch,
    parts: usize,
    gpu: bool,
) -> Result<Run, String> {
    let n = table.num_rows();
    let pieces = (0..parts).map(|i| {
        let (from, to) = (i * n / parts, (i + 1) * n / parts);
        table.slice(from, to - from)
    });
    let partitions = pieces.map(|piece| vec![piece]).collect();
    let rule = Arc::new(GpuRewrite::new(device, true));
    let config = SessionConfig::new().with_target_partitions(3);
    let mut builder = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features();
    if gpu {
        builder = builder.with_physical_optimizer_rule(Arc::clone(&rule) as _);
    }
    let context = SessionContext::new_with_state(builder.build());
    let source = MemTable::try_new(table.schema(), partitions).unwrap();
    context.register_table("t", Arc::new(source)).unwrap();
    let plan = context
        .sql(sql)
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap();
    let schema = plan.schema();
    let batches = collect(Arc::clone(&plan), context.task_ctx())
        .await
        .map_err(|e| e.to_string())?;
    let whole = concat_batches(&schema, &batches).unwrap();
    let mut outcomes = Vec::new();
    outcomes_of(&plan, &mut outcomes);
    Ok(Run {
        rows: pretty_format_batches(&[whole]).unwrap().to_string(),
        outcomes,
        refused: rule.take_refused(),
    })
}

fn outcomes_of(plan: &Arc<dyn ExecutionPlan>, found: &mut Vec<Outcome>) {
    if let Some(node) = plan.downcast_ref::<GpuAggregateExec>() {
        found.extend(node.original().outcome());
    }
    for child in plan.children() {
        outcomes_of(child, found);
    }
}

/// The GPU path must run, wholly, and give the CPU path's rows.
async fn check(sql: &str, table: &RecordBatch) {
    let expected = run(sql, table, 1, false).await.unwrap();
    for parts in [1, 2, 7] {
        let got = run(sql, table, parts, true).await.unwrap();
        assert!(got.refused.is_empty(), "{sql}: {:?}", got.refused);
        assert!(
            !got.outcomes.is_empty(),
            "{sql}: nothing ran on the GPU path"
        );
        for outcome in &got.outcomes {
            assert!(matches!(outcome, Outcome::Ran(_)), "{sql}: {outcome:?}");
        }
        assert_eq!(got.rows, expected.rows, "{sql} over {parts} record batches");
    }
}

/// Lines with TPC-H's types, flags and value ranges.
fn lines(n: usize) -> RecordBatch {
    let pick = |row: usize, salt: u64, below: u64| {
        let x = (row as u64 + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(salt as u32 * 7 + 3);
        (x ^ (x >> 31)) % below
    };
    let money = |salt: u64, below: u64| -> ArrayRef {
        let values: Vec<i128> = (0..n)
            .map(|row| i128::from(pick(row, salt, below)))
            .collect();
        Arc::new(
            Decimal128Array::from(values)
                .with_precision_and_scale(15, 2)
                .unwrap(),
        )
    };
    let flag = |salt: u64, of: &'static [&'static str]| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(
            (0..n).map(|row| of[pick(row, salt, of.len() as u64) as usize]),
        ))
    };
    let dates = Date32Array::from_iter_values((0..n).map(|row| 8035 + pick(row, 1, 2526) as i32));
    RecordBatch::try_from_iter(vec![
        ("l_quantity", money(2, 5001)),
        ("l_extendedprice", money(3, 10_494_951)),
        ("l_discount", money(4, 11)),
        ("l_tax", money(5, 9)),
        ("l_returnflag", flag(6, &["A", "N", "R"])),
        ("l_linestatus", flag(7, &["F", "O"])),
        ("l_shipdate", Arc::new(dates) as ArrayRef),
    ])
    .unwrap()
}

#[tokio::test]
async fn a_pricing_summary_by_two_text_flags() {
    let sql = "select l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), \
               sum(l_extendedprice * (1 - l_discount)), \
               sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), \
               avg(l_quantity), avg(l_extendedprice), avg(l_discount), count(*) \
               from t where l_shipdate <= date '1998-09-02' \
               group by l_returnflag, l_linestatus order by 1, 2";
    check(sql, &lines(5000)).await;
}

#[tokio::test]
async fn a_revenue_forecast_over_a_range_of_discounts() {
    let sql = "select sum(l_extendedprice * l_discount) as revenue from t \
               where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01' \
               and l_discount between 0.05 and 0.07 and l_quantity < 24";
    check(sql, &lines(5000)).await;
}

#[tokio::test]
async fn fields_of_dates_as_keys_and_values() {
    for sql in [
        "select extract(year from l_shipdate) as y, count(*), sum(l_quantity) from t group by 1 order by 1",
        "select extract(month from l_shipdate), extract(dow from l_shipdate), count(*) from t \
         group by 1, 2 order by 1, 2",
        "select min(extract(week from l_shipdate)), max(extract(doy from l_shipdate)), \
         sum(extract(quarter from l_shipdate)) from t where extract(day from l_shipdate) > 15",
    ] {
        check(sql, &lines(5000)).await;
    }
}

fn texts() -> RecordBatch {
    let s = StringArray::from(vec![
        Some("a%b"),
        Some("axb"),
        None,
        Some("100%"),
        Some("100"),
        Some("a\nb"),
        Some("ab"),
        Some("a\u{f1}b\u{65e5}c"),
        Some(""),
        Some("special packages requests"),
        Some("MAIL"),
        Some("Mail"),
    ]);
    let n = Int32Array::from_iter_values(0..s.len() as i32);
    RecordBatch::try_from_iter_with_nullable(vec![
        ("s", Arc::new(s) as ArrayRef, true),
        ("n", Arc::new(n) as ArrayRef, false),
    ])
    .unwrap()
}

#[tokio::test]
async fn text_in_predicates_and_lengths() {
    for sql in [
        r"select count(*), sum(n) from t where s like 'a\%b'",
        r"select count(*), sum(n) from t where s like '100\%'",
        "select count(*), sum(n) from t where s like 'a%b'",
        "select count(*), sum(n) from t where s like 'a_b%'",
        "select count(*), sum(n) from t where s not like '%special%requests%'",
        "select count(*), sum(n) from t where s = 'MAIL' or s > 'a' or s is null",
        "select count(*), sum(n) from t where s in ('MAIL', 'ab', '')",
        "select sum(character_length(s)), sum(octet_length(s)), max(length(s)) from t",
        "select count(*) from t where substring(s, 2, 3) = '\u{f1}b\u{65e5}'",
        "select sum(length(substring(s, 3))), sum(length(substring(s, 0, 2))) from t",
        "select s, count(*) from t where s like '%a%' group by s order by s",
        "select count(*) from t where upper(s) = 'MAIL' and n > 8",
        "select sum(case when s = 'MAIL' then 1 else 0 end) from t",
        "select count(*), sum(n) from t where s ilike 'm%l' and n > 8",
    ] {
        check(sql, &texts()).await;
    }
}

/// Case rules beyond ASCII are the CPU's: the node runs there and says so.
#[tokio::test]
async fn case_of_text_beyond_ascii_falls_back() {
    let sql = "select count(*) from t where upper(s) = 'MAIL'";
    let got = run(sql, &texts(), 2, true).await.unwrap();
    assert!(
        matches!(&got.outcomes[..], [Outcome::FellBack(f)] if f.reason.message.contains("ASCII")),
        "{:?}",
        got.outcomes
    );
    assert_eq!(got.rows, run(sql, &texts(), 1, false).await.unwrap().rows);
}

fn small() -> RecordBatch {
    let k = Int32Array::from(vec![
        Some(1),
        Some(1),
        None,
        Some(2),
        Some(2),
        None,
        Some(3),
    ]);
    let v = Int64Array::from(vec![
        Some(10),
        None,
        Some(20),
        None,
        None,
        Some(33),
        Some(-5),
    ]);
    let s = StringArray::from(vec![
        Some("x"),
        None,
        Some("y"),
        Some("x"),
        None,
        None,
        Some(""),
    ]);
    RecordBatch::try_from_iter_with_nullable(vec![
        ("k", Arc::new(k) as ArrayRef, true),
        ("v", Arc::new(v) as ArrayRef, true),
        ("s", Arc::new(s) as ArrayRef, true),
    ])
    .unwrap()
}

#[tokio::test]
async fn nulls_in_keys_values_and_filters() {
    for sql in [
        "select count(*), count(v), sum(v), min(v), max(v), avg(v) from t",
        "select k, count(*), count(v), sum(v), min(v) from t group by k order by k",
        "select s, k, count(*), max(v) from t group by s, k order by s, k",
        "select sum(v) filter (where k = 1), count(*) filter (where v is null) from t",
        "select count(*) from t where v not in (10, null)",
        "select sum(case when k = 1 then v else 0 end), sum(v + k) from t where v > 0 or k is null",
        "select k + 1 as j, count(*) from t where k is not null group by k + 1 order by j",
        "select count(*), sum(v), max(v) from t where k > 100",
        "select k, sum(v) from t where k > 100 group by k",
    ] {
        check(sql, &small()).await;
    }
}

#[tokio::test]
async fn more_keys_than_a_thread_keeps_apart_use_the_table() {
    let n = 5000;
    let k = Int64Array::from_iter_values((0..n).map(|i| i * 31 % 1999));
    let v = Int64Array::from_iter_values(0..n);
    let table = RecordBatch::try_from_iter(vec![
        ("k", Arc::new(k) as ArrayRef),
        ("v", Arc::new(v) as ArrayRef),
    ])
    .unwrap();
    let sql =
        "select k, count(*), sum(v), avg(v), min(v) from t where v >= 100 group by k order by k";
    check(sql, &table).await;
}

#[tokio::test]
async fn what_has_no_gpu_form_is_refused_by_name() {
    let got = run("select count(distinct v) from t", &small(), 1, true)
        .await
        .unwrap();
    assert!(
        got.outcomes
            .iter()
            .all(|outcome| !matches!(outcome, Outcome::FellBack(_)))
    );
    let refused = run(
        "select count(*) from t where s ~ '^x.*y'",
        &small(),
        1,
        true,
    )
    .await
    .unwrap()
    .refused;
    assert!(
        refused.iter().any(|f| f.reason.message.contains("~")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_sum_that_leaves_its_type_is_an_error_and_never_wraps() {
    let v = Int64Array::from(vec![i64::MAX, 1]);
    let table = RecordBatch::try_from_iter(vec![("v", Arc::new(v) as ArrayRef)]).unwrap();
    let error = run("select sum(v) from t", &table, 2, true)
        .await
        .err()
        .unwrap();
    assert!(error.contains("does not fit"), "{error}");
}

/// Chunks that do not fit the budget are halved until they do; what can never fit runs
/// on the CPU and says so.
#[tokio::test]
async fn a_budget_smaller_than_the_data_gives_the_same_answer() {
    let sql = "select l_returnflag, sum(l_extendedprice), count(*) from t \
               group by l_returnflag order by 1";
    let table = lines(40_000);
    let expected = run(sql, &table, 1, false).await.unwrap().rows;
    for (memory_bytes, is_enough) in [(64 << 10, true), (16 << 10, true), (1 << 10, false)] {
        let limits = DeviceLimits {
            memory_bytes,
            ..DeviceLimits::default()
        };
        let got = run_on(device(limits), sql, &table, 2, true).await.unwrap();
        assert_eq!(got.rows, expected, "{memory_bytes} bytes");
        match &got.outcomes[..] {
            [Outcome::Ran(report)] if is_enough => {
                assert!(report.retries > 0, "{memory_bytes} bytes: {report:?}");
            }
            [Outcome::FellBack(fallback)] if !is_enough => {
                assert_eq!(fallback.reason.code, "out-of-device-memory");
            }
            other => panic!("{memory_bytes} bytes: {other:?}"),
        }
    }
}

/// Wherever memory runs out, also in the middle of a chunk that another node left on the
/// device, the groups are the same and none of it runs on the CPU.
#[tokio::test]
async fn many_groups_of_rows_on_the_device_are_right_in_any_budget() {
    let sql = "select count(*), sum(n) from (select k, d, count(*) as n from \
               (select distinct k, d, v from t) group by k, d having count(*) > 0)";
    let n = 150_000i64;
    let column =
        |of: fn(i64) -> i64| -> ArrayRef { Arc::new((0..n).map(of).collect::<Int64Array>()) };
    let table = RecordBatch::try_from_iter(vec![
        ("k", column(|i| i * 7_919 % 1_000_003 * 40_009)),
        ("d", column(|i| i % 11)),
        ("v", column(|i| i % 2)),
    ])
    .unwrap();
    let expected = run(sql, &table, 1, false).await.unwrap().rows;
    let mut memory_bytes = 1 << 20;
    while memory_bytes < 64 << 20 {
        let limits = DeviceLimits {
            memory_bytes,
            ..DeviceLimits::default()
        };
        let got = run_on(device(limits), sql, &table, 1, true).await.unwrap();
        assert_eq!(got.rows, expected, "{memory_bytes} bytes");
        for outcome in &got.outcomes {
            assert!(
                matches!(outcome, Outcome::Ran(_)),
                "{memory_bytes} bytes: {outcome:?}"
            );
        }
        memory_bytes += memory_bytes / 3;
    }
}
