//! Batches, servers and workers in a world whose every step comes from a seed.
//!
//! Servers crash between any two calls to the store, and calls fail before or after they
//! took effect. Workers outlive their servers, stop answering, and die. Whatever happens,
//! no output is published twice, none of a batch that did not succeed in publishing is
//! missing where the batch says that it succeeded, and every batch ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::executor::block_on;

use crate::batch::{
    AttemptEnd, Batch, BatchLimits, Millis, NewBatch, Progress, Submission, Token, Wants,
};
use crate::batches::{BatchError, Batches, Policy};
use crate::moves::Outcome;
use crate::queue::{Capacity, OpenBatch};
use crate::state::BatchState;
use crate::store::ledger::{EventState, Ledger, LedgerEntry};
use crate::store::memory::MemoryStore;
use crate::store::{Created, LogPart, Query, Result, Store, StoreError};
use crate::trigger::Trigger;
use crate::{Failure, Kind};

/// A small generator; the same seed gives the same world on every machine.
#[derive(Debug)]
pub(crate) struct Random(AtomicU64);

impl Random {
    pub(crate) fn of_seed(seed: u64) -> Arc<Random> {
        Arc::new(Random(AtomicU64::new(
            seed.wrapping_mul(0xA076_1D64_78BD_642F),
        )))
    }

    pub(crate) fn below(&self, n: u64) -> u64 {
        let mut x = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % n
    }

    pub(crate) fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A store that breaks: a call fails before it did anything, or after it did it all.
#[derive(Debug)]
pub(crate) struct Breaking {
    pub(crate) inner: MemoryStore,
    random: Arc<Random>,
    /// One call in so many fails; none when 0.
    one_in: u64,
}

impl Breaking {
    pub(crate) fn new(random: Arc<Random>, one_in: u64) -> Arc<Breaking> {
        Arc::new(Breaking {
            inner: MemoryStore::default(),
            random,
            one_in,
        })
    }

    fn breaks(&self) -> bool {
        self.one_in > 0 && self.random.one_in(self.one_in)
    }

