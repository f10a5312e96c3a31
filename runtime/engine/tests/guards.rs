//! Is the answer right where DataFusion's is not?
//!
//! Every case is also run in DataFusion as it comes, and must be answered
//! differently there: a guard that nothing needs any more shows itself.

mod support;

use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::displayable;
use datafusion::scalar::ScalarValue;
use engine::Kind;
use engine::settings::Stage;
use support::*;

#[tokio::test]
async fn integer_sums_do_not_wrap() {
    let error = check_refused(
        "SELECT sum(x) FROM (VALUES (9223372036854775807), (1)) t(x)",
        "overflows BIGINT",
    )
    .await;
    assert_eq!(error.kind(), Kind::DataError);
    check_refused(
        "SELECT g, sum(x) FROM (VALUES (1, 9223372036854775807), (1, 1)) t(g, x) GROUP BY g",
        "sum",
    )
    .await;
    check_refused(
        "SELECT sum(x) OVER () FROM (VALUES (9223372036854775807), (1)) t(x)",
        "sum",
    )
    .await;
    check_refused(
        "SELECT sum(DISTINCT x) FROM (VALUES (9223372036854775807), (1)) t(x)",
        "sum",
    )
    .await;
}

#[tokio::test]
async fn a_sum_that_fits_is_exact_whatever_the_order() {
    let sql = "SELECT sum(x) FROM (VALUES (9223372036854775807), (1), (-1)) t(x)";
    assert_eq!(ours(sql).await.unwrap(), ["9223372036854775807"]);
    assert_eq!(
        ours("SELECT sum(x) FROM (VALUES (CAST(NULL AS BIGINT))) t(x)")
            .await
            .unwrap(),
        [""]
    );
    let windowed = "SELECT sum(x) OVER (ORDER BY x ROWS 1 PRECEDING) FROM (VALUES (1), (2), (4)) t(x) ORDER BY x";
    assert_eq!(ours(windowed).await.unwrap(), ["1", "3", "6"]);
    let distinct = "SELECT g, sum(DISTINCT x), sum(x) FROM (VALUES (1, 2), (1, 2), (2, 3)) t(g, x) GROUP BY g ORDER BY g";
    assert_eq!(ours(distinct).await.unwrap(), ["1|2|4", "2|3|3"]);
    let filtered = "SELECT g, sum(x) FILTER (WHERE x > 2) FROM (VALUES (1, 2), (2, 3)) t(g, x) GROUP BY g ORDER BY g";
    assert_eq!(ours(filtered).await.unwrap(), ["1|", "2|3"]);
}

#[tokio::test]
async fn decimal_sums_past_38_digits_are_errors() {
    let nines = "9".repeat(38);
    let sql = format!(
        "SELECT sum(x) FROM (VALUES (CAST('{nines}' AS DECIMAL(38,0))), (CAST('{nines}' AS DECIMAL(38,0)))) t(x)"
    );
    let error = ours(&sql).await.unwrap_err();
    assert!(error.to_string().contains("DECIMAL(38, 0)"), "{error}");
}

#[tokio::test]
async fn integer_arithmetic_does_not_wrap() {
    let max = "(SELECT CAST(9223372036854775807 AS BIGINT) AS x, CAST(3 AS BIGINT) AS y) t";
    for expression in ["x + y", "x * y", "-x - y"] {
        check_refused(&format!("SELECT {expression} FROM {max}"), "overflows").await;
    }
    check_refused("SELECT 9223372036854775807 + 1", "overflows").await;
    check_refused(
        "CREATE TABLE t AS VALUES (9223372036854775807, 1), (1, 2); SELECT max(column1 + column2) FROM t",
        "overflows",
    )
    .await;
    check_refused(
        "CREATE TABLE t AS VALUES (9223372036854775807); SELECT 1 FROM t WHERE column1 + 1 < 0",
        "overflows",
    )
    .await;
    assert_eq!(
        ours("SELECT x - y FROM (VALUES (5, 3)) t(x, y)")
            .await
            .unwrap(),
        ["2"]
    );
}

