//! How events become batches.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::event::{Decoded, ObjectEvent, decode};
use super::{Source, Trigger};
use crate::batch::{Batch, Millis, NewBatch, Submission};
use crate::batches::{BatchError, Batches};
use crate::filter::{Comparison, Field, Filter, Value as FilterValue};
use crate::state::BatchState;
use crate::store::ledger::{EventState, LedgerEntry};
use crate::store::{Query, StoreError};

/// Pending events that are looked at in one go.
const PENDING_MAX: usize = 10_000;
/// Events written in one transaction.
const RECORDED_MAX: usize = 500;
/// A day.
const DAY_MS: i64 = 86_400_000;

/// Makes a batch of events: whoever knows how specs are accepted here.
#[async_trait]
pub trait Submitter: Debug + Send + Sync {
    /// The batch that a trigger's events ask for, or why there is none.
    async fn prepare(
        &self,
        trigger: &Trigger,
        objects: &[ObjectEvent],
    ) -> Result<(NewBatch, Submission), String>;

    /// Every object below a location, as the trigger's spec reaches it.
    async fn list(&self, trigger: &Trigger, location: &str) -> Result<Vec<ObjectEvent>, String>;
}

/// What became of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Intake {
    /// Events that are new.
    pub accepted: usize,
    /// Events that were known.
    pub known: usize,
    /// Events that are not the trigger's.
    pub passed_over: usize,
    /// Records that cannot be read.
    pub poison: usize,
}

/// Triggers over a store.
#[derive(Debug)]
pub struct Triggers {
    batches: Batches,
    submitter: Arc<dyn Submitter>,
    /// Entity tags of local files at the last look: a file that still changes is not whole.
    seen: Mutex<HashMap<String, HashMap<String, Option<String>>>>,
}

impl Triggers {
    /// Triggers whose batches the submitter makes.
    pub fn new(batches: Batches, submitter: Arc<dyn Submitter>) -> Self {
        Triggers {
            batches,
            submitter,
            seen: Mutex::default(),
        }
    }

    /// Takes a message in. What it returns is durable.
    pub async fn intake(&self, trigger: &Trigger, message: &Value) -> Result<Intake, StoreError> {
        let decoded = decode(message, trigger.spec.key_encoding);
        self.record(trigger, decoded, true).await
    }

    async fn record(
        &self,
        trigger: &Trigger,
        decoded: Decoded,
        count: bool,
    ) -> Result<Intake, StoreError> {
        let now = self.batches.store().now().await?;
        let marker = trigger.spec.readiness.marker.as_deref();
        let entry =
            |identity: String, event: Option<ObjectEvent>, problem: Option<String>| LedgerEntry {
                trigger: trigger.name.clone(),
                identity,
                received_ms: now,
                times: 1,
                state: match problem {
                    None => EventState::Pending,
                    Some(_) => EventState::Dead,
                },
                group: None,
                detail: problem,
                event,
            };
        let (mut intake, mut entries) = (Intake::default(), Vec::new());
        for event in decoded.events {
            if trigger.spec.matching.takes(&event, marker) {
                entries.push(entry(event.identity(), Some(event), None));
            } else {
                intake.passed_over += 1;
            }
        }
        let n_events = entries.len();
        for (problem, record) in decoded.poison {
            let identity = format!("poison:{}", hash(&record.to_string()));
            let shown: String = record.to_string().chars().take(500).collect();
            entries.push(entry(identity, None, Some(format!("{problem}: {shown}"))));
            intake.poison += 1;
        }
        // The poison is written with the rest, and counted apart.
        let mut n_new = 0;
        for part in entries[..n_events].chunks(RECORDED_MAX) {
            n_new += self.batches.store().record_events(part, count).await?;
        }
        self.batches
            .store()
            .record_events(&entries[n_events..], count)
            .await?;
        intake.accepted = n_new;
        intake.known = n_events - n_new;
        if n_new > 0 {
            self.batches.announce();
        }
        Ok(intake)
    }

    /// Lists a location and takes in what is there, through the same ledger.
    pub async fn backfill(&self, trigger: &Trigger, location: &str) -> Result<Intake, String> {
        let events = self.submitter.list(trigger, location).await?;
        let decoded = Decoded {
            events: self.settled(trigger, events),
            poison: Vec::new(),
        };
        self.record(trigger, decoded, false)
            .await
            .map_err(|error| error.to_string())
    }

