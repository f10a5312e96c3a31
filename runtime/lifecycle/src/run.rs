//! One attempt, and its dry form, a plan.

use std::time::Instant;

use arrow::record_batch::RecordBatch;
use batch_specs::Loaded;
use chrono::Utc;
use datafusion::physical_plan::displayable;
use engine::Cancel;
use engine::report::{Fallback, FallbackTime, NodePlacement, Reason, UdfModuleReport};
use engine::session::{PublishGate, Session};
use engine::settings::FallbackPolicy;
use engine::udf::Compiler;
use serde::Serialize;

use crate::bounds::Bounds;
use crate::placement::{self, GpuSource, Placement};
use crate::wiring::{self, Wired};
use crate::{Failure, Kind, Machine, RunReport, StageFallback, StageRun, State};

/// Whoever starts an attempt sees its stages come and go through this.
pub trait Observer: Sync {
    /// A `tpch://` table is being generated: so many of its parts are done. Begins with
    /// none of them.
    fn table_generated(&self, table: &str, n_parts_done: usize, n_parts: usize);

    /// A stage begins.
    fn stage_started(&self, name: &str);

    /// A stage ended, well or not. `rows` are the first rows of a result that has no
    /// output of its own; none when the stage did not finish.
    fn stage_ended(&self, stage: &StageRun, rows: &[RecordBatch]);
}

/// What to run, and with what.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// A spec that `batch_specs` accepted.
    pub loaded: &'a Loaded,
    /// What the batch may use.
    pub machine: Machine,
    /// The GPU it may use, where it asks for one.
    pub gpu: Option<&'a dyn GpuSource>,
    /// Who compiles modules of user functions.
    pub guest_compiler: &'a Compiler,
    /// Bounds the rows that the [`Observer`] gets of a stage without an output.
    pub preview_rows: usize,
    /// What makes this one of several attempts; absent when there is no other.
    pub attempt: Option<&'a OneOfSeveral>,
}

/// An attempt at a batch that may have had others before, and may lose its right to publish.
#[derive(Debug)]
pub struct OneOfSeveral {
    /// What tells the batch from every other, for good.
    pub batch_uid: String,
    /// From 1.
    pub number: u32,
    /// Asked before any output becomes visible.
    pub gate: std::sync::Arc<dyn PublishGate>,
}

/// Runs a batch once. What happens to it, failure included, is in the report.
///
/// A request through `cancel`, or the end of the spec's time to live, stops the attempt at
/// the engine's next await.
pub async fn run(request: Request<'_>, cancel: Cancel, observer: &dyn Observer) -> RunReport {
    let (started, clock) = (Utc::now(), Instant::now());
    let mut account = Account::default();
    let outcome = attempt(&request, cancel, observer, &mut account).await;
    let error = outcome.err();
    if let Some(error) = &error {
        tracing::warn!(kind = ?error.kind, stage = ?error.stage, error = error.message, "the attempt failed");
    }
    RunReport {
        name: request
            .loaded
            .spec
            .as_ref()
            .map_or_else(String::new, |spec| spec.name.clone()),
        state: error.as_ref().map_or(State::Succeeded, ended_by),
        started,
        finished: Utc::now(),
        elapsed_ms: elapsed_ms(clock),
        error,
        machine: request.machine,
        effective: wiring::effective_json(request.loaded),
        placement: account.placement,
        stages: account.stages,
        udfs: account.udfs,
        fallbacks: account.fallbacks,
    }
}

/// What accumulates while an attempt runs, and survives its failure.
#[derive(Default)]
struct Account {
    placement: Option<Placement>,
    stages: Vec<StageRun>,
    udfs: Vec<UdfModuleReport>,
    fallbacks: Vec<StageFallback>,
}

async fn attempt(
    request: &Request<'_>,
    cancel: Cancel,
    observer: &dyn Observer,
    account: &mut Account,
) -> Result<(), Failure> {
    let mut wired = wiring::wire(request)?;
    let bounds = Bounds::start(cancel, wired.ttl);
    let generated = |step: engine::tpch::Progress| {
        observer.table_generated(step.table, step.n_parts_done, step.n_parts);
    };
    let opened = open(&mut wired, request, &bounds, &generated).await?;
    let session = opened.session;
    account.placement = opened.placement;
    account.fallbacks.extend(opened.fallback);
    // A guest that runs holds its thread; nothing that is awaited ends it.
    let stop = session.guest_stop();
    let _watch = bounds.watch(move || stop.now());
    let ran = run_stages(&wired, opened.on_gpu, &session, &bounds, observer, account).await;
    account.udfs = session.module_reports();
    ran
}

