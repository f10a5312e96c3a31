//! What is kept of a batch: its state and why, its attempts, and who runs it now.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::state::BatchState;
use crate::trigger::event::ObjectEvent;
use crate::{Failure, Kind};

/// Milliseconds since 1970-01-01 UTC, by the store's clock.
pub type Millis = i64;

/// What was submitted, as it was submitted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// The text of the spec.
    pub spec: String,
    /// Texts of the files that its stages name.
    #[serde(default)]
    pub sql_files: IndexMap<String, String>,
    /// `path=value` overrides.
    #[serde(default)]
    pub sets: Vec<String>,
    /// `name=value` for variables.
    #[serde(default)]
    pub variables: Vec<String>,
    /// Values of the event that started it, such as `event.key`.
    #[serde(default)]
    pub event: IndexMap<String, String>,
    /// The objects that started it; SQL sees them as the table `event_objects`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectEvent>,
    /// The accepted spec in one form, whatever its spelling; what makes two submissions the
    /// same or not.
    #[serde(default)]
    pub canonical: serde_json::Value,
}

/// What an attempt needs of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wants {
    /// The accelerator that it asks for.
    pub gpu: Option<String>,
    /// Thousandths of one GPU.
    pub gpu_milli: u32,
    /// Whether it may run on the CPU where there is no GPU.
    pub may_fall_back: bool,
    /// Cores.
    pub cores: u32,
    /// Host memory that its process may take; absent when nothing bounds it.
    pub memory_mib: Option<u64>,
}

/// Bounds on time and on repetition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchLimits {
    /// An attempt is stopped after this time.
    pub ttl_ms: Option<i64>,
    /// It expires after this time in the queue.
    pub queue_ttl_ms: Option<i64>,
    /// Attempts in all that failed by themselves.
    pub max_attempts: u32,
    /// It is forgotten this long after its end.
    pub retention_ms: Option<i64>,
}

/// One change of state, with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// When.
    pub time_ms: Millis,
    /// The state from then on.
    pub state: BatchState,
    /// Why.
    pub reason: String,
}

/// How an attempt ended: its exit class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEnd {
    /// Every stage finished.
    Succeeded,
    /// A stage failed, or nothing could start.
    Failed,
    /// It was told to stop, and did.
    Cancelled,
    /// Its time ran out.
    TimedOut,
    /// Its process died, or was killed for taking too much memory.
    Crashed,
    /// Whoever ran it was not heard of for longer than the lease.
    Lost,
}

/// How far an attempt has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The stage that runs, or the last one that ran.
    pub stage: Option<String>,
    /// Stages that are done.
    pub stages_done: u32,
    /// Stages in all.
    pub stages: u32,
}

/// One try at running the batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// From 1; also what fences a late attempt off.
    pub number: u32,
    /// The server that runs it.
    pub server: String,
    /// When it was claimed.
    pub started_ms: Millis,
    /// When it ended; absent while it runs.
    pub finished_ms: Option<Millis>,
    /// How it ended; absent while it runs.
    pub end: Option<AttemptEnd>,
    /// Why it did not succeed.
    pub failure: Option<Failure>,
    /// Whether it works in smaller pieces, because the one before ran out of memory.
    #[serde(default)]
    pub is_reduced: bool,
    /// How far it has come.
    #[serde(default)]
    pub progress: Progress,
    /// What the report says of cost, in short; absent before the end.
    #[serde(default)]
    pub figures: Option<Figures>,
}

/// Figures of an attempt that lists and metrics show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Rows of all results.
    pub rows: u64,
    /// Parts that ran on the CPU though a GPU was asked for.
    pub fallbacks: u64,
    /// Time that kernels ran on devices, milliseconds.
    pub device_ms: f64,
}

/// A process, told from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerProcess {
    /// Its number, which is also that of its group.
    pub pid: u32,
    /// When the system started it, in its own ticks.
    pub started_ticks: u64,
}

/// The right to run an attempt, for a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The attempt that may run.
    pub token: Token,
    /// Until when.
    pub until_ms: Millis,
    /// The process that runs it, once it has started.
    pub worker: Option<WorkerProcess>,
}

/// What a server shows to act for an attempt. A later attempt has a higher number, so a late
/// one is told by its token alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token {
    /// The server.
    pub server: String,
    /// The number of the attempt.
    pub attempt: u32,
}