    /// Of local files those that have not changed since the last look. Objects of a store are
    /// whole when they are there.
    fn settled(&self, trigger: &Trigger, events: Vec<ObjectEvent>) -> Vec<ObjectEvent> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = seen.entry(trigger.name.clone()).or_default();
        let mut now = HashMap::new();
        let mut settled = Vec::new();
        for event in events {
            let is_local = event.scheme == "file";
            if is_local {
                now.insert(event.key.clone(), event.etag.clone());
            }
            if !is_local || before.get(&event.key) == Some(&event.etag) {
                settled.push(event);
            }
        }
        *before = now;
        settled
    }

    /// Tries dead events again. How many.
    pub async fn replay(&self, trigger: &Trigger) -> Result<usize, StoreError> {
        let store = self.batches.store();
        let dead = store
            .events(&trigger.name, EventState::Dead, PENDING_MAX)
            .await?;
        let readable = dead.into_iter().filter(|entry| entry.event.is_some());
        let ids: Vec<String> = readable.map(|entry| entry.identity).collect();
        let n = store
            .move_events(
                &trigger.name,
                &ids,
                EventState::Dead,
                EventState::Pending,
                None,
                None,
            )
            .await?;
        self.batches.announce();
        Ok(n)
    }

    /// Does for every trigger what is due. An error of one does not hold up the others.
    pub async fn advance(&self) -> Result<(), StoreError> {
        for trigger in self.batches.store().triggers().await? {
            if let Err(error) = self.advance_one(trigger.clone()).await {
                tracing::warn!(trigger = trigger.name, %error, "the trigger is tried again");
            }
        }
        Ok(())
    }

    async fn advance_one(&self, mut trigger: Trigger) -> Result<(), StoreError> {
        // What was grouped before a crash comes first.
        self.submit_groups(&trigger).await?;
        if trigger.paused.is_some() {
            return Ok(());
        }
        let now = self.batches.store().now().await?;
        self.poll(&mut trigger, now).await?;
        let Some(room) = self.room(&mut trigger, now).await? else {
            return Ok(());
        };
        let pending = self
            .batches
            .store()
            .events(&trigger.name, EventState::Pending, PENDING_MAX)
            .await?;
        for part in ready(&trigger, pending, now).into_iter().take(room) {
            let ids: Vec<String> = part.into_iter().map(|entry| entry.identity).collect();
            let group = hash(&format!("{}\n{}", trigger.name, ids.join("\n")));
            self.batches
                .store()
                .move_events(
                    &trigger.name,
                    &ids,
                    EventState::Pending,
                    EventState::Grouped,
                    Some(&group),
                    None,
                )
                .await?;
        }
        self.submit_groups(&trigger).await
    }

    async fn poll(&self, trigger: &mut Trigger, now: Millis) -> Result<(), StoreError> {
        let Source::Poll { location, interval } = trigger.spec.source.clone() else {
            return Ok(());
        };
        let interval_ms = i64::try_from(interval.seconds())
            .unwrap_or(i64::MAX)
            .saturating_mul(1_000);
        if trigger
            .polled_ms
            .is_some_and(|time| time.saturating_add(interval_ms) > now)
        {
            return Ok(());
        }
        trigger.polled_ms = Some(now);
        // Another server may be about to look; one look is enough.
        if !self.batches.store().put_trigger(trigger).await? {
            return Ok(());
        }
        match self.backfill(trigger, &location).await {
            Ok(_) => {}
            Err(problem) => tracing::warn!(
                trigger = trigger.name,
                problem,
                "the location cannot be listed"
            ),
        }
        Ok(())
    }

    /// How many batches the trigger may submit now; none when it pauses.
    async fn room(&self, trigger: &mut Trigger, now: Millis) -> Result<Option<usize>, StoreError> {
        let limits = trigger.spec.limits.clone();
        let of_trigger = Filter::Compare(
            Field::Trigger,
            Comparison::Equal,
            FilterValue::Text(trigger.name.clone()),
        );
        let find = async |more: Filter, limit: usize| {
            let query = Query {
                filter: Filter::All(vec![of_trigger.clone(), more]),
                owner: None,
                after: None,
                limit,
            };
            self.batches.store().list(&query).await
        };
        let last = find(Filter::everything(), limits.failures.max(1)).await?;
        let has_failed = |batch: &Batch| {
            matches!(batch.state, BatchState::Failed | BatchState::TimedOut)
                && batch.state_ms >= trigger.resumed_ms
        };
        if limits.failures > 0 && last.len() == limits.failures && last.iter().all(has_failed) {
            let reason = format!("its last {} batches have failed", limits.failures);
            tracing::warn!(trigger = trigger.name, reason, "the trigger pauses");
            trigger.paused = Some(reason);
            self.batches.store().put_trigger(trigger).await?;
            return Ok(None);
        }
        let state = |state: BatchState| {
            Filter::Compare(
                Field::State,
                Comparison::Equal,
                FilterValue::Text(state.name().into()),
            )
        };
        let open = [
            BatchState::Queued,
            BatchState::Running,
            BatchState::Cancelling,
        ]
        .map(state);
        let n_open = find(Filter::Any(open.to_vec()), limits.in_flight + 1)
            .await?
            .len();
        let today = Filter::Compare(
            Field::CreateTime,
            Comparison::GreaterOrEqual,
            FilterValue::Millis(now - DAY_MS),
        );
        let n_today = find(today, limits.per_day + 1).await?.len();
        let room = limits.in_flight.saturating_sub(n_open);
        Ok(Some(room.min(limits.per_day.saturating_sub(n_today))))
    }

    /// Submits every group. Doing it again gives the same batches.
    async fn submit_groups(&self, trigger: &Trigger) -> Result<(), StoreError> {
        let store = self.batches.store();
        let grouped = store
            .events(&trigger.name, EventState::Grouped, PENDING_MAX)
            .await?;
        let mut groups: BTreeMap<String, Vec<LedgerEntry>> = BTreeMap::new();
        for entry in grouped {
            let group = entry.group.clone().unwrap_or_default();
            groups.entry(group).or_default().push(entry);
        }
        for (group, mut entries) in groups {
            entries.sort_by(|a, b| a.identity.cmp(&b.identity));
            let marker = trigger.spec.readiness.marker.as_deref();
            let is_marker =
                |event: &ObjectEvent| marker.is_some() && event.key.rsplit('/').next() == marker;
            let objects = entries.iter().filter_map(|entry| entry.event.clone());
            let objects: Vec<ObjectEvent> = objects.filter(|event| !is_marker(event)).collect();
            let ids: Vec<String> = entries.into_iter().map(|entry| entry.identity).collect();
            let prepared = if objects.is_empty() {
                Err("the marker came, and no object with it".to_owned())
            } else {
                self.submitter.prepare(trigger, &objects).await
            };
            let settled = match prepared {
                Err(problem) => Err(problem),
                Ok((mut new, submission)) => {
                    new.request_id = Some(group.clone());
                    new.owner.clone_from(&trigger.owner);
                    new.trigger = Some(trigger.name.clone());
                    match self.batches.create(new, &submission).await {
                        Ok(submitted) => Ok(submitted.batch.id),
                        Err(BatchError::Store(error)) => return Err(error),
                        Err(error) => Err(error.to_string()),
                    }
                }
            };
            let (to, detail) = match &settled {
                Ok(id) => (EventState::Submitted, id),
                Err(problem) => (EventState::Dead, problem),
            };
            store
                .move_events(
                    &trigger.name,
                    &ids,
                    EventState::Grouped,
                    to,
                    Some(&group),
                    Some(detail),
                )
                .await?;
        }
        Ok(())
    }
}

