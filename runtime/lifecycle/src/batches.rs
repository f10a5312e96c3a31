//! What can be done with batches, over any store.
//!
//! A change reads a record, applies a move to it, and keeps the result if the record is
//! still the one that was read; else it starts over. Whoever dies in between has changed
//! nothing.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::batch::{Batch, Millis, NewBatch, Progress, Submission, Token, WorkerProcess};
use crate::moves::{Outcome, Refusal};
use crate::queue::{self, Capacity, OpenBatch, Wait};
use crate::retry::RetryPolicy;
use crate::store::{Created, Store, StoreError};

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BatchError {
    /// There is no such batch.
    #[error("there is no batch `{0}`")]
    NotFound(String),
    /// The id or the request id stands for another batch.
    #[error("{message}")]
    Conflict {
        /// Which, and what to do.
        message: String,
        /// Where the two submissions differ.
        differences: Vec<String>,
    },
    /// Its state does not allow it.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A batch that was submitted.
#[derive(Debug, Clone, PartialEq)]
pub struct Submitted {
    /// The batch.
    pub batch: Batch,
    /// Whether this submit made it; else an earlier, equal one did.
    pub is_new: bool,
}

/// Times and bounds that hold for all batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How failures are retried.
    pub retry: RetryPolicy,
    /// How long a server may be silent before its attempts are given to others.
    pub lease_ms: i64,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            retry: RetryPolicy::default(),
            lease_ms: 15_000,
        }
    }
}

/// Batches in a store.
#[derive(Debug, Clone)]
pub struct Batches {
    store: Arc<dyn Store>,
    policy: Policy,
    /// Counts the changes that this process made, new batches included.
    changes: watch::Sender<u64>,
    /// Counts the changes of batches that were there before.
    moves: watch::Sender<u64>,
    /// Counts what was added to logs.
    logs: watch::Sender<u64>,
    /// The queue as it was a moment ago, for telling why batches wait.
    queue: Arc<Mutex<Option<QueueSeen>>>,
}

/// The queue, and when it was like that.
type QueueSeen = (Instant, Arc<Vec<OpenBatch>>);

/// How old the queue may be that reasons for waiting are told from.
const QUEUE_AGE: Duration = Duration::from_millis(500);

type Result<T, E = BatchError> = std::result::Result<T, E>;

impl Batches {
    /// Batches in this store.
    pub fn new(store: Arc<dyn Store>, policy: Policy) -> Self {
        Batches {
            store,
            policy,
            changes: watch::Sender::new(0),
            moves: watch::Sender::new(0),
            logs: watch::Sender::new(0),
            queue: Arc::default(),
        }
    }

    /// The store, for what changes no batch.
    pub fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// Their times and bounds.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Sees every change that this process makes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Sees the changes of batches that were there before: their states and progress.
    pub fn moves(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }

    /// Sees that logs have grown.
    pub fn logs(&self) -> watch::Receiver<u64> {
        self.logs.subscribe()
    }

