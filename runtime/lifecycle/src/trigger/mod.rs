//! Batches that objects start.
//!
//! ```text
//! notification --decode--> events --match--> ledger (PENDING)      then the sender is answered
//!                                              | ready: marker, quiet, count; within limits
//!                                              v
//!                                          a group  ----------> one batch, its request id is the
//!                                                               group's name
//! ```
//!
//! A trigger decides nothing about SQL: what it submits is a spec like any other, with the
//! values of its event bound.

pub mod event;
mod flow;
mod overlap;

use serde::{Deserialize, Serialize};

use crate::batch::Millis;
use event::{EventKind, KeyEncoding, ObjectEvent};

pub use flow::{Intake, Submitter, Triggers};
pub use overlap::loop_through;

/// What a person writes of a trigger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerSpec {
    /// Its name: 4 to 63 lower-case letters, digits and inner hyphens.
    pub name: String,
    /// Where events come from.
    pub source: Source,
    /// Which objects.
    #[serde(default, rename = "match")]
    pub matching: Matching,
    /// How keys are written in notifications.
    #[serde(default)]
    pub key_encoding: KeyEncoding,
    /// When the objects that have come are a whole.
    #[serde(default)]
    pub readiness: Readiness,
    /// Whether all objects that are ready become one batch, with a table `event_objects` of
    /// them; else each becomes a batch.
    #[serde(default)]
    pub coalesce: bool,
    /// Bounds.
    #[serde(default)]
    pub limits: TriggerLimits,
    /// The spec of the batches, with `${event.bucket}`, `${event.key}`, `${event.stem}`,
    /// `${event.version}` and `${event.location}`.
    pub batch: String,
}

/// Where events come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// They are posted to `/v1/triggers/NAME/events`, as MinIO, Google's Pub/Sub push and
    /// EventBridge's API destinations do.
    Webhook {},
    /// A queue of Amazon SQS.
    Sqs {
        /// Its address.
        queue_url: String,
        /// Its region.
        region: String,
        /// What the environment variables with its credentials begin with: `LAKE` reads
        /// `LAKE_ACCESS_KEY_ID`, `LAKE_SECRET_ACCESS_KEY` and, where there is one,
        /// `LAKE_SESSION_TOKEN`.
        #[serde(default = "default_credentials")]
        credentials: String,
    },
    /// A location is listed again and again.
    Poll {
        /// The folder, such as `s3://lake/in/`.
        location: String,
        /// The time between two looks.
        #[serde(default = "default_interval")]
        interval: batch_specs::Duration,
    },
}

fn default_credentials() -> String {
    "AWS".into()
}

fn default_interval() -> batch_specs::Duration {
    batch_specs::Duration::from_seconds(30)
}

/// Which objects a trigger is about.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Matching {
    /// The bucket; any unless given.
    pub bucket: Option<String>,
    /// What keys begin with.
    pub prefix: String,
    /// What keys end with.
    pub suffix: String,
    /// A pattern of the whole key: `*` within a folder, `**` across folders.
    pub glob: Option<String>,
    /// The least size in bytes.
    pub min_size: Option<u64>,
    /// The largest size in bytes.
    pub max_size: Option<u64>,
    /// Also objects that are passed over by custom: empty ones, those in `_temporary/`,
    /// `.tmp`, `.crc`, and names that begin with `_` or `.`.
    pub include_hidden: bool,
}

/// When the objects that have come are a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Readiness {
    /// A file of this name beside or above them has come, such as `_SUCCESS`.
    pub marker: Option<String>,
    /// Nothing has come for this long.
    pub quiet: Option<batch_specs::Duration>,
    /// So many have come.
    pub count: Option<usize>,
}

/// Bounds of a trigger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerLimits {
    /// Batches that have not ended, at a time.
    pub in_flight: usize,
    /// Batches in 24 hours.
    pub per_day: usize,
    /// Failures in a row after which it pauses.
    pub failures: usize,
    /// Objects of one coalesced batch.
    pub objects: usize,
}

impl Default for TriggerLimits {
    fn default() -> Self {
        TriggerLimits {
            in_flight: 10,
            per_day: 10_000,
            failures: 5,
            objects: 1_000,
        }
    }
}

