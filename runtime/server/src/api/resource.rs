//! Batches as the API shows them.

use chrono::{DateTime, SecondsFormat, Utc};
use indexmap::IndexMap;
use lifecycle::Failure;
use lifecycle::batch::{Attempt, Batch};
use lifecycle::queue::Wait;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A batch.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BatchResource {
    /// Its id.
    pub batch_id: String,
    /// What tells it from every other, also from a later one with the same id.
    pub uid: String,
    /// Changes with every change of the batch.
    pub etag: String,
    /// The spec's name.
    pub name: String,
    /// Who submitted it.
    pub owner: String,
    /// The spec's labels.
    #[schema(value_type = Object)]
    pub labels: IndexMap<String, String>,
    /// `QUEUED`, `RUNNING`, `CANCELLING`, `SUCCEEDED`, `FAILED`, `CANCELLED` or `TIMED_OUT`.
    pub state: String,
    /// Why it is in its state.
    pub state_message: String,
    /// When it came into its state.
    pub state_time: String,
    /// When it was submitted.
    pub create_time: String,
    /// Higher runs first.
    pub priority: i32,
    /// Makes a repeated submit harmless.
    pub request_id: Option<String>,
    /// The accelerator that it asks for.
    pub accelerator: Option<String>,
    /// Why it waits, while it does.
    pub queue: Option<QueueStatus>,
    /// Why it did not succeed.
    pub failure: Option<FailureResource>,
    /// Its attempts, the oldest first.
    pub attempts: Vec<AttemptResource>,
    /// Every state that it was in, the oldest first.
    pub history: Vec<ChangeResource>,
    /// The trigger that submitted it.
    pub trigger: Option<String>,
}

/// Why a batch waits.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct QueueStatus {
    /// Its place, from 1; absent while it waits for a time.
    pub position: Option<usize>,
    /// In words.
    pub reason: String,
}

/// A failure.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FailureResource {
    /// Who acts, and how: a stable name such as `invalid_query`.
    pub kind: String,
    /// What happened and what to change.
    pub message: String,
    /// The stage that it happened in.
    pub stage: Option<String>,
}

/// One try at running a batch.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AttemptResource {
    /// From 1.
    pub number: u32,
    /// The server that runs it.
    pub server: String,
    /// When it was claimed.
    pub start_time: String,
    /// When it ended; absent while it runs.
    pub end_time: Option<String>,
    /// `succeeded`, `failed`, `cancelled`, `timed_out`, `crashed` or `lost`; absent while it
    /// runs.
    pub end: Option<String>,
    /// Why it did not succeed.
    pub failure: Option<FailureResource>,
    /// Whether it works in smaller pieces.
    pub is_reduced: bool,
    /// The stage that runs or ran last.
    pub stage: Option<String>,
    /// Stages that are done.
    pub stages_done: u32,
    /// Stages in all; 0 before the first has begun.
    pub stages: u32,
    /// Rows of all results.
    pub rows: Option<u64>,
    /// Parts that ran on the CPU though a GPU was asked for.
    pub fallbacks: Option<u64>,
    /// Time that kernels ran on devices, milliseconds.
    pub device_ms: Option<f64>,
}

/// One change of state.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ChangeResource {
    /// When.
    pub time: String,
    /// The state from then on.
    pub state: String,
    /// Why.
    pub reason: String,
}

/// A page of batches.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BatchList {
    /// The newest first.
    pub batches: Vec<BatchResource>,
    /// Gives the next page; absent on the last.
    pub next_page_token: Option<String>,
}

/// The time of a record, as RFC 3339.
pub fn time(ms: i64) -> String {
    let time = DateTime::<Utc>::from_timestamp_millis(ms).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The stored word of an enum.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

impl From<&Failure> for FailureResource {
    fn from(failure: &Failure) -> Self {
        FailureResource {
            kind: word(&failure.kind),
            message: failure.message.clone(),
            stage: failure.stage.clone(),
        }
    }
}

impl From<&Attempt> for AttemptResource {
    fn from(attempt: &Attempt) -> Self {
        AttemptResource {
            number: attempt.number,
            server: attempt.server.clone(),
            start_time: time(attempt.started_ms),
            end_time: attempt.finished_ms.map(time),
            end: attempt.end.as_ref().map(word),
            failure: attempt.failure.as_ref().map(FailureResource::from),
            is_reduced: attempt.is_reduced,
            stage: attempt.progress.stage.clone(),
            stages_done: attempt.progress.stages_done,
            stages: attempt.progress.stages,
            rows: attempt.figures.map(|figures| figures.rows),
            fallbacks: attempt.figures.map(|figures| figures.fallbacks),
            device_ms: attempt.figures.map(|figures| figures.device_ms),
        }
    }
}

impl BatchResource {
    /// What the API shows of a batch.
    pub fn of(batch: &Batch, wait: Option<Wait>) -> BatchResource {
        BatchResource {
            batch_id: batch.id.clone(),
            uid: batch.uid.clone(),
            etag: batch.version.to_string(),
            name: batch.name.clone(),
            owner: batch.owner.clone(),
            labels: batch.labels.clone(),
            state: batch.state.name().into(),
            state_message: batch.state_reason().into(),
            state_time: time(batch.state_ms),
            create_time: time(batch.created_ms),
            priority: batch.priority,
            request_id: batch.request_id.clone(),
            accelerator: batch.wants.gpu.clone(),
            queue: wait.map(|wait| QueueStatus {
                position: wait.position,
                reason: wait.reason,
            }),
            failure: batch.failure.as_ref().map(FailureResource::from),
            attempts: batch.attempts.iter().map(AttemptResource::from).collect(),
            history: batch
                .history
                .iter()
                .map(|change| ChangeResource {
                    time: time(change.time_ms),
                    state: change.state.name().into(),
                    reason: change.reason.clone(),
                })
                .collect(),
            trigger: batch.trigger.clone(),
        }
    }
}
