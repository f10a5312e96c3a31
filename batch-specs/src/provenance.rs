//! The effective configuration: every value with where it came from, and what it won over.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// Where a value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A field of the spec.
    User,
    /// `--set` on the command line.
    Set,
    /// A SET line at the head of the SQL.
    Header,
    /// A key of `properties`.
    Property,
    /// The profile demands it.
    Profile,
    /// A formula over other values.
    Rule,
    /// A constant of ours.
    Default,
}

/// A value that did not win.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Loser {
    /// The value.
    pub value: Json,
    /// Where it came from.
    pub from: Origin,
}

/// One effective value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settled {
    /// The value.
    pub value: Json,
    /// Where it came from.
    pub from: Origin,
    /// The formula or the reason, when nobody gave the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The key that gave it, such as `executors.cores` or `properties.spark.executor.cores`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// What it won over, the strongest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losers: Vec<Loser>,
}

/// The effective configuration of a batch, in a stable order under stable names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Effective {
    values: IndexMap<String, Settled>,
}

impl Effective {
    /// The entry of a name.
    pub fn get(&self, name: &str) -> Option<&Settled> {
        self.values.get(name)
    }

    /// A whole number.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.get(name)?.value.as_u64()
    }

    /// A number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.value.as_f64()
    }

    /// A word or a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.value.as_str()
    }

    /// A switch.
    pub fn switch(&self, name: &str) -> Option<bool> {
        self.get(name)?.value.as_bool()
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Settled)> {
        self.values
            .iter()
            .map(|(name, settled)| (name.as_str(), settled))
    }

    pub(crate) fn put(&mut self, name: &str, settled: Settled) {
        self.values.insert(name.to_owned(), settled);
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Settled> {
        self.values.get_mut(name)
    }
}
