//! How tasks share a GPU.
//!
//! The count of slots is what rules; the fraction is kept for those who know Spark's key. A
//! machine with several GPUs has a worker process for each, so the share is per GPU.

use serde_json::Value as Json;

use super::Derivation;
use crate::TaskShare;
use crate::problem::Severity;
use crate::provenance::Origin;

pub(super) fn derive(d: &mut Derivation<'_>) {
    let gpus = d.out.count("executors.gpus").unwrap_or(0);
    let cores = d.out.count("executors.cores").unwrap_or(1).max(1);
    let Some(chosen) = d.chosen.filter(|_| gpus > 0) else {
        let said = ["gpu.task_share", "gpu.concurrent_tasks"]
            .into_iter()
            .find(|n| d.settings.winner(n).is_some());
        if let Some(name) = said {
            let message = format!("{} has no effect without a GPU", d.shown(name));
            d.report(Severity::Warning, "no-gpu-to-share", name, message, "");
        }
        return;
    };
    memory(d, chosen.memory_gib * 1024);
    let per_gpu = (cores / gpus).max(1);
    if d.is_dataproc() && gpus > 1 {
        let rule = format!(
            "as the service publishes it: 1 / cores = 1 / {cores}; it would leave {} GPU(s) idle",
            gpus - 1
        );
        d.settle(
            "gpu.task_share_published",
            1.0 / cores as f64,
            Origin::Profile,
            rule,
        );
    }
    let rule = format!("GPUs / cores = {gpus} / {cores}");
    let share = d.settle("gpu.task_share", 1.0 / per_gpu as f64, Origin::Rule, rule);
    let from_share = share
        .as_f64()
        .and_then(|s| TaskShare::from_decimal(&s.to_string()).ok())
        .map(TaskShare::slots);
    let slots_of_share = from_share.unwrap_or(per_gpu);
    let slots = slots_of_share.min(per_gpu);
    let rule = format!(
        "the smaller of floor(1 / share) = {slots_of_share} and cores / GPUs = {cores} / {gpus}"
    );
    d.settle("gpu.slots_per_gpu", slots, Origin::Rule, rule);
    if slots < per_gpu {
        let message = format!(
            "{} lets {slots} tasks onto a GPU; {per_gpu} cores per GPU could run {per_gpu}",
            d.shown("gpu.task_share")
        );
        d.report(
            Severity::Warning,
            "idle-slots",
            "gpu.task_share",
            message,
            format!("write `1/{per_gpu}`, or leave it out"),
        );
    }
    concurrent(d, chosen.memory_gib, slots);
}

fn concurrent(d: &mut Derivation<'_>, memory_gib: u64, slots: u64) {
    const NAME: &str = "gpu.concurrent_tasks";
    let by_memory = (memory_gib / 8).clamp(1, 4);
    let rule = format!(
        "the smaller of clamp(floor(GiB of one GPU / 8), 1, 4) = clamp({memory_gib} / 8, 1, 4) and {slots} slots; a starting point"
    );
    let n = d.settle_count(NAME, by_memory.min(slots), Origin::Rule, rule);
    let shown = d.shown(NAME);
    if n == 0 {
        d.refuse(
            "concurrent-tasks",
            NAME,
            format!("{shown} is 0, so the GPU would do nothing"),
            "write 1 or more",
        );
    } else if n > slots {
        let message = format!("{shown} is {n}, and only {slots} tasks fit on a GPU");
        d.refuse(
            "concurrent-over-slots",
            NAME,
            message,
            format!("write at most {slots}, or lower the task share"),
        );
    }
}

/// The device budget: the accelerator's memory as sold, less where the card at hand has less.
fn memory(d: &mut Derivation<'_>, nominal_mib: u64) {
    const NAME: &str = "gpu.memory_mib";
    let here = d
        .machine
        .filter(|_| !d.is_dataproc())
        .and_then(|m| m.gpus.iter().map(|g| g.memory_mib).min());
    let (most, rule) = match here {
        Some(here) if here < nominal_mib => (
            here,
            format!("what the card has; the accelerator has {nominal_mib} as sold"),
        ),
        _ => (
            nominal_mib,
            "the accelerator's memory as sold, whatever card it lands on".to_owned(),
        ),
    };
    let mib = d.settle(NAME, most, Origin::Rule, rule);
    match mib {
        Json::Number(n) if n.as_u64() > Some(most) => {
            let message = format!("{} is {n} MiB, and there are {most} MiB", d.shown(NAME));
            d.report(
                Severity::Warning,
                "more-than-accelerator",
                NAME,
                message,
                "the smaller amount is used",
            );
            d.overrule(NAME, most, Origin::Rule, format!("clamped to {most}"));
        }
        Json::Number(n) if n.as_u64() == Some(0) => {
            d.refuse(
                "memory-too-small",
                NAME,
                "`accelerator.memory` is less than 1 MiB",
                "",
            );
        }
        _ => {}
    }
}
