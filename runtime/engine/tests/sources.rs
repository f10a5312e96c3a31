//! Can the files be read, and if not, does the message say which and why?

mod support;

use std::fs;
use std::path::Path;

use engine::session::Session;
use engine::settings::{CsvOptions, Format, Settings, Table};
use engine::{Kind, Result};
use support::*;

async fn make(home: &Path, name: &str, sql: &str) -> std::path::PathBuf {
    let place = home.join(format!("{name}.d"));
    run(&session(), &stage_to(sql, output(&place)))
        .await
        .unwrap();
    let made = place.join(&names(&place)[0]);
    let file = home.join(name);
    fs::rename(made, &file).unwrap();
    fs::remove_dir(place).unwrap();
    file
}

async fn count(table: Table) -> Result<String> {
    let session = session();
    session.register_table(&table).await?;
    Ok(ours_in(&session, "SELECT count(*) FROM t").await?.remove(0))
}

async fn refusal(table: Table) -> (Kind, String) {
    let error = session().register_table(&table).await.unwrap_err();
    (error.kind(), error.to_string())
}

#[tokio::test]
async fn a_file_a_directory_a_pattern_and_a_url_are_read() {
    let home = tempfile::tempdir().unwrap();
    let file = make(home.path(), "a.parquet", "SELECT 1 AS x UNION ALL SELECT 2").await;
    make(home.path(), "b.parquet", "SELECT 3 AS x").await;
    fs::write(home.path().join("_SUCCESS"), "").unwrap();
    fs::write(home.path().join(".hidden.parquet"), "junk").unwrap();
    assert_eq!(
        count(table("t", &file, Format::Parquet)).await.unwrap(),
        "2"
    );
    assert_eq!(
        count(table("t", home.path(), Format::Parquet))
            .await
            .unwrap(),
        "3"
    );
    assert_eq!(
        count(table("t", &home.path().join("b*.parquet"), Format::Parquet))
            .await
            .unwrap(),
        "1"
    );
    let url = Table::new(
        "t",
        format!("file://{}", home.path().display()),
        Format::Parquet,
    );
    assert_eq!(count(url).await.unwrap(), "3");
}

#[tokio::test]
async fn csv_and_json_are_read_with_their_options() {
    let home = tempfile::tempdir().unwrap();
    let csv = home.path().join("a.csv");
    fs::write(&csv, "x;y\n1;\"a;b\"\n2;NA\n").unwrap();
    let options = CsvOptions {
        delimiter: b';',
        null: Some("NA".into()),
        ..CsvOptions::default()
    };
    let session = session();
    session
        .register_table(&table("t", &csv, Format::Csv(options)))
        .await
        .unwrap();
    assert_eq!(
        ours_in(&session, "SELECT x + 1 AS x, y FROM t ORDER BY x")
            .await
            .unwrap(),
        ["2|a;b", "3|"]
    );

    let json = home.path().join("a.json");
    fs::write(&json, "{\"x\": 1, \"y\": {\"z\": true}}\n{\"x\": 2}\n").unwrap();
    session
        .register_table(&table("j", &json, Format::Json))
        .await
        .unwrap();
    assert_eq!(
        ours_in(&session, "SELECT x, y['z'] FROM j ORDER BY x")
            .await
            .unwrap(),
        ["1|true", "2|"]
    );
}

#[tokio::test]
async fn compressed_text_is_read() {
    let home = tempfile::tempdir().unwrap();
    let plain = home.path().join("a.csv");
    fs::write(&plain, "x\n1\n2\n").unwrap();
    for (program, suffix) in [("gzip", "gz"), ("zstd", "zst")] {
        let made = std::process::Command::new(program)
            .args(["-k", "-q"])
            .arg(&plain)
            .status();
        if !made.is_ok_and(|status| status.success()) {
            eprintln!("{program} is not installed; that part did not run");
            continue;
        }
        let file = home.path().join(format!("a.csv.{suffix}"));
        assert_eq!(
            count(table("t", &file, Format::Csv(CsvOptions::default())))
                .await
                .unwrap(),
            "2"
        );
    }
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let home = tempfile::tempdir().unwrap();
    let (kind, message) = refusal(table("t", &home.path().join("no"), Format::Parquet)).await;
    assert_eq!(kind, Kind::InputMissing);
    assert!(
        message.contains("table `t`: there is no file or directory at"),
        "{message}"
    );
    let (_, message) = refusal(table("t", home.path(), Format::Parquet)).await;
    assert!(message.contains("the directory is empty"), "{message}");
    fs::write(home.path().join("a.csv"), "x\n1\n").unwrap();
    let (_, message) = refusal(table("t", home.path(), Format::Parquet)).await;
    assert!(
        message.contains("1 files are there, but none that ends in .parquet"),
        "{message}"
    );
    let (_, message) = refusal(table(
        "t",
        &home.path().join("z*"),
        Format::Csv(CsvOptions::default()),
    ))
    .await;
    assert!(message.contains("no file matches the pattern"), "{message}");
}

