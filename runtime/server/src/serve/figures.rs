//! Figures that this process counts.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lifecycle::batch::{AttemptEnd, Figures as AttemptFigures};

use crate::api::health::head;

/// The figures of this process.
pub static FIGURES: Figures = Figures::new();

/// Upper bounds of the durations' buckets, seconds.
const BUCKETS: [f64; 9] = [0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 86_400.0];
const ENDS: [(AttemptEnd, &str); 6] = [
    (AttemptEnd::Succeeded, "succeeded"),
    (AttemptEnd::Failed, "failed"),
    (AttemptEnd::Cancelled, "cancelled"),
    (AttemptEnd::TimedOut, "timed_out"),
    (AttemptEnd::Crashed, "crashed"),
    (AttemptEnd::Lost, "lost"),
];

/// Counters that only grow.
pub struct Figures {
    ended: [AtomicU64; ENDS.len()],
    buckets: [AtomicU64; BUCKETS.len()],
    n_durations: AtomicU64,
    duration_ms: AtomicU64,
    device_us: AtomicU64,
    fallbacks: AtomicU64,
}

impl Figures {
    const fn new() -> Self {
        Figures {
            ended: [const { AtomicU64::new(0) }; ENDS.len()],
            buckets: [const { AtomicU64::new(0) }; BUCKETS.len()],
            n_durations: AtomicU64::new(0),
            duration_ms: AtomicU64::new(0),
            device_us: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
        }
    }

    /// Counts an attempt that has ended.
    pub fn attempt_ended(
        &self,
        end: AttemptEnd,
        duration_ms: u64,
        figures: Option<AttemptFigures>,
    ) {
        for ((of, _), n) in ENDS.iter().zip(&self.ended) {
            if *of == end {
                n.fetch_add(1, Relaxed);
            }
        }
        let seconds = duration_ms as f64 / 1e3;
        for (bound, n) in BUCKETS.iter().zip(&self.buckets) {
            if seconds <= *bound {
                n.fetch_add(1, Relaxed);
            }
        }
        self.n_durations.fetch_add(1, Relaxed);
        self.duration_ms.fetch_add(duration_ms, Relaxed);
        let figures = figures.unwrap_or_default();
        self.device_us
            .fetch_add((figures.device_ms * 1e3) as u64, Relaxed);
        self.fallbacks.fetch_add(figures.fallbacks, Relaxed);
    }

    /// Writes them in Prometheus' text form.
    pub fn write(&self, text: &mut String) {
        // Writing to a string cannot fail.
        head(
            text,
            "warpline_attempts_total",
            "counter",
            "Attempts that ended here.",
        );
        for ((_, name), n) in ENDS.iter().zip(&self.ended) {
            let _ = writeln!(
                text,
                "warpline_attempts_total{{end=\"{name}\"}} {}",
                n.load(Relaxed)
            );
        }
        let name = "warpline_attempt_duration_seconds";
        head(
            text,
            name,
            "histogram",
            "Wall time of attempts that ended here.",
        );
        for (bound, n) in BUCKETS.iter().zip(&self.buckets) {
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {}", n.load(Relaxed));
        }
        let n = self.n_durations.load(Relaxed);
        let sum = self.duration_ms.load(Relaxed) as f64 / 1e3;
        let _ = writeln!(
            text,
            "{name}_bucket{{le=\"+Inf\"}} {n}\n{name}_sum {sum}\n{name}_count {n}"
        );
        let name = "warpline_device_seconds_total";
        head(text, name, "counter", "Time that kernels ran on GPUs.");
        let _ = writeln!(text, "{name} {}", self.device_us.load(Relaxed) as f64 / 1e6);
        let name = "warpline_fallbacks_total";
        head(
            text,
            name,
            "counter",
            "Parts that ran on the CPU though a GPU was asked for.",
        );
        let _ = writeln!(text, "{name} {}", self.fallbacks.load(Relaxed));
    }
}