/// The events that are ready, a list for each batch.
fn ready(trigger: &Trigger, pending: Vec<LedgerEntry>, now: Millis) -> Vec<Vec<LedgerEntry>> {
    let spec = &trigger.spec;
    let newest = pending
        .iter()
        .map(|entry| entry.received_ms)
        .max()
        .unwrap_or(now);
    if let Some(quiet) = spec.readiness.quiet {
        let quiet_ms = i64::try_from(quiet.seconds())
            .unwrap_or(i64::MAX)
            .saturating_mul(1_000);
        if newest.saturating_add(quiet_ms) > now {
            return Vec::new();
        }
    }
    let sets = match &spec.readiness.marker {
        None => vec![pending],
        Some(marker) => below_markers(pending, marker),
    };
    let mut parts = Vec::new();
    for set in sets {
        if spec.readiness.count.is_some_and(|count| set.len() < count) || set.is_empty() {
            continue;
        }
        let size = if spec.coalesce {
            spec.limits.objects.max(1)
        } else {
            1
        };
        // With a marker the set is a whole, however large.
        if spec.coalesce && spec.readiness.marker.is_some() {
            parts.push(set);
        } else {
            parts.extend(set.chunks(size).map(<[LedgerEntry]>::to_vec));
        }
    }
    parts
}

/// For each marker what has come in its folder and below, the marker included.
fn below_markers(pending: Vec<LedgerEntry>, marker: &str) -> Vec<Vec<LedgerEntry>> {
    let key = |entry: &LedgerEntry| {
        entry
            .event
            .as_ref()
            .map_or(String::new(), |event| event.key.clone())
    };
    let mut folders: Vec<String> = pending
        .iter()
        .filter_map(|entry| {
            let key = key(entry);
            let (folder, name) = key
                .rsplit_once('/')
                .map_or(("", key.as_str()), |(f, n)| (f, n));
            (name == marker).then(|| {
                if folder.is_empty() {
                    String::new()
                } else {
                    format!("{folder}/")
                }
            })
        })
        .collect();
    // The innermost folder first, so that a set is not taken by one above it.
    folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
    let mut sets: Vec<Vec<LedgerEntry>> = folders.iter().map(|_| Vec::new()).collect();
    for entry in pending {
        if let Some(i) = folders
            .iter()
            .position(|folder| key(&entry).starts_with(folder.as_str()))
        {
            sets[i].push(entry);
        }
    }
    sets
}

/// A request id: 40 hexadecimal digits.
fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest
        .iter()
        .take(20)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
#[path = "flow_tests.rs"]
mod tests;
