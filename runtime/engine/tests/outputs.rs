//! Is a result written wholly or not at all, and read again as it was?

mod support;

use std::fs;

use engine::session::Session;
use engine::settings::{Output, OutputFormat, Settings, Stage, WriteMode};
use engine::{Cancel, Error, Kind};
use support::*;

fn append(place: &std::path::Path) -> Output {
    Output {
        mode: WriteMode::Append,
        ..output(place)
    }
}

#[tokio::test]
async fn every_format_is_read_again_as_it_was_written() {
    let home = tempfile::tempdir().unwrap();
    for format in [OutputFormat::Parquet, OutputFormat::Csv, OutputFormat::Json] {
        let place = home.path().join(format!("{format:?}"));
        let session = session();
        let stage = stage_to(
            "SELECT 1 AS x, 'ä,b' AS y UNION ALL SELECT 2, NULL",
            Output {
                format,
                ..output(&place)
            },
        );
        let report = run(&session, &stage).await.unwrap().report;
        assert_eq!(report.rows, 2);
        assert_eq!(report.output.as_ref().unwrap().files.len(), 1);
        assert!(report.output.unwrap().bytes > 0);
        assert_eq!(
            ours_in(&session, "SELECT * FROM made ORDER BY x")
                .await
                .unwrap(),
            ["1|ä,b", "2|"],
            "{format:?}"
        );
        assert_eq!(names(&place).len(), 1);
    }
    assert_eq!(names(home.path()), ["Csv", "Json", "Parquet"]);
}

#[tokio::test]
async fn an_empty_result_has_its_columns() {
    let home = tempfile::tempdir().unwrap();
    for format in [OutputFormat::Parquet, OutputFormat::Csv, OutputFormat::Json] {
        let place = home.path().join(format!("{format:?}"));
        let session = session();
        let output = Output {
            format,
            ..output(&place)
        };
        run(&session, &stage_to("SELECT 1 AS x WHERE false", output))
            .await
            .unwrap();
        assert_eq!(names(&place).len(), 1);
        assert_eq!(
            ours_in(&session, "SELECT count(x) FROM made")
                .await
                .unwrap(),
            ["0"],
            "{format:?}"
        );
    }
}

#[tokio::test]
async fn modes_keep_their_promises() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("out");
    let session = session();
    run(&session, &stage_to("SELECT 1 AS x", output(&place)))
        .await
        .unwrap();
    // Fails before anything runs: the statement would divide by zero.
    let error = run(&session, &stage_to("SELECT 1 / 0 AS x", output(&place)))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::OutputExists);
    run(&session, &stage_to("SELECT 2 AS x", append(&place)))
        .await
        .unwrap();
    assert_eq!(
        ours_in(&session, "SELECT x FROM made ORDER BY x")
            .await
            .unwrap(),
        ["1", "2"]
    );
    let overwrite = Output {
        mode: WriteMode::Overwrite,
        ..output(&place)
    };
    run(
        &session,
        &stage_to("SELECT x + 10 AS x FROM made", overwrite),
    )
    .await
    .unwrap();
    assert_eq!(
        ours_in(&session, "SELECT x FROM made ORDER BY x")
            .await
            .unwrap(),
        ["11", "12"]
    );
    assert_eq!(names(home.path()), ["out"]);
}

#[tokio::test]
async fn a_failure_leaves_nothing_and_spoils_nothing() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("out");
    let session = session();
    let failing = "SELECT 10 / (value - 50000) AS x FROM generate_series(1, 100000)";
    let error = run(&session, &stage_to(failing, output(&place)))
        .await
        .unwrap_err();
    assert!(matches!(error.root(), Error::DivisionByZero), "{error:?}");
    assert!(names(home.path()).is_empty());
    run(&session, &stage_to("SELECT 1 AS x", output(&place)))
        .await
        .unwrap();
    let overwrite = Output {
        mode: WriteMode::Overwrite,
        ..output(&place)
    };
    run(&session, &stage_to(failing, overwrite))
        .await
        .unwrap_err();
    assert_eq!(
        ours_in(&session, "SELECT x FROM made").await.unwrap(),
        ["1"]
    );
    assert_eq!(names(home.path()), ["out"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_stage_stops_soon_and_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let cancel = Cancel::new();
    let stage = stage_to(
        "SELECT a.value AS x FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b",
        output(&home.path().join("out")),
    );
    let session = session();
    let asker = cancel.clone();
    let started = std::time::Instant::now();
    let on_progress = move |_| asker.cancel();
    let error = session
        .run_stage(&stage, &on_progress, &cancel)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled);
    assert!(started.elapsed().as_secs() < 10);
    assert!(names(home.path()).is_empty());
}

