//! Time limits, attempts, and what is explained.

use serde_json::Value as Json;

use super::Derivation;
use crate::Duration;
use crate::provenance::Origin;

pub(super) fn derive(d: &mut Derivation<'_>) {
    ttl(d);
    d.settle(
        "limits.queue_ttl_s",
        3600u64,
        Origin::Default,
        "an hour in the queue",
    );
    let attempts = d.settle_count(
        "limits.max_attempts",
        3,
        Origin::Default,
        "errors of the author are not retried",
    );
    if !(1..=10).contains(&attempts) {
        d.refuse(
            "attempts",
            "limits.max_attempts",
            format!("`limits.max_attempts` is {attempts}; it must be from 1 to 10"),
            "",
        );
    }
    if d.said_count("limits.queue_ttl_s") == Some(0) {
        d.refuse(
            "queue-ttl-range",
            "limits.queue_ttl_s",
            "`limits.queue_ttl` is 0, so the batch would expire at once",
            "",
        );
    }
    d.settle(
        "explain.mode",
        "NOT_ON_GPU",
        Origin::Default,
        "what stays on the CPU is worth knowing",
    );
    d.settle(
        "plan.join_order",
        true,
        Origin::Default,
        "joins run in the order that is expected to cost least",
    );
    environment(d);
}

fn ttl(d: &mut Derivation<'_>) {
    const NAME: &str = "limits.ttl_s";
    if !d.is_dataproc() {
        let ttl = d.settle_count(NAME, 86_400, Origin::Default, "a day");
        if ttl == 0 {
            d.refuse(
                "ttl-range",
                NAME,
                "`limits.ttl` is 0, so the batch would stop at once",
                "",
            );
        }
        return;
    }
    let settled = match d.runtime() {
        Some(version) if version < (2, 1) => d.settle(
            NAME,
            Json::Null,
            Origin::Profile,
            "runtimes before 2.1 have no limit",
        ),
        _ => d.settle(
            NAME,
            14_400u64,
            Origin::Profile,
            "4 h; the service stops the batch then",
        ),
    };
    if let Some(seconds) = settled.as_u64().filter(|s| !(600..=1_209_600).contains(s)) {
        let message = format!(
            "`limits.ttl` is {}; the profile allows 10m to 14d",
            Duration::from_seconds(seconds)
        );
        d.refuse("ttl-range", NAME, message, "");
    }
}

/// Old runtimes start with an ASCII character set, and GPU batches need UTF-8.
fn environment(d: &mut Derivation<'_>) {
    let is_old = d.runtime().is_some_and(|version| version < (2, 2));
    if !d.is_dataproc() || d.chosen.is_none() || !is_old {
        return;
    }
    let keys = [
        ("env.driver.LANG", "spark.dataproc.driverEnv.LANG"),
        ("env.executor.LANG", "spark.executorEnv.LANG"),
    ];
    for (name, key) in keys {
        if d.property(key).is_none() {
            d.settle(
                name,
                "C.UTF-8",
                Origin::Rule,
                "runtimes before 2.2 need it with a GPU",
            );
        }
    }
}