#[tokio::test]
async fn checked_arithmetic_is_an_operator_in_the_plan() {
    let session = session();
    let sql = "CREATE TABLE t AS VALUES (1, 2), (3, 4); \
               SELECT column1 + 1, sum(column1 * column2) FROM t WHERE column1 - 1 >= 0 GROUP BY column1 + 1";
    run(&session, &Stage::new("made", "SELECT 1 AS a"))
        .await
        .unwrap();
    let run = run(&session, &Stage::new("test", sql)).await.unwrap();
    let mut left = Vec::new();
    let mut nodes = vec![run.plan.clone()];
    while let Some(node) = nodes.pop() {
        if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
            left.extend(
                aggregate
                    .aggr_expr()
                    .iter()
                    .flat_map(|f| f.expressions())
                    .map(|expr| expr.to_string()),
            );
        } else {
            left.push(displayable(node.as_ref()).one_line().to_string());
        }
        nodes.extend(node.children().into_iter().cloned());
    }
    assert!(
        !left.iter().any(|text| text.contains("checked_")),
        "{left:?}"
    );
    assert_eq!(run.report.rows, 2);
}

#[tokio::test]
async fn max_and_pruning_keep_nan() {
    check_fixed(
        "SELECT g, max(x) FROM (VALUES (1, 1.0), (1, CAST('NaN' AS DOUBLE)), (1, 2.0)) t(g, x) GROUP BY g",
        &["1|NaN"],
    )
    .await;
    assert_eq!(
        ours("SELECT max(x), min(x) FROM (VALUES (1.0), (CAST('NaN' AS DOUBLE))) t(x)")
            .await
            .unwrap(),
        ["NaN|1.0"]
    );
}

#[tokio::test]
async fn statistics_do_not_prune_nan_rows() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("floats");
    let session = session();
    let values = "SELECT CAST(column1 AS DOUBLE) AS x FROM (VALUES ('1'), ('NaN'))";
    let stage = Stage {
        name: "floats".into(),
        ..stage_to(values, output(&place))
    };
    run(&session, &stage).await.unwrap();
    assert_eq!(
        ours_in(&session, "SELECT x FROM floats WHERE x > 5")
            .await
            .unwrap(),
        ["NaN"]
    );
    assert_eq!(
        ours_in(&session, "SELECT x FROM floats ORDER BY x")
            .await
            .unwrap(),
        ["1.0", "NaN"]
    );
    assert_eq!(
        ours_in(&session, "SELECT x FROM floats WHERE x > 5")
            .await
            .unwrap(),
        ["NaN"]
    );
    assert_eq!(
        ours_in(
            &session,
            "SELECT x FROM floats WHERE x = CAST('NaN' AS DOUBLE)"
        )
        .await
        .unwrap(),
        ["NaN"]
    );
    assert_eq!(
        ours_in(&session, "SELECT max(x) FROM floats")
            .await
            .unwrap(),
        ["NaN"]
    );
    assert_eq!(
        ours_in(&session, "SELECT x FROM floats ORDER BY x DESC LIMIT 1")
            .await
            .unwrap(),
        ["NaN"]
    );
    let file = place.join(&names(&place)[0]);
    let sql = format!(
        "CREATE EXTERNAL TABLE f STORED AS PARQUET LOCATION '{}'; SELECT x FROM f WHERE x > 5",
        file.display()
    );
    assert_eq!(
        theirs(&sql).await.unwrap(),
        Vec::<String>::new(),
        "statistics keep NaN by now"
    );
}

