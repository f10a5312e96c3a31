//! One attempt, seen from the server: a process of its own in a folder of its own, told
//! until when it may run, and ended with everything it has started.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lifecycle::batch::{AttemptEnd, Batch, Progress, Token};
use lifecycle::batches::{BatchError, Batches};
use lifecycle::moves::Outcome;
use lifecycle::state::BatchState;
use lifecycle::{Failure, Kind};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::batch_log::BatchLog;
use super::figures::FIGURES;
use super::locations::LocationPolicy;
use super::outcome::{died, outcome_of, read_report};
use super::process;
use super::worker::{copy_errors, listen, start, tell, write_job};
use crate::worker_protocol::{FromWorker, Job, REPORT_FILE, ToWorker, boot_time_ns};

/// How long a worker may tidy up after it was told to stop.
const CANCEL_GRACE: Duration = Duration::from_secs(15);
/// How long after its time to live a worker may still be there.
const TTL_GRACE: Duration = Duration::from_secs(30);
/// How often a worker's memory is looked at.
const MEMORY_LOOK: Duration = Duration::from_millis(500);
/// How long the store is asked to keep how an attempt ended.
const FINISH_PATIENCE: Duration = Duration::from_secs(60);
/// How old what is kept of an attempt's progress may be.
const PROGRESS_KEPT: Duration = Duration::from_secs(1);

/// What every attempt on this server goes by.
#[derive(Debug)]
pub struct Host {
    /// The program to start.
    pub program: PathBuf,
    /// Where attempts have their folders.
    pub scratch: PathBuf,
    /// What specs may touch.
    pub policy: LocationPolicy,
    /// Memory beyond which no worker may grow, whatever its spec says.
    pub memory_mib: Option<u64>,
}

/// One attempt that this server runs.
pub struct Attempt {
    /// The batch as it was claimed.
    pub batch: Batch,
    /// The right to run it.
    pub token: Token,
    /// The GPU that it may use.
    pub gpu: Option<u32>,
    /// What the server's attempts go by.
    pub host: Arc<Host>,
    /// Its batches.
    pub batches: Batches,
    /// How far it has come.
    pub progress: Mutex<Progress>,
}

/// Why the watch over a worker ended.
enum Ended {
    /// The worker is gone by itself.
    Exited(std::process::ExitStatus),
    /// It was killed, and this is the failure.
    Killed(AttemptEnd, Failure),
    /// The attempt is somebody else's, or nobody's: nothing is to be kept.
    Superseded,
}

