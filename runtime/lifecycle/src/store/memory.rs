//! A store that forgets everything with its process, for tests.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::ledger::LedgerEntry;
use super::{Created, LogPart, Query, Result, Store};
use crate::batch::{Batch, Millis, Submission};
use crate::queue::OpenBatch;
use crate::state::BatchState;
use crate::trigger::Trigger;

/// Keeps everything in memory, with a clock that is set by hand.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    now: Millis,
    batches: BTreeMap<String, Batch>,
    submissions: BTreeMap<String, Submission>,
    reports: BTreeMap<(String, u32), String>,
    logs: BTreeMap<(String, u32), Vec<u8>>,
    pub(super) triggers: BTreeMap<String, Trigger>,
    pub(super) events: Vec<LedgerEntry>,
}

impl MemoryStore {
    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the clock.
    pub fn set_now(&self, now: Millis) {
        self.inner().now = now;
    }
}

impl OpenBatch {
    /// What the queue looks at.
    pub(crate) fn of(batch: &Batch) -> OpenBatch {
        OpenBatch {
            id: batch.id.clone(),
            state: batch.state,
            priority: batch.priority,
            group: batch.group.clone(),
            wants: batch.wants.clone(),
            queued_ms: batch.queued_ms,
            not_before_ms: batch.not_before_ms,
            queue_deadline_ms: batch.queue_deadline_ms(),
            lease: batch
                .lease
                .as_ref()
                .map(|lease| (lease.token.server.clone(), lease.until_ms)),
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn now(&self) -> Result<Millis> {
        Ok(self.inner().now)
    }

    fn is_shared(&self) -> bool {
        false
    }

    async fn create(&self, batch: &Batch, submission: &Submission) -> Result<Created> {
        let mut inner = self.inner();
        let same_request = inner.batches.values().find(|other| {
            batch.request_id.is_some()
                && other.request_id == batch.request_id
                && other.owner == batch.owner
        });
        if let Some(other) = same_request {
            return Ok(Created::SameRequest(Box::new(other.clone())));
        }
        if let Some(other) = inner.batches.get(&batch.id) {
            return Ok(Created::SameId(Box::new(other.clone())));
        }
        inner.batches.insert(batch.id.clone(), batch.clone());
        inner
            .submissions
            .insert(batch.uid.clone(), submission.clone());
        Ok(Created::New)
    }

    async fn get(&self, id: &str) -> Result<Option<Batch>> {
        Ok(self.inner().batches.get(id).cloned())
    }

    async fn submission(&self, uid: &str) -> Result<Option<Submission>> {
        Ok(self.inner().submissions.get(uid).cloned())
    }

    async fn replace(&self, batch: &mut Batch) -> Result<bool> {
        let mut inner = self.inner();
        let Some(kept) = inner.batches.get_mut(&batch.id) else {
            return Ok(false);
        };
        if kept.uid != batch.uid || kept.version != batch.version {
            return Ok(false);
        }
        batch.version += 1;
        *kept = batch.clone();
        Ok(true)
    }

    async fn delete(&self, batch: &Batch) -> Result<bool> {
        let mut inner = self.inner();
        let kept = inner.batches.get(&batch.id);
        if kept.is_none_or(|kept| kept.uid != batch.uid || kept.version != batch.version) {
            return Ok(false);
        }
        inner.batches.remove(&batch.id);
        inner.submissions.remove(&batch.uid);
        inner.reports.retain(|(uid, _), _| *uid != batch.uid);
        inner.logs.retain(|(uid, _), _| *uid != batch.uid);
        Ok(true)
    }

    async fn list(&self, query: &Query) -> Result<Vec<Batch>> {
        let inner = self.inner();
        let place = |batch: &Batch| (batch.created_ms, batch.uid.clone());
        let mut found: Vec<Batch> = inner
            .batches
            .values()
            .filter(|batch| query.filter.matches(batch))
            .filter(|batch| {
                query
                    .owner
                    .as_ref()
                    .is_none_or(|owner| *owner == batch.owner)
            })
            .filter(|batch| {
                query
                    .after
                    .as_ref()
                    .is_none_or(|after| place(batch) < *after)
            })
            .cloned()
            .collect();
        found.sort_by_key(|batch| std::cmp::Reverse(place(batch)));
        found.truncate(query.limit);
        Ok(found)
    }

    async fn open(&self) -> Result<Vec<OpenBatch>> {
        let inner = self.inner();
        let open = inner
            .batches
            .values()
            .filter(|batch| !batch.state.is_terminal());
        Ok(open.map(OpenBatch::of).collect())
    }

    async fn overdue(&self, now: Millis) -> Result<Vec<String>> {
        let inner = self.inner();
        let is_overdue = |batch: &&Batch| batch.purge_ms().is_some_and(|time| time <= now);
        let overdue = inner.batches.values().filter(is_overdue);
        Ok(overdue.map(|batch| batch.id.clone()).collect())
    }

    async fn counts(&self) -> Result<Vec<(BatchState, u64)>> {
        let inner = self.inner();
        let count = |state| inner.batches.values().filter(|b| b.state == state).count() as u64;
        Ok(BatchState::ALL.map(|state| (state, count(state))).to_vec())
    }

    async fn put_report(&self, uid: &str, attempt: u32, report: &str) -> Result<()> {
        let key = (uid.to_owned(), attempt);
        self.inner().reports.insert(key, report.to_owned());
        Ok(())
    }

    async fn report(&self, uid: &str, attempt: u32) -> Result<Option<String>> {
        Ok(self
            .inner()
            .reports
            .get(&(uid.to_owned(), attempt))
            .cloned())
    }

    async fn append_log(&self, uid: &str, attempt: u32, offset: i64, bytes: &[u8]) -> Result<()> {
        let mut inner = self.inner();
        let log = inner.logs.entry((uid.to_owned(), attempt)).or_default();
        if log.len() as i64 == offset {
            log.extend_from_slice(bytes);
        }
        Ok(())
    }

    async fn read_log(&self, uid: &str, attempt: u32, from: i64, max: usize) -> Result<LogPart> {
        let inner = self.inner();
        let log = inner.logs.get(&(uid.to_owned(), attempt));
        let log = log.map_or(&[][..], Vec::as_slice);
        let start = usize::try_from(from).unwrap_or(0).min(log.len());
        let end = start.saturating_add(max).min(log.len());
        Ok(LogPart {
            bytes: log[start..end].to_vec(),
            next: end as i64,
        })
    }
}
