//! `warpline batches list`, `describe` and `report`.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::super::{print_json, print_text};
use super::{unprinted, wait};
use crate::api::resource::{BatchList, BatchResource};
use crate::arguments::{BatchReport, ListBatches, OneBatch, Output};
use crate::client::{Client, ClientError, plain, segment};
use crate::exit::Exit;
use crate::print;

/// The filter of some labels.
pub fn label_filter(labels: &[(String, String)]) -> Vec<String> {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    labels
        .iter()
        .map(|(key, value)| format!("labels.{key} = \"{}\"", quoted(value)))
        .collect()
}

/// All batches that pass, up to a number.
pub async fn find(
    client: &Client,
    filter: &str,
    limit: usize,
) -> Result<Vec<BatchResource>, ClientError> {
    let mut found = Vec::new();
    let mut token = String::new();
    while found.len() < limit {
        let size = (limit - found.len()).min(500);
        let path = format!(
            "/v1/batches?page_size={size}&filter={}&page_token={token}",
            segment(filter)
        );
        let page: BatchList = client.get(&path).await?;
        found.extend(page.batches);
        match page.next_page_token {
            Some(next) => token = segment(&next),
            None => break,
        }
    }
    Ok(found)
}

/// Runs `warpline batches list`.
pub async fn list(
    client: &Client,
    arguments: &ListBatches,
    output: Output,
) -> Result<Exit, ClientError> {
    let mut conditions = label_filter(&arguments.labels);
    if let Some(filter) = &arguments.filter {
        conditions.push(format!("({filter})"));
    }
    let found = find(client, &conditions.join(" AND "), arguments.limit.max(1)).await?;
    match output {
        Output::Json => print_json(&json!({ "batches": found })).map_err(unprinted)?,
        Output::Table => {
            let head = [
                "id",
                "state",
                "owner",
                "created",
                "time",
                "accelerator",
                "fallbacks",
            ];
            let mut rows = vec![head.map(String::from).to_vec()];
            rows.extend(found.iter().map(row));
            let mut text = Vec::new();
            print::columns(&mut text, &rows, &[4, 6]).map_err(unprinted)?;
            print_text(&String::from_utf8_lossy(&text)).map_err(unprinted)?;
        }
    }
    Ok(Exit::Done)
}

fn row(batch: &BatchResource) -> Vec<String> {
    let last = batch.attempts.last();
    let took = last.and_then(|attempt| {
        let end = attempt.end_time.as_ref()?;
        Some(print::duration(wait::millis(&attempt.start_time, end)))
    });
    let fallbacks = last.and_then(|attempt| attempt.fallbacks);
    let dash = || "-".to_owned();
    vec![
        plain(&batch.batch_id),
        plain(&batch.state),
        plain(&batch.owner),
        plain(&batch.create_time),
        took.unwrap_or_else(dash),
        batch.accelerator.as_deref().map_or_else(dash, plain),
        fallbacks.map_or_else(dash, |n| n.to_string()),
    ]
}

/// Runs `warpline batches describe`.
pub async fn describe(
    client: &Client,
    arguments: &OneBatch,
    output: Output,
) -> Result<Exit, ClientError> {
    let batch = wait::get(client, &arguments.id).await?;
    match output {
        Output::Json => print_json(&batch).map_err(unprinted)?,
        Output::Table => print_text(&description(&batch)).map_err(unprinted)?,
    }
    Ok(Exit::Done)
}

fn description(batch: &BatchResource) -> String {
    let mut text = String::new();
    let labels: Vec<String> = batch
        .labels
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    let mut rows = vec![
        ("id", batch.batch_id.clone()),
        ("name", batch.name.clone()),
        ("owner", batch.owner.clone()),
        ("state", batch.state.clone()),
        ("why", batch.state_message.clone()),
        ("created", batch.create_time.clone()),
        ("since", batch.state_time.clone()),
        ("labels", labels.join(", ")),
        (
            "accelerator",
            batch.accelerator.clone().unwrap_or_else(|| "none".into()),
        ),
    ];
    if let Some(queue) = &batch.queue {
        rows.push(("queue", queue.reason.clone()));
    }
    if let Some(trigger) = &batch.trigger {
        rows.push(("trigger", trigger.clone()));
    }
    for (name, value) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<12} {}", plain(&value));
    }
    let _ = writeln!(text, "\nhistory");
    for change in &batch.history {
        let _ = writeln!(
            text,
            "  {}  {:<10} {}",
            plain(&change.time),
            plain(&change.state),
            plain(&change.reason)
        );
    }
    for attempt in &batch.attempts {
        let end = attempt.end.as_deref().unwrap_or("running");
        let took = attempt.end_time.as_ref().map_or_else(String::new, |end| {
            format!(
                " after {}",
                print::duration(wait::millis(&attempt.start_time, end))
            )
        });
        let _ = writeln!(
            text,
            "\nattempt {}: {}{took} on {}",
            attempt.number,
            plain(end),
            plain(&attempt.server)
        );
        if let Some(stage) = &attempt.stage {
            let _ = writeln!(
                text,
                "  stage {}, {} of {} done",
                plain(stage),
                attempt.stages_done,
                attempt.stages
            );
        }
        if let Some(failure) = &attempt.failure {
            let _ = writeln!(
                text,
                "  {}: {}",
                plain(&failure.kind),
                plain(&failure.message)
            );
        }
    }
    text
}

/// Runs `warpline batches report`.
pub async fn report(client: &Client, arguments: &BatchReport) -> Result<Exit, ClientError> {
    let attempt = arguments
        .attempt
        .map_or_else(String::new, |n| format!("?attempt={n}"));
    let path = format!("/v1/batches/{}/report{attempt}", segment(&arguments.id));
    let report: Value = client.get(&path).await?;
    print_json(&report).map_err(unprinted)?;
    Ok(Exit::Done)
}
