//! What a server and the process of an attempt say to each other: one JSON object a line,
//! the server on standard input, the worker on standard output.
//!
//! ```text
//! server --> {"say":"lease","until_ns":..}          the attempt may run until then
//!        <-- {"say":"log",..} {"say":"progress",..}
//!        <-- {"say":"may_publish","stage":".."}
//!        --> {"say":"publish","granted":true}
//!        --> {"say":"cancel"}
//! ```
//!
//! Times are those of the clock that counts from the machine's start, which both see and
//! nobody sets. A worker ends itself when its lease is over or its server is gone.

use serde::{Deserialize, Serialize};

/// The server's words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum ToWorker {
    /// The attempt may run until this time.
    Lease {
        /// By [`boot_time_ns`].
        until_ns: u64,
    },
    /// It should stop.
    Cancel,
    /// The answer to [`FromWorker::MayPublish`].
    Publish {
        /// Whether it may.
        granted: bool,
    },
}

/// The worker's words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum FromWorker {
    /// A line for the batch's log.
    Log {
        /// `info`, `warning` or `error`.
        level: String,
        /// The stage it is about.
        stage: Option<String>,
        /// The words.
        message: String,
    },
    /// How far it has come.
    Progress {
        /// The stage that begins or has ended.
        stage: Option<String>,
        /// Stages that are done.
        stages_done: u32,
        /// Stages in all.
        stages: u32,
    },
    /// May the output of this stage become visible?
    MayPublish {
        /// The stage.
        stage: String,
    },
}

/// What an attempt is given to do, as a file in its folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// The batch's id, for messages.
    pub batch_id: String,
    /// What tells the batch from every other.
    pub batch_uid: String,
    /// The attempt's number.
    pub attempt: u32,
    /// What was submitted.
    pub submission: lifecycle::batch::Submission,
    /// Whether to work in smaller pieces than before.
    pub is_reduced: bool,
    /// What the server lets specs touch.
    pub policy: crate::serve::locations::LocationPolicy,
    /// Plan only, and execute nothing.
    pub plan_only: bool,
}

/// The job's file in an attempt's folder.
pub const JOB_FILE: &str = "job.json";
/// The run report's, or the plan's.
pub const REPORT_FILE: &str = "report.json";

/// Nanoseconds since the machine started, sleep included.
pub fn boot_time_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec that outlives the call.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    // It fails only for a clock that the system lacks, and Linux has this one.
    assert_eq!(rc, 0, "the system has a clock");
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
