//! What the author said about each setting, wherever it was said: command line, SET header,
//! field, property. It decides who wins and keeps the losers; it derives nothing.

use indexmap::IndexMap;
use serde_json::Value as Json;

use crate::problem::{Place, Problems, Severity};
use crate::properties::{Meaning, Properties};
use crate::provenance::Origin;
use crate::read::{cut, list};
use crate::yaml::Node;
use crate::{Duration, MemorySize, TaskShare};

/// How a setting's text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Count,
    /// A size, kept in MiB.
    Mib,
    /// A size, kept in GiB.
    Gb,
    /// A time, kept in seconds.
    Seconds,
    /// `true` or `false`.
    Switch,
    /// A share of a GPU.
    Share,
    /// A number from 0 to 1.
    Ratio,
    /// One of some words.
    Word(&'static [&'static str]),
    /// Any text.
    Text,
}

const TIERS: Kind = Kind::Word(&["standard", "premium"]);

/// Each setting, the fields that say it, and how it is read.
const SETTINGS: &[(&str, &[&str], Kind)] = &[
    ("gpu.type", &["accelerator.type"], Kind::Text),
    (
        "accelerator.fallback",
        &["accelerator.fallback"],
        Kind::Word(&["cpu", "fail"]),
    ),
    (
        "accelerator.deterministic",
        &["accelerator.deterministic"],
        Kind::Switch,
    ),
    (
        "accelerator.column_cache",
        &["accelerator.column_cache"],
        Kind::Switch,
    ),
    ("executors.instances", &["executors.instances"], Kind::Count),
    ("executors.cores", &["executors.cores"], Kind::Count),
    ("executors.gpus", &["executors.gpus"], Kind::Count),
    ("executors.memory_mib", &["executors.memory"], Kind::Mib),
    (
        "executors.memory_overhead_mib",
        &["executors.memory_overhead"],
        Kind::Mib,
    ),
    (
        "executors.tier",
        &["executors.tier", "accelerator.tier"],
        TIERS,
    ),
    ("executors.disk.size_gb", &["executors.disk.size"], Kind::Gb),
    ("executors.disk.tier", &["executors.disk.tier"], TIERS),
    (
        "executors.dynamic_allocation.enabled",
        &["executors.dynamic_allocation.enabled"],
        Kind::Switch,
    ),
    (
        "executors.dynamic_allocation.initial",
        &["executors.dynamic_allocation.initial"],
        Kind::Count,
    ),
    (
        "executors.dynamic_allocation.min",
        &["executors.dynamic_allocation.min"],
        Kind::Count,
    ),
    (
        "executors.dynamic_allocation.max",
        &["executors.dynamic_allocation.max"],
        Kind::Count,
    ),
    (
        "executors.dynamic_allocation.ratio",
        &["executors.dynamic_allocation.ratio"],
        Kind::Ratio,
    ),
    ("driver.cores", &["driver.cores"], Kind::Count),
    ("driver.memory_mib", &["driver.memory"], Kind::Mib),
    (
        "driver.memory_overhead_mib",
        &["driver.memory_overhead"],
        Kind::Mib,
    ),
    ("driver.tier", &["driver.tier"], TIERS),
    ("driver.disk.size_gb", &["driver.disk.size"], Kind::Gb),
    ("driver.disk.tier", &["driver.disk.tier"], TIERS),
    ("gpu.task_share", &["accelerator.task_share"], Kind::Share),
    (
        "gpu.concurrent_tasks",
        &["accelerator.concurrent_tasks"],
        Kind::Count,
    ),
    ("gpu.memory_mib", &["accelerator.memory"], Kind::Mib),
    ("memory.pinned_mib", &["memory.pinned"], Kind::Mib),
    (
        "memory.off_heap_limit_mib",
        &["memory.off_heap_limit"],
        Kind::Mib,
    ),
    (
        "shuffle.reader_threads",
        &["shuffle.reader_threads"],
        Kind::Count,
    ),
    (
        "shuffle.writer_threads",
        &["shuffle.writer_threads"],
        Kind::Count,
    ),
    ("scan.reader_threads", &["scan.reader_threads"], Kind::Count),
    (
        "explain.mode",
        &["explain"],
        Kind::Word(&["ALL", "NOT_ON_GPU", "NONE"]),
    ),
    ("plan.join_order", &[], Kind::Switch),
    ("limits.ttl_s", &["limits.ttl"], Kind::Seconds),
    ("limits.queue_ttl_s", &["limits.queue_ttl"], Kind::Seconds),
    ("limits.max_attempts", &["limits.max_attempts"], Kind::Count),
];