async fn run_stages(
    wired: &Wired,
    on_gpu: bool,
    session: &Session,
    bounds: &Bounds,
    observer: &dyn Observer,
    account: &mut Account,
) -> Result<(), Failure> {
    for stage in &wired.stages {
        observer.stage_started(&stage.name);
        let clock = Instant::now();
        let work = bounds.work();
        let held = bounds.hold(session.run_stage(stage, &|_| {}, &work)).await;
        let outcome = held.and_then(|done| done.map_err(|error| explain(&error)));
        let mut run = StageRun {
            name: stage.name.clone(),
            state: State::Succeeded,
            elapsed_ms: elapsed_ms(clock),
            report: None,
            pipelines: Vec::new(),
            placements: Vec::new(),
        };
        let error = match outcome {
            Ok(done) => {
                if on_gpu {
                    let (pipelines, at_run) = engine::explain::outcomes(&done.plan);
                    let planned = engine::explain::planned_fallbacks(&done.plan);
                    let all = planned.into_iter().chain(at_run);
                    account.fallbacks.extend(all.map(|fallback| StageFallback {
                        stage: Some(stage.name.clone()),
                        fallback,
                    }));
                    run.pipelines = pipelines;
                    run.placements = engine::explain::placements(&done.plan);
                }
                run.report = Some(done.report);
                None
            }
            Err(error) => {
                run.state = ended_by(&error);
                Some(error)
            }
        };
        let rows = run
            .report
            .as_ref()
            .map_or(&[][..], |report| &report.preview);
        observer.stage_ended(&run, rows);
        account.stages.push(run);
        if let Some(error) = error {
            return Err(error.in_stage(&stage.name));
        }
    }
    Ok(())
}

/// A session that is ready for the first stage.
struct Opened {
    /// With every table of the spec, every module, and the device.
    session: Session,
    on_gpu: bool,
    placement: Option<Placement>,
    /// What a batch without the GPU that it asks for has to say.
    fallback: Option<StageFallback>,
}

async fn open(
    wired: &mut Wired,
    request: &Request<'_>,
    bounds: &Bounds,
    generated: &(dyn Fn(engine::tpch::Progress) + Send + Sync),
) -> Result<Opened, Failure> {
    if request.gpu.is_none() {
        // A refusal comes before any file is read.
        no_device(wired)?;
    }
    let mut session = Session::new(wired.settings.clone()).map_err(|error| explain(&error))?;
    if let Some(attempt) = request.attempt {
        session.set_publish_gate(std::sync::Arc::clone(&attempt.gate));
    }
    bounds
        .hold(session.open_tables(&wired.tables, generated, &bounds.work()))
        .await?
        .map_err(|error| explain(&error))?;
    bounds
        .hold(session.open_modules(&wired.udfs, request.guest_compiler))
        .await?
        .map_err(|error| explain(&error))?;
    let settled = async {
        let settled = placement::settle(wired, request.gpu, &session).await;
        Ok::<_, Failure>(settled)
    };
    let (device, placement) = bounds.hold(settled).await??;
    let is_for_cpu = placement.as_ref().is_some_and(Placement::is_cpu);
    if is_for_cpu {
        wired.accelerator = None;
    }
    let on_gpu = device.is_some();
    let fallback = match on_gpu {
        true => None,
        false => no_device(wired)?,
    };
    let session = match device {
        Some(device) => session.placed_on(device),
        None => session,
    };
    Ok(Opened {
        session,
        on_gpu,
        placement,
        fallback,
    })
}

fn elapsed_ms(clock: Instant) -> f64 {
    clock.elapsed().as_secs_f64() * 1_000.0
}

fn ended_by(failure: &Failure) -> State {
    match failure.kind {
        Kind::Cancelled => State::Cancelled,
        Kind::TimedOut => State::TimedOut,
        _ => State::Failed,
    }
}

/// The author's words for an engine error; the chain of causes goes to the log.
fn explain(error: &engine::Error) -> Failure {
    let mut cause = std::error::Error::source(error);
    let mut chain = Vec::new();
    while let Some(next) = cause {
        chain.push(next.to_string());
        cause = next.source();
    }
    tracing::debug!(%error, ?chain, "the engine refused or failed");
    Failure::from(error)
}

