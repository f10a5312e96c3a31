//! The GPUs of this machine, as a batch may use them.

use batch_specs::Loaded;
use engine::exec::Device;
use kernels::gpu::{DeviceReport, ReportedDevice, devices};
use lifecycle::{GpuSource, OpensOnce};

/// What is there. Looking makes no context and takes no device memory.
pub struct Gpus {
    report: DeviceReport,
}

impl Gpus {
    /// Looks at the machine.
    pub fn detect() -> Gpus {
        Gpus { report: devices() }
    }

    /// What was found and what is missing.
    pub fn report(&self) -> &DeviceReport {
        &self.report
    }

    /// The devices that a batch may use. None when no kernel could be compiled for them.
    fn usable(&self) -> impl Iterator<Item = &ReportedDevice> {
        let can_run = self.report.can_run();
        let devices = self.report.devices.iter();
        devices.filter(move |device| can_run && device.problem().is_none())
    }

    /// The usable ones, as `batch_specs` derives settings from them.
    pub fn known(&self) -> Vec<batch_specs::GpuInfo> {
        let infos = self.usable().filter_map(|device| device.info.as_ref().ok());
        infos
            .map(|info| batch_specs::GpuInfo {
                name: info.name.clone(),
                memory_mib: (info.memory_bytes >> 20) as u64,
            })
            .collect()
    }

    /// Device numbers of the usable ones.
    pub fn ordinals(&self) -> Vec<u32> {
        self.usable().map(|device| device.ordinal as u32).collect()
    }

    /// The device that a batch runs on, not opened yet: the first usable one, when the spec
    /// asks for an accelerator. One that does not open is a warning here and a fallback (or
    /// a refusal) in the run.
    pub fn source_for(&self, loaded: &Loaded) -> Option<impl GpuSource + use<>> {
        let wanted = loaded.effective.text("gpu.type").unwrap_or("none");
        if wanted == "none" {
            return None;
        }
        let ordinal = self.usable().next()?.ordinal;
        let limits = lifecycle::device_limits(loaded);
        Some(OpensOnce::new(move || {
            match Device::open(ordinal, &lifecycle::cache_dir(), limits) {
                Ok(device) => Some(device),
                Err(error) => {
                    eprintln!("warning: GPU {ordinal} cannot be used: {error}");
                    None
                }
            }
        }))
    }
}