/// How a setting is read, if there is one of this name.
#[cfg(test)]
pub fn kind_of(name: &str) -> Option<Kind> {
    SETTINGS
        .iter()
        .find(|(n, ..)| *n == name)
        .map(|(.., kind)| *kind)
}

/// One thing that was said.
#[derive(Debug, Clone)]
pub struct Said {
    /// The value, as the setting's kind reads it; for other properties the text.
    pub value: Json,
    /// Who said it.
    pub from: Origin,
    /// Under which key.
    pub at: String,
    /// Where.
    pub place: Place,
}

/// Everything that was said.
#[derive(Debug, Default)]
pub struct Settings {
    settings: IndexMap<&'static str, Vec<Said>>,
    properties: IndexMap<String, Vec<Said>>,
}

/// A `key=value` of a SET header, placed in the spec's text.
#[derive(Debug, Clone)]
pub struct HeaderLine {
    /// Key.
    pub key: String,
    /// Value.
    pub value: String,
    /// The stage's SQL, as a path.
    pub at: String,
    /// Where the line stands.
    pub place: Place,
}

impl Settings {
    /// The winner for a setting.
    pub fn winner(&self, name: &str) -> Option<&Said> {
        self.settings.get(name)?.first()
    }

    /// Everyone who spoke about a setting, the winner first.
    pub fn all(&self, name: &str) -> &[Said] {
        self.settings.get(name).map_or(&[], Vec::as_slice)
    }

    /// The winning text of a property that is no setting.
    pub fn property(&self, key: &str) -> Option<&Said> {
        self.properties.get(key)?.first()
    }