#[tokio::test]
async fn what_is_damaged_is_named() {
    let home = tempfile::tempdir().unwrap();
    let text = home.path().join("text.parquet");
    fs::write(&text, "x,y\n1,2\n3,4\n5,6\n").unwrap();
    let (kind, message) = refusal(table("t", &text, Format::Parquet)).await;
    assert_eq!(kind, Kind::InputMissing);
    assert!(
        message.contains("text.parquet` is not a Parquet file"),
        "{message}"
    );
    let whole = make(home.path(), "whole.parquet", "SELECT 1 AS x").await;
    let bytes = fs::read(whole).unwrap();
    let cut = home.path().join("cut.parquet");
    fs::write(&cut, &bytes[..bytes.len() - 20]).unwrap();
    let (_, message) = refusal(table("t", &cut, Format::Parquet)).await;
    assert!(message.contains("cut.parquet` is truncated"), "{message}");
}

#[tokio::test]
async fn files_that_differ_are_named_with_their_columns() {
    let home = tempfile::tempdir().unwrap();
    make(home.path(), "a.parquet", "SELECT 1 AS x, 'a' AS y").await;
    make(home.path(), "b.parquet", "SELECT 'one' AS x, 2 AS z").await;
    let (kind, message) = refusal(table("t", home.path(), Format::Parquet)).await;
    assert_eq!(kind, Kind::InputMissing);
    for part in [
        "a.parquet",
        "b.parquet",
        "`x` is BIGINT in the first and VARCHAR in the second",
        "`y` is missing in the second",
        "`z` is missing in the first",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[tokio::test]
async fn unknown_names_come_with_the_nearest_one() {
    let session = session();
    run(
        &session,
        &engine::settings::Stage::new("orders", "SELECT 1 AS o_orderkey, 2 AS o_custkey"),
    )
    .await
    .unwrap();
    for (sql, expected) in [
        (
            "SELECT * FROM oders",
            "there is no table `oders`; did you mean `orders`?",
        ),
        (
            "SELECT o_ordrekey FROM orders",
            "there is no column `o_ordrekey`; did you mean `o_orderkey`?",
        ),
        (
            "SELECT cuont(*) FROM orders",
            "there is no function `cuont`; did you mean `count`?",
        ),
        ("SELECT 1 FROM", "the SQL does not parse"),
    ] {
        let error = ours_in(&session, sql).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidQuery);
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.to_string().starts_with("stage `test`: "), "{error}");
    }
}

#[tokio::test]
async fn generated_tables_are_made_once() {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings {
        cache_dir: home.path().to_owned(),
        ..Settings::default()
    };
    let session = Session::new(settings).unwrap();
    let nation = Table::new("nation", "tpch://0.01/nation", Format::Parquet);
    session.register_table(&nation).await.unwrap();
    assert_eq!(
        ours_in(&session, "SELECT count(*) FROM nation")
            .await
            .unwrap(),
        ["25"]
    );
    let directory = home.path().join("tpch/sf0.01");
    assert_eq!(names(&directory), ["nation"]);
    let before = fs::metadata(directory.join("nation"))
        .unwrap()
        .modified()
        .unwrap();
    session.register_table(&nation).await.unwrap();
    assert_eq!(
        fs::metadata(directory.join("nation"))
            .unwrap()
            .modified()
            .unwrap(),
        before
    );
    let error = session
        .register_table(&Table::new("x", "tpch://1/nations", Format::Parquet))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("there is no such table"),
        "{error}"
    );
}
