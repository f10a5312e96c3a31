//! `warpline attempt`: the process of one attempt, started by a server.
//!
//! It runs under a lease that its server tells it of, asks before an output becomes
//! visible, and leaves a report in its folder. When the lease is over or the server is gone
//! it ends itself and everything it has started, at once: what it was doing is somebody
//! else's now.

use std::fs;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use engine::words::io_problem;
use lifecycle::{
    Cancel, Failure, GpuSource, Kind, Machine, Observer, OneOfSeveral, PublishGate, Request,
    StageRun,
};
use serde_json::json;
use tokio::sync::mpsc;

use super::compile_guest::GUEST_COMPILER;
use crate::arguments::Attempt;
use crate::exit::Exit;
use crate::gpus::Gpus;
use crate::serve::submit;
use crate::spec_file::known_machine;
use crate::worker_protocol::{FromWorker, JOB_FILE, Job, REPORT_FILE, ToWorker, boot_time_ns};

/// Rows of a result without an output that its log shows.
const PREVIEW_ROWS: usize = 40;

/// Runs the command.
pub fn attempt(arguments: &Attempt) -> Exit {
    let job = fs::read(arguments.folder.join(JOB_FILE))
        .map_err(|error| io_problem(&error))
        .and_then(|text| serde_json::from_slice::<Job>(&text).map_err(|e| e.to_string()));
    let job = match job {
        Ok(job) => job,
        Err(problem) => {
            eprintln!("error: the job cannot be read: {problem}; `attempt` is started by a server");
            return Exit::Usage;
        }
    };
    let server = if job.plan_only {
        Server::absent()
    } else {
        match Server::connect() {
            Ok(server) => server,
            Err(error) => {
                eprintln!("error: {error}");
                return Exit::Failed;
            }
        }
    };
    let report = work(&job, &arguments.folder, &server);
    match write_report(&arguments.folder, &report) {
        Ok(()) => Exit::Done,
        Err(error) => {
            eprintln!(
                "error: the report cannot be written: {}",
                io_problem(&error)
            );
            Exit::Failed
        }
    }
}

/// The report, or the plan.
fn work(job: &Job, folder: &Path, server: &Arc<Server>) -> serde_json::Value {
    let (machine, gpus) = (Machine::detect(), Gpus::detect());
    let load =
        |sets: &[String]| submit::load(&job.submission, Some(known_machine(&machine, &gpus)), sets);
    let mut loaded = load(&[]);
    if job.is_reduced {
        let message = "the attempt before ran out of memory; this one works on one chunk at a time";
        say(log("warning", None, message));
        let reduced = load(&["accelerator.concurrent_tasks=1".to_owned()]);
        // A spec whose own words do not allow it stays as it is.
        if reduced.spec.is_some() {
            loaded = reduced;
        }
    }
    let Some(spec) = &loaded.spec else {
        let problems: Vec<_> = loaded.problems.iter().map(|p| p.render("spec")).collect();
        return refusal(Kind::InvalidSpec, problems.join("\n"));
    };
    // What a location leads to may have changed since the submit.
    if let Some(forbidden) = job.policy.check(spec).first() {
        let message = format!(
            "`{}`: {}; {}",
            forbidden.path, forbidden.message, forbidden.hint
        );
        return refusal(Kind::InvalidSpec, message);
    }
    if let Some(spec) = loaded
        .spec
        .as_mut()
        .filter(|_| !job.submission.objects.is_empty())
        && let Err(error) = lifecycle::write_object_table(spec, &job.submission.objects, folder)
    {
        return refusal(Kind::InvalidSpec, io_problem(&error));
    }
    let gpu = gpus.source_for(&loaded);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(machine.cores)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return refusal(Kind::Unavailable, io_problem(&error)),
    };
    let one = OneOfSeveral {
        batch_uid: job.batch_uid.clone(),
        number: job.attempt,
        gate: Arc::<Server>::clone(server) as Arc<dyn PublishGate>,
    };
    let request = Request {
        loaded: &loaded,
        machine,
        gpu: gpu.as_ref().map(|gpu| gpu as &dyn GpuSource),
        guest_compiler: &GUEST_COMPILER,
        preview_rows: PREVIEW_ROWS,
        attempt: (!job.plan_only).then_some(&one),
    };
    if job.plan_only {
        let plan = runtime.block_on(lifecycle::plan(request));
        let effective = lifecycle::effective_json(&loaded);
        return json!({"effective": effective, "problems": loaded.problems, "plan": plan});
    }
    let teller = Teller {
        n_stages: loaded
            .spec
            .as_ref()
            .map_or(0, |spec| spec.stages.len() as u32),
        n_done: Mutex::new(0),
    };
    let cancel = server.cancel.clone();
    let report = runtime.block_on(lifecycle::run(request, cancel, &teller));
    runtime.shutdown_background();
    serde_json::to_value(&report)
        .unwrap_or_else(|error| refusal(Kind::Internal, format!("the report: {error}")))
}

/// A report of an attempt that did not begin.
fn refusal(kind: Kind, message: impl Into<String>) -> serde_json::Value {
    json!({"state": "failed", "error": Failure::new(kind, message), "stages": [], "fallbacks": []})
}

/// Writes the report beside its place and moves it there: it is there whole, or not.
fn write_report(folder: &Path, report: &serde_json::Value) -> io::Result<()> {
    let partial = folder.join("report.partial");
    fs::write(&partial, serde_json::to_vec(report)?)?;
    fs::rename(partial, folder.join(REPORT_FILE))
}

