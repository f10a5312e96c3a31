//! `warpline batches cancel`, `retry` and `delete`.

use reqwest::Method;
use serde_json::json;

use super::super::print_json;
use super::{show, unprinted, wait};
use crate::api::resource::BatchResource;
use crate::arguments::{CancelBatches, OneBatch, Output};
use crate::client::{Client, ClientError, plain, segment};
use crate::exit::Exit;

/// Batches that one command cancels.
const CANCELLED_MAX: usize = 10_000;

/// Asks for one batch to stop.
pub async fn cancel_one(client: &Client, id: &str) -> Result<BatchResource, ClientError> {
    told(client, id, "cancel").await
}

async fn told(client: &Client, id: &str, verb: &str) -> Result<BatchResource, ClientError> {
    let answer = client
        .post(&format!("/v1/batches/{}:{verb}", segment(id)))
        .await?;
    serde_json::from_value(answer)
        .map_err(|_| ClientError::new(Exit::Unreachable, "the service's answer is not a batch"))
}

/// Runs `warpline batches cancel`.
pub async fn cancel(
    client: &Client,
    arguments: &CancelBatches,
    output: Output,
) -> Result<Exit, ClientError> {
    let ids = match &arguments.id {
        Some(id) => vec![id.clone()],
        None => {
            let mut conditions = show::label_filter(&arguments.labels);
            conditions.push("(state = QUEUED OR state = RUNNING OR state = CANCELLING)".into());
            let found = show::find(client, &conditions.join(" AND "), CANCELLED_MAX).await?;
            found.into_iter().map(|batch| batch.batch_id).collect()
        }
    };
    let mut told = Vec::new();
    for id in &ids {
        let mut batch = cancel_one(client, id).await?;
        if arguments.wait && !wait::has_ended(&batch) {
            match wait::until_end(client, id, None).await? {
                wait::Waited::Ended(ended) => batch = *ended,
                wait::Waited::Left(exit) => return Ok(exit),
            }
        }
        eprintln!("{}: {}", plain(id), plain(&batch.state));
        told.push(batch);
    }
    if ids.is_empty() {
        eprintln!("no batch with these labels is waiting or running");
    }
    if output == Output::Json {
        print_json(&json!({ "batches": told })).map_err(unprinted)?;
    }
    Ok(Exit::Done)
}

/// Runs `warpline batches retry`.
pub async fn retry(
    client: &Client,
    arguments: &OneBatch,
    output: Output,
) -> Result<Exit, ClientError> {
    let batch = told(client, &arguments.id, "retry").await?;
    eprintln!("{}: {}", plain(&batch.batch_id), plain(&batch.state));
    if output == Output::Json {
        print_json(&batch).map_err(unprinted)?;
    }
    Ok(Exit::Done)
}

/// Runs `warpline batches delete`.
pub async fn delete(client: &Client, arguments: &OneBatch) -> Result<Exit, ClientError> {
    let path = format!("/v1/batches/{}", segment(&arguments.id));
    client.send(client.request(Method::DELETE, &path)).await?;
    eprintln!("{} is forgotten", plain(&arguments.id));
    Ok(Exit::Done)
}
