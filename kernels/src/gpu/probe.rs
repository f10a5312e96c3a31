//! What this machine has for running kernels, and what it lacks.

use std::fmt;

use super::{DeviceInfo, cuda, driver};
use crate::error::{Error, Result};
use crate::jit::Nvrtc;

/// The oldest architecture that kernels are compiled for, as in `sm_75`.
const OLDEST_ARCH: u32 = 75;

/// What was found of everything that a GPU run needs. It prints as a table.
#[derive(Debug)]
pub struct DeviceReport {
    /// The NVIDIA driver.
    pub driver: Finding,
    /// The devices it has, those that can't be used too.
    pub devices: Vec<ReportedDevice>,
    /// The run-time compiler.
    pub nvrtc: Finding,
    /// The decompression library, which is optional.
    pub nvcomp: Finding,
}

/// One thing that was looked for.
#[derive(Debug)]
pub enum Finding {
    /// It is there.
    Found {
        /// Its CUDA version, where it tells one.
        version: Option<(u32, u32)>,
        /// The file or name it was loaded by.
        at: String,
    },
    /// It is not there, or does not work; the error says what to do.
    Lacking(Error),
}

/// One device.
#[derive(Debug)]
pub struct ReportedDevice {
    /// The driver's number.
    pub ordinal: usize,
    /// What it is.
    pub info: Result<DeviceInfo>,
}

impl ReportedDevice {
    /// Why it can't be used, if it can't.
    pub fn problem(&self) -> Option<String> {
        match &self.info {
            Err(error) => Some(error.to_string()),
            Ok(info) => {
                let arch = info
                    .arch
                    .strip_prefix("sm_")
                    .and_then(|n| n.parse::<u32>().ok());
                arch.is_none_or(|arch| arch < OLDEST_ARCH).then(|| {
                    format!(
                        "{} is too old; kernels need sm_{OLDEST_ARCH} or newer",
                        info.arch
                    )
                })
            }
        }
    }
}

impl Finding {
    /// Whether it is there.
    pub fn is_found(&self) -> bool {
        matches!(self, Finding::Found { .. })
    }
}

impl DeviceReport {
    /// Whether kernels can be compiled and run here.
    pub fn can_run(&self) -> bool {
        self.nvrtc.is_found() && self.devices.iter().any(|device| device.problem().is_none())
    }
}

/// Looks at the machine. It makes no context, takes no device memory, and never
/// panics.
pub fn devices() -> DeviceReport {
    let loaded = driver::load();
    let devices = match &loaded {
        Ok(_) => reported_devices(),
        Err(_) => Vec::new(),
    };
    let driver = match loaded {
        Ok(at) => Finding::Found {
            version: driver::version().ok(),
            at: at.to_owned(),
        },
        Err(error) => Finding::Lacking(error),
    };
    let nvrtc = match Nvrtc::get() {
        Ok(nvrtc) => Finding::Found {
            version: Some(nvrtc.version()),
            at: nvrtc.found_at().to_owned(),
        },
        Err(error) => Finding::Lacking(error),
    };
    DeviceReport {
        driver,
        devices,
        nvrtc,
        nvcomp: find_nvcomp(),
    }
}

fn reported_devices() -> Vec<ReportedDevice> {
    let n_devices = driver::device_count().unwrap_or(0);
    (0..n_devices)
        .map(|ordinal| ReportedDevice {
            ordinal,
            info: driver::device(ordinal).and_then(|device| cuda::describe(ordinal, device)),
        })
        .collect()
}

fn find_nvcomp() -> Finding {
    let mut looked_in = Vec::new();
    for name in ["libnvcomp.so.6", "libnvcomp.so.5", "libnvcomp.so"] {
        // SAFETY: the library's initialisers may run anywhere.
        match unsafe { libloading::Library::new(name) } {
            Ok(_) => {
                return Finding::Found {
                    version: None,
                    at: name.into(),
                };
            }
            Err(error) => looked_in.push(error.to_string()),
        }
    }
    let what = "the decompression library (libnvcomp), which is optional".into();
    let fix =
        "Install nvCOMP, or leave it: compressed pages are then decompressed on the CPU.".into();
    Finding::Lacking(
        crate::error::Missing {
            what,
            looked_in,
            fix,
        }
        .into(),
    )
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Found {
                version: Some((major, minor)),
                at,
            } => write!(f, "CUDA {major}.{minor}, {at}"),
            Finding::Found { version: None, at } => f.write_str(at),
            Finding::Lacking(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "driver  {}", self.driver)?;
        if self.driver.is_found() && self.devices.is_empty() {
            writeln!(f, "GPU     none: the driver sees no device")?;
        }
        for device in &self.devices {
            write!(f, "GPU {}   ", device.ordinal)?;
            if let Ok(info) = &device.info {
                write!(
                    f,
                    "{}, {}, {:.1} GiB, {} multiprocessors",
                    info.name,
                    info.arch,
                    info.memory_bytes as f64 / f64::from(1 << 30),
                    info.multiprocessors
                )?;
                if let Some(pci) = &info.pci_bus_id {
                    write!(f, ", PCI {pci}")?;
                }
            }
            match device.problem() {
                Some(problem) => writeln!(f, " (not usable: {problem})")?,
                None => writeln!(f)?,
            }
        }
        writeln!(f, "NVRTC   {}", self.nvrtc)?;
        writeln!(f, "nvCOMP  {}", self.nvcomp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_names_everything_and_never_panics() {
        let report = devices();
        let text = report.to_string();
        for word in ["driver", "NVRTC", "nvCOMP"] {
            assert!(text.contains(word), "{text}");
        }
        if !report.driver.is_found() {
            assert!(!report.can_run());
            assert!(
                text.contains("Install the NVIDIA driver") || text.contains("failed with"),
                "{text}"
            );
        }
    }
}
