//! Whole queries through the GPU rewrite on the host target, with fallback forbidden,
//! against the same query with the rewrite off: aggregates with what stands above
//! them, filters, projections, sorts and limits.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array,
    ListArray, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::Int32Type;
use arrow::util::pretty::pretty_format_batches;
use datafusion::datasource::MemTable;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use engine::exec::{Device, DeviceLimits, Outcome, gpu_node};
use engine::explain::{placements, planned_fallbacks};
use engine::report::{Fallback, Verdict};
use engine::rewrite::GpuRewrite;
use kernels::gpu::{HostOptions, open_cuda, open_host};
use kernels::jit::Jit;

/// The host target, or with `WARPLINE_TEST_GPU=N` the GPU of that number.
fn device() -> Device {
    let gpu = match std::env::var("WARPLINE_TEST_GPU") {
        Ok(ordinal) => open_cuda(ordinal.parse().expect("a number")).expect("a GPU"),
        Err(_) => open_host(HostOptions::default()),
    };
    Device::new(gpu, Arc::new(Jit::new(None)), DeviceLimits::default())
}

/// Which rewrite a query is planned with.
#[derive(Clone, Copy, PartialEq)]
enum Rewrite {
    Off,
    On,
    /// Fallback is forbidden.
    Strict,
}

struct Run {
    rows: String,
    plan: Arc<dyn ExecutionPlan>,
    outcomes: Vec<Outcome>,
    planned: Vec<Fallback>,
}

async fn run(sql: &str, tables: &[(&str, &RecordBatch)], parts: usize, rewrite: Rewrite) -> Run {
    try_run(sql, tables, parts, rewrite)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

async fn try_run(
    sql: &str,
    tables: &[(&str, &RecordBatch)],
    parts: usize,
    rewrite: Rewrite,
) -> Result<Run, String> {
    let config = SessionConfig::new()
        .with_target_partitions(3)
        .with_batch_size(1000);
    let mut builder = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features();
    if rewrite != Rewrite::Off {
        let rule = GpuRewrite::new(device(), rewrite == Rewrite::On);
        builder = builder.with_physical_optimizer_rule(Arc::new(rule));
    }
    let context = SessionContext::new_with_state(builder.build());
    for (name, table) in tables {
        let n = table.num_rows();
        let pieces = (0..parts).map(|i| {
            let (from, to) = (i * n / parts, (i + 1) * n / parts);
            vec![table.slice(from, to - from)]
        });
        let source = MemTable::try_new(table.schema(), pieces.collect()).unwrap();
        context.register_table(*name, Arc::new(source)).unwrap();
    }
    let frame = context.sql(sql).await.map_err(|e| e.to_string())?;
    let plan = frame
        .create_physical_plan()
        .await
        .map_err(|e| e.to_string())?;
    let batches = collect(Arc::clone(&plan), context.task_ctx())
        .await
        .map_err(|e| e.to_string())?;
    let whole = concat_batches(&plan.schema(), &batches).unwrap();
    let mut outcomes = Vec::new();
    outcomes_of(&plan, &mut outcomes);
    Ok(Run {
        rows: pretty_format_batches(&[whole]).unwrap().to_string(),
        outcomes,
        planned: planned_fallbacks(&plan),
        plan,
    })
}

fn outcomes_of(plan: &Arc<dyn ExecutionPlan>, found: &mut Vec<Outcome>) {
    found.extend(gpu_node(plan).and_then(|node| node.outcome));
    for child in plan.children() {
        outcomes_of(child, found);
    }
}

fn sorted_lines(rows: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = rows.lines().collect();
    lines.sort_unstable();
    lines
}

fn shown(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(false).to_string()
}

/// Runs wholly on the GPU path and gives the CPU path's rows, in the same order when
/// the query has one; `expected` names GPU nodes that must be there.
async fn check_tables(sql: &str, tables: &[(&str, &RecordBatch)], expected: &[&str]) {
    let cpu = run(sql, tables, 1, Rewrite::Off).await;
    for parts in [1, 2, 7] {
        let got = run(sql, tables, parts, Rewrite::Strict).await;
        let plan = shown(&got.plan);
        assert!(got.planned.is_empty(), "{sql}: {:?}\n{plan}", got.planned);
        for outcome in &got.outcomes {
            assert!(matches!(outcome, Outcome::Ran(_)), "{sql}: {outcome:?}");
        }
        for node in expected {
            assert!(plan.contains(node), "{sql}: no {node} in\n{plan}");
        }
        let what = format!("{sql} over {parts} record batches\n{plan}");
        if sql.contains("order by") {
            assert_eq!(got.rows, cpu.rows, "{what}");
        } else {
            assert_eq!(sorted_lines(&got.rows), sorted_lines(&cpu.rows), "{what}");
        }
    }
}

async fn check(sql: &str, table: &RecordBatch, expected: &[&str]) {
    check_tables(sql, &[("t", table)], expected).await;
}

/// Lines with TPC-H's types, flags and value ranges, and a column that no kernel reads.
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
        let array = Decimal128Array::from(values);
        Arc::new(array.with_precision_and_scale(15, 2).unwrap())
    };
    let flag = |salt: u64, of: &'static [&'static str]| -> ArrayRef {
        let texts = (0..n).map(|row| of[pick(row, salt, of.len() as u64) as usize]);
        Arc::new(StringArray::from_iter_values(texts))
    };
    let dates = Date32Array::from_iter_values((0..n).map(|row| 8035 + pick(row, 1, 2526) as i32));
    let lists = (0..n).map(|row| Some(vec![Some(row as i32), None]));
    RecordBatch::try_from_iter(vec![
        ("l_orderkey", {
            let keys = (0..n).map(|row| row as i64);
            Arc::new(Int64Array::from_iter_values(keys)) as ArrayRef
        }),
        ("l_quantity", money(2, 5001)),
        ("l_extendedprice", money(3, 10_494_951)),
        ("l_discount", money(4, 11)),
        ("l_tax", money(5, 9)),
        ("l_returnflag", flag(6, &["A", "N", "R"])),
        ("l_linestatus", flag(7, &["F", "O"])),
        ("l_shipdate", Arc::new(dates) as ArrayRef),
        (
            "tags",
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists)) as ArrayRef,
        ),
    ])
    .unwrap()
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
        Some("é"),
        Some(""),
    ]);
    let b = BooleanArray::from(vec![
        Some(true),
        None,
        Some(false),
        Some(true),
        Some(false),
        None,
        Some(true),
    ]);
    let f = Float64Array::from(vec![
        Some(1.5),
        Some(-2.5),
        None,
        Some(0.0),
        Some(1e300),
        Some(-1.0),
        Some(7.0),
    ]);
    let ts = TimestampMicrosecondArray::from(vec![
        Some(-1),
        Some(0),
        None,
        Some(1_000_000),
        Some(i64::MAX / 1000),
        Some(5),
        Some(4),
    ]);
    RecordBatch::try_from_iter_with_nullable(vec![
        (
            "id",
            Arc::new(Int32Array::from_iter_values(1..8)) as ArrayRef,
            false,
        ),
        ("k", Arc::new(k) as ArrayRef, true),
        ("v", Arc::new(v) as ArrayRef, true),
        ("s", Arc::new(s) as ArrayRef, true),
        ("b", Arc::new(b) as ArrayRef, true),
        ("f", Arc::new(f) as ArrayRef, true),
        ("ts", Arc::new(ts) as ArrayRef, true),
    ])
    .unwrap()
}

