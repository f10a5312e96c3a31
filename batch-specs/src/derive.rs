//! Fills in what the author left out, and checks what they said against what is possible.
//!
//! The order is the order in which values depend on one another:
//!
//! ```text
//! accelerator -> tiers -> shape (instances, cores, GPUs) -> disk -> memory
//!                                        |                            |
//!                                        +-> sharing of a GPU         +-> pools
//!                                        +-> threads
//! ```
//!
//! Every value is settled once, with its formula in words. Nothing here reads text or does I/O.

mod accelerator;
mod allocation;
mod disk;
mod limits;
mod memory;
mod pools;
mod shape;
mod sharing;
mod threads;
mod tiers;

use serde_json::Value as Json;

use crate::catalogue::{Catalogue, Gpu};
use crate::machine::Machine;
use crate::problem::{Place, Problems, Severity};
use crate::properties::Properties;
use crate::provenance::{Effective, Loser, Origin, Settled};
use crate::settings::{Said, Settings};
use crate::spec::{Profile, Spec};

/// The accelerator that executors of this batch have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chosen<'a> {
    /// Its catalogue entry; `None` for a card that the catalogue does not know.
    pub gpu: Option<&'a Gpu>,
    /// Memory as sold, of one GPU.
    pub memory_gib: u64,
}

/// The state of a derivation.
pub(crate) struct Derivation<'a> {
    pub spec: &'a Spec,
    pub settings: &'a Settings,
    pub machine: Option<&'a Machine>,
    pub catalogue: &'a Catalogue,
    pub strict: bool,
    pub problems: &'a mut Problems,
    pub out: Effective,
    /// `None` when executors have no GPU.
    pub chosen: Option<Chosen<'a>>,
    /// Place of the accelerator's name, for rules that it triggers.
    pub accelerator_place: Place,
    /// Most memory an executor can have in all.
    pub total_mib: u64,
}

/// Derives everything.
pub(crate) fn derive(d: &mut Derivation<'_>) {
    let is_known = accelerator::derive(d);
    // Without knowing the accelerator, its limits are unknown as well; guessing them would bury
    // the one real problem under others.
    if is_known {
        tiers::derive(d);
        shape::derive(d);
        disk::derive(d);
        memory::derive(d);
        sharing::derive(d);
        threads::derive(d);
        pools::derive(d);
        allocation::derive(d);
    }
    limits::derive(d);
}

impl<'a> Derivation<'a> {
    pub fn is_dataproc(&self) -> bool {
        self.spec.profile == Profile::Dataproc
    }

    /// Python programs keep more of their memory outside the heap.
    pub fn is_python(&self) -> bool {
        self.spec
            .dataproc
            .as_ref()
            .is_some_and(|d| d.pyspark_batch.is_some())
    }

    /// Settles a name: what the author said, else `value` for the reason given. Returns the
    /// value that holds.
    pub fn settle(
        &mut self,
        name: &str,
        value: impl Into<Json>,
        from: Origin,
        rule: impl Into<String>,
    ) -> Json {
        let said = self.settings.all(name);
        let otherwise = value.into();
        let Some(winner) = said.first() else {
            let rule = Some(rule.into());
            let settled = Settled {
                value: otherwise.clone(),
                from,
                rule,
                at: None,
                losers: Vec::new(),
            };
            self.out.put(name, settled);
            return otherwise;
        };
        let mut losers: Vec<Loser> = said[1..]
            .iter()
            .map(|s| Loser {
                value: s.value.clone(),
                from: s.from,
            })
            .collect();
        if otherwise != winner.value && !otherwise.is_null() {
            losers.push(Loser {
                value: otherwise,
                from,
            });
        }
        let settled = Settled {
            value: winner.value.clone(),
            from: winner.from,
            rule: None,
            at: Some(winner.at.clone()),
            losers,
        };
        self.out.put(name, settled);
        winner.value.clone()
    }