impl Attempt {
    /// Runs the attempt to its end and keeps how it went.
    pub async fn run(self) {
        let folder = self
            .host
            .scratch
            .join(format!("{}-{}", self.batch.uid, self.token.attempt));
        let (log, writer) = BatchLog::open(
            self.batches.clone(),
            self.batch.id.clone(),
            self.batch.uid.clone(),
            self.token.attempt,
        );
        tracing::info!(
            batch = self.batch.id,
            attempt = self.token.attempt,
            "the attempt starts"
        );
        let ended = match self.attempt(&folder, &log).await {
            Ok(ended) => ended,
            Err(error) => {
                let problem = engine::words::io_problem(&error);
                let message = format!("the attempt's process cannot be started: {problem}");
                Ended::Killed(AttemptEnd::Failed, Failure::new(Kind::Unavailable, message))
            }
        };
        let report = read_report(&folder.join(REPORT_FILE));
        let outcome = match ended {
            Ended::Superseded => None,
            Ended::Killed(end, failure) => Some(Outcome {
                end,
                failure: Some(failure),
                figures: None,
                progress: Progress::default(),
            }),
            Ended::Exited(status) => Some(match &report {
                Some(report) => outcome_of(report),
                None => died(status),
            }),
        };
        if let Some(failure) = outcome
            .as_ref()
            .and_then(|outcome| outcome.failure.as_ref())
        {
            log.line("error", failure.stage.clone(), failure.message.clone())
                .await;
        }
        drop(log);
        // The log is whole before the batch has ended.
        if writer.await.is_err() {
            tracing::error!(batch = self.batch.id, "the log's writer failed");
        }
        if let Some(mut outcome) = outcome {
            outcome.progress = self.progress();
            let report = report.map(|report| report.to_string());
            self.finish(outcome, report).await;
        }
        if let Err(error) = tokio::fs::remove_dir_all(&folder).await
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %folder.display(), %error, "the attempt's folder stays");
        }
        self.batches.announce();
        self.batches.announce_log();
    }

    fn progress(&self) -> Progress {
        self.progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes what the worker says; whether it has come further.
    async fn take(&self, message: FromWorker, log: &BatchLog) -> bool {
        match message {
            FromWorker::Log {
                level,
                stage,
                message,
            } => {
                log.line(&level, stage, message).await;
                false
            }
            FromWorker::Progress {
                stage,
                stages_done,
                stages,
            } => {
                let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
                *progress = Progress {
                    stage,
                    stages_done,
                    stages,
                };
                true
            }
            FromWorker::MayPublish { .. } => false,
        }
    }

    async fn attempt(&self, folder: &Path, log: &BatchLog) -> io::Result<Ended> {
        let Ok(Some(submission)) = self.batches.store().submission(&self.batch.uid).await else {
            let message = "what was submitted cannot be read from the store";
            return Ok(Ended::Killed(
                AttemptEnd::Failed,
                Failure::new(Kind::Unavailable, message),
            ));
        };
        let attempt = self.batch.last_attempt();
        let job = Job {
            batch_id: self.batch.id.clone(),
            batch_uid: self.batch.uid.clone(),
            attempt: self.token.attempt,
            submission,
            is_reduced: attempt.is_some_and(|attempt| attempt.is_reduced),
            policy: self.host.policy.clone(),
            plan_only: false,
        };
        write_job(folder, &job)?;
        let mut child = start(&self.host.program, folder, self.gpu)?;
        let pid = child
            .id()
            .ok_or_else(|| io::Error::other("it has ended at once"))?;
        let group = Group(pid);
        let ended = self.watch(&mut child, pid, log).await;
        drop(group);
        // Nothing of the group is left; only now is the attempt over.
        let _ = child.wait().await;
        ended
    }

    async fn watch(&self, child: &mut Child, pid: u32, log: &BatchLog) -> io::Result<Ended> {
        let lost_pipe = || io::Error::other("its pipes are missing");
        let mut stdin = child.stdin.take().ok_or_else(lost_pipe)?;
        let stdout = child.stdout.take().ok_or_else(lost_pipe)?;
        let stderr = child.stderr.take().ok_or_else(lost_pipe)?;
        let (said, mut messages) = mpsc::channel(64);
        let readers = [
            tokio::spawn(listen(stdout, said)),
            tokio::spawn(copy_errors(stderr, log.clone())),
        ];
        // The worker waits for its lease, so it is known before it does anything.
        let Some(process) = process::identify(pid) else {
            return Ok(Ended::Exited(child.wait().await?));
        };
        let lease = Duration::from_millis(self.batches.policy().lease_ms.unsigned_abs());
        let asked = boot_time_ns();
        match self
            .batches
            .started(&self.batch.id, &self.token, process)
            .await
        {
            Ok(_) => {}
            Err(BatchError::Store(_)) => return Ok(unkept()),
            Err(_) => return Ok(Ended::Superseded),
        }
        // It was claimed a moment ago; the first heartbeat says how long it really holds.
        let mut lease_until = match self.renew().await {
            Renewed::Until(_) => asked + lease.as_nanos() as u64,
            Renewed::Superseded => return Ok(Ended::Superseded),
            Renewed::Unanswered => return Ok(unkept()),
        };
        tell(
            &mut stdin,
            &ToWorker::Lease {
                until_ns: lease_until,
            },
        )
        .await;

        let mut beats = interval(lease / 3);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looks = interval(MEMORY_LOOK);
        let mut changes = self.batches.moves();
        let ttl = self
            .batch
            .limits
            .ttl_ms
            .map(|ms| Duration::from_millis(ms.unsigned_abs()));
        let ttl_end = ttl.and_then(|ttl| Instant::now().checked_add(ttl + TTL_GRACE));
        let mut told_to_stop: Option<Instant> = None;
        let mut kept = Instant::now();
        let ended = loop {
            let stop_end = told_to_stop.map(|since| since + CANCEL_GRACE);
            tokio::select! {
                status = child.wait() => break Ended::Exited(status?),
                _ = beats.tick() => {
                    let asked = boot_time_ns();
                    kept = Instant::now();
                    match self.renew().await {
                        Renewed::Until(batch) => {
                            lease_until = asked + lease.as_nanos() as u64;
                            tell(&mut stdin, &ToWorker::Lease { until_ns: lease_until }).await;
                            self.stop_if_asked(&batch, &mut stdin, &mut told_to_stop).await;
                        }
                        Renewed::Superseded => break Ended::Superseded,
                        // The worker ends itself when its lease does.
                        Renewed::Unanswered if boot_time_ns() >= lease_until => break Ended::Superseded,
                        Renewed::Unanswered => {}
                    }
                }
                changed = changes.changed(), if told_to_stop.is_none() => {
                    if changed.is_ok()
                        && let Ok(Some(batch)) = self.batches.store().get(&self.batch.id).await
                    {
                        self.stop_if_asked(&batch, &mut stdin, &mut told_to_stop).await;
                    }
                }
                Some(message) = messages.recv() => match message {
                    FromWorker::MayPublish { stage } => {
                        let asked = boot_time_ns();
                        let granted = self.batches.may_publish(&self.batch.id, &self.token).await;
                        if granted.is_ok() {
                            lease_until = asked + lease.as_nanos() as u64;
                            tell(&mut stdin, &ToWorker::Lease { until_ns: lease_until }).await;
                        }
                        tracing::debug!(batch = self.batch.id, stage, granted = granted.is_ok(), "asked to publish");
                        tell(&mut stdin, &ToWorker::Publish { granted: granted.is_ok() }).await;
                    }
                    message => {
                        if self.take(message, log).await && kept.elapsed() > PROGRESS_KEPT {
                            beats.reset_immediately();
                        }
                    }
                },
                _ = looks.tick() => {
                    if let Some(failure) = self.too_large(pid) {
                        break Ended::Killed(AttemptEnd::Crashed, failure);
                    }
                }
                () = at(stop_end) => {
                    let message = "the worker did not stop in time and was killed";
                    break Ended::Killed(AttemptEnd::Cancelled, Failure::new(Kind::Cancelled, message));
                }
                () = at(ttl_end) => {
                    let message = "the batch ran out of its time to live and did not stop by itself; raise `limits.ttl`";
                    break Ended::Killed(AttemptEnd::TimedOut, Failure::new(Kind::TimedOut, message));
                }
            }
        };
        process::kill_group(pid);
        // What it said last is in its pipes, which end with the last of its group.
        while let Some(message) = messages.recv().await {
            self.take(message, log).await;
        }
        for reader in readers {
            let _ = reader.await;
        }
        Ok(ended)
    }

    async fn stop_if_asked(
        &self,
        batch: &Batch,
        stdin: &mut ChildStdin,
        told_to_stop: &mut Option<Instant>,
    ) {
        if batch.state == BatchState::Cancelling && told_to_stop.is_none() {
            *told_to_stop = Some(Instant::now());
            tell(stdin, &ToWorker::Cancel).await;
        }
    }

    async fn renew(&self) -> Renewed {
        let renewed = self
            .batches
            .renew(&self.batch.id, &self.token, self.progress());
        match renewed.await {
            Ok(batch) => Renewed::Until(Box::new(batch)),
            Err(BatchError::Store(error)) => {
                tracing::warn!(batch = self.batch.id, %error, "the lease is not renewed");
                Renewed::Unanswered
            }
            Err(error) => {
                tracing::warn!(batch = self.batch.id, %error, "the attempt is given up");
                Renewed::Superseded
            }
        }
    }

    /// Why the worker has to go, if it holds more memory than it may.
    fn too_large(&self, pid: u32) -> Option<Failure> {
        let limits = [self.batch.wants.memory_mib, self.host.memory_mib];
        let limit = limits.into_iter().flatten().min()?;
        let held = process::anonymous_mib(pid)?;
        (held > limit).then(|| {
            Failure::new(
                Kind::OutOfResources,
                format!(
                    "the worker held {held} MiB of memory and may hold {limit} MiB; raise \
                     `executors.memory`, or run fewer cores"
                ),
            )
        })
    }

    async fn finish(&self, outcome: Outcome, report: Option<String>) {
        let since = Instant::now();
        loop {
            let finished = self.batches.finish(
                &self.batch.id,
                &self.token,
                outcome.clone(),
                report.as_deref(),
            );
            match finished.await {
                Ok(batch) => {
                    let ended = batch
                        .attempts
                        .iter()
                        .find(|a| a.number == self.token.attempt);
                    if let Some(ended) = ended {
                        let took = ended.finished_ms.unwrap_or(ended.started_ms) - ended.started_ms;
                        FIGURES.attempt_ended(
                            outcome.end,
                            took.max(0).unsigned_abs(),
                            ended.figures,
                        );
                    }
                    tracing::info!(
                        batch = batch.id,
                        state = batch.state.name(),
                        reason = batch.state_reason(),
                        "the attempt has ended"
                    );
                    return;
                }
                Err(BatchError::Store(error)) if since.elapsed() < FINISH_PATIENCE => {
                    tracing::warn!(batch = self.batch.id, %error, "how the attempt ended waits");
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                Err(error) => {
                    tracing::warn!(batch = self.batch.id, %error, "how the attempt ended is not kept");
                    return;
                }
            }
        }
    }
}

/// Kills the group of a worker when the watch over it ends in any way.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        process::kill_group(self.0);
    }
}

enum Renewed {
    Until(Box<Batch>),
    Superseded,
    Unanswered,
}

fn unkept() -> Ended {
    let message = "the store did not answer when the attempt started";
    Ended::Killed(AttemptEnd::Failed, Failure::new(Kind::Unavailable, message))
}

/// Waits until a time; for ever when there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
