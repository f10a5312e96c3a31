//! Memory of executors and driver.
//!
//! ```text
//! |<---------------------- machine RAM ----------------------->|
//! |<-- 750 MiB x cores -->|<------------ total --------------->|
//! |  system and service   |   memory_overhead   |    memory    |
//!                         |<- 10 %, Python 40 %>|
//! ```

use super::Derivation;
use crate::problem::Severity;
use crate::provenance::Origin;

/// What system and service take, per core.
const RESERVED_MIB_PER_CORE: u64 = 750;
/// Neither half of the total may be smaller.
const HALF_MIB_MIN: u64 = 1024;

const MEMORY: &str = "executors.memory_mib";
const OVERHEAD: &str = "executors.memory_overhead_mib";

pub(super) fn derive(d: &mut Derivation<'_>) {
    if !d.is_dataproc() {
        native(d);
    } else if d.chosen.is_some() {
        with_gpu(d);
    } else {
        without_gpu(d, "executors");
    }
    if d.is_dataproc() {
        without_gpu(d, "driver");
    } else {
        let cores = d.out.count("driver.cores").unwrap_or(4);
        let memory = d.settle_count(
            "driver.memory_mib",
            1024 * cores,
            Origin::Rule,
            format!("1024 x cores = 1024 x {cores}"),
        );
        d.settle(
            "driver.memory_overhead_mib",
            (memory / 10).max(384),
            Origin::Rule,
            "the larger of 10 % of memory and 384",
        );
    }
}

/// Splits a total: a part that is not given takes what the other leaves.
fn split(d: &mut Derivation<'_>, total: u64) {
    let percent = if d.is_python() { 40 } else { 10 };
    let (said_memory, said_overhead) = (d.said_count(MEMORY), d.said_count(OVERHEAD));
    let derived_overhead = total * percent / 100;
    let (memory, memory_rule) = match said_overhead {
        Some(overhead) => (
            total.saturating_sub(overhead),
            format!("total - overhead = {total} - {overhead}"),
        ),
        None => (
            total - derived_overhead,
            format!("total - overhead = {total} - {derived_overhead}"),
        ),
    };
    let (overhead, overhead_rule) = match said_memory {
        Some(memory) => (
            total.saturating_sub(memory),
            format!("total - memory = {total} - {memory}"),
        ),
        None => (
            derived_overhead,
            format!("floor({percent} % of total {total})"),
        ),
    };
    d.settle(MEMORY, memory, Origin::Rule, memory_rule);
    d.settle(OVERHEAD, overhead, Origin::Rule, overhead_rule);
}

fn with_gpu(d: &mut Derivation<'_>) {
    let cores = d.out.count("executors.cores").unwrap_or(0);
    let Some(gpu) = d.chosen.and_then(|c| c.gpu) else {
        return;
    };
    let Some(machine) = gpu.machine(cores) else {
        return;
    };
    let physical = (machine.memory_gib * 1024).saturating_sub(RESERVED_MIB_PER_CORE * cores);
    let published = machine.published_total_mib.unwrap_or(physical);
    let rule = format!(
        "RAM - 750 x cores = {} - 750 x {cores}",
        machine.memory_gib * 1024
    );
    d.total_mib = published;
    if let Some(overhead) = d.settings.winner(OVERHEAD) {
        let would_be = match d.said_count(MEMORY) {
            Some(memory) => published.saturating_sub(memory),
            None => published * if d.is_python() { 40 } else { 10 } / 100,
        };
        let message = format!(
            "{} may not be set with a GPU; {would_be} MiB would be derived",
            d.shown(OVERHEAD)
        );
        d.problems.error(
            "overhead-not-settable",
            &overhead.at,
            overhead.place,
            message,
            "remove it, and set the executor's memory instead",
        );
    }
    if published != physical {
        d.settle(
            "executors.memory_total_published_mib",
            published,
            Origin::Profile,
            "as published",
        );
        let asked = d.said_count(MEMORY).unwrap_or(0);
        let message = format!(
            "the published memory cap of {published} MiB exceeds the machine, which leaves {physical} MiB"
        );
        d.report(
            Severity::Warning,
            "published-cap",
            MEMORY,
            message,
            "the physical value is used where nothing is asked for",
        );
        d.total_mib = if asked + HALF_MIB_MIN > physical {
            published
        } else {
            physical
        };
    }
    let total = d.total_mib;
    d.settle("executors.memory_total_mib", total, Origin::Rule, rule);
    if let Some(memory) = d.said_count(MEMORY) {
        let shown = d.shown(MEMORY);
        if memory < HALF_MIB_MIN {
            let message = format!("{shown} is {memory} MiB; at least {HALF_MIB_MIN}m is needed");
            d.refuse("memory-too-small", MEMORY, message, "");
        } else if memory > total {
            let message = format!("{shown} is {memory} MiB, and the machine offers {total} MiB");
            d.refuse(
                "memory-too-large",
                MEMORY,
                message,
                format!("write at most {}m", total - HALF_MIB_MIN),
            );
        } else if memory + HALF_MIB_MIN > total {
            let message = format!(
                "{shown} of {memory} MiB leaves {} MiB of {total} MiB for overhead, less than {HALF_MIB_MIN}",
                total - memory
            );
            d.refuse(
                "memory-too-large",
                MEMORY,
                message,
                format!("write at most {}m", total - HALF_MIB_MIN),
            );
        }
    }
    split(d, total);
}