    /// Properties that are no settings.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &Said)> {
        self.properties
            .iter()
            .filter_map(|(k, said)| Some((k.as_str(), said.first()?)))
    }

    /// Collects what the tree and the headers say.
    pub fn gather(root: &Node, headers: &[HeaderLine], problems: &mut Problems) -> Settings {
        let mut settings = Settings::default();
        for (name, fields, kind) in SETTINGS {
            for field in *fields {
                if let Some((node, place)) = root.find(field) {
                    settings.take_field(name, field, node, place, *kind, problems);
                }
            }
        }
        for entry in root
            .get("properties")
            .map(Node::entries)
            .unwrap_or_default()
        {
            settings.take_property(&entry.key, &entry.node, entry.place, problems);
        }
        for line in headers {
            // A later line of a script wins over an earlier one, so it goes in front of it.
            let said = (
                line.value.clone(),
                Origin::Header,
                line.at.clone(),
                line.place,
            );
            settings.take_text(&line.key, said, problems);
        }
        settings.rank();
        settings.refuse_contradictions(problems);
        settings
    }

    fn take_field(
        &mut self,
        name: &'static str,
        field: &str,
        node: &Node,
        place: Place,
        kind: Kind,
        problems: &mut Problems,
    ) {
        let here = if node.set { Place::default() } else { place };
        match node
            .text()
            .filter(|t| !t.is_empty())
            .map(|text| read(kind, text))
        {
            Some(Ok(value)) => {
                let from = if node.set { Origin::Set } else { Origin::User };
                let said = Said {
                    value,
                    from,
                    at: field.to_owned(),
                    place: here,
                };
                self.settings.entry(name).or_default().push(said);
            }
            // The shape was checked when the tree was read; these two say more than the shape.
            Some(Err(message)) if matches!(kind, Kind::Gb | Kind::Ratio) => {
                let is_size = node.text().is_some_and(|t| t.parse::<MemorySize>().is_ok());
                if is_size || kind == Kind::Ratio {
                    problems.error(
                        "wrong-value",
                        field,
                        here,
                        format!("`{field}`: {message}"),
                        "",
                    );
                }
            }
            _ => {}
        }
        if let Some(before) = &node.replaced {
            self.take_field(name, field, before, before.place, kind, problems);
        }
    }

    fn take_property(&mut self, key: &str, node: &Node, place: Place, problems: &mut Problems) {
        let trimmed = key.trim();
        let at = format!("properties.{trimmed}");
        if let Some(text) = node.text() {
            let block = node.block.is_some() && text.trim_end() == text.trim_end_matches('\n');
            if trimmed != key || (text.trim() != text && !block) {
                let message = format!("blanks around `{}` were removed", cut(trimmed));
                problems.push(Severity::Notice, "padded-property", &at, place, message, "");
            }
            let from = if node.set {
                Origin::Set
            } else {
                Origin::Property
            };
            let place = if node.set { Place::default() } else { place };
            // An empty value is how generated specs say "not set".
            if !text.trim().is_empty() {
                self.take_text(trimmed, (text.trim().to_owned(), from, at, place), problems);
            }
        }
        if let Some(before) = &node.replaced {
            self.take_property(key, before, before.place, problems);
        }
    }

    fn take_text(
        &mut self,
        key: &str,
        said: (String, Origin, String, Place),
        problems: &mut Problems,
    ) {
        let (text, from, at, place) = said;
        match Properties::built_in().meaning(key) {
            Meaning::Setting(setting) => {
                let Some((name, _, kind)) = SETTINGS.iter().find(|(n, ..)| *n == setting) else {
                    return;
                };
                let read = match kind {
                    Kind::Share => TaskShare::from_decimal(&text)
                        .map(|s| Json::from(s.value()))
                        .map_err(|e| e.to_string()),
                    _ => read(*kind, &text),
                };
                match read {
                    Ok(value) => self.settings.entry(name).or_default().push(Said {
                        value,
                        from,
                        at,
                        place,
                    }),
                    Err(message) => {
                        problems.error(
                            "property-value",
                            &at,
                            place,
                            format!("`{key}`: {message}"),
                            "",
                        );
                    }
                }
            }
            meaning => {
                match meaning {
                    Meaning::Managed(reason) => {
                        let message = format!("`{key}` cannot be set: {reason}");
                        problems.error("managed-property", &at, place, message, "remove it");
                    }
                    Meaning::Unknown if problems.is_full() => {}
                    Meaning::Unknown => {
                        let near = Properties::built_in().nearest(key);
                        let hint = near.map_or("it has no effect".to_owned(), |k| {
                            format!("did you mean `{k}`?")
                        });
                        let message = format!("`{}` is not a known property", cut(key));
                        problems.push(
                            Severity::Warning,
                            "unknown-property",
                            &at,
                            place,
                            message,
                            hint,
                        );
                    }
                    Meaning::Accepted if !key.contains("Env.") => {
                        let message = format!("`{key}` is accepted and has no effect here");
                        problems.push(
                            Severity::Notice,
                            "property-without-effect",
                            &at,
                            place,
                            message,
                            "",
                        );
                    }
                    _ => {
                        if let Some(reason) = Properties::built_in().refuse_value(key, &text) {
                            problems.error(
                                "property-value",
                                &at,
                                place,
                                format!("`{key}`: {reason}"),
                                "",
                            );
                            return;
                        }
                    }
                }
                let said = Said {
                    value: Json::from(text),
                    from,
                    at,
                    place,
                };
                self.properties
                    .entry(key.to_owned())
                    .or_default()
                    .push(said);
            }
        }
    }

    fn rank(&mut self) {
        let rank = |said: &Said| match said.from {
            Origin::Set => 0,
            Origin::Header => 1,
            _ => 2,
        };
        for said in self
            .settings
            .values_mut()
            .chain(self.properties.values_mut())
        {
            // Headers were met in order, and the last one counts.
            let n_headers = said.iter().filter(|s| s.from == Origin::Header).count();
            if n_headers > 1 {
                let at = said
                    .iter()
                    .position(|s| s.from == Origin::Header)
                    .unwrap_or(0);
                said[at..].reverse();
            }
            said.sort_by_key(rank);
        }
    }

    /// Two voices of one rank that differ. A voice of a higher rank settles the matter.
    fn refuse_contradictions(&self, problems: &mut Problems) {
        for (name, said) in &self.settings {
            let Some(winner) = said.first() else { continue };
            if winner.from == Origin::Header {
                let other = said.iter().find(|s| {
                    s.from == Origin::Header && s.at != winner.at && s.value != winner.value
                });
                if let Some(other) = other {
                    let message = format!(
                        "SET lines of two stages disagree about {name}: {} and {}",
                        other.value, winner.value
                    );
                    problems.error(
                        "header-conflict",
                        &winner.at,
                        winner.place,
                        message,
                        "settings of a header hold for the whole batch; keep one",
                    );
                }
            }
            if !matches!(winner.from, Origin::User | Origin::Property) {
                continue;
            }
            if let Some(other) = said
                .iter()
                .skip(1)
                .find(|s| s.value != winner.value && !same(winner, s))
            {
                let (first, second) = if (other.place.line, other.place.column)
                    < (winner.place.line, winner.place.column)
                {
                    (other, winner)
                } else {
                    (winner, other)
                };
                let message = format!(
                    "`{}` says {} and `{}` on line {} says {}",
                    second.at, second.value, first.at, first.place.line, first.value
                );
                problems.error(
                    "field-property-conflict",
                    &second.at,
                    second.place,
                    message,
                    "they are one setting; keep one of them",
                );
            }
        }
    }
}