/// A trigger as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trigger {
    /// Its name.
    pub name: String,
    /// Counts its changes; 0 before it is kept.
    pub version: i64,
    /// Who made it, and whose its batches are.
    pub owner: String,
    /// What was written.
    pub spec: TriggerSpec,
    /// When it was made.
    pub created_ms: Millis,
    /// Why it takes events in and submits nothing; absent while it works.
    pub paused: Option<String>,
    /// Failures before this time do not count any more.
    pub resumed_ms: Millis,
    /// SHA-256 of the token of its webhook, in hexadecimal digits.
    pub webhook_sha256: Option<String>,
    /// When its location was last listed.
    pub polled_ms: Option<Millis>,
}

impl Matching {
    /// Reads the pattern; an error says what is wrong with it.
    pub fn pattern(&self) -> Result<Option<glob::Pattern>, String> {
        let pattern = self.glob.as_deref().map(glob::Pattern::new).transpose();
        pattern.map_err(|error| format!("`match.glob`: {error}"))
    }

    /// Whether an event is about an object of the trigger. `marker` is a name that counts
    /// although custom passes over it.
    pub fn takes(&self, event: &ObjectEvent, marker: Option<&str>) -> bool {
        let key = event.key.as_str();
        if event.kind != EventKind::Created || key.is_empty() {
            return false;
        }
        let bucket_fits = self
            .bucket
            .as_ref()
            .is_none_or(|bucket| *bucket == event.bucket);
        if !bucket_fits || !key.starts_with(&self.prefix) {
            return false;
        }
        let name = key.rsplit('/').next().unwrap_or(key);
        if marker == Some(name) {
            return true;
        }
        if !self.include_hidden && is_hidden(&key[self.prefix.len()..], name, event.size) {
            return false;
        }
        let options = glob::MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: false,
        };
        let glob_fits = match self.pattern() {
            Ok(pattern) => pattern.is_none_or(|pattern| pattern.matches_with(key, options)),
            Err(_) => false,
        };
        // Where no size is told, none is held against it.
        let size_fits = event.size.is_none_or(|size| {
            self.min_size.is_none_or(|min| size >= min)
                && self.max_size.is_none_or(|max| size <= max)
        });
        key.ends_with(&self.suffix) && glob_fits && size_fits
    }
}

/// What custom passes over: half-written files and marks of folders.
fn is_hidden(below: &str, name: &str, size: Option<u64>) -> bool {
    let is_mark = |part: &str| part.starts_with(['_', '.']);
    name.is_empty()
        || size == Some(0)
        || name.ends_with(".tmp")
        || name.ends_with(".crc")
        || name.contains("._COPYING_")
        || is_mark(name)
        || below.split('/').any(|part| part == "_temporary")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(key: &str, size: u64) -> ObjectEvent {
        ObjectEvent {
            kind: EventKind::Created,
            scheme: "s3".into(),
            bucket: "lake".into(),
            key: key.into(),
            size: Some(size),
            etag: None,
            version: None,
            sequencer: None,
        }
    }

    #[track_caller]
    fn check(matching: &Matching, key: &str, size: u64, expected: bool) {
        assert_eq!(
            matching.takes(&event(key, size), Some("_SUCCESS")),
            expected,
            "{key}"
        );
    }

    #[test]
    fn objects_are_taken_or_passed_over() {
        let matching = Matching {
            bucket: Some("lake".into()),
            prefix: "in/".into(),
            suffix: ".csv".into(),
            glob: Some("in/**/day=*/*.csv".into()),
            max_size: Some(10),
            ..Matching::default()
        };
        check(&matching, "in/day=1/a.csv", 1, true);
        check(&matching, "in/x/y/day=1/a b+'.csv", 10, true);
        check(&matching, "in/day=1/_SUCCESS", 0, true);
        for (key, size) in [
            ("out/day=1/a.csv", 1),
            ("in/day=1/a.parquet", 1),
            ("in/day=1/b/a.csv", 1),
            ("in/day=1/a.csv", 0),
            ("in/day=1/a.csv", 11),
            ("in/day=1/_a.csv", 1),
            ("in/day=1/.a.csv", 1),
            ("in/_temporary/day=1/a.csv", 1),
            ("in/day=1/", 0),
            ("", 1),
        ] {
            check(&matching, key, size, false);
        }
        let mut gone = event("in/day=1/a.csv", 1);
        gone.kind = EventKind::Removed;
        assert!(!matching.takes(&gone, None));
        let mut elsewhere = event("in/day=1/a.csv", 1);
        elsewhere.bucket = "sea".into();
        assert!(!matching.takes(&elsewhere, None));
        check(&Matching::default(), "anything", 1, true);
    }
}
