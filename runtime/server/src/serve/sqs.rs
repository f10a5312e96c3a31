//! Events from a queue of Amazon SQS.
//!
//! A message is deleted once its events are in the ledger, and not before: what dies in
//! between comes again. One that cannot be read is in the ledger too, as a dead record, so it
//! does not come for ever.

use std::sync::Arc;
use std::time::Duration;

use lifecycle::trigger::{Intake, Trigger, Triggers};
use serde_json::{Value, json};
use tokio::sync::watch;
use url::Url;

use super::aws_signature::{AwsCredentials, ToSign};

/// How long a request waits for messages, seconds.
const WAIT_S: u32 = 10;
/// How long a message is kept from others while its events are written, seconds.
const VISIBILITY_S: u32 = 60;
/// Messages in one answer; the service gives no more.
const MESSAGES_MAX: u32 = 10;
/// The wait after a failure, and the longest one.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
const AFTER_FAILURE_MAX: Duration = Duration::from_secs(60);

/// A queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    /// Its address.
    pub url: Url,
    /// Its region.
    pub region: String,
    /// What the environment variables with its credentials begin with.
    pub credentials: String,
}

/// Takes the messages of a queue in, until told to stop.
pub async fn run(
    queue: Queue,
    trigger: Trigger,
    triggers: Arc<Triggers>,
    mut stop: watch::Receiver<bool>,
) {
    let http = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(Duration::from_secs(u64::from(WAIT_S) + 20))
        .build();
    let http = match http {
        Ok(http) => http,
        Err(error) => {
            tracing::error!(trigger = trigger.name, %error, "the queue cannot be read");
            return;
        }
    };
    let mut pause = AFTER_FAILURE;
    while !*stop.borrow() {
        let round = tokio::select! {
            round = round(&http, &queue, &trigger, &triggers) => round,
            _ = stop.changed() => return,
        };
        match round {
            Ok(()) => pause = AFTER_FAILURE,
            Err(problem) => {
                tracing::warn!(trigger = trigger.name, problem, "the queue is asked again");
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    _ = stop.changed() => return,
                }
                pause = (pause * 2).min(AFTER_FAILURE_MAX);
            }
        }
    }
}

/// Receives, keeps and deletes some messages.
async fn round(
    http: &reqwest::Client,
    queue: &Queue,
    trigger: &Trigger,
    triggers: &Triggers,
) -> Result<(), String> {
    let asked = json!({
        "QueueUrl": queue.url.as_str(),
        "MaxNumberOfMessages": MESSAGES_MAX,
        "WaitTimeSeconds": WAIT_S,
        "VisibilityTimeout": VISIBILITY_S,
    });
    let received = call(http, queue, "ReceiveMessage", &asked).await?;
    let mut done = Vec::new();
    for message in received["Messages"].as_array().into_iter().flatten() {
        let body = message["Body"].as_str().unwrap_or_default();
        // What is not JSON is kept as text, and dead.
        let body = serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned()));
        match triggers.intake(trigger, &body).await {
            Ok(Intake {
                accepted, poison, ..
            }) => {
                tracing::debug!(
                    trigger = trigger.name,
                    accepted,
                    poison,
                    "a message is in the ledger"
                );
                done.push(message["ReceiptHandle"].clone());
            }
            // It comes again when its time of being hidden is over.
            Err(error) => tracing::warn!(trigger = trigger.name, %error, "a message comes again"),
        }
    }
    if done.is_empty() {
        return Ok(());
    }
    let entries: Vec<Value> = done
        .into_iter()
        .enumerate()
        .map(|(i, handle)| json!({"Id": i.to_string(), "ReceiptHandle": handle}))
        .collect();
    let asked = json!({"QueueUrl": queue.url.as_str(), "Entries": entries});
    let deleted = call(http, queue, "DeleteMessageBatch", &asked).await?;
    // One that is not deleted comes again and is known then.
    for failed in deleted["Failed"].as_array().into_iter().flatten() {
        tracing::warn!(trigger = trigger.name, %failed, "a message is not deleted");
    }
    Ok(())
}

async fn call(
    http: &reqwest::Client,
    queue: &Queue,
    action: &str,
    asked: &Value,
) -> Result<Value, String> {
    // Read each time: whoever runs the server may renew what is lent for a time.
    let credentials = AwsCredentials::from_environment(&queue.credentials)?;
    let mut url = queue.url.clone();
    url.set_path("/");
    let target = format!("AmazonSQS.{action}");
    let body = asked.to_string();
    let headers = [
        ("content-type", "application/x-amz-json-1.0"),
        ("x-amz-target", target.as_str()),
    ];
    let signed = ToSign {
        url: &url,
        service: "sqs",
        region: &queue.region,
        headers: &headers,
        body: body.as_bytes(),
        time: chrono::Utc::now(),
    }
    .sign(&credentials);
    let mut request = http.post(url);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    for (name, value) in signed {
        request = request.header(name, value);
    }
    let answer = request.body(body).send().await;
    let answer = answer
        .map_err(|error| format!("{} does not answer: {}", queue.url, error.without_url()))?;
    let status = answer.status();
    let text = answer
        .text()
        .await
        .map_err(|error| error.without_url().to_string())?;
    let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    if status.is_success() {
        return Ok(value);
    }
    let kind = value["__type"]
        .as_str()
        .unwrap_or("no reason")
        .rsplit(['#', '.'])
        .next();
    let message = value["message"]
        .as_str()
        .or(value["Message"].as_str())
        .unwrap_or_default();
    Err(format!(
        "{action}: {status}, {}: {message}",
        kind.unwrap_or_default()
    ))
}
