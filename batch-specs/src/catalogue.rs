//! The accelerators that a spec can name: data, in `catalogue.json`.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// All accelerators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// One entry per accelerator, the smallest first.
    pub gpus: Vec<Gpu>,
    /// What the batch gets when it asks for no accelerator.
    pub cpu: Cpu,
}

/// A kind of GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// The name that specs use.
    pub name: String,
    /// The maker's name.
    pub label: String,
    /// Memory as sold. What a driver reports is a little less, and never used in formulas.
    pub memory_gib: u64,
    /// Bandwidth of that memory.
    pub bandwidth_gb_s: u64,
    /// Architecture that kernels are compiled for.
    pub arch: String,
    /// Words of a driver's device name that tell this GPU; all of one group must occur.
    pub device_words: Vec<Vec<String>>,
    /// Cores of an executor when nothing says otherwise.
    pub cores_default: u64,
    /// Machines that carry it, the smallest first.
    pub machines: Vec<MachineShape>,
    /// Sizes of scratch disk for shapes that do not fix theirs.
    pub disk_sizes_gb: Vec<u64>,
    /// Whether Google's profile offers it.
    pub in_dataproc: bool,
}

/// A machine with GPUs in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineShape {
    /// Its cores.
    pub cores: u64,
    /// Its GPUs.
    pub gpus: u64,
    /// Its memory.
    pub memory_gib: u64,
    /// The one disk size that it comes with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_gb: Option<u64>,
    /// A memory cap that was published and differs from the formula.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_total_mib: Option<u64>,
}

/// Executors without a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Cores of an executor when nothing says otherwise.
    pub cores_default: u64,
    /// Memory per core of a machine that is not known.
    pub memory_gib_per_core: u64,
    /// Core counts that Google's profile offers.
    pub dataproc_cores: Vec<u64>,
    /// Sizes of a premium disk.
    pub premium_disk_sizes_gb: Vec<u64>,
}

impl Catalogue {
    /// The catalogue that is built in.
    pub fn built_in() -> &'static Catalogue {
        static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
            serde_json::from_str(include_str!("catalogue.json"))
                .expect("a test reads the catalogue that is compiled in")
        });
        &CATALOGUE
    }

    /// The entry with this name.
    pub fn gpu(&self, name: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|g| g.name == name)
    }

    /// The entry for a device as its driver names and sizes it. Where a device was sold with
    /// several sizes of memory, the size decides.
    pub fn recognise(&self, device: &str, memory_mib: u64) -> Option<&Gpu> {
        let device = device.to_ascii_lowercase();
        let words: Vec<&str> = device.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        let is_named = |gpu: &&Gpu| {
            gpu.device_words
                .iter()
                .any(|group| group.iter().all(|w| words.contains(&w.as_str())))
        };
        let distance = |gpu: &&Gpu| (gpu.memory_gib * 1024).abs_diff(memory_mib);
        self.gpus.iter().filter(is_named).min_by_key(distance)
    }
}

impl Gpu {
    /// Memory as sold, in MiB.
    pub fn memory_mib(&self) -> u64 {
        self.memory_gib * 1024
    }

    /// The machine with exactly this many cores.
    pub fn machine(&self, cores: u64) -> Option<&MachineShape> {
        self.machines.iter().find(|m| m.cores == cores)
    }

    /// Memory of a machine with this many cores: its own, or scaled from the nearest shape.
    pub fn machine_memory_mib(&self, cores: u64) -> u64 {
        if let Some(machine) = self.machine(cores) {
            return machine.memory_gib * 1024;
        }
        let nearest = self.machines.iter().min_by_key(|m| m.cores.abs_diff(cores));
        nearest.map_or(4096 * cores, |m| {
            m.memory_gib * 1024 * cores / m.cores.max(1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_reads_and_names_are_unique() {
        let catalogue = Catalogue::built_in();
        let mut names: Vec<&str> = catalogue.gpus.iter().map(|g| g.name.as_str()).collect();
        assert_eq!(
            names,
            ["l4", "a10", "a30", "a100-40", "a100-80", "h100", "h200"]
        );
        names.dedup();
        assert_eq!(names.len(), catalogue.gpus.len());
    }

    #[test]
    fn devices_are_recognised_by_name_and_size() {
        let name = |device, mib| {
            Catalogue::built_in()
                .recognise(device, mib)
                .map(|g| g.name.as_str())
        };
        assert_eq!(name("NVIDIA L4", 23_034), Some("l4"));
        assert_eq!(name("NVIDIA H200", 143_771), Some("h200"));
        assert_eq!(name("NVIDIA A100-SXM4-40GB", 40_536), Some("a100-40"));
        assert_eq!(name("NVIDIA A100 80GB PCIe", 81_920), Some("a100-80"));
        assert_eq!(name("NVIDIA H100 80GB HBM3", 81_559), Some("h100"));
        assert_eq!(name("NVIDIA A10G", 23_028), Some("a10"));
        assert_eq!(name("NVIDIA L40S", 46_068), None);
        assert_eq!(name("", 0), None);
    }
}
