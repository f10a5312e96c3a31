//! Dynamic allocation.

use super::Derivation;
use super::shape::DATAPROC_INSTANCES;
use crate::problem::Severity;
use crate::provenance::Origin;

const ENABLED: &str = "executors.dynamic_allocation.enabled";
const INITIAL: &str = "executors.dynamic_allocation.initial";
const MIN: &str = "executors.dynamic_allocation.min";
const MAX: &str = "executors.dynamic_allocation.max";
const RATIO: &str = "executors.dynamic_allocation.ratio";

pub(super) fn derive(d: &mut Derivation<'_>) {
    let (otherwise, from, why) = if d.is_dataproc() {
        (true, Origin::Profile, "on unless switched off")
    } else {
        (false, Origin::Default, "a fixed number of executors")
    };
    let enabled = d.settle(ENABLED, otherwise, from, why) == true;
    if !enabled {
        if let Some(bound) = [INITIAL, MIN, MAX]
            .into_iter()
            .find(|n| d.settings.winner(n).is_some())
        {
            let message = format!(
                "{} has no effect while dynamic allocation is off",
                d.shown(bound)
            );
            d.report(
                Severity::Warning,
                "allocation-off",
                bound,
                message,
                "switch it on, or set the number of executors",
            );
        }
        return;
    }
    let instances = d.out.count("executors.instances").unwrap_or(2);
    let least = if d.is_dataproc() {
        *DATAPROC_INSTANCES.start()
    } else {
        1
    };
    let min = d.settle_count(MIN, least, Origin::Default, "the fewest that are allowed");
    let max = d.settle_count(MAX, 1000.max(instances), Origin::Default, "the default");
    let is_said = d.settings.winner(INITIAL).is_some();
    let initial = d.settle_count(
        INITIAL,
        instances.max(min),
        Origin::Rule,
        "the larger of executors.instances and min",
    );
    d.settle(RATIO, 0.3, Origin::Default, "the default");
    let mut is_in_range = true;
    for (name, n) in [(MIN, min), (INITIAL, initial), (MAX, max)] {
        let is_fine = if d.is_dataproc() {
            DATAPROC_INSTANCES.contains(&n)
        } else {
            n > 0
        };
        if !is_fine && d.settings.winner(name).is_some() {
            let message = format!("{} is {n}; it must be from {least} to 2000", d.shown(name));
            d.refuse("allocation-range", name, message, "");
            is_in_range = false;
        }
    }
    if !is_in_range {
        return;
    }
    if min > max {
        let message = format!(
            "{} is {min} and {} is {max}; the first must not be larger",
            d.shown(MIN),
            d.shown(MAX)
        );
        d.refuse("allocation-order", MIN, message, "");
    } else if !(min..=max).contains(&initial) {
        let message =
            format!("the initial number of executors is {initial}, outside {min} to {max}");
        let name = if is_said { INITIAL } else { MIN };
        d.refuse(
            "allocation-order",
            name,
            message,
            "keep min <= initial <= max",
        );
    } else if is_said && instances > initial && d.settings.winner("executors.instances").is_some() {
        let rule = "the larger of initial and executors.instances";
        d.overrule(INITIAL, instances.min(max), Origin::Rule, rule);
    }
    if d.chosen.is_some() && d.settings.winner(ENABLED).is_some() {
        d.report(
            Severity::Notice,
            "allocation-with-gpu",
            ENABLED,
            "dynamic allocation is on for executors with GPUs",
            "a fixed number starts faster and costs less for most GPU batches",
        );
    }
}