/// A batch that asks for an accelerator on a machine that has none to give: told when
/// the spec allows a fallback, refused before anything runs when it does not.
fn no_device(wired: &Wired) -> Result<Option<StageFallback>, Failure> {
    let Some(accelerator) = &wired.accelerator else {
        return Ok(None);
    };
    let reason = Reason {
        code: "no-gpu".to_string(),
        message: format!("no GPU of this machine can be used for accelerator `{accelerator}`"),
        fix: "see `warpline devices`, or set `accelerator.type` to `none`".to_string(),
    };
    if wired.settings.fallback == FallbackPolicy::Fail {
        let message = format!(
            "{}, and the spec says `accelerator.fallback: fail`; {}",
            reason.message, reason.fix
        );
        return Err(Failure::new(Kind::FallbackRefused, message));
    }
    Ok(Some(StageFallback {
        stage: None,
        fallback: Fallback {
            node: "batch".to_string(),
            when: FallbackTime::Plan,
            reason,
            rows: None,
            cpu_ms: None,
        },
    }))
}

/// What a batch would do, as far as planning went.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// CPU or GPU, where the spec leaves that open and the machine has both.
    pub placement: Option<Placement>,
    /// The plan of each stage, in order, up to the first that has none.
    pub stages: Vec<StagePlan>,
    /// Known before anything runs: parts that would run on the CPU though an accelerator
    /// is asked for.
    pub fallbacks: Vec<StageFallback>,
    /// Why planning stopped; absent when every stage has its plan.
    pub error: Option<Failure>,
}

/// What one stage would do.
#[derive(Debug, Clone, Serialize)]
pub struct StagePlan {
    /// The stage's name.
    pub name: String,
    /// The physical plan, indented, as text.
    pub text: String,
    /// Where each node would run, and why.
    pub nodes: Vec<NodePlacement>,
}

/// Plans every stage and executes none. Footers and directory listings of the tables are
/// read, their rows are not.
pub async fn plan(request: Request<'_>) -> Plan {
    let mut plan = Plan {
        placement: None,
        stages: Vec::new(),
        fallbacks: Vec::new(),
        error: None,
    };
    plan.error = plan_stages(&request, &mut plan).await.err();
    plan
}

async fn plan_stages(request: &Request<'_>, plan: &mut Plan) -> Result<(), Failure> {
    let mut wired = wiring::wire(request)?;
    let bounds = Bounds::start(Cancel::new(), None);
    let opened = open(&mut wired, request, &bounds, &|_| {}).await?;
    let (session, on_gpu) = (opened.session, opened.on_gpu);
    plan.placement = opened.placement;
    plan.fallbacks.extend(opened.fallback);
    for stage in &wired.stages {
        let planned = session
            .plan_stage(stage)
            .await
            .map_err(|error| explain(&error).in_stage(&stage.name))?;
        let text = displayable(planned.physical.as_ref())
            .indent(false)
            .to_string();
        let mut nodes = Vec::new();
        if on_gpu {
            nodes = engine::explain::placements(&planned.physical);
            let kept = engine::explain::planned_fallbacks(&planned.physical);
            plan.fallbacks
                .extend(kept.into_iter().map(|fallback| StageFallback {
                    stage: Some(stage.name.clone()),
                    fallback,
                }));
        }
        plan.stages.push(StagePlan {
            name: stage.name.clone(),
            text,
            nodes,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::settings::Settings;

    /// The code of the fallback told, or the kind of the refusal.
    fn check(
        accelerator: Option<&str>,
        fallback: FallbackPolicy,
        expected: Result<Option<&str>, Kind>,
    ) {
        let wired = Wired {
            settings: Settings {
                fallback,
                ..Settings::default()
            },
            tables: Vec::new(),
            stages: Vec::new(),
            udfs: Vec::new(),
            by_cost: false,
            accelerator: accelerator.map(str::to_string),
            ttl: None,
        };
        let told = no_device(&wired);
        let code = told
            .as_ref()
            .map(|told| told.as_ref().map(|told| told.fallback.reason.code.as_str()));
        assert_eq!(code.map_err(|error| error.kind), expected);
    }

    #[test]
    fn a_run_without_the_gpu_is_told_or_refused() {
        check(None, FallbackPolicy::Cpu, Ok(None));
        check(None, FallbackPolicy::Fail, Ok(None));
        check(Some("l4"), FallbackPolicy::Cpu, Ok(Some("no-gpu")));
        check(Some("l4"), FallbackPolicy::Fail, Err(Kind::FallbackRefused));
    }
}