    fn error<T>() -> Result<T> {
        Err(StoreError::Unavailable("the simulation says so".into()))
    }
}

/// Fails before or after the call.
macro_rules! broken {
    ($self:ident, $call:expr) => {{
        if $self.breaks() {
            return Breaking::error();
        }
        let answer = $call.await;
        if $self.breaks() {
            return Breaking::error();
        }
        answer
    }};
}

#[async_trait]
impl Store for Breaking {
    async fn now(&self) -> Result<Millis> {
        broken!(self, self.inner.now())
    }
    fn is_shared(&self) -> bool {
        true
    }
    async fn create(&self, batch: &Batch, submission: &Submission) -> Result<Created> {
        broken!(self, self.inner.create(batch, submission))
    }
    async fn get(&self, id: &str) -> Result<Option<Batch>> {
        broken!(self, self.inner.get(id))
    }
    async fn submission(&self, uid: &str) -> Result<Option<Submission>> {
        broken!(self, self.inner.submission(uid))
    }
    async fn replace(&self, batch: &mut Batch) -> Result<bool> {
        broken!(self, self.inner.replace(batch))
    }
    async fn delete(&self, batch: &Batch) -> Result<bool> {
        broken!(self, self.inner.delete(batch))
    }
    async fn list(&self, query: &Query) -> Result<Vec<Batch>> {
        broken!(self, self.inner.list(query))
    }
    async fn open(&self) -> Result<Vec<OpenBatch>> {
        broken!(self, self.inner.open())
    }
    async fn overdue(&self, now: Millis) -> Result<Vec<String>> {
        broken!(self, self.inner.overdue(now))
    }
    async fn counts(&self) -> Result<Vec<(BatchState, u64)>> {
        broken!(self, self.inner.counts())
    }
    async fn put_report(&self, uid: &str, attempt: u32, report: &str) -> Result<()> {
        broken!(self, self.inner.put_report(uid, attempt, report))
    }
    async fn report(&self, uid: &str, attempt: u32) -> Result<Option<String>> {
        broken!(self, self.inner.report(uid, attempt))
    }
    async fn append_log(&self, uid: &str, attempt: u32, offset: i64, bytes: &[u8]) -> Result<()> {
        broken!(self, self.inner.append_log(uid, attempt, offset, bytes))
    }
    async fn read_log(&self, uid: &str, attempt: u32, from: i64, max: usize) -> Result<LogPart> {
        broken!(self, self.inner.read_log(uid, attempt, from, max))
    }
}

/// Triggers have a simulation of their own.
#[async_trait]
impl Ledger for Breaking {
    async fn put_trigger(&self, trigger: &mut Trigger) -> Result<bool> {
        broken!(self, self.inner.put_trigger(trigger))
    }
    async fn triggers(&self) -> Result<Vec<Trigger>> {
        broken!(self, self.inner.triggers())
    }
    async fn delete_trigger(&self, name: &str) -> Result<bool> {
        broken!(self, self.inner.delete_trigger(name))
    }
    async fn record_events(&self, entries: &[LedgerEntry], count: bool) -> Result<usize> {
        broken!(self, self.inner.record_events(entries, count))
    }
    async fn events(
        &self,
        trigger: &str,
        state: EventState,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>> {
        broken!(self, self.inner.events(trigger, state, limit))
    }
    async fn event_counts(&self, trigger: &str) -> Result<Vec<(EventState, u64, u64)>> {
        broken!(self, self.inner.event_counts(trigger))
    }
    async fn move_events(
        &self,
        trigger: &str,
        identities: &[String],
        from: EventState,
        to: EventState,
        group: Option<&str>,
        detail: Option<&str>,
    ) -> Result<usize> {
        broken!(
            self,
            self.inner
                .move_events(trigger, identities, from, to, group, detail)
        )
    }
}

/// A process that runs an attempt. It knows until when its server has told it that the
/// lease holds, and dies by itself after that.
#[derive(Debug)]
struct Worker {
    id: String,
    uid: String,
    token: Token,
    /// Absent when its server is gone: nobody renews it then, and it may run on until its
    /// lease is over.
    server: Option<usize>,
    lease_until: Millis,
    may_publish_until: Option<Millis>,
    steps_left: u64,
    is_cancelled: bool,
    /// How it has ended, when its server could not yet keep that.
    ended: Option<(AttemptEnd, Option<Kind>)>,
}

/// Seeds of a run; each is a world of its own.
const N_WORLDS: u64 = 400;
const N_BATCHES: usize = 12;
const LEASE: i64 = 1_000;

struct World {
    seed: u64,
    random: Arc<Random>,
    store: Arc<Breaking>,
    batches: Batches,
    now: Millis,
    servers: Vec<Capacity>,
    workers: Vec<Worker>,
    /// What readers see: how often each batch's output became visible, and by which attempt.
    published: HashMap<String, Vec<u32>>,
    history_seen: HashMap<String, usize>,
    cancelled: Vec<String>,
}

impl World {
    fn new(seed: u64, one_in: u64) -> World {
        let random = Random::of_seed(seed);
        let store = Breaking::new(Arc::clone(&random), one_in);
        let policy = Policy {
            lease_ms: LEASE,
            ..Policy::default()
        };
        let servers = (0..3).map(|i| Capacity {
            server: format!("server-{i}"),
            cores: 2,
            gpus: u32::from(i == 0),
        });
        World {
            seed,
            random,
            batches: Batches::new(Arc::<Breaking>::clone(&store) as Arc<dyn Store>, policy),
            store,
            now: 0,
            servers: servers.collect(),
            workers: Vec::new(),
            published: HashMap::new(),
            history_seen: HashMap::new(),
            cancelled: Vec::new(),
        }
    }

    fn submit(&self, i: usize) {
        let new = NewBatch {
            id: format!("batch-{i}"),
            owner: "ada".into(),
            group: format!("group-{}", i % 3),
            request_id: Some(format!("request-{i}")),
            wants: Wants {
                gpu: i.is_multiple_of(4).then(|| "l4".into()),
                gpu_milli: 500,
                may_fall_back: i.is_multiple_of(8),
                cores: 1 + (i % 2) as u32,
                memory_mib: None,
            },
            limits: BatchLimits {
                max_attempts: 10,
                ..BatchLimits::default()
            },
            ..NewBatch::default()
        };
        // A client asks until it is answered.
        while block_on(self.batches.create(new.clone(), &Submission::default())).is_err() {}
    }

