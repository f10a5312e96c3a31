//! What the engine's tests share.
#![allow(dead_code, reason = "each test crate uses its own part")]

use std::path::Path;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;
use engine::session::{Session, StageRun};
use engine::settings::{Format, Output, Settings, Stage, Table};
use engine::{Cancel, Error, Result};

pub fn session() -> Session {
    Session::new(Settings {
        compute_threads: 2,
        ..Settings::default()
    })
    .unwrap()
}

pub async fn run(session: &Session, stage: &Stage) -> Result<StageRun> {
    session.run_stage(stage, &|_| {}, &Cancel::new()).await
}

/// The rows of a result as `a|b` lines.
pub fn rows(batches: &[RecordBatch]) -> Vec<String> {
    if batches.is_empty() {
        return Vec::new();
    }
    let table = pretty_format_batches(batches).unwrap().to_string();
    table
        .lines()
        .skip(3)
        .filter(|line| line.starts_with('|'))
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(str::trim)
                .collect::<Vec<_>>()
                .join("|")
        })
        .collect()
}

/// Runs SQL in a fresh session.
pub async fn ours(sql: &str) -> Result<Vec<String>> {
    ours_in(&session(), sql).await
}

pub async fn ours_in(session: &Session, sql: &str) -> Result<Vec<String>> {
    run(session, &Stage::new("test", sql))
        .await
        .map(|run| rows(&run.report.preview))
}

/// The same in DataFusion as it comes. Statements are separated by `;`.
pub async fn theirs(sql: &str) -> Result<Vec<String>, String> {
    let context = SessionContext::new();
    let mut last = Vec::new();
    for statement in sql
        .split(';')
        .filter(|statement| !statement.trim().is_empty())
    {
        let result = context
            .sql(statement)
            .await
            .map_err(|error| error.to_string())?;
        last = result.collect().await.map_err(|error| error.to_string())?;
    }
    Ok(rows(&last))
}

/// Our answer is `expected`, and DataFusion's was not.
pub async fn check_fixed(sql: &str, expected: &[&str]) {
    let ours = ours(sql).await.unwrap();
    assert_eq!(ours, expected, "{sql}");
    let theirs = theirs(sql).await;
    assert_ne!(
        theirs.as_deref(),
        Ok(ours.as_slice()),
        "DataFusion answers rightly by now; is the guard needed? {sql}"
    );
}

/// We fail with a message that has `needle` in it, where DataFusion gave an answer.
pub async fn check_refused(sql: &str, needle: &str) -> Error {
    let error = ours(sql).await.expect_err(sql);
    assert!(error.to_string().contains(needle), "{error}");
    assert!(
        theirs(sql).await.is_ok(),
        "DataFusion refuses it by now; is the guard needed? {sql}"
    );
    error
}

pub fn table(name: &str, location: &Path, format: Format) -> Table {
    Table::new(name, location.to_str().unwrap(), format)
}

pub fn output(location: &Path) -> Output {
    Output::new(location.to_str().unwrap())
}

pub fn stage_to(sql: &str, output: Output) -> Stage {
    Stage {
        output: Some(output),
        ..Stage::new("made", sql)
    }
}

pub fn with_parameter(mut stage: Stage, name: &str, value: ScalarValue) -> Stage {
    stage.parameters.push((name.to_owned(), value));
    stage
}

/// Names below a directory, hidden ones too, sorted.
pub fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Our answers are the expected ones, and DataFusion had at least one of them wrong.
pub async fn check_some_fixed(cases: &[(String, &[&str])]) {
    let mut n_fixed = 0;
    for (sql, expected) in cases {
        assert_eq!(ours(sql).await.unwrap(), *expected, "{sql}");
        n_fixed +=
            usize::from(theirs(sql).await.as_deref() != Ok(ours(sql).await.unwrap().as_slice()));
    }
    assert!(
        n_fixed > 0,
        "DataFusion answers rightly by now; is the guard needed?"
    );
}
