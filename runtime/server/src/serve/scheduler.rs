//! Gives attempts to this server as it has room, and does what time alone brings about.
//!
//! Nothing runs while nothing is queued: the loop sleeps until a batch changes, or until the
//! next time at which something is due. Where other servers share the store it also looks
//! every second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lifecycle::batch::{Batch, Token};
use lifecycle::batches::Batches;
use lifecycle::queue::Capacity;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::process;
use super::supervisor::{Attempt, Host};

/// How often a shared store is looked at.
const SHARED_LOOK: Duration = Duration::from_secs(1);
/// The longest sleep: what is overdue is forgotten by then.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// How soon after a change it is looked what is due.
const AFTER_CHANGE: Duration = Duration::from_secs(1);
/// The wait after a store has failed.
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// How long a worker that was killed may take to be gone.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// The scheduler of one server.
pub struct Scheduler {
    batches: Batches,
    capacity: Capacity,
    host: Arc<Host>,
    /// Device numbers of the GPUs, each with the thousandths that are in use.
    gpus: Arc<Mutex<Vec<(u32, u32)>>>,
}

impl Scheduler {
    /// A scheduler for what this server has.
    pub fn new(batches: Batches, capacity: Capacity, gpus: Vec<u32>, host: Arc<Host>) -> Self {
        Scheduler {
            batches,
            capacity,
            host,
            gpus: Arc::new(Mutex::new(gpus.into_iter().map(|gpu| (gpu, 0)).collect())),
        }
    }

    /// Ends what an earlier process of this server was running. Its workers end themselves
    /// once their server is gone; one that cannot is killed before its batch is given away.
    pub async fn recover(&self) -> Result<(), String> {
        let held = self.batches.held_by(&self.capacity.server).await;
        for batch in held.map_err(|error| error.to_string())? {
            let Some(lease) = &batch.lease else { continue };
            if let Some(worker) = lease.worker {
                let since = Instant::now();
                while process::is_alive(worker) {
                    process::kill_group(worker.pid);
                    if since.elapsed() > KILL_PATIENCE {
                        return Err(format!(
                            "process {} of an earlier server does not end; end it, then start again",
                            worker.pid
                        ));
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            match self.batches.lost(&batch.id, &lease.token).await {
                Ok(batch) => {
                    tracing::info!(
                        batch = batch.id,
                        state = batch.state.name(),
                        "an attempt of before was lost"
                    );
                }
                Err(error) => tracing::warn!(batch = batch.id, %error, "somebody else was faster"),
            }
        }
        Ok(())
    }

    /// Runs until told to stop; then lets attempts go on for `drain` and takes back those
    /// that are left.
    pub async fn run(self, mut stop: watch::Receiver<bool>, drain: Duration) {
        let mut changes = self.batches.changes();
        let mut attempts: JoinSet<()> = JoinSet::new();
        let mut running: HashMap<tokio::task::Id, (Batch, Token)> = HashMap::new();
        let mut sweep_at = Instant::now();
        while !*stop.borrow() {
            if let Err(error) = self.round(&mut attempts, &mut running, &mut sweep_at).await {
                tracing::warn!(%error, "the store is tried again");
                sweep_at = Instant::now() + AFTER_FAILURE;
            }
            tokio::select! {
                _ = changes.changed() => {
                    // It may have brought something that is due sooner.
                    sweep_at = sweep_at.min(Instant::now() + AFTER_CHANGE);
                }
                _ = stop.changed() => {}
                Some(ended) = attempts.join_next_with_id() => {
                    running.remove(&id_of(&ended));
                }
                () = tokio::time::sleep_until(sweep_at) => {}
            }
        }
        if !attempts.is_empty() {
            tracing::info!(n = attempts.len(), ?drain, "waiting for attempts to end");
        }
        let wait = async {
            while let Some(ended) = attempts.join_next_with_id().await {
                running.remove(&id_of(&ended));
            }
        };
        if tokio::time::timeout(drain, wait).await.is_err() {
            // Dropping an attempt kills its process group.
            attempts.shutdown().await;
            for (batch, token) in running.into_values() {
                if let Err(error) = self.batches.lost(&batch.id, &token).await {
                    tracing::warn!(batch = batch.id, %error, "it is given back when its lease is over");
                }
            }
        }
    }

    /// Does what is due, and claims and starts what there is room for. `sweep_at` is when
    /// something is due, as far as is known.
    async fn round(
        &self,
        attempts: &mut JoinSet<()>,
        running: &mut HashMap<tokio::task::Id, (Batch, Token)>,
        sweep_at: &mut Instant,
    ) -> Result<(), lifecycle::batches::BatchError> {
        if *sweep_at <= Instant::now() {
            *sweep_at = Instant::now() + self.sweep().await?;
        }
        // A long queue is not read while nothing of it could start.
        while self
            .capacity
            .has_room(running.values().map(|(batch, _)| &batch.wants))
        {
            let Some((batch, token)) = self.batches.claim_next(&self.capacity).await? else {
                break;
            };
            let share = self.take_gpu(&batch);
            let attempt = Attempt {
                batch: batch.clone(),
                token: token.clone(),
                gpu: share.as_ref().map(|share| share.gpu),
                host: Arc::clone(&self.host),
                batches: self.batches.clone(),
                progress: Mutex::default(),
            };
            let task = attempts.spawn(async move {
                attempt.run().await;
                drop(share);
            });
            running.insert(task.id(), (batch, token));
        }
        Ok(())
    }

    /// Does what is due; the time until the next.
    async fn sweep(&self) -> Result<Duration, lifecycle::batches::BatchError> {
        let longest = if self.batches.store().is_shared() {
            SHARED_LOOK
        } else {
            LONGEST_SLEEP
        };
        let Some(next) = self.batches.sweep().await? else {
            return Ok(longest);
        };
        let wait = next - self.batches.store().now().await?;
        // A little later than due is due for sure.
        Ok(longest.min(Duration::from_millis(wait.max(0).unsigned_abs() + 1)))
    }

    /// The GPU with the most room, for a batch that wants one.
    fn take_gpu(&self, batch: &Batch) -> Option<GpuShare> {
        batch.wants.gpu.as_ref()?;
        let milli = batch.wants.gpu_milli.clamp(1, 1_000);
        let mut gpus = self.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        let (gpu, used) = gpus.iter_mut().min_by_key(|(_, used)| *used)?;
        *used += milli;
        Some(GpuShare {
            gpu: *gpu,
            milli,
            gpus: Arc::clone(&self.gpus),
        })
    }
}

fn id_of(ended: &Result<(tokio::task::Id, ()), tokio::task::JoinError>) -> tokio::task::Id {
    match ended {
        Ok((id, ())) => *id,
        Err(error) => {
            tracing::error!(%error, "the watch over an attempt failed");
            error.id()
        }
    }
}

/// A part of a GPU that an attempt uses.
struct GpuShare {
    gpu: u32,
    milli: u32,
    gpus: Arc<Mutex<Vec<(u32, u32)>>>,
}

impl Drop for GpuShare {
    fn drop(&mut self) {
        let mut gpus = self.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, used)) = gpus.iter_mut().find(|(gpu, _)| *gpu == self.gpu) {
            *used = used.saturating_sub(self.milli);
        }
    }
}
