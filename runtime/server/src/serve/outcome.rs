//! How an attempt went: by its report, or by the end of its process.

use std::path::Path;

use lifecycle::batch::{AttemptEnd, Figures, Progress};
use lifecycle::moves::Outcome;
use lifecycle::{Failure, Kind};
use serde_json::Value;

/// A report beyond this is none of ours.
const REPORT_BYTES_MAX: u64 = 64 << 20;

/// The report that a worker left, if it is whole.
pub fn read_report(path: &Path) -> Option<Value> {
    let metadata = std::fs::metadata(path).ok()?;
    if metadata.len() > REPORT_BYTES_MAX {
        return None;
    }
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// How an attempt went, by its report.
pub fn outcome_of(report: &Value) -> Outcome {
    let end = match report["state"].as_str() {
        Some("succeeded") => AttemptEnd::Succeeded,
        Some("cancelled") => AttemptEnd::Cancelled,
        Some("timed_out") => AttemptEnd::TimedOut,
        _ => AttemptEnd::Failed,
    };
    let failure = serde_json::from_value(report["error"].clone()).ok();
    let stages = report["stages"].as_array().map_or(&[][..], Vec::as_slice);
    let device_ms = stages
        .iter()
        .flat_map(|stage| stage["report"]["kernels"].as_array().into_iter().flatten())
        .filter_map(|kernel| kernel["device_ms"].as_f64())
        .sum();
    let rows = stages
        .iter()
        .filter_map(|stage| stage["report"]["rows"].as_u64())
        .sum();
    Outcome {
        end,
        failure,
        progress: Progress::default(),
        figures: Some(Figures {
            rows,
            fallbacks: report["fallbacks"]
                .as_array()
                .map_or(0, |list| list.len() as u64),
            device_ms,
        }),
    }
}

/// How the attempt of a worker went that left no report.
pub fn died(status: std::process::ExitStatus) -> Outcome {
    use std::os::unix::process::ExitStatusExt;
    let how = match (status.signal(), status.code()) {
        (Some(libc::SIGKILL), _) => {
            "was killed (signal 9); the system does so when memory runs out".to_owned()
        }
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code}"),
        (None, None) => "ended".to_owned(),
    };
    Outcome {
        end: AttemptEnd::Crashed,
        failure: Some(Failure::new(
            Kind::WorkerLost,
            format!("the attempt's process {how} before it could say how the batch went"),
        )),
        figures: None,
        progress: Progress::default(),
    }
}