#[tokio::test]
async fn a_pricing_summary_with_its_order() {
    let sql = "select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty, \
               sum(l_extendedprice) as sum_base_price, \
               sum(l_extendedprice * (1 - l_discount)) as sum_disc_price, \
               sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge, \
               avg(l_quantity) as avg_qty, avg(l_extendedprice) as avg_price, \
               avg(l_discount) as avg_disc, count(*) as count_order \
               from t where l_shipdate <= date '1998-09-02' \
               group by l_returnflag, l_linestatus \
               order by l_returnflag, l_linestatus";
    check(sql, &lines(5000), &["GpuSortExec", "GpuAggregateExec"]).await;
}

#[tokio::test]
async fn having_and_an_order_over_an_aggregate() {
    let sql = "select l_returnflag, l_linestatus, sum(l_quantity) as q, count(*) as n from t \
               group by l_returnflag, l_linestatus having count(*) > 800 and sum(l_quantity) > 5 \
               order by q desc, l_linestatus limit 3 offset 1";
    let nodes = ["GpuSortExec", "GpuCollectExec", "GpuAggregateExec"];
    check(sql, &lines(5000), &nodes).await;
    let sql = "select k, sum(v) as total from t group by k having sum(v) is not null";
    check(sql, &small(), &["GpuCollectExec", "GpuAggregateExec"]).await;
}

#[tokio::test]
async fn filters_pass_columns_of_any_type_on() {
    for sql in [
        "select * from t where l_discount between 0.05 and 0.07 and l_quantity < 24",
        "select tags, l_returnflag from t where l_tax = 0.03",
        "select l_orderkey from t where l_quantity > 100000",
    ] {
        check(sql, &lines(3000), &["GpuCollectExec"]).await;
    }
}

