//! Classes of machine and disk.

use super::Derivation;
use crate::provenance::Origin;

pub(super) fn derive(d: &mut Derivation<'_>) {
    let has_gpu = d.chosen.is_some();
    let (tier, why) = if has_gpu {
        ("premium", "GPUs need the premium tier")
    } else {
        ("standard", "no GPU")
    };
    for name in ["executors.tier", "executors.disk.tier"] {
        let settled = d.settle(
            name,
            tier,
            if has_gpu {
                Origin::Rule
            } else {
                Origin::Default
            },
            why,
        );
        if has_gpu && d.is_dataproc() && settled == "standard" {
            let shown = d.shown(name);
            let message = format!("{shown} is `standard`, and a batch with a GPU needs `premium`");
            d.refuse(
                "tier-not-premium",
                name,
                message,
                "write `premium`, or leave it out",
            );
        }
    }
    d.settle(
        "driver.tier",
        "standard",
        Origin::Default,
        "the driver has no GPU",
    );
    d.settle(
        "driver.disk.tier",
        "standard",
        Origin::Default,
        "the driver has no GPU",
    );
    for (compute, disk) in [
        ("executors.tier", "executors.disk.tier"),
        ("driver.tier", "driver.disk.tier"),
    ] {
        let is_gpu_role = has_gpu && compute == "executors.tier";
        let clash = d.out.text(disk) == Some("premium") && d.out.text(compute) == Some("standard");
        if d.is_dataproc() && clash && !is_gpu_role {
            let (disk_shown, compute_shown) = (d.shown(disk), d.shown(compute));
            let message = format!("{disk_shown} is `premium` while {compute_shown} is `standard`");
            d.refuse(
                "disk-tier-over-compute",
                disk,
                message,
                format!("set {compute_shown} to `premium` as well"),
            );
        }
    }
}
