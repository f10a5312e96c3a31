//! How many executors, and the cores and GPUs of each.

use super::Derivation;
use crate::problem::Severity;
use crate::provenance::Origin;
use crate::read::list;

/// Bounds of the number of executors in Google's profile.
pub(super) const DATAPROC_INSTANCES: std::ops::RangeInclusive<u64> = 2..=2000;
/// No machine has more.
const CORES_MAX: u64 = 1024;

pub(super) fn derive(d: &mut Derivation<'_>) {
    instances(d);
    cores(d);
    gpus(d);
    driver(d);
}

fn instances(d: &mut Derivation<'_>) {
    let (otherwise, from, why) = if d.is_dataproc() {
        (2, Origin::Profile, "the fewest that the profile allows")
    } else {
        (1, Origin::Default, "one process")
    };
    let n = d.settle_count("executors.instances", otherwise, from, why);
    let shown = d.shown("executors.instances");
    if d.is_dataproc() && !DATAPROC_INSTANCES.contains(&n) {
        let message = format!("{shown} is {n}; the dataproc profile allows 2 to 2000");
        d.refuse(
            "instances-out-of-range",
            "executors.instances",
            message,
            "write 2 or more",
        );
    } else if n == 0 {
        let message = format!("{shown} is 0, so nothing would do the work");
        d.refuse(
            "instances-out-of-range",
            "executors.instances",
            message,
            "write 1 or more",
        );
    }
    if d.is_dataproc() && d.chosen.is_some() && d.settings.winner("executors.instances").is_none() {
        let message = "`spark.executor.instances` is required with a GPU; 2 is taken".to_owned();
        let severity = if d.strict {
            Severity::Error
        } else {
            Severity::Notice
        };
        d.report(
            severity,
            "instances-derived",
            "executors.instances",
            message,
            "set it to say so yourself",
        );
    }
}

fn cores(d: &mut Derivation<'_>) {
    let gpu = d.chosen.and_then(|c| c.gpu);
    let (otherwise, from, why) = match (gpu, d.machine) {
        (Some(gpu), _) if d.is_dataproc() => (
            gpu.cores_default,
            Origin::Profile,
            format!("the default of {}", gpu.name),
        ),
        (_, Some(machine)) if !d.is_dataproc() => (
            machine.cores.max(1),
            Origin::Rule,
            "the machine's cores".to_owned(),
        ),
        (Some(gpu), _) => (
            gpu.cores_default,
            Origin::Default,
            format!("the catalogue's default of {}", gpu.name),
        ),
        _ => (
            d.catalogue.cpu.cores_default,
            Origin::Default,
            "the default without a GPU".to_owned(),
        ),
    };
    let n = d.settle_count("executors.cores", otherwise, from, why);
    let shown = d.shown("executors.cores");
    if d.is_dataproc() {
        let (valid, whose): (Vec<u64>, &str) = match gpu {
            Some(gpu) => (
                gpu.machines.iter().map(|m| m.cores).collect(),
                gpu.name.as_str(),
            ),
            None => (
                d.catalogue.cpu.dataproc_cores.clone(),
                "executors without a GPU",
            ),
        };
        if !valid.contains(&n) {
            let message = format!("{shown} is {n}, which is not offered for {whose}");
            d.refuse(
                "cores-not-offered",
                "executors.cores",
                message,
                format!("the choices are {}", numbers(&valid)),
            );
        }
    } else if n == 0 || n > CORES_MAX {
        let message = format!("{shown} is {n}; an executor has 1 to {CORES_MAX} cores");
        d.refuse("cores-not-offered", "executors.cores", message, "");
    } else if let Some(machine) = d.machine.filter(|m| n > m.cores.max(1)) {
        let message = format!("{shown} is {n}, and the machine has {}", machine.cores);
        d.report(
            Severity::Notice,
            "more-than-machine",
            "executors.cores",
            message,
            "as many threads run as there are cores",
        );
    }
}