/// Everything that is kept of a batch but its submission, logs and reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Its id: what people call it.
    pub id: String,
    /// What tells it from every other, also from a later one with the same id.
    pub uid: String,
    /// Counts the changes of this record.
    #[serde(default)]
    pub version: i64,
    /// Who submitted it.
    pub owner: String,
    /// The spec's name.
    pub name: String,
    /// The spec's labels.
    pub labels: IndexMap<String, String>,
    /// What fairness counts by.
    pub group: String,
    /// Higher runs first.
    pub priority: i32,
    /// Makes a repeated submit harmless.
    pub request_id: Option<String>,
    /// Hash of the canonical submission.
    pub fingerprint: String,
    /// What it needs of a machine.
    pub wants: Wants,
    /// Its bounds.
    pub limits: BatchLimits,
    /// Where it stands.
    pub state: BatchState,
    /// When it was submitted.
    pub created_ms: Millis,
    /// When it came into its state.
    pub state_ms: Millis,
    /// When it last came into the queue.
    pub queued_ms: Millis,
    /// It is not tried before this time.
    pub not_before_ms: Option<Millis>,
    /// Every state that it was in, the oldest first.
    pub history: Vec<Change>,
    /// Its attempts, the oldest first.
    pub attempts: Vec<Attempt>,
    /// Attempts before the last retry by a person; they no longer count.
    #[serde(default)]
    pub attempts_forgiven: u32,
    /// Who runs it now.
    pub lease: Option<Lease>,
    /// Why it did not succeed, at its end.
    pub failure: Option<Failure>,
    /// Who asked for it to stop.
    pub cancelled_by: Option<String>,
    /// The trigger that submitted it.
    #[serde(default)]
    pub trigger: Option<String>,
    /// How many triggers led to each other before it.
    #[serde(default)]
    pub depth: u32,
}

/// What a new batch is made of.
#[derive(Debug, Clone, Default)]
pub struct NewBatch {
    /// Its id.
    pub id: String,
    /// Who submits it.
    pub owner: String,
    /// The spec's name.
    pub name: String,
    /// The spec's labels.
    pub labels: IndexMap<String, String>,
    /// What fairness counts by.
    pub group: String,
    /// Higher runs first.
    pub priority: i32,
    /// Makes a repeated submit harmless.
    pub request_id: Option<String>,
    /// What it needs.
    pub wants: Wants,
    /// Its bounds.
    pub limits: BatchLimits,
    /// The trigger that submits it.
    pub trigger: Option<String>,
    /// How many triggers led to each other before it.
    pub depth: u32,
}

/// Changes kept in a history; a batch that is retried for ever drops its oldest.
const HISTORY_MAX: usize = 200;
/// Attempts kept, likewise.
const ATTEMPTS_MAX: usize = 100;

impl Batch {
    /// A batch that was accepted and waits.
    pub fn accepted(new: NewBatch, uid: String, fingerprint: String, now: Millis) -> Batch {
        Batch {
            id: new.id,
            uid,
            version: 1,
            owner: new.owner,
            name: new.name,
            labels: new.labels,
            group: new.group,
            priority: new.priority,
            request_id: new.request_id,
            fingerprint,
            wants: new.wants,
            limits: new.limits,
            state: BatchState::Queued,
            created_ms: now,
            state_ms: now,
            queued_ms: now,
            not_before_ms: None,
            history: vec![Change {
                time_ms: now,
                state: BatchState::Queued,
                reason: "submitted".into(),
            }],
            attempts: Vec::new(),
            attempts_forgiven: 0,
            lease: None,
            failure: None,
            cancelled_by: None,
            trigger: new.trigger,
            depth: new.depth,
        }
    }

    /// Why it is in its state.
    pub fn state_reason(&self) -> &str {
        self.history.last().map_or("", |change| &change.reason)
    }

    /// The attempt that runs or ran last.
    pub fn last_attempt(&self) -> Option<&Attempt> {
        self.attempts.last()
    }

    /// When it expires if no attempt has started by then.
    pub fn queue_deadline_ms(&self) -> Option<Millis> {
        let waits = self.state == BatchState::Queued;
        let ttl = self.limits.queue_ttl_ms.filter(|_| waits)?;
        // Waiting for the time of the next attempt is not waiting for a slot.
        let since = self.queued_ms.max(self.not_before_ms.unwrap_or(0));
        Some(since.saturating_add(ttl))
    }

    /// When it is forgotten.
    pub fn purge_ms(&self) -> Option<Millis> {
        let retention = self
            .limits
            .retention_ms
            .filter(|_| self.state.is_terminal())?;
        Some(self.state_ms.saturating_add(retention))
    }

    pub(crate) fn record(&mut self, state: BatchState, reason: String, now: Millis) {
        self.state = state;
        self.state_ms = now;
        self.history.push(Change {
            time_ms: now,
            state,
            reason,
        });
        // The first entry says when and how it came.
        if self.history.len() > HISTORY_MAX {
            self.history.remove(1);
        }
        if self.attempts.len() > ATTEMPTS_MAX {
            self.attempts.remove(0);
        }
    }
}

impl Failure {
    /// What is said of a batch that waited too long.
    pub(crate) fn queue_expired(ttl_ms: i64) -> Failure {
        Failure::new(
            Kind::QueueExpired,
            format!(
                "no slot came free within {} s; raise `limits.queue_ttl`, or add capacity",
                ttl_ms / 1000
            ),
        )
    }
}