/// Google's rules for a role without a GPU: the sum per core is bounded by the tier.
fn without_gpu(d: &mut Derivation<'_>, role: &str) {
    let (name, overhead_name) = (
        format!("{role}.memory_mib"),
        format!("{role}.memory_overhead_mib"),
    );
    let cores = d.out.count(&format!("{role}.cores")).unwrap_or(4);
    let (per_core, percent) = if d.is_python() {
        (2400, 40)
    } else {
        (3050, 10)
    };
    let memory = d.settle_count(
        &name,
        per_core * cores,
        Origin::Profile,
        format!("{per_core} x cores = {per_core} x {cores}"),
    );
    let derived = (memory * percent / 100).max(384);
    let rule = format!("the larger of {percent} % of memory and 384");
    let overhead = d.settle_count(&overhead_name, derived, Origin::Profile, rule);
    let sum = memory + overhead;
    if role == "executors" {
        d.total_mib = sum;
    }
    let is_premium = d.out.text(&format!("{role}.tier")) == Some("premium");
    let per_core_max = if is_premium { 24_576 } else { 7_424 };
    let (least, most) = (1024 * cores, per_core_max * cores);
    let shown = d.shown(&name);
    if sum > most {
        let hint = if is_premium || sum > 24_576 * cores {
            format!("keep the sum within {most} MiB")
        } else {
            "the premium tier allows it".to_owned()
        };
        d.refuse(
            "memory-too-large",
            &name,
            format!(
                "{shown} and its overhead are {sum} MiB; {cores} cores take at most {most} MiB"
            ),
            hint,
        );
    } else if sum < least {
        d.refuse(
            "memory-too-small",
            &name,
            format!(
                "{shown} and its overhead are {sum} MiB; {cores} cores take at least {least} MiB"
            ),
            "",
        );
    }
}

/// The same formula over the machine at hand, or over the catalogue's.
fn native(d: &mut Derivation<'_>) {
    let cores = d.out.count("executors.cores").unwrap_or(1);
    let ram = match (d.machine, d.chosen.and_then(|c| c.gpu)) {
        (Some(machine), _) => machine.memory_mib,
        (None, Some(gpu)) => gpu.machine_memory_mib(cores),
        (None, None) => d.catalogue.cpu.memory_gib_per_core * 1024 * cores,
    };
    let counted = d.machine.map_or(cores, |m| cores.min(m.cores.max(1)));
    let by_formula = ram.saturating_sub(RESERVED_MIB_PER_CORE * counted);
    // Many cores beside little memory would leave next to nothing.
    let total = by_formula.max(ram / 2).max(1);
    let rule = if total == by_formula {
        format!("RAM - 750 x cores = {ram} - 750 x {counted}")
    } else {
        format!("half of RAM {ram}, as 750 x {counted} cores would take more than that")
    };
    d.total_mib = total;
    d.settle("executors.memory_total_mib", total, Origin::Rule, rule);
    split(d, total);
    for name in [MEMORY, OVERHEAD] {
        if d.said_count(name) == Some(0) {
            let shown = d.shown(name);
            d.refuse(
                "memory-too-small",
                name,
                format!("{shown} is less than 1 MiB"),
                "",
            );
        }
    }
    fit(d, total);
}

/// A native batch that asks for more than there is gets what there is, and is told.
fn fit(d: &mut Derivation<'_>, total: u64) {
    let memory = d.out.count(MEMORY).unwrap_or(0);
    let overhead = d.out.count(OVERHEAD).unwrap_or(0);
    if memory + overhead <= total && memory > 0 && overhead > 0 {
        return;
    }
    let said_memory = d.said_count(MEMORY).unwrap_or(0);
    let said_overhead = d.said_count(OVERHEAD).unwrap_or(0);
    let name = if said_memory >= said_overhead {
        MEMORY
    } else {
        OVERHEAD
    };
    if said_memory + said_overhead > 0 {
        let message = format!(
            "{} MiB are asked for, and {total} MiB are there to be shared out",
            said_memory + said_overhead
        );
        d.report(
            Severity::Warning,
            "more-than-machine",
            name,
            message,
            "the amounts were cut to fit",
        );
    }
    // The larger wish gives way; a tenth at least is left to each side.
    let tenth = (total / 10).max(1);
    let (memory, overhead) = if said_overhead > 0 && said_memory == 0 {
        let overhead = said_overhead.min(total - tenth);
        (total - overhead, overhead)
    } else {
        let overhead = if said_overhead > 0 {
            said_overhead.min(total / 2)
        } else {
            tenth
        };
        let memory = said_memory.min(total.saturating_sub(overhead)).max(1);
        (memory, overhead)
    };
    d.overrule(
        MEMORY,
        memory,
        Origin::Rule,
        format!("clamped to the total of {total}"),
    );
    d.overrule(
        OVERHEAD,
        overhead,
        Origin::Rule,
        format!("clamped to the total of {total}"),
    );
}