#[tokio::test]
async fn partitions_become_directories_and_come_back_as_columns() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("out");
    let session = session();
    let output = Output {
        partition_by: vec!["day".into()],
        ..output(&place)
    };
    let sql = "SELECT * FROM (VALUES (1, DATE '2024-01-01'), (2, DATE '2024-01-02'), (3, DATE '2024-01-01')) t(x, day)";
    run(&session, &stage_to(sql, output.clone())).await.unwrap();
    assert_eq!(names(&place), ["day=2024-01-01", "day=2024-01-02"]);
    assert_eq!(
        ours_in(
            &session,
            "SELECT day, sum(x) FROM made GROUP BY day ORDER BY day"
        )
        .await
        .unwrap(),
        ["2024-01-01|4", "2024-01-02|2"]
    );
    let wrong = Output {
        partition_by: vec!["dya".into()],
        mode: WriteMode::Overwrite,
        ..output
    };
    let error = run(&session, &stage_to(sql, wrong)).await.unwrap_err();
    assert!(error.to_string().contains("did you mean `day`?"), "{error}");
}

#[tokio::test]
async fn files_are_cut_at_the_target_size_and_an_order_is_kept() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("out");
    let session = session();
    let output = Output {
        target_file_bytes: 50_000,
        format: OutputFormat::Csv,
        ..output(&place)
    };
    let report = run(
        &session,
        &stage_to(
            "SELECT value AS x FROM generate_series(1, 50000) ORDER BY 1 DESC",
            output,
        ),
    )
    .await
    .unwrap()
    .report;
    let files = report.output.unwrap().files;
    assert!(files.len() > 3, "{files:?}");
    let first = fs::read_to_string(place.join(&files[0].path)).unwrap();
    assert!(first.starts_with("x\n50000\n49999\n"));
    assert_eq!(files.iter().map(|file| file.rows).sum::<u64>(), 50_000);
}

#[tokio::test]
async fn outputs_that_cannot_be_are_refused_before_running() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("out");
    for (sql, output, expected) in [
        ("SELECT 1 AS x, 2 AS x", output(&place), "x"),
        (
            "SELECT [1] AS x",
            Output {
                format: OutputFormat::Csv,
                ..output(&place)
            },
            "nested column `x`",
        ),
        (
            "SELECT 1 AS x",
            Output {
                partition_by: vec!["x".into()],
                ..output(&place)
            },
            "every column is a partition",
        ),
        (
            "SELECT 1 AS x",
            Output::new("http://127.0.0.1/x"),
            "cannot be written over http",
        ),
        ("SELECT 1 AS x", Output::new("s3://bucket"), "whole bucket"),
    ] {
        let error = run(&session(), &stage_to(sql, output)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidQuery, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(names(home.path()).is_empty());
}

#[tokio::test]
async fn stages_see_what_came_before_and_reports_say_what_was_read() {
    let home = tempfile::tempdir().unwrap();
    let session = session();
    run(
        &session,
        &Stage {
            name: "a".into(),
            ..stage_to(
                "SELECT value AS x FROM generate_series(1, 100)",
                output(&home.path().join("a")),
            )
        },
    )
    .await
    .unwrap();
    let script = "CREATE VIEW big AS SELECT x FROM a WHERE x > 50; CREATE TABLE kept AS SELECT x FROM big; \
                  SELECT count(*) AS n, sum(x) AS s FROM kept";
    let report = run(&session, &Stage::new("b", script))
        .await
        .unwrap()
        .report;
    assert_eq!(rows(&report.preview), ["50|3775"]);
    assert_eq!(report.statements.len(), 3);
    let read = &report.statements[1].sources[0];
    assert_eq!(read.table, "a");
    assert!(read.rows >= 50 && read.bytes > 0, "{read:?}");
    assert_eq!(
        ours_in(&session, "SELECT n * 2 FROM b").await.unwrap(),
        ["100"]
    );
    assert!(
        serde_json::to_string(&report)
            .unwrap()
            .contains("\"stage\":\"b\"")
    );
}

#[tokio::test]
async fn planning_runs_nothing_and_lets_later_stages_be_planned() {
    let home = tempfile::tempdir().unwrap();
    let session = session();
    let first = stage_to("SELECT 1 AS x", output(&home.path().join("out")));
    session.plan_stage(&first).await.unwrap();
    let plan = session
        .plan_stage(&Stage::new("b", "SELECT x + 1 AS y FROM made"))
        .await
        .unwrap();
    assert_eq!(plan.physical.schema().field(0).name(), "y");
    assert!(names(home.path()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_budget_says_so() {
    let settings = Settings {
        memory_limit_bytes: 4 << 20,
        compute_threads: 2,
        ..Settings::default()
    };
    let session = Session::new(settings).unwrap();
    let sql = "SELECT count(*) FROM generate_series(1, 2000000) a JOIN generate_series(1, 2000000) b ON a.value = b.value";
    let error = ours_in(&session, sql).await.unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfResources, "{error}");
    assert!(
        error.to_string().contains("the batch may use 4.0 MiB"),
        "{error}"
    );
}

fn is_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn a_run_can_be_spawned() {
    let session = session();
    let stage = Stage::new("a", "SELECT 1");
    let cancel = Cancel::new();
    is_send(session.run_stage(&stage, &|_| {}, &cancel))
        .await
        .unwrap();
}
