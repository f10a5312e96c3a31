//! The Spark-style keys that `properties` and SET headers accept: data, in `properties.json`.
//!
//! - `settings` are our own settings under another name.
//! - `checked` are looked at by a rule, and otherwise have no effect.
//! - `accepted` are known, and have no effect here.
//! - `managed` are decided by the service, and refused.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::MemorySize;
use crate::problem::nearest;
use crate::read::{cut, list};

/// Everything known about property keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    settings: BTreeMap<String, String>,
    checked: BTreeMap<String, Kind>,
    accepted: Vec<String>,
    managed: BTreeMap<String, String>,
    managed_prefixes: Vec<String>,
    prefixes: Vec<String>,
    startup: Vec<String>,
}

/// What a checked key's value looks like.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Kind {
    Named(String),
    Words(Vec<String>),
}

/// What a key means here.
#[derive(Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// The same as this setting.
    Setting(&'a str),
    /// Looked at by a rule.
    Checked,
    /// Known, without effect.
    Accepted,
    /// Refused, with the reason.
    Managed(&'a str),
    /// Not known.
    Unknown,
}

impl Properties {
    /// The keys that are built in.
    pub fn built_in() -> &'static Properties {
        static PROPERTIES: LazyLock<Properties> = LazyLock::new(|| {
            serde_json::from_str(include_str!("properties.json"))
                .expect("a test reads the properties that are compiled in")
        });
        &PROPERTIES
    }

    /// What a key means.
    pub fn meaning(&self, key: &str) -> Meaning<'_> {
        if let Some(setting) = self.settings.get(key) {
            return Meaning::Setting(setting);
        }
        if self.checked.contains_key(key) {
            return Meaning::Checked;
        }
        if let Some(reason) = self.managed.get(key) {
            return Meaning::Managed(reason);
        }
        if self
            .managed_prefixes
            .iter()
            .any(|p| key.starts_with(p.as_str()))
        {
            return Meaning::Managed("there is no YARN underneath");
        }
        let has_prefix = |p: &String| key.len() > p.len() && key.starts_with(p.as_str());
        if self.accepted.iter().any(|k| k == key) || self.prefixes.iter().any(has_prefix) {
            return Meaning::Accepted;
        }
        Meaning::Unknown
    }

    /// The known key that an unknown one was probably meant to be.
    pub fn nearest(&self, key: &str) -> Option<&str> {
        let settings = self.settings.keys();
        let known = settings.chain(self.checked.keys()).chain(&self.accepted);
        nearest(key, known.map(String::as_str))
    }

    /// The property that stands for a setting.
    pub fn key_of(&self, setting: &str) -> Option<&str> {
        self.settings
            .iter()
            .find(|(_, s)| *s == setting)
            .map(|(k, _)| k.as_str())
    }

    /// Whether the key is read once, at the start.
    pub fn is_startup(&self, key: &str) -> bool {
        self.startup.iter().any(|k| k == key)
    }

    /// All settings that have a property.
    #[cfg(test)]
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.iter().map(|(k, s)| (k.as_str(), s.as_str()))
    }

    /// Why a checked key's value cannot be read, if so.
    pub fn refuse_value(&self, key: &str, value: &str) -> Option<String> {
        let kind = match self.checked.get(key)? {
            Kind::Words(words) if words.iter().any(|w| w.eq_ignore_ascii_case(value)) => {
                return None;
            }
            Kind::Words(words) => {
                return Some(format!("`{}` is not one of {}", cut(value), list(words)));
            }
            Kind::Named(kind) => kind.as_str(),
        };
        let size = value.parse::<MemorySize>();
        let fine = match kind {
            "boolean" => matches!(value.to_ascii_lowercase().as_str(), "true" | "false"),
            "count" => value.parse::<u32>().is_ok(),
            "number" => value
                .parse::<f64>()
                .is_ok_and(|n| n.is_finite() && n >= 0.0),
            "fraction" => value.parse::<f64>().is_ok_and(|n| (0.0..=1.0).contains(&n)),
            "size" => match size {
                Ok(_) => true,
                Err(error) => return Some(error.to_string()),
            },
            "size-or-bytes" => size.is_ok() || value.parse::<u64>().is_ok(),
            "size-or-minus-one" => size.is_ok() || value == "-1",
            _ => true,
        };
        let what = match kind {
            "boolean" => "`true` or `false`",
            "count" => "a whole number",
            "fraction" => "a number from 0 to 1",
            "number" => "a number",
            _ => "a size such as `16g`",
        };
        (!fine).then(|| format!("`{}` is not {what}", cut(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        let properties = Properties::built_in();
        assert_eq!(
            properties.meaning("spark.executor.cores"),
            Meaning::Setting("executors.cores")
        );
        assert_eq!(
            properties.meaning("spark.sql.adaptive.enabled"),
            Meaning::Accepted
        );
        assert_eq!(
            properties.meaning("spark.executorEnv.LANG"),
            Meaning::Accepted
        );
        assert!(matches!(
            properties.meaning("spark.master"),
            Meaning::Managed(_)
        ));
        assert!(matches!(
            properties.meaning("spark.yarn.queue"),
            Meaning::Managed(_)
        ));
        let slip = "spark.rapids.sql.concurentGpuTasks";
        assert_eq!(properties.meaning(slip), Meaning::Unknown);
        let meant = properties.nearest(slip);
        assert_eq!(meant, Some("spark.rapids.sql.concurrentGpuTasks"));
        assert_eq!(properties.meaning("zzz"), Meaning::Unknown);
    }

    #[test]
    fn each_property_names_a_setting_that_exists() {
        for (key, setting) in Properties::built_in().settings() {
            assert!(
                crate::settings::kind_of(setting).is_some(),
                "{key} -> {setting}"
            );
        }
        for key in &Properties::built_in().startup {
            assert!(
                !matches!(Properties::built_in().meaning(key), Meaning::Unknown),
                "{key}"
            );
        }
    }
}