#[tokio::test]
async fn there_is_one_zero() {
    let zeros = "(SELECT CAST(column1 AS DOUBLE) AS x FROM (VALUES ('0'), ('-0'))) t";
    let other = zeros.replace(") t", ") u");
    check_some_fixed(&[
        (format!("SELECT DISTINCT x FROM {zeros}"), &["0.0"]),
        (
            format!("SELECT x, count(*) FROM {zeros} GROUP BY x"),
            &["0.0|2"],
        ),
        (
            format!("SELECT x, 1 AS y, count(*) FROM {zeros} GROUP BY x, y"),
            &["0.0|1|2"],
        ),
        (format!("SELECT count(DISTINCT x) FROM {zeros}"), &["1"]),
        (format!("SELECT count(*) FROM {zeros} WHERE x = 0"), &["2"]),
        (
            format!("SELECT CASE x WHEN 0.0 THEN 'zero' ELSE 'other' END AS c FROM {zeros}"),
            &["zero", "zero"],
        ),
        (
            format!("SELECT rank() OVER (ORDER BY x) AS r FROM {zeros}"),
            &["1", "1"],
        ),
        (
            format!("SELECT count(*) FROM {zeros} JOIN {other} ON t.x = u.x"),
            &["4"],
        ),
        (
            format!("SELECT x FROM {zeros} INTERSECT SELECT CAST(0 AS DOUBLE)"),
            &["0.0"],
        ),
        (
            format!("SELECT x, count(*) FROM {zeros} GROUP BY ROLLUP (x) ORDER BY 2, 1"),
            &["0.0|2", "|2"],
        ),
        (
            format!("SELECT x * 1.0 AS y, count(*) FROM {zeros} GROUP BY x * 1.0"),
            &["0.0|2"],
        ),
        (
            format!("SELECT count(*) FROM {zeros} WHERE x IN (SELECT CAST(0 AS DOUBLE))"),
            &["2"],
        ),
        (
            format!("SELECT count(*) FROM {zeros} WHERE x IN (0.0, 7.0)"),
            &["2"],
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_nan_with_its_sign_bit_sorts_last_too() {
    let sql = "SELECT x FROM (SELECT -CAST(column1 AS DOUBLE) AS x FROM (VALUES ('NaN'), ('1'))) t ORDER BY x";
    check_fixed(sql, &["-1.0", "NaN"]).await;
}

#[tokio::test]
async fn not_in_knows_nulls_under_correlation_and_or() {
    let tables = "CREATE TABLE a AS SELECT * FROM (VALUES (1, 1), (1, 2), (2, 1), (2, NULL), (3, NULL)) t(g, x); \
                  CREATE TABLE b AS SELECT * FROM (VALUES (1, 1), (1, NULL), (2, 5)) t(g, x);";
    // g=1: the NULL makes everything uncertain; g=2: 1 is not 5, NULL is uncertain; g=3: nothing to equal.
    check_fixed(
        &format!("{tables} SELECT g, x FROM a WHERE x NOT IN (SELECT b.x FROM b WHERE b.g = a.g) ORDER BY g, x"),
        &["2|1", "3|"],
    )
    .await;
    check_fixed(
        &format!(
            "{tables} SELECT g, x FROM a WHERE g = 3 OR x NOT IN (SELECT b.x FROM b) ORDER BY g, x"
        ),
        &["3|"],
    )
    .await;
    check_fixed(
        &format!("{tables} SELECT g, x FROM a WHERE NOT (g <> 7 AND x IN (SELECT b.x FROM b)) ORDER BY g, x"),
        &[],
    )
    .await;
    let plain = format!("{tables} SELECT g, x FROM a WHERE x NOT IN (SELECT b.x FROM b)");
    assert_eq!(ours(&plain).await.unwrap(), Vec::<String>::new());
    let positive = format!(
        "{tables} SELECT g, x FROM a WHERE x IN (SELECT b.x FROM b WHERE b.g = a.g) ORDER BY g"
    );
    assert_eq!(ours(&positive).await.unwrap(), ["1|1"]);
}

#[tokio::test]
async fn any_and_all_look_at_other_rows_of_the_same_table() {
    let table =
        "CREATE TABLE t AS SELECT * FROM (VALUES (1, 10), (2, 20), (3, NULL), (4, 40)) t(id, v);";
    check_fixed(
        &format!("{table} SELECT id FROM t WHERE v > ANY (SELECT v FROM t) ORDER BY id"),
        &["2", "4"],
    )
    .await;
    check_fixed(
        &format!("{table} SELECT id FROM t WHERE v >= ALL (SELECT v FROM t WHERE v > 0)"),
        &["4"],
    )
    .await;
    let apart =
        format!("{table} SELECT id FROM t WHERE v > ALL (SELECT v + 5 FROM t u WHERE v < 15)");
    assert_eq!(ours(&apart).await.unwrap(), ["2", "4"]);
}

#[tokio::test]
async fn rollup_and_cube_modifiers_make_subtotals() {
    let t = "(VALUES (1, 1), (2, 2)) t(a, b)";
    let sql = format!("SELECT a, sum(b) FROM {t} GROUP BY a WITH ROLLUP ORDER BY a");
    check_fixed(&sql, &["1|1", "2|2", "|3"]).await;
    let sql = format!("SELECT a, b, count(*) FROM {t} GROUP BY a, b WITH CUBE ORDER BY a, b");
    let expected = ["1|1|1", "1||1", "2|2|1", "2||1", "|1|1", "|2|1", "||2"];
    check_fixed(&sql, &expected).await;
    check_refused(
        &format!("SELECT a, sum(b) FROM {t} GROUP BY a WITH TOTALS"),
        "WITH TOTALS",
    )
    .await;
}

#[tokio::test]
async fn a_number_with_a_suffix_is_not_an_alias() {
    let error = check_refused("SELECT 1.5D", "`1.5D` at line 1, column 8").await;
    assert_eq!(error.kind(), Kind::InvalidQuery);
    assert_eq!(
        ours("SELECT 1.5 AS d, 1e3, 2 x").await.unwrap(),
        ["1.5|1000.0|2"]
    );
}

#[tokio::test]
async fn is_distinct_from_binds_tighter_than_and() {
    let t = "(VALUES (1, 1, false), (1, 1, true), (1, 2, true)) t(a, b, c)";
    let sql = format!("SELECT count(*) FROM {t} WHERE a = 1 AND a IS NOT DISTINCT FROM b AND c");
    assert_eq!(ours(&sql).await.unwrap(), ["1"]);
    let sql = format!("SELECT count(*) FROM {t} WHERE a IS DISTINCT FROM b AND c OR NOT c");
    assert_eq!(ours(&sql).await.unwrap(), ["2"]);
    let flags = "(VALUES (false, true, false)) t(a, b, c)";
    check_fixed(
        &format!("SELECT a IS NOT DISTINCT FROM b AND c AS r FROM {flags}"),
        &["false"],
    )
    .await;
    check_refused(
        &format!("SELECT NOT a IS NOT DISTINCT FROM b AND c AS r FROM {flags}"),
        "parentheses",
    )
    .await;
}

#[tokio::test]
async fn set_operations_that_would_not_count_are_refused() {
    check_refused("VALUES (1), (1) INTERSECT ALL VALUES (1)", "INTERSECT ALL").await;
    check_refused("VALUES (1), (1) EXCEPT ALL VALUES (1)", "EXCEPT ALL").await;
    assert_eq!(
        ours("(VALUES (1), (1)) UNION ALL (VALUES (1))")
            .await
            .unwrap()
            .len(),
        3
    );
}

#[tokio::test]
async fn timestamps_outside_nanoseconds_are_errors_not_other_times() {
    let error = ours("SELECT CAST(DATE '9999-12-31' AS TIMESTAMP)")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::DataError, "{error}");
}

#[tokio::test]
async fn writing_statements_name_the_output_block() {
    for sql in [
        "COPY (SELECT 1) TO '/tmp/never.parquet'",
        "INSERT INTO t VALUES (1)",
        "DELETE FROM t",
    ] {
        let error = ours(sql).await.unwrap_err();
        assert!(error.to_string().contains("`output` block"), "{error}");
    }
    assert!(
        ours("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/x'")
            .await
            .unwrap_err()
            .to_string()
            .contains("`tables` block")
    );
    assert!(
        ours("DROP TABLE t")
            .await
            .unwrap_err()
            .to_string()
            .contains("DROP TABLE")
    );
    assert_eq!(
        ours("SET x = 1").await.unwrap_err().kind(),
        Kind::InvalidQuery
    );
}

#[tokio::test]
async fn parameters_are_values_never_text() {
    let session = session();
    let stage = Stage::new(
        "test",
        "SELECT a FROM (VALUES ('x'), ('y')) t(a) WHERE a = $name",
    );
    let hostile = with_parameter(
        stage.clone(),
        "name",
        ScalarValue::Utf8(Some("' OR 1=1 --".into())),
    );
    assert_eq!(
        rows(&run(&session, &hostile).await.unwrap().report.preview),
        Vec::<String>::new()
    );
    let fine = with_parameter(stage.clone(), "name", ScalarValue::Utf8(Some("y".into())));
    assert_eq!(
        rows(&run(&session, &fine).await.unwrap().report.preview),
        ["y"]
    );
    let error = run(&session, &with_parameter(stage, "nmae", ScalarValue::Null))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("`$name`: has no value; did you mean `$nmae`?"),
        "{error}"
    );
}

#[tokio::test]
async fn the_largest_of_groups_may_be_nan() {
    let sql = "SELECT g, max(x) AS m FROM (VALUES (1, 1.0), (1, CAST('NaN' AS DOUBLE)), (1, 2.0), (2, 5.0)) t(g, x) \
               GROUP BY g ORDER BY m DESC LIMIT 1";
    check_fixed(sql, &["1|NaN"]).await;
}

#[tokio::test]
async fn a_stage_may_not_take_the_name_of_a_table() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("a.csv");
    std::fs::write(&file, "x\n1\n").unwrap();
    let session = session();
    let csv = engine::settings::Format::Csv(engine::settings::CsvOptions::default());
    session
        .register_table(&table("a", &file, csv))
        .await
        .unwrap();
    for stage in [
        Stage::new("a", "SELECT 2 AS x"),
        Stage::new("b", "CREATE VIEW a AS SELECT 2 AS x; SELECT 1"),
    ] {
        let error = run(&session, &stage).await.unwrap_err();
        assert!(
            error.to_string().contains("`a` is a table of this batch"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn guards_leave_ordinary_sql_alone() {
    for (sql, expected) in [
        (
            "SELECT value AS v FROM generate_series(1, 5) LIMIT 1 + 1",
            &["1", "2"][..],
        ),
        (
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n FROM r ORDER BY n",
            &["1", "2", "3"],
        ),
        (
            "SELECT unnest([1.5, 2.5]) AS x ORDER BY x DESC",
            &["2.5", "1.5"],
        ),
        (
            "SELECT DATE '2024-01-31' + INTERVAL '1' MONTH AS d",
            &["2024-02-29"],
        ),
        (
            "SELECT x, row_number() OVER (PARTITION BY x ORDER BY y) AS r FROM (VALUES (1.5, 1), (1.5, 2)) t(x, y) ORDER BY r",
            &["1.5|1", "1.5|2"],
        ),
        (
            "SELECT a.x FROM (VALUES (1.5), (2.5)) a(x) LEFT JOIN (VALUES (1.5)) b(x) USING (x) ORDER BY a.x",
            &["1.5", "2.5"],
        ),
        (
            "SELECT (SELECT max(x + 1) FROM (VALUES (1), (2)) t(x)) AS m",
            &["3"],
        ),
        (
            "SELECT g FROM (VALUES (1, 2), (1, 3), (2, 1)) t(g, x) GROUP BY g HAVING sum(x * 2) > 4",
            &["1"],
        ),
        (
            "SELECT sum(x) AS s FROM (VALUES (1.5), (NULL), (2.5)) t(x)",
            &["4.0"],
        ),
        (
            "SELECT DISTINCT ON (g) g, x FROM (VALUES (1, 2.5), (1, 1.5)) t(g, x) ORDER BY g, x",
            &["1|1.5"],
        ),
        (
            "SELECT approx_distinct(x) AS n, avg(x) AS a FROM (VALUES (1), (2)) t(x)",
            &["2|1.5"],
        ),
        (
            "SELECT string_agg(s, ',' ORDER BY x DESC) AS l FROM (VALUES ('a', 1.0), ('b', 2.0)) t(s, x)",
            &["b,a"],
        ),
        (
            "SELECT x FROM (VALUES (1), (2)) t(x) WHERE x NOT IN (SELECT y FROM (VALUES (2)) u(y))",
            &["1"],
        ),
        (
            "SELECT x FROM (VALUES (1), (2)) t(x) WHERE EXISTS (SELECT 1 FROM (VALUES (2)) u(y) WHERE y = x + 0)",
            &["2"],
        ),
        (
            "SELECT lag(x - 1, 1, 0) OVER (ORDER BY x) AS l FROM (VALUES (1), (2)) t(x) ORDER BY x",
            &["0", "0"],
        ),
    ] {
        assert_eq!(
            ours(sql)
                .await
                .map_err(|error| error.to_string())
                .as_deref(),
            Ok(&expected
                .iter()
                .map(|row| (*row).to_owned())
                .collect::<Vec<_>>()[..]),
            "{sql}"
        );
    }
}

#[tokio::test]
async fn a_filter_keeps_to_its_column_of_two_with_one_name() {
    let from = "CREATE TABLE l AS SELECT * FROM (VALUES (1, 'a'), (2, 'b')) t(k, s); \
                CREATE TABLE r AS SELECT * FROM (VALUES (1, 'x', 10), (3, 'y', 30), (4, NULL, 40)) t(k, s, v); \
                SELECT r.v FROM l RIGHT JOIN (SELECT * FROM r WHERE v > 0) r ON l.k = r.k WHERE";
    check_some_fixed(&[
        (format!("{from} l.s IS NULL ORDER BY 1"), &["30", "40"]),
        (
            format!("{from} l.s IS NULL AND r.s IS NOT NULL ORDER BY 1"),
            &["30"],
        ),
        (
            format!("{from} l.s IS NULL OR r.s <> l.s ORDER BY 1"),
            &["10", "30", "40"],
        ),
        (
            format!("{from} l.s IS NOT DISTINCT FROM r.s ORDER BY 1"),
            &["40"],
        ),
    ])
    .await;
}

#[tokio::test]
async fn null_equals_null_only_where_it_is_asked_for() {
    let tables = "CREATE TABLE a AS SELECT * FROM (VALUES (1, 1), (2, NULL), (NULL, 3)) t(k, x); \
                  CREATE TABLE b AS SELECT * FROM (VALUES (1, 1), (2, NULL), (NULL, 4)) t(k, x);";
    let null_safe = "SELECT a.k, b.x FROM a JOIN b ON a.k IS NOT DISTINCT FROM b.k";
    let more = "JOIN b c ON c.k = b.k AND b.x = c.x";
    check_some_fixed(&[
        (
            format!("{tables} {null_safe} WHERE a.x = b.x ORDER BY 1"),
            &["1|1"],
        ),
        (format!("{tables} {null_safe} {more} ORDER BY 1"), &["1|1"]),
    ])
    .await;
    check_some_fixed(&[
        (
            format!("{tables} {null_safe} JOIN b c ON c.x = b.x ORDER BY 1"),
            &["1|1", "|4"],
        ),
        (
            format!("{tables} SELECT a.k, c.x FROM a JOIN b ON a.k IS NOT DISTINCT FROM b.k JOIN a c ON c.x = a.x ORDER BY 1"),
            &["1|1", "|3"],
        ),
    ])
    .await;
}