    /// One thing happens.
    fn step(&mut self) {
        self.now += self.random.below(LEASE as u64 / 4) as i64;
        self.store.inner.set_now(self.now);
        let server = self.random.below(self.servers.len() as u64) as usize;
        match self.random.below(10) {
            0 | 1 => self.claim(server),
            2 => {
                let _ = block_on(self.batches.sweep());
            }
            3 => self.heartbeat(server),
            4 if self.random.one_in(6) => self.crash(server),
            5 if self.random.one_in(8) => {
                let i = self.random.below(N_BATCHES as u64);
                let id = format!("batch-{i}");
                // It may have taken effect although the answer was an error.
                let _ = block_on(self.batches.cancel(&id, "ada"));
                self.cancelled.push(id);
            }
            _ if !self.workers.is_empty() => {
                let worker = self.random.below(self.workers.len() as u64) as usize;
                self.work(worker);
            }
            _ => {}
        }
        // A worker whose lease is over is gone: it watches its own clock.
        let now = self.now;
        self.workers.retain(|worker| worker.lease_until > now);
        self.check_histories();
    }

    fn claim(&mut self, server: usize) {
        if let Ok(Some((batch, token))) = block_on(self.batches.claim_next(&self.servers[server])) {
            self.workers.push(Worker {
                id: batch.id,
                uid: batch.uid,
                token,
                server: Some(server),
                lease_until: self.now + LEASE,
                may_publish_until: None,
                steps_left: self.random.below(4),
                is_cancelled: false,
                ended: None,
            });
        }
    }

    fn heartbeat(&mut self, server: usize) {
        let now = self.now;
        let batches = &self.batches;
        self.workers.retain_mut(|worker| {
            if worker.server != Some(server) {
                return true;
            }
            match block_on(batches.renew(&worker.id, &worker.token, Progress::default())) {
                Ok(batch) => {
                    worker.lease_until = now + LEASE;
                    worker.is_cancelled = batch.state == BatchState::Cancelling;
                    true
                }
                // It is somebody else's now: the worker is killed.
                Err(BatchError::Refused(_) | BatchError::NotFound(_)) => false,
                // The store does not answer; the worker runs on within its lease.
                Err(_) => true,
            }
        });
    }

    /// A server dies and comes back with nothing in memory. Some of its workers die with it.
    fn crash(&mut self, server: usize) {
        let random = Arc::clone(&self.random);
        self.workers.retain_mut(|worker| {
            if worker.server != Some(server) {
                return true;
            }
            worker.server = None;
            random.one_in(2)
        });
        // On its return it looks for what it ran, and ends what is surely gone.
        let name = self.servers[server].server.clone();
        let Ok(held) = block_on(self.batches.held_by(&name)) else {
            return;
        };
        for batch in held {
            let Some(lease) = batch.lease else { continue };
            if self.random.one_in(2) {
                self.workers
                    .retain(|worker| worker.token != lease.token || worker.id != batch.id);
                let _ = block_on(self.batches.lost(&batch.id, &lease.token));
            }
        }
    }

    /// A worker does a little: works, asks whether it may publish, publishes, ends.
    fn work(&mut self, index: usize) {
        let (now, random) = (self.now, Arc::clone(&self.random));
        let worker = &mut self.workers[index];
        if worker.lease_until <= now {
            return;
        }
        if let Some((end, kind)) = worker.ended {
            return self.end(index, end, kind);
        }
        if worker.steps_left > 0 {
            worker.steps_left -= 1;
            if random.one_in(12) {
                // It dies, and its server sees it.
                return self.end(index, AttemptEnd::Crashed, Some(Kind::WorkerLost));
            }
            return;
        }
        if worker.is_cancelled {
            return self.end(index, AttemptEnd::Cancelled, Some(Kind::Cancelled));
        }
        let number = worker.token.attempt;
        let is_published = self.published.contains_key(&worker.uid);
        // An attempt after the first looks for what an earlier one has published.
        if is_published && number > 1 {
            return self.end(index, AttemptEnd::Succeeded, None);
        }
        match worker.may_publish_until {
            None if worker.server.is_some()
                && block_on(self.batches.may_publish(&worker.id, &worker.token)).is_ok() =>
            {
                worker.lease_until = now + LEASE;
                worker.may_publish_until = Some(now + LEASE);
            }
            // Nobody answers, or with a no; it waits until its lease is over.
            None => {}
            Some(until) if until > now => {
                self.published
                    .entry(worker.uid.clone())
                    .or_default()
                    .push(number);
                worker.may_publish_until = Some(0);
                // It may die in the very next moment, with nobody the wiser.
                if random.one_in(4) {
                    self.workers.remove(index);
                } else if !random.one_in(4) {
                    self.end(index, AttemptEnd::Succeeded, None);
                }
            }
            Some(0) => self.end(index, AttemptEnd::Succeeded, None),
            Some(_) => worker.may_publish_until = None,
        }
    }