#[tokio::test]
async fn projections_are_computed() {
    for sql in [
        "select l_orderkey, l_extendedprice * (1 - l_discount) as revenue, tags from t",
        "select l_extendedprice * (1 - l_discount) * (1 + l_tax) as charge, 'x' as c, 7 as d \
         from t where l_quantity < 10",
        "select l_orderkey % 7 = 3 as b, -l_orderkey as n, cast(l_orderkey as double) as q from t",
    ] {
        check(sql, &lines(2000), &["GpuCollectExec"]).await;
    }
    for sql in [
        "select id, v + k as sum, v is null as missing, not b as nb from t",
        "select id, case when k = 1 then v else -1 end as c, f * 2 as g from t where id > 1",
        "select id, ts, s from t where ts > timestamp '1970-01-01 00:00:00'",
        "select a + 1 as x from (select id * 2 as a, v from t where k > 0) where v > 0",
    ] {
        check(sql, &small(), &["GpuCollectExec"]).await;
    }
}

#[tokio::test]
async fn sorts_by_every_kind_of_key() {
    for sql in [
        "select * from t order by k desc nulls last, id",
        "select * from t order by k nulls first, v desc nulls first, id",
        "select id, s from t order by s, id",
        "select id, s from t order by s desc nulls last, id desc",
        "select id from t order by b, f, id",
        "select id from t order by ts desc, id",
        "select id, k from t order by k + id desc, id",
        "select id from t order by f desc limit 3",
        "select id, v * 2 as w from t where id < 7 order by w nulls first, id limit 4 offset 1",
    ] {
        check(sql, &small(), &["GpuSortExec"]).await;
    }
    let sql = "select l_orderkey, l_extendedprice, tags from t \
               order by l_extendedprice desc, l_orderkey limit 20 offset 5";
    check(sql, &lines(4000), &["GpuSortExec"]).await;
    let sql = "select * from t order by l_shipdate, l_returnflag desc, l_orderkey";
    check(sql, &lines(4000), &["GpuSortExec"]).await;
}

/// Equal keys keep the order of the source, which the CPU's sort of partitions does not
/// promise.
#[tokio::test]
async fn a_sort_is_stable() {
    let table = lines(3000);
    let tables = [("t", &table)];
    let total = "select l_orderkey, l_discount from t order by l_discount, l_orderkey";
    let expected = run(total, &tables, 1, Rewrite::Off).await;
    let sql = "select l_orderkey, l_discount from t order by l_discount";
    for parts in [1, 2] {
        let got = run(sql, &tables, parts, Rewrite::Strict).await;
        assert_eq!(got.rows, expected.rows, "{}", shown(&got.plan));
    }
}

#[tokio::test]
async fn nan_sorts_last_ascending_and_null_where_it_is_told() {
    let v = Float64Array::from(vec![
        Some(1.0),
        Some(f64::NAN),
        None,
        Some(f64::INFINITY),
        Some(f64::NEG_INFINITY),
    ]);
    let id = Int32Array::from_iter_values(1..6);
    let table = RecordBatch::try_from_iter_with_nullable(vec![
        ("id", Arc::new(id) as ArrayRef, false),
        ("v", Arc::new(v) as ArrayRef, true),
    ])
    .unwrap();
    let sql = "select id from t order by v desc nulls last";
    for parts in [1, 2, 5] {
        let got = run(sql, &[("t", &table)], parts, Rewrite::Strict).await;
        let expected = ["2", "4", "1", "5", "3"];
        let ids: Vec<&str> = got
            .rows
            .lines()
            .filter_map(|line| {
                line.trim_matches(['|', ' '])
                    .parse::<i32>()
                    .ok()
                    .map(|_| line)
            })
            .map(|line| line.trim_matches(['|', ' ']))
            .collect();
        assert_eq!(ids, expected);
        assert!(shown(&got.plan).contains("GpuSortExec"));
    }
}

#[tokio::test]
async fn or_with_one_true_and_one_unknown_keeps_the_row() {
    let table = RecordBatch::try_from_iter_with_nullable(vec![
        (
            "id",
            Arc::new(Int32Array::from_iter_values(1..6)) as ArrayRef,
            false,
        ),
        (
            "i",
            Arc::new(Int32Array::from(vec![
                Some(10),
                Some(10),
                None,
                None,
                Some(5),
            ])) as ArrayRef,
            true,
        ),
        (
            "b",
            Arc::new(Int32Array::from(vec![
                None,
                Some(200),
                Some(200),
                None,
                Some(5),
            ])) as ArrayRef,
            true,
        ),
    ])
    .unwrap();
    let sql = "select id from t where i = 10 or b = 200 order by id";
    check(sql, &table, &["GpuCollectExec", "GpuSortExec"]).await;
    let got = run(sql, &[("t", &table)], 2, Rewrite::Strict).await;
    assert_eq!(got.rows.lines().count(), 4 + 3, "{}", got.rows);
}