fn gpus(d: &mut Derivation<'_>) {
    let cores = d.out.count("executors.cores").unwrap_or(1);
    let Some(chosen) = d.chosen else {
        d.settle("executors.gpus", 0u64, Origin::Rule, "no GPU");
        if d.said_count("executors.gpus").is_some_and(|n| n > 0) {
            let from_machine = d.machine.is_some_and(|m| m.gpus.is_empty());
            if !from_machine && d.out.text("gpu.type") == Some("none") {
                let message = "`executors.gpus` is set, and the accelerator is `none`";
                d.report(
                    Severity::Warning,
                    "gpus-without-accelerator",
                    "executors.gpus",
                    message,
                    "name an accelerator",
                );
            }
            d.overrule(
                "executors.gpus",
                0u64,
                Origin::Rule,
                "there is no GPU to use",
            );
        }
        return;
    };
    if d.is_dataproc() {
        let n = chosen
            .gpu
            .and_then(|g| g.machine(cores))
            .map_or(1, |m| m.gpus);
        let rule = format!("a machine of {cores} cores carries {n}");
        let settled = d.settle_count("executors.gpus", n, Origin::Profile, rule);
        if settled != n {
            let message = format!(
                "`executors.gpus` is {settled}, and the machine of {cores} cores carries {n}"
            );
            d.refuse(
                "gpus-not-offered",
                "executors.gpus",
                message,
                "leave it out",
            );
        }
        if let Some(amount) = d.property("spark.executor.resource.gpu.amount")
            && amount
                .value
                .as_str()
                .and_then(|t| t.trim().parse::<f64>().ok())
                != Some(1.0)
        {
            let message = format!(
                "`spark.executor.resource.gpu.amount` is {}; a worker process drives exactly one GPU",
                amount.value.as_str().unwrap_or_default()
            );
            let hint =
                format!("remove it; the {n} GPU(s) of the machine get a worker process each");
            d.problems
                .error("gpu-amount", &amount.at, amount.place, message, hint);
        }
    } else {
        let here = d.machine.map(|m| m.gpus.len() as u64);
        // A named card that fits a known machine brings that machine's GPUs.
        let from_shape = chosen.gpu.and_then(|g| g.machine(cores)).map(|m| m.gpus);
        let (n, why) = match (here, from_shape) {
            (Some(n), _) => (n, "the machine's GPUs".to_owned()),
            (None, Some(n)) => (n, format!("a machine of {cores} cores carries {n}")),
            (None, None) => (1, "one per executor".to_owned()),
        };
        let settled = d.settle_count("executors.gpus", n, Origin::Rule, why);
        if let Some(here) = here.filter(|here| settled > *here) {
            let message = format!("`executors.gpus` is {settled}, and the machine has {here}");
            d.report(
                Severity::Warning,
                "more-than-machine",
                "executors.gpus",
                message,
                format!("{here} are used"),
            );
            d.overrule(
                "executors.gpus",
                here,
                Origin::Rule,
                format!("clamped to the machine's {here}"),
            );
        }
        if settled == 0 {
            d.refuse(
                "gpus-not-offered",
                "executors.gpus",
                "`executors.gpus` is 0, and an accelerator is named",
                "write `accelerator: {type: none}` to run on the CPU",
            );
        }
        if settled > cores {
            let message =
                format!("{settled} GPUs need at least {settled} cores, and there are {cores}");
            d.refuse(
                "fewer-cores-than-gpus",
                "executors.cores",
                message,
                "each GPU has a worker of its own",
            );
        }
    }
}

fn driver(d: &mut Derivation<'_>) {
    let n = d.settle_count("driver.cores", 4, Origin::Default, "the default");
    if d.is_dataproc() && !d.catalogue.cpu.dataproc_cores.contains(&n) {
        let (shown, valid) = (
            d.shown("driver.cores"),
            numbers(&d.catalogue.cpu.dataproc_cores),
        );
        d.refuse(
            "cores-not-offered",
            "driver.cores",
            format!("{shown} is {n}, which is not offered"),
            format!("the choices are {valid}"),
        );
    } else if n == 0 {
        d.refuse(
            "cores-not-offered",
            "driver.cores",
            "`driver.cores` is 0",
            "write 1 or more",
        );
    }
}

pub(super) fn numbers(values: &[u64]) -> String {
    list(values.iter().map(u64::to_string)).replace('`', "")
}