    /// Wakes everybody who waits for any change.
    pub fn announce(&self) {
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// Wakes everybody who waits for a batch to change.
    fn announce_move(&self) {
        self.moves.send_modify(|n| *n = n.wrapping_add(1));
        self.announce();
    }

    /// Wakes everybody who follows a log.
    pub fn announce_log(&self) {
        self.logs.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// Accepts a batch. The same submission under the same id or request id is the same
    /// batch; another one is a conflict.
    pub async fn create(&self, new: NewBatch, submission: &Submission) -> Result<Submitted> {
        let fingerprint = fingerprint(&submission.canonical);
        let (id, request_id, owner) = (new.id.clone(), new.request_id.clone(), new.owner.clone());
        let now = self.store.now().await?;
        let batch = Batch::accepted(new, uid()?, fingerprint, now);
        let (taken, by) = match self.store.create(&batch, submission).await? {
            Created::New => {
                self.announce();
                return Ok(Submitted {
                    batch,
                    is_new: true,
                });
            }
            Created::SameRequest(taken) => {
                let by = format!("request id `{}`", request_id.unwrap_or_default());
                (taken, by)
            }
            Created::SameId(taken) => (taken, format!("id `{id}`")),
        };
        if taken.owner != owner {
            return Err(BatchError::Conflict {
                message: format!("the {by} is taken; choose another"),
                differences: Vec::new(),
            });
        }
        if taken.fingerprint == batch.fingerprint {
            return Ok(Submitted {
                batch: *taken,
                is_new: false,
            });
        }
        let earlier = self.store.submission(&taken.uid).await?;
        let earlier = earlier.map_or(Value::Null, |earlier| earlier.canonical);
        let mut differences = Vec::new();
        differing("", &earlier, &submission.canonical, &mut differences);
        Err(BatchError::Conflict {
            message: format!(
                "the {by} stands for batch `{}`, which was submitted with another spec",
                taken.id
            ),
            differences,
        })
    }

    /// The batch of an id.
    pub async fn get(&self, id: &str) -> Result<Batch> {
        let batch = self.store.get(id).await?;
        batch.ok_or_else(|| BatchError::NotFound(id.to_owned()))
    }

    /// Asks for a batch to stop. Idempotent.
    pub async fn cancel(&self, id: &str, by: &str) -> Result<Batch> {
        self.change(id, |batch, now| {
            batch.cancel(by, now);
            Ok(())
        })
        .await
    }

    /// Tries a batch again that has failed.
    pub async fn retry(&self, id: &str, by: &str) -> Result<Batch> {
        self.change(id, |batch, now| batch.retry(by, now)).await
    }

    /// Forgets a batch that has ended.
    pub async fn delete(&self, id: &str) -> Result<()> {
        loop {
            let batch = self.get(id).await?;
            batch.check_deletable()?;
            if self.store.delete(&batch).await? {
                self.announce_move();
                return Ok(());
            }
        }
    }

    /// Claims the batch whose turn it is on this server, if there is room for it.
    pub async fn claim_next(&self, capacity: &Capacity) -> Result<Option<(Batch, Token)>> {
        let mut skip = Vec::new();
        let open = self.store.open().await?;
        let now = self.store.now().await?;
        while let Some(next) = queue::next(&open, capacity, now, &skip) {
            let Some(mut batch) = self.store.get(&next.id).await? else {
                skip.push(next.id.clone());
                continue;
            };
            let now = self.store.now().await?;
            let claimed = batch.claim(&capacity.server, now, self.policy.lease_ms);
            if let Ok(token) = claimed
                && self.store.replace(&mut batch).await?
            {
                self.announce_move();
                return Ok(Some((batch, token)));
            }
            // Somebody else was faster.
            skip.push(next.id.clone());
        }
        Ok(None)
    }

    /// Renews the lease of an attempt and keeps how far it has come. The batch that comes
    /// back says whether it should stop.
    pub async fn renew(&self, id: &str, token: &Token, progress: Progress) -> Result<Batch> {
        let lease_ms = self.policy.lease_ms;
        let is_news = std::sync::atomic::AtomicBool::new(false);
        let renewed = self.change_quietly(id, |batch, now| {
            let before = batch.last_attempt().map(|attempt| attempt.progress.clone());
            is_news.store(before.as_ref() != Some(&progress), Relaxed);
            batch.renew(token, now, lease_ms)?;
            batch.progressed(token, progress.clone())
        });
        let batch = renewed.await?;
        if is_news.load(Relaxed) {
            self.announce_move();
        }
        Ok(batch)
    }

    /// Whether an attempt may make an output visible now. A yes holds as long as the lease
    /// that it renews.
    pub async fn may_publish(&self, id: &str, token: &Token) -> Result<()> {
        let lease_ms = self.policy.lease_ms;
        let renewed = self.change_quietly(id, |batch, now| batch.renew(token, now, lease_ms));
        renewed.await.map(drop)
    }

    /// Keeps which process runs an attempt.
    pub async fn started(&self, id: &str, token: &Token, worker: WorkerProcess) -> Result<Batch> {
        self.change_quietly(id, |batch, _| batch.started(token, worker))
            .await
    }

    /// Keeps how an attempt ended, and its report.
    pub async fn finish(
        &self,
        id: &str,
        token: &Token,
        outcome: Outcome,
        report: Option<&str>,
    ) -> Result<Batch> {
        // The report first: a batch that has ended has its report.
        if let Some(report) = report {
            let batch = self.get(id).await?;
            self.store
                .put_report(&batch.uid, token.attempt, report)
                .await?;
        }
        let policy = self.policy.retry;
        self.change(id, |batch, now| {
            batch.finish(token, outcome.clone(), &policy, now)
        })
        .await
    }

    /// Does what time alone brings about: leases lapse, waits expire, what is overdue is
    /// forgotten. Returns when it should be done next, if anything is to come.
    pub async fn sweep(&self) -> Result<Option<Millis>> {
        let now = self.store.now().await?;
        for id in self.store.overdue(now).await? {
            match self.delete(&id).await {
                Ok(()) | Err(BatchError::NotFound(_) | BatchError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let policy = self.policy.retry;
        let mut next: Option<Millis> = None;
        for open in self.store.open().await? {
            let lapses = open.lease.as_ref().map(|(_, until)| *until);
            let is_over = |time: Option<Millis>| time.is_some_and(|time| time <= now);
            let moved = if is_over(lapses) {
                self.change(&open.id, |batch, now| batch.lapse(false, &policy, now))
                    .await
            } else if is_over(open.queue_deadline_ms) {
                self.change(&open.id, |batch, now| batch.expire(now)).await
            } else {
                let times = [lapses, open.queue_deadline_ms, open.not_before_ms];
                let soonest = times.into_iter().flatten().filter(|time| *time > now).min();
                next = next.into_iter().chain(soonest).min();
                continue;
            };
            match moved {
                // Somebody else was faster, or it holds after all.
                Ok(_) | Err(BatchError::NotFound(_) | BatchError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(next)
    }

    /// The batches that a server was running when it last was seen.
    pub async fn held_by(&self, server: &str) -> Result<Vec<Batch>> {
        let mut held = Vec::new();
        for open in self.store.open().await? {
            if open.lease.is_some_and(|(holder, _)| holder == server)
                && let Some(batch) = self.store.get(&open.id).await?
            {
                held.push(batch);
            }
        }
        Ok(held)
    }

    /// Ends an attempt whose process is known to be gone.
    pub async fn lost(&self, id: &str, token: &Token) -> Result<Batch> {
        let policy = self.policy.retry;
        self.change(id, |batch, now| {
            let holds = batch
                .lease
                .as_ref()
                .is_some_and(|lease| lease.token == *token);
            if !holds {
                return Err(Refusal::LeaseLost(token.clone()));
            }
            batch.lapse(true, &policy, now)
        })
        .await
    }

    /// Why a batch waits, as a server sees it. The queue may be that of a moment ago.
    pub async fn wait_of(&self, id: &str, capacity: &Capacity) -> Result<Option<Wait>> {
        let kept = self
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let kept = kept.filter(|(since, open)| {
            since.elapsed() < QUEUE_AGE && open.iter().any(|batch| batch.id == id)
        });
        let open = match kept {
            Some((_, open)) => open,
            None => {
                let open = Arc::new(self.store.open().await?);
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                *queue = Some((Instant::now(), Arc::clone(&open)));
                open
            }
        };
        Ok(queue::explain(&open, capacity, self.store.now().await?, id))
    }

    async fn change(
        &self,
        id: &str,
        make: impl Fn(&mut Batch, Millis) -> Result<(), Refusal>,
    ) -> Result<Batch> {
        let batch = self.change_quietly(id, make).await?;
        self.announce_move();
        Ok(batch)
    }

    /// A change that nobody who waits needs to see at once.
    async fn change_quietly(
        &self,
        id: &str,
        make: impl Fn(&mut Batch, Millis) -> Result<(), Refusal>,
    ) -> Result<Batch> {
        loop {
            let before = self.get(id).await?;
            let mut batch = before.clone();
            make(&mut batch, self.store.now().await?)?;
            if batch == before || self.store.replace(&mut batch).await? {
                return Ok(batch);
            }
        }
    }
}

/// What tells one submission from another.
fn fingerprint(canonical: &Value) -> String {
    hex(&Sha256::digest(canonical.to_string()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A name that nothing else has.
fn uid() -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::Unavailable(format!("no random numbers: {error}")))?;
    Ok(hex(&bytes))
}

/// Differences that are told; a submission with another spec differs everywhere.
const DIFFERENCES_MAX: usize = 20;

/// Collects the paths at which two values differ.
fn differing(path: &str, a: &Value, b: &Value, found: &mut Vec<String>) {
    if a == b || found.len() >= DIFFERENCES_MAX {
        return;
    }
    let below = |key: &str| match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    };
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            for key in keys {
                let value = |map: &serde_json::Map<String, Value>| map.get(key).cloned();
                let (a, b) = (value(a).unwrap_or_default(), value(b).unwrap_or_default());
                differing(&below(key), &a, &b, found);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for i in 0..a.len().max(b.len()) {
                let value = |list: &[Value]| list.get(i).cloned().unwrap_or_default();
                differing(&format!("{path}[{i}]"), &value(a), &value(b), found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;
    use serde_json::json;

    fn new(id: &str, owner: &str, request_id: Option<&str>) -> NewBatch {
        NewBatch {
            id: id.into(),
            owner: owner.into(),
            request_id: request_id.map(str::to_owned),
            ..NewBatch::default()
        }
    }

    fn submission(sql: &str) -> Submission {
        Submission {
            canonical: json!({"stages": [{"name": "a", "sql": sql}]}),
            ..Submission::default()
        }
    }

    #[tokio::test]
    async fn the_same_submit_twice_is_one_batch() {
        let batches = Batches::new(Arc::new(MemoryStore::default()), Policy::default());
        let first = batches
            .create(new("b", "ada", Some("r")), &submission("1"))
            .await
            .unwrap();
        assert!(first.is_new);
        for (id, request_id) in [("b", Some("r")), ("b", None), ("other", Some("r"))] {
            let again = batches
                .create(new(id, "ada", request_id), &submission("1"))
                .await;
            let again = again.unwrap();
            assert!(
                !again.is_new && again.batch == first.batch,
                "{id} {request_id:?}"
            );
        }
        for (id, request_id) in [("b", None), ("other", Some("r"))] {
            let other = batches
                .create(new(id, "ada", request_id), &submission("2"))
                .await;
            let Err(BatchError::Conflict { differences, .. }) = other else {
                panic!("{other:?}");
            };
            assert_eq!(differences, ["stages[0].sql"]);
        }
        // Another owner learns nothing of it but that the id is taken.
        let theirs = batches
            .create(new("b", "bob", None), &submission("2"))
            .await;
        let Err(BatchError::Conflict { differences, .. }) = theirs else {
            panic!("{theirs:?}");
        };
        assert!(differences.is_empty());
        assert!(
            batches
                .create(new("c", "bob", Some("r")), &submission("2"))
                .await
                .unwrap()
                .is_new
        );
    }

    #[test]
    fn differences_are_told_by_path() {
        let a = json!({"a": 1, "b": {"c": [1, 2]}, "d": 1});
        let b = json!({"a": 1, "b": {"c": [1, 3, 4]}, "e": 1});
        let mut found = Vec::new();
        differing("", &a, &b, &mut found);
        assert_eq!(found, ["b.c[1]", "b.c[2]", "d", "e"]);
    }
}