    fn end(&mut self, index: usize, end: AttemptEnd, kind: Option<Kind>) {
        let worker = &self.workers[index];
        if worker.server.is_none() {
            // Nobody hears it.
            self.workers.remove(index);
            return;
        }
        let outcome = Outcome {
            end,
            failure: kind.map(|kind| Failure::new(kind, "the simulation says so")),
            figures: None,
            progress: Progress::default(),
        };
        let finished = self
            .batches
            .finish(&worker.id, &worker.token, outcome, Some("{}"));
        match block_on(finished) {
            Ok(_) | Err(BatchError::Refused(_) | BatchError::NotFound(_)) => {
                self.workers.remove(index);
            }
            // The server tries again.
            Err(_) => self.workers[index].ended = Some((end, kind)),
        }
    }

    /// Every history is a walk over legal moves, and none of its past is rewritten.
    fn check_histories(&mut self) {
        for i in 0..N_BATCHES {
            let id = format!("batch-{i}");
            let Ok(Some(batch)) = block_on(self.store.inner.get(&id)) else {
                continue;
            };
            for pair in batch.history.windows(2) {
                assert!(
                    pair[0].state.may_become(pair[1].state) && pair[0].time_ms <= pair[1].time_ms,
                    "world {}: {id}: {pair:?}",
                    self.seed
                );
            }
            let seen = self.history_seen.entry(id).or_default();
            assert!(batch.history.len() >= *seen);
            *seen = batch.history.len();
            let times = self.published.get(&batch.uid).map_or(0, Vec::len);
            assert!(
                times <= 1,
                "world {}: published twice: {:?}",
                self.seed,
                self.published
            );
            let runs = matches!(batch.state, BatchState::Running | BatchState::Cancelling);
            assert_eq!(batch.lease.is_some(), runs, "world {}", self.seed);
        }
    }
}

fn run(seed: u64, one_in: u64) -> (u64, u64) {
    let mut world = World::new(seed, one_in);
    for i in 0..N_BATCHES {
        world.submit(i);
        for _ in 0..world.random.below(20) {
            world.step();
        }
    }
    let mut steps = 0;
    let all_ended = |world: &World| {
        let open = block_on(world.store.inner.open());
        open.is_ok_and(|open| open.is_empty())
    };
    while !all_ended(&world) {
        world.step();
        steps += 1;
        assert!(steps < 200_000, "world {seed} does not come to rest");
    }
    let (mut n_succeeded, mut n_attempts) = (0, 0);
    for i in 0..N_BATCHES {
        let id = format!("batch-{i}");
        let batch = block_on(world.store.inner.get(&id)).unwrap();
        let batch = batch.unwrap_or_else(|| panic!("world {seed}: {id} is lost"));
        let is_published = world.published.contains_key(&batch.uid);
        n_attempts += batch.attempts.len() as u64;
        match batch.state {
            BatchState::Succeeded => {
                n_succeeded += 1;
                assert!(
                    is_published,
                    "world {seed}: {id} succeeded without its output"
                );
            }
            BatchState::Cancelled => assert!(world.cancelled.contains(&id), "world {seed}: {id}"),
            // Ten crashes of its worker in a row: possible, and told.
            BatchState::Failed => {
                let kind = batch.failure.map(|failure| failure.kind);
                assert_eq!(kind, Some(Kind::WorkerLost), "world {seed}: {id}");
            }
            other => panic!("world {seed}: {id} is {other:?}"),
        }
    }
    (n_succeeded, n_attempts)
}

#[test]
fn whatever_crashes_nothing_is_lost_and_nothing_is_published_twice() {
    let (mut n_succeeded, mut n_attempts) = (0, 0);
    for seed in 0..N_WORLDS {
        // Worlds with a sound store, and with ever worse ones.
        let one_in = [0, 60, 20, 8][seed as usize % 4];
        let (succeeded, attempts) = run(seed, one_in);
        n_succeeded += succeeded;
        n_attempts += attempts;
    }
    // The worlds do something: most batches get there, and many not at once.
    let n = N_WORLDS * N_BATCHES as u64;
    assert!(n_succeeded * 10 > n * 6, "{n_succeeded} of {n} succeeded");
    assert!(
        n_attempts * 10 > n * 12,
        "{n_attempts} attempts for {n} batches"
    );
}
