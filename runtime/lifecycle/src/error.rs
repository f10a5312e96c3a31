//! What can go wrong with a batch, told by what its reader does next.

use serde::{Deserialize, Serialize};

/// Who acts on a failure, and how. Stored with the batch; scripts rely on the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The spec is wrong. The author corrects it; trying again does not help.
    InvalidSpec,
    /// A statement is wrong: its syntax, a name, or a type.
    InvalidQuery,
    /// A table's data is absent or unreadable.
    InputMissing,
    /// The data does not allow what the statement computes: overflow, division by zero.
    DataError,
    /// A user function failed, or ran into a limit.
    UdfFailed,
    /// The output's location is taken, and the spec does not say to replace it.
    OutputExists,
    /// A budget was too small; the message says which and how much was asked.
    OutOfResources,
    /// Something that the batch needs did not answer; trying again may help.
    Unavailable,
    /// A part would have run on the CPU, and the spec says `fallback: fail`.
    FallbackRefused,
    /// The process that ran the attempt ended before it could say how, or was not heard of
    /// for longer than its lease.
    WorkerLost,
    /// No slot came free before the batch's time in the queue was over.
    QueueExpired,
    /// Somebody asked for the batch to stop.
    Cancelled,
    /// The batch ran out of its time to live.
    TimedOut,
    /// Warpline is wrong, not the batch.
    Internal,
}

/// Why an attempt failed: words for its author. What only the log needs is logged where
/// the failure is mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Who acts.
    pub kind: Kind,
    /// What happened and what to change.
    pub message: String,
    /// The stage it happened in; absent when it happened before or between stages.
    pub stage: Option<String>,
}

impl Failure {
    /// A failure outside any stage.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Failure {
            kind,
            message: message.into(),
            stage: None,
        }
    }

    /// The same failure, placed in a stage.
    pub fn in_stage(mut self, stage: &str) -> Self {
        self.stage = Some(stage.to_string());
        self
    }
}

impl From<&engine::Error> for Failure {
    fn from(error: &engine::Error) -> Self {
        let kind = match error.kind() {
            engine::Kind::InvalidQuery => Kind::InvalidQuery,
            engine::Kind::InputMissing => Kind::InputMissing,
            engine::Kind::OutOfResources => Kind::OutOfResources,
            engine::Kind::Unavailable => Kind::Unavailable,
            engine::Kind::Cancelled => Kind::Cancelled,
            engine::Kind::OutputExists => Kind::OutputExists,
            engine::Kind::DataError => Kind::DataError,
            engine::Kind::UdfFailed => Kind::UdfFailed,
            engine::Kind::FallbackRefused => Kind::FallbackRefused,
            engine::Kind::Internal => Kind::Internal,
        };
        Failure::new(kind, error.without_stage().to_string())
    }
}
