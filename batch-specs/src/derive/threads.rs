//! Threads that compute, read and exchange.

use super::Derivation;
use crate::provenance::Origin;

/// Exchanges stop gaining from threads here.
const SHUFFLE_MAX: u64 = 32;
/// Reads of object storage wait far more than they work, so there are many even on few cores.
const SCAN_MIN: u64 = 20;
/// More threads than this are a slip of the pen.
const THREADS_MAX: u64 = 4096;

pub(super) fn derive(d: &mut Derivation<'_>) {
    let cores = d.out.count("executors.cores").unwrap_or(1).max(1);
    let gpus = d.out.count("executors.gpus").unwrap_or(0).max(1);
    let n = (cores / gpus).clamp(1, SHUFFLE_MAX);
    for name in ["shuffle.reader_threads", "shuffle.writer_threads"] {
        let rule =
            format!("min(cores / GPUs, {SHUFFLE_MAX}) = min({cores} / {gpus}, {SHUFFLE_MAX})");
        d.settle(name, n, Origin::Rule, rule);
    }
    let rule = format!("max({SCAN_MIN}, cores) = max({SCAN_MIN}, {cores})");
    let n = d.settle_count(
        "scan.reader_threads",
        cores.max(SCAN_MIN),
        Origin::Rule,
        rule,
    );
    if n == 0 {
        let shown = d.shown("scan.reader_threads");
        d.refuse(
            "threads",
            "scan.reader_threads",
            format!("{shown} is 0, so nothing could be read"),
            "write 1 or more",
        );
    }
    for name in [
        "scan.reader_threads",
        "shuffle.reader_threads",
        "shuffle.writer_threads",
    ] {
        if d.said_count(name).is_some_and(|n| n > THREADS_MAX) {
            let shown = d.shown(name);
            d.refuse(
                "threads",
                name,
                format!("{shown} is over {THREADS_MAX}"),
                "",
            );
        }
    }
    let here = d
        .machine
        .filter(|_| !d.is_dataproc())
        .map(|m| m.cores.max(1));
    let (n, rule) = match here {
        Some(here) => (
            cores.min(here),
            format!("min(cores, the machine's cores) = min({cores}, {here})"),
        ),
        None => (cores, "cores".to_owned()),
    };
    d.settle("compute.threads", n, Origin::Rule, rule);
}
