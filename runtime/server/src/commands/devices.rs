//! `warpline devices`: what this machine has for running kernels, and what it lacks.

use std::io;

use kernels::gpu::{Finding, ReportedDevice};
use serde_json::{Value, json};

use super::{print_json, print_text};
use crate::arguments::{Devices, DevicesOutput};
use crate::exit::Exit;
use crate::gpus::Gpus;

/// Runs the command.
pub fn devices(arguments: &Devices) -> Exit {
    match show(arguments, &Gpus::detect()) {
        Ok(()) => Exit::Done,
        Err(error) => {
            eprintln!("error: {error}");
            Exit::Failed
        }
    }
}

fn show(arguments: &Devices, gpus: &Gpus) -> io::Result<()> {
    let report = gpus.report();
    match arguments.output {
        DevicesOutput::Table => print_text(&format!("{report}\n")),
        DevicesOutput::Json => print_json(&json!({
            "can_run": report.can_run(),
            "driver": finding(&report.driver),
            "nvrtc": finding(&report.nvrtc),
            "nvcomp": finding(&report.nvcomp),
            "devices": report.devices.iter().map(device).collect::<Vec<_>>(),
        })),
        DevicesOutput::Spark => {
            let usable = report
                .devices
                .iter()
                .filter(|device| device.problem().is_none());
            let addresses: Vec<String> = usable.map(|device| device.ordinal.to_string()).collect();
            print_text(&format!(
                "{}\n",
                json!({"name": "gpu", "addresses": addresses})
            ))
        }
    }
}

fn finding(finding: &Finding) -> Value {
    match finding {
        Finding::Found { version, at } => {
            let version = version.map(|(major, minor)| format!("{major}.{minor}"));
            json!({"found": true, "version": version, "at": at})
        }
        Finding::Lacking(error) => json!({"found": false, "problem": error.to_string()}),
    }
}

fn device(device: &ReportedDevice) -> Value {
    let problem = device.problem();
    match &device.info {
        Err(_) => json!({"ordinal": device.ordinal, "problem": problem}),
        Ok(info) => json!({
            "ordinal": device.ordinal,
            "name": info.name,
            "arch": info.arch,
            "memory_mib": info.memory_bytes >> 20,
            "multiprocessors": info.multiprocessors,
            "bandwidth_gb_per_s": info.bandwidth_bytes_per_s.map(|b| (b / 1e9).round()),
            "uuid": info.uuid,
            "pci_bus_id": info.pci_bus_id,
            "problem": problem,
        }),
    }
}