#[tokio::test]
async fn limits_and_columns_alone_are_no_fallback() {
    let one =
        RecordBatch::try_from_iter(vec![("a", Arc::new(Int32Array::from(vec![1])) as ArrayRef)])
            .unwrap();
    check("select * from t limit 1 offset 1", &one, &[]).await;
    let got = run(
        "select * from t limit 1 offset 1",
        &[("t", &one)],
        1,
        Rewrite::Strict,
    )
    .await;
    assert!(!got.rows.contains("| 1"), "{}", got.rows);
    check("select id as a, s from t", &small(), &[]).await;
    let sql = "select id as a, s as b from t where v > 0 order by id limit 2";
    check(sql, &small(), &["GpuSortExec", "GpuCollectExec"]).await;
}

#[tokio::test]
async fn a_count_over_a_filter_beside_an_unread_text() {
    let table = RecordBatch::try_from_iter(vec![
        ("g", Arc::new(Int32Array::from(vec![1, 12, 3])) as ArrayRef),
        (
            "s",
            Arc::new(StringArray::from(vec!["a", "b", "c"])) as ArrayRef,
        ),
    ])
    .unwrap();
    check(
        "select count(*) from t where g < 10",
        &table,
        &["GpuAggregateExec"],
    )
    .await;
    check("select s from t where g < 10", &table, &["GpuCollectExec"]).await;
}

#[tokio::test]
async fn what_cannot_go_is_named() {
    let table = small();
    let tables = [("t", &table)];
    // Text of two columns follows from neither alone.
    let sql = "select concat(s, cast(id as varchar)) as u from t where v > 0 order by u";
    let got = run(sql, &tables, 2, Rewrite::Strict).await;
    let planned = &got.planned;
    assert_eq!(planned.len(), 1, "{planned:?}");
    assert_eq!(planned[0].node, "ProjectionExec");
    assert!(planned[0].reason.message.contains("concat"), "{planned:?}");
    assert_eq!(got.rows, run(sql, &tables, 1, Rewrite::Off).await.rows);
}

/// A filter over a join that stays on the CPU is an island: only a batch that forbids
/// fallback wants it on the GPU.
#[tokio::test]
async fn islands_stay_on_the_cpu_unless_fallback_is_forbidden() {
    let table = small();
    let tables = [("t", &table), ("u", &table)];
    let sql = "select t.id, t.v + u.v as w from t full join u \
               on t.k = u.k and concat(t.s, u.s) <> 'xx' and t.id <> u.id";
    let expected = run(sql, &tables, 1, Rewrite::Off).await;
    let relaxed = run(sql, &tables, 2, Rewrite::On).await;
    assert_eq!(sorted_lines(&relaxed.rows), sorted_lines(&expected.rows));
    let plan = shown(&relaxed.plan);
    assert!(!plan.contains("GpuCollectExec"), "{plan}");
    let verdicts = placements(&relaxed.plan);
    let island = verdicts.iter().find(|node| node.node == "ProjectionExec");
    assert_eq!(island.map(|node| node.verdict), Some(Verdict::NotWorthIt));
    let strict = run(sql, &tables, 2, Rewrite::Strict).await;
    assert_eq!(sorted_lines(&strict.rows), sorted_lines(&expected.rows));
    let plan = shown(&strict.plan);
    assert!(plan.contains("GpuCollectExec"), "{plan}");
    let kept: Vec<&str> = strict.planned.iter().map(|f| f.node.as_str()).collect();
    assert!(kept.iter().any(|node| node.contains("Join")), "{kept:?}");
    assert!(!kept.contains(&"ProjectionExec"), "{kept:?}");
}

#[tokio::test]
async fn faults_are_errors_on_both_paths() {
    let table = small();
    let tables = [("t", &table)];
    for (sql, what) in [
        ("select 10 / (id - 3) as q from t", "ivide by zero"),
        ("select id from t order by 10 / (id - 3)", "ivide by zero"),
    ] {
        for rewrite in [Rewrite::Off, Rewrite::On, Rewrite::Strict] {
            let error = try_run(sql, &tables, 2, rewrite).await.err().unwrap();
            assert!(error.contains(what), "{sql}: {error}");
        }
    }
    let sql = "select 10 / (id - 3) as q from t where id <> 3 order by q";
    check(sql, &small(), &["GpuCollectExec", "GpuSortExec"]).await;
}

#[tokio::test]
async fn empty_inputs_have_the_right_columns() {
    let empty = lines(0);
    for sql in [
        "select l_orderkey, l_tax * 2 as x from t where l_tax > 0 order by l_orderkey",
        "select * from t where l_tax > 0",
    ] {
        check(sql, &empty, &["GpuCollectExec"]).await;
    }
}
