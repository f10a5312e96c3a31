//! The run report: the machine-readable account of one attempt.

use chrono::{DateTime, SecondsFormat, Utc};
use engine::report::{Fallback, NodePlacement, PipelineReport, StageReport, UdfModuleReport};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::{Failure, Machine, Placement};

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Every stage finished.
    Succeeded,
    /// A stage failed, or nothing could start.
    Failed,
    /// Somebody asked for it to stop, and it did.
    Cancelled,
    /// Its time to live ran out.
    TimedOut,
}

impl State {
    /// The word used in the report, the log and the terminal.
    pub fn name(self) -> &'static str {
        match self {
            State::Succeeded => "succeeded",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
            State::TimedOut => "timed_out",
        }
    }
}

/// The account of one attempt. Its JSON form is what `--report` writes.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// The batch's name.
    pub name: String,
    /// How it ended.
    pub state: State,
    /// When it started.
    #[serde(serialize_with = "rfc3339")]
    pub started: DateTime<Utc>,
    /// When it ended.
    #[serde(serialize_with = "rfc3339")]
    pub finished: DateTime<Utc>,
    /// Wall time, milliseconds, by a clock that never goes back.
    pub elapsed_ms: f64,
    /// Why it did not succeed; absent when it did.
    pub error: Option<Failure>,
    /// What it ran on.
    pub machine: Machine,
    /// The effective configuration: name to value, where it came from, and by which rule.
    pub effective: Value,
    /// CPU or GPU, where the spec leaves that open and the machine has both; else absent.
    pub placement: Option<Placement>,
    /// Every stage that started, in order. One that did not finish is the last.
    pub stages: Vec<StageRun>,
    /// The modules of user functions, and what their functions did.
    pub udfs: Vec<UdfModuleReport>,
    /// Every part that ran on the CPU though an accelerator was asked for.
    pub fallbacks: Vec<StageFallback>,
}

/// One stage of an attempt.
#[derive(Debug, Clone, Serialize)]
pub struct StageRun {
    /// The stage's name.
    pub name: String,
    /// How the stage ended.
    pub state: State,
    /// Wall time, milliseconds.
    pub elapsed_ms: f64,
    /// What the engine did; absent when the stage did not finish.
    pub report: Option<StageReport>,
    /// What ran on a GPU.
    pub pipelines: Vec<PipelineReport>,
    /// Where each node of the executed plan ran; empty without an accelerator.
    pub placements: Vec<NodePlacement>,
}

/// A fallback and where it happened.
#[derive(Debug, Clone, Serialize)]
pub struct StageFallback {
    /// The stage; absent when the whole batch fell back.
    pub stage: Option<String>,
    /// What fell back and why.
    #[serde(flatten)]
    pub fallback: Fallback,
}

fn rfc3339<S: Serializer>(time: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time.to_rfc3339_opts(SecondsFormat::Millis, true))
}
