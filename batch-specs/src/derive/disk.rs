//! Scratch disks.

use super::Derivation;
use super::shape::numbers;
use crate::problem::Severity;
use crate::provenance::Origin;

/// Google's smallest standard disk.
const STANDARD_GB_MIN: u64 = 250;
/// Google's smallest premium disk beside 16 cores.
const PREMIUM_16_CORES_GB_MIN: u64 = 750;

pub(super) fn derive(d: &mut Derivation<'_>) {
    match d.chosen {
        Some(_) => with_gpu(d),
        None => without_gpu(d, "executors"),
    }
    without_gpu(d, "driver");
}

fn with_gpu(d: &mut Derivation<'_>) {
    const NAME: &str = "executors.disk.size_gb";
    let cores = d.out.count("executors.cores").unwrap_or(0);
    let gpu = d.chosen.and_then(|c| c.gpu);
    let fixed = gpu.and_then(|g| g.machine(cores)).and_then(|m| m.disk_gb);
    if !d.is_dataproc() {
        let (gb, why) = match fixed {
            Some(gb) => (gb, format!("the disk of a machine of {cores} cores")),
            None => (375, "the smallest premium disk".to_owned()),
        };
        d.settle(NAME, gb, Origin::Rule, why);
        return;
    }
    if let Some(fixed) = fixed {
        let rule = format!("a machine of {cores} cores comes with {fixed}g");
        let gb = d.settle_count(NAME, fixed, Origin::Profile, rule);
        if gb != fixed {
            let shown = d.shown(NAME);
            let message =
                format!("{shown} is {gb}g; a machine of {cores} cores comes with {fixed}g");
            d.refuse(
                "disk-size",
                NAME,
                message,
                format!("write `{fixed}g`, or leave it out"),
            );
        }
        return;
    }
    let is_fixed_by_shape = gpu.is_some_and(|g| g.machines.iter().any(|m| m.disk_gb.is_some()));
    if is_fixed_by_shape {
        // The cores are wrong, and reported; the disk follows from them.
        d.settle(NAME, 375u64, Origin::Profile, "the smallest premium disk");
        return;
    }
    let sizes = gpu.map(|g| g.disk_sizes_gb.clone()).unwrap_or_default();
    let gb = d.settle_count(NAME, 375, Origin::Rule, "the smallest that is offered");
    if d.settings.winner(NAME).is_none() {
        let severity = if d.strict {
            Severity::Error
        } else {
            Severity::Notice
        };
        let shown = d.shown(NAME);
        let message = format!("{shown} is required with this accelerator; 375g is taken");
        d.report(
            severity,
            "disk-size-required",
            NAME,
            message,
            format!("the sizes are {} (in g)", numbers(&sizes)),
        );
    } else if !sizes.contains(&gb) {
        let shown = d.shown(NAME);
        d.refuse(
            "disk-size",
            NAME,
            format!("{shown} is {gb}g, which is not offered"),
            format!("the sizes are {} (in g)", numbers(&sizes)),
        );
    }
}

fn without_gpu(d: &mut Derivation<'_>, role: &str) {
    let name = format!("{role}.disk.size_gb");
    let cores = d.out.count(&format!("{role}.cores")).unwrap_or(4);
    let gb = d.settle_count(
        &name,
        100 * cores,
        Origin::Rule,
        format!("100 x cores = 100 x {cores}"),
    );
    if !d.is_dataproc() {
        return;
    }
    let is_said = d.settings.winner(&name).is_some();
    let shown = d.shown(&name);
    if d.out.text(&format!("{role}.disk.tier")) != Some("premium") {
        if gb < STANDARD_GB_MIN && is_said {
            let message =
                format!("{shown} is {gb}g; a standard disk has at least {STANDARD_GB_MIN}g");
            d.refuse(
                "disk-size",
                &name,
                message,
                format!("write `{STANDARD_GB_MIN}g` or more"),
            );
        }
        return;
    }
    let sizes = d.catalogue.cpu.premium_disk_sizes_gb.clone();
    let choices = format!("the sizes are {} (in g)", numbers(&sizes));
    if !is_said {
        d.refuse(
            "disk-size-required",
            &name,
            format!("{shown} is required with a premium disk"),
            choices,
        );
    } else if !sizes.contains(&gb) {
        d.refuse(
            "disk-size",
            &name,
            format!("{shown} is {gb}g; premium disks come in fixed sizes"),
            choices,
        );
    } else if cores == 16 && gb < PREMIUM_16_CORES_GB_MIN {
        let message = format!(
            "{shown} is {gb}g; 16 cores need at least {PREMIUM_16_CORES_GB_MIN}g of premium disk"
        );
        d.refuse(
            "disk-size",
            &name,
            message,
            format!("write `{PREMIUM_16_CORES_GB_MIN}g` or more"),
        );
    }
}