/// Texts that differ in case and blanks only are not a contradiction.
fn same(a: &Said, b: &Said) -> bool {
    match (a.value.as_str(), b.value.as_str()) {
        (Some(a), Some(b)) => a.trim().eq_ignore_ascii_case(b.trim()),
        _ => false,
    }
}

/// Reads a text as a kind.
pub fn read(kind: Kind, text: &str) -> Result<Json, String> {
    let text = if kind == Kind::Text {
        text
    } else {
        text.trim()
    };
    match kind {
        Kind::Count => {
            let number = text
                .parse::<u32>()
                .map_err(|_| format!("`{}` is not a whole number", cut(text)))?;
            Ok(Json::from(number))
        }
        Kind::Mib => text
            .parse::<MemorySize>()
            .map(|s| Json::from(s.mib()))
            .map_err(|e| e.to_string()),
        Kind::Gb => {
            let size: MemorySize = text
                .parse()
                .map_err(|e: crate::MemorySizeError| e.to_string())?;
            if !size.bytes().is_multiple_of(1 << 30) {
                return Err(format!(
                    "`{}` is not a whole number of gigabytes",
                    cut(text)
                ));
            }
            Ok(Json::from(size.gib()))
        }
        Kind::Seconds => text
            .parse::<Duration>()
            .map(|d| Json::from(d.seconds()))
            .map_err(|e| e.to_string()),
        Kind::Switch => match text.to_ascii_lowercase().as_str() {
            "true" => Ok(Json::Bool(true)),
            "false" => Ok(Json::Bool(false)),
            _ => Err(format!("`{}` is not `true` or `false`", cut(text))),
        },
        Kind::Share => text
            .parse::<TaskShare>()
            .map(|s| Json::from(s.value()))
            .map_err(|e| e.to_string()),
        Kind::Ratio => {
            let number = text.parse::<f64>().ok().filter(|n| (0.0..=1.0).contains(n));
            number
                .map(Json::from)
                .ok_or_else(|| format!("`{}` is not a number from 0 to 1", cut(text)))
        }
        Kind::Word(words) => {
            let word = words.iter().find(|w| w.eq_ignore_ascii_case(text));
            word.map(|w| Json::from(*w))
                .ok_or_else(|| format!("`{}` is not one of {}", cut(text), list(words)))
        }
        Kind::Text => Ok(Json::from(text)),
    }
}