fn log(level: &str, stage: Option<&str>, message: impl Into<String>) -> FromWorker {
    FromWorker::Log {
        level: level.to_owned(),
        stage: stage.map(str::to_owned),
        message: message.into(),
    }
}

/// Tells the server; one that is gone has ended us already.
fn say(message: FromWorker) {
    let mut line = serde_json::to_string(&message).unwrap_or_default();
    line.push('\n');
    let mut out = io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// The server, as this process hears it.
#[derive(Debug)]
struct Server {
    cancel: Cancel,
    /// Until when the attempt may run, by the machine's clock.
    lease: Mutex<u64>,
    lease_changed: Condvar,
    answers: tokio::sync::Mutex<mpsc::UnboundedReceiver<bool>>,
}

impl Server {
    fn absent() -> Arc<Server> {
        Arc::new(Server::new().0)
    }

    fn new() -> (Server, mpsc::UnboundedSender<bool>) {
        let (answer, answers) = mpsc::unbounded_channel();
        let server = Server {
            cancel: Cancel::new(),
            lease: Mutex::new(0),
            lease_changed: Condvar::new(),
            answers: tokio::sync::Mutex::new(answers),
        };
        (server, answer)
    }

    /// Listens to the server, and waits for the first lease.
    fn connect() -> io::Result<Arc<Server>> {
        let (server, answer) = Server::new();
        let server = Arc::new(server);
        let listener = Arc::clone(&server);
        std::thread::Builder::new()
            .name("server".into())
            .spawn(move || listener.listen(&answer))?;
        let mut lease = server.lease();
        while *lease == 0 {
            lease = server
                .lease_changed
                .wait(lease)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(lease);
        let watcher = Arc::clone(&server);
        std::thread::Builder::new()
            .name("lease".into())
            .spawn(move || watcher.watch_lease())?;
        Ok(server)
    }

    fn lease(&self) -> std::sync::MutexGuard<'_, u64> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, answer: &mpsc::UnboundedSender<bool>) {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(ToWorker::Lease { until_ns }) => {
                    let mut lease = self.lease();
                    *lease = until_ns.max(*lease);
                    self.lease_changed.notify_all();
                }
                Ok(ToWorker::Cancel) => self.cancel.cancel(),
                Ok(ToWorker::Publish { granted }) => {
                    // Nobody waits any more when the attempt was cancelled.
                    let _ = answer.send(granted);
                }
                Err(error) => tracing::warn!(%error, "the server said what is not understood"),
            }
        }
        // The server is gone.
        end_everything();
    }

    fn watch_lease(&self) {
        let mut lease = self.lease();
        loop {
            let now = boot_time_ns();
            if now >= *lease {
                end_everything();
            }
            let left = Duration::from_nanos(*lease - now);
            lease = self
                .lease_changed
                .wait_timeout(lease, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// Ends this process and all that it has started; they are one group.
fn end_everything() -> ! {
    // SAFETY: kill takes numbers only; 0 is the caller's own group, which a server made for
    // this process.
    unsafe {
        libc::kill(0, libc::SIGKILL);
    }
    std::process::abort()
}

#[async_trait]
impl PublishGate for Server {
    async fn may_publish(&self, stage: &str) -> bool {
        let mut answers = self.answers.lock().await;
        let stage = stage.to_owned();
        let question = FromWorker::MayPublish { stage };
        if tokio::task::spawn_blocking(move || say(question))
            .await
            .is_err()
        {
            return false;
        }
        let granted = answers.recv().await.unwrap_or(false);
        granted && boot_time_ns() < *self.lease()
    }
}

/// Tells the server how far the attempt has come.
struct Teller {
    n_stages: u32,
    n_done: Mutex<u32>,
}

impl Teller {
    fn progress(&self, stage: &str, n_more: u32) {
        let mut n_done = self.n_done.lock().unwrap_or_else(PoisonError::into_inner);
        *n_done += n_more;
        say(FromWorker::Progress {
            stage: Some(stage.to_owned()),
            stages_done: *n_done,
            stages: self.n_stages,
        });
    }
}

impl Observer for Teller {
    fn table_generated(&self, table: &str, n_parts_done: usize, n_parts: usize) {
        if n_parts_done == 0 {
            let message =
                format!("generating TPC-H {table} in {n_parts} parts; it is kept for the next run");
            say(log("info", None, message));
        }
    }

    fn stage_started(&self, name: &str) {
        say(log("info", Some(name), "the stage starts"));
        self.progress(name, 0);
    }

    fn stage_ended(&self, stage: &StageRun, rows: &[RecordBatch]) {
        self.progress(&stage.name, 1);
        let report = stage.report.as_ref();
        let output = report.and_then(|report| report.output.as_ref());
        let message = match (report, output) {
            (Some(_), Some(output)) if output.recovered => {
                format!(
                    "an earlier attempt has published {}; it is not made again",
                    output.location
                )
            }
            (Some(report), Some(output)) => {
                format!(
                    "{} rows in {:.0} ms, published to {}",
                    report.rows, stage.elapsed_ms, output.location
                )
            }
            (Some(report), None) => format!("{} rows in {:.0} ms", report.rows, stage.elapsed_ms),
            (None, _) => format!("{} after {:.0} ms", stage.state.name(), stage.elapsed_ms),
        };
        say(log("info", Some(&stage.name), message));
        if !rows.is_empty()
            && let Ok(table) = arrow::util::pretty::pretty_format_batches(rows)
        {
            for line in table.to_string().lines() {
                say(log("info", Some(&stage.name), line));
            }
        }
    }
}
