//! CPU or GPU, where the batch leaves the choice to the machine.

use std::sync::OnceLock;

use engine::estimate::Estimate;
use engine::exec::Device;
use engine::session::Session;
use serde::Serialize;

use crate::wiring::Wired;

/// The GPU that a batch may use. Opening one takes device memory and a third of a second.
pub trait GpuSource: Send + Sync {
    /// Opens it; absent when it does not open, of which the user has been told.
    fn open(&self) -> Option<Device>;
}

impl GpuSource for Device {
    fn open(&self) -> Option<Device> {
        Some(self.clone())
    }
}

/// Where a batch that may run on either runs, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Placement {
    /// Where it runs.
    pub on: Place,
    /// Why there, in a sentence.
    pub why: String,
    /// What each stage would take, in order; none when it is not known.
    pub stages: Vec<StageEstimate>,
}

impl Placement {
    /// Whether the batch runs whole on the CPU.
    pub fn is_cpu(&self) -> bool {
        self.on == Place::Cpu
    }
}

/// Where a batch runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Whole on the CPU.
    Cpu,
    /// What a GPU can run is on the GPU.
    Gpu,
}

/// What one stage would take.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageEstimate {
    /// The stage's name.
    pub stage: String,
    /// The estimate.
    #[serde(flatten)]
    pub estimate: Estimate,
}

/// The GPU that the attempt uses, opened when it is known to be needed, and where that was
/// a question, the answer.
pub(crate) async fn settle(
    wired: &Wired,
    gpu: Option<&dyn GpuSource>,
    session: &Session,
) -> (Option<Device>, Option<Placement>) {
    let Some(gpu) = gpu.filter(|_| wired.accelerator.is_some()) else {
        return (None, None);
    };
    if !wired.by_cost {
        return (gpu.open(), None);
    }
    // What is wrong with a stage shows when it runs.
    let estimates = session.estimate(&wired.stages).await.ok().flatten();
    let placement = choose(wired, estimates);
    match placement.on {
        Place::Cpu => (None, Some(placement)),
        Place::Gpu => (gpu.open(), Some(placement)),
    }
}

fn choose(wired: &Wired, estimates: Option<Vec<Estimate>>) -> Placement {
    let Some(estimates) = estimates else {
        return Placement {
            on: Place::Gpu,
            why: "the size of its input is not known before it is read".to_string(),
            stages: Vec::new(),
        };
    };
    let all = estimates
        .iter()
        .fold(Estimate::default(), |sum, stage| sum.then(*stage));
    let (cpu, gpu) = (all.cpu_ms, all.gpu_from_start_ms());
    let (on, why) = match all.is_for_cpu() {
        true => (
            Place::Cpu,
            format!(
                "expected to take {cpu:.0} ms on the CPU, and {gpu:.0} ms on the GPU with its \
                 start; name an accelerator to have it run there all the same"
            ),
        ),
        false => (
            Place::Gpu,
            format!("expected to take {gpu:.0} ms on the GPU, and {cpu:.0} ms on the CPU"),
        ),
    };
    let stages = wired.stages.iter().zip(estimates);
    Placement {
        on,
        why,
        stages: stages
            .map(|(stage, estimate)| StageEstimate {
                stage: stage.name.clone(),
                estimate,
            })
            .collect(),
    }
}

/// A GPU that is opened once, by whoever asks first.
pub struct OpensOnce<F> {
    open: F,
    opened: OnceLock<Option<Device>>,
}

impl<F: Fn() -> Option<Device> + Send + Sync> OpensOnce<F> {
    /// A GPU that `open` opens.
    pub fn new(open: F) -> OpensOnce<F> {
        OpensOnce {
            open,
            opened: OnceLock::new(),
        }
    }
}

impl<F: Fn() -> Option<Device> + Send + Sync> GpuSource for OpensOnce<F> {
    fn open(&self) -> Option<Device> {
        self.opened.get_or_init(&self.open).clone()
    }
}

#[cfg(test)]
mod tests {
    use engine::settings::{Settings, Stage};

    use super::*;

    fn wired() -> Wired {
        Wired {
            settings: Settings::default(),
            tables: Vec::new(),
            stages: vec![Stage::new("a", ""), Stage::new("b", "")],
            udfs: Vec::new(),
            accelerator: Some("l4".to_string()),
            by_cost: true,
            ttl: None,
        }
    }

    fn estimate(cpu_ms: f64, gpu_ms: f64) -> Estimate {
        Estimate {
            cpu_ms,
            gpu_ms,
            ..Estimate::default()
        }
    }

    #[test]
    fn the_sum_over_all_stages_decides() {
        let small = choose(&wired(), Some(vec![estimate(5.0, 1.0), estimate(5.0, 1.0)]));
        assert_eq!(small.on, Place::Cpu);
        assert_eq!(small.stages[1].stage, "b");
        assert!(small.why.contains("10 ms on the CPU"), "{}", small.why);
        let large = choose(&wired(), Some(vec![estimate(5.0, 1.0), estimate(9e4, 1e3)]));
        assert_eq!(large.on, Place::Gpu);
    }

    #[test]
    fn an_input_of_unknown_size_goes_to_the_gpu() {
        let placement = choose(&wired(), None);
        assert_eq!(placement.on, Place::Gpu);
        assert!(placement.why.contains("not known"), "{}", placement.why);
    }
}