    /// Settles a whole number.
    pub fn settle_count(
        &mut self,
        name: &str,
        value: u64,
        from: Origin,
        rule: impl Into<String>,
    ) -> u64 {
        self.settle(name, value, from, rule)
            .as_u64()
            .unwrap_or(value)
    }

    /// Puts another value in place of the settled one, which becomes a loser.
    pub fn overrule(
        &mut self,
        name: &str,
        value: impl Into<Json>,
        from: Origin,
        rule: impl Into<String>,
    ) {
        let value = value.into();
        if let Some(settled) = self.out.get_mut(name)
            && settled.value != value
        {
            let before = Loser {
                value: settled.value.clone(),
                from: settled.from,
            };
            settled.losers.insert(0, before);
            settled.value = value;
            settled.from = from;
            settled.rule = Some(rule.into());
            settled.at = None;
        }
    }

    /// What the author said, as a number.
    pub fn said_count(&self, name: &str) -> Option<u64> {
        self.settings.winner(name)?.value.as_u64()
    }

    /// Reports something about a setting, at the place where it was said.
    pub fn report(
        &mut self,
        severity: Severity,
        code: &str,
        name: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let (at, place) = match self.settings.winner(name) {
            Some(said) => (said.at.clone(), said.place),
            None => (field_of(name).to_owned(), self.accelerator_place),
        };
        self.problems
            .push(severity, code, &at, place, message, hint);
    }

    /// Reports an error about a setting.
    pub fn refuse(
        &mut self,
        code: &str,
        name: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.report(Severity::Error, code, name, message, hint);
    }

    /// The winning text of a property that is no setting.
    pub fn property(&self, key: &str) -> Option<&'a Said> {
        self.settings.property(key)
    }

    /// Whether a switch among the properties is on.
    pub fn switch(&self, key: &str) -> Option<bool> {
        self.property(key)?
            .value
            .as_str()
            .map(|t| t.eq_ignore_ascii_case("true"))
    }

    /// How people know a setting: by its property in Google's profile, else by its field.
    pub fn shown(&self, name: &str) -> String {
        let said = self.settings.winner(name).map(|s| s.at.as_str());
        let key = match said {
            Some(at) => at.strip_prefix("properties.").unwrap_or(at),
            None if self.is_dataproc() => Properties::built_in()
                .key_of(name)
                .unwrap_or_else(|| field_of(name)),
            None => field_of(name),
        };
        format!("`{key}`")
    }

    /// The foreign runtime's version, as numbers.
    pub fn runtime(&self) -> Option<(u32, u32)> {
        let text = self.spec.runtime_version.as_deref()?;
        let mut parts = text.trim().split('.');
        let major = parts.next()?.parse().ok()?;
        Some((major, parts.next().map_or(Some(0), |p| p.parse().ok())?))
    }
}

/// The field that says a setting: its name without the unit.
fn field_of(name: &str) -> &str {
    match name {
        "gpu.type" => "accelerator.type",
        "gpu.task_share" => "accelerator.task_share",
        "gpu.concurrent_tasks" => "accelerator.concurrent_tasks",
        "gpu.memory_mib" => "accelerator.memory",
        "explain.mode" => "explain",
        _ => ["_mib", "_gb", "_s"]
            .iter()
            .find_map(|unit| name.strip_suffix(unit))
            .unwrap_or(name),
    }
}

/// MiB of the off-heap limit that each core takes besides pinned memory.
pub(crate) fn pools_mib_per_core() -> u64 {
    pools::MIB_PER_CORE
}

impl Derivation<'_> {
    /// Path and place of properties with a prefix that are no settings.
    pub fn properties_with(&self, prefix: &str) -> Vec<(String, Place)> {
        let with = self
            .settings
            .properties()
            .filter(|(key, _)| key.starts_with(prefix));
        with.map(|(_, said)| (said.at.clone(), said.place))
            .collect()
    }
}
