//! Where each node of a plan runs, and the reason for each that is not on the GPU.

use std::sync::Arc;

use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::{ExecutionPlan, displayable};

use crate::exec::{Outcome, gpu_node};
use crate::report::{Fallback, FallbackTime, NodePlacement, PipelineReport, Reason, Verdict};
use crate::rewrite;

/// The placement of every node, root first. Operators inside a GPU node are listed
/// below it, so that the plan hides nothing.
pub fn placements(plan: &Arc<dyn ExecutionPlan>) -> Vec<NodePlacement> {
    let mut found = Vec::new();
    walk(plan, 0, true, &mut found);
    found
}

/// `is_fed`: everything above that computes runs on the GPU, or nothing computes.
fn walk(plan: &Arc<dyn ExecutionPlan>, depth: usize, is_fed: bool, found: &mut Vec<NodePlacement>) {
    let gpu = gpu_node(plan);
    let place = Place::of(plan, is_fed);
    let (verdict, reasons) = match place.off_cpu {
        Some(verdict) => (verdict, Vec::new()),
        None => kept(plan),
    };
    found.push(NodePlacement {
        depth,
        node: plan.name().to_string(),
        detail: detail(plan),
        verdict,
        reasons,
    });
    for (inside, operator) in gpu.iter().flat_map(|gpu| gpu.operators).enumerate() {
        found.push(NodePlacement {
            depth: depth + 1 + inside,
            node: operator.clone(),
            detail: String::new(),
            verdict: Verdict::OnGpu,
            reasons: Vec::new(),
        });
    }
    for child in plan.children() {
        walk(child, depth + 1, place.feeds, found);
    }
}

/// Where a node runs, below one that is fed or not.
struct Place {
    /// The verdict on a node that does not compute on the CPU.
    off_cpu: Option<Verdict>,
    /// Whether what is below it feeds the GPU, or nothing that computes.
    feeds: bool,
}

impl Place {
    fn of(plan: &Arc<dyn ExecutionPlan>, is_fed: bool) -> Place {
        let on_gpu = gpu_node(plan).is_some();
        // An exchange, a limit or a renaming computes nothing, and a scan that feeds the
        // GPU, or nothing that computes, is no work that could have run there.
        let moves_rows = rewrite::computes_nothing(plan);
        let is_source = moves_rows || (is_fed && is_leaf(plan));
        Place {
            off_cpu: match on_gpu {
                true => Some(Verdict::OnGpu),
                false => is_source.then_some(Verdict::Source),
            },
            feeds: on_gpu || (is_fed && moves_rows),
        }
    }
}

fn is_leaf(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.children().is_empty()
}

fn detail(plan: &Arc<dyn ExecutionPlan>) -> String {
    let line = displayable(plan.as_ref()).one_line().to_string();
    let line = line.trim();
    line.strip_prefix(plan.name())
        .map(|rest| rest.trim_start_matches(':').trim())
        .unwrap_or(line)
        .to_string()
}

/// The verdict on a node that computes on the CPU.
fn kept(plan: &Arc<dyn ExecutionPlan>) -> (Verdict, Vec<Reason>) {
    match rewrite::mark(plan) {
        Some(Ok(candidate)) if !rewrite::choose(&candidate, true) => {
            (Verdict::NotWorthIt, vec![rewrite::not_worth_it()])
        }
        Some(Err(reason)) => (Verdict::CannotRun, vec![reason]),
        _ => (Verdict::CannotRun, vec![no_gpu_form(plan)]),
    }
}

fn no_gpu_form(plan: &Arc<dyn ExecutionPlan>) -> Reason {
    let (code, message) = if plan.is::<EmptyExec>() || plan.is::<PlaceholderRowExec>() {
        (
            "no-input",
            "there are no rows to bring to a GPU".to_string(),
        )
    } else if is_leaf(plan) {
        (
            "scan-on-cpu",
            "nothing above this scan runs on the GPU".to_string(),
        )
    } else {
        (
            "unsupported-operator",
            format!("{} is not on the GPU yet", plan.name()),
        )
    };
    Reason {
        code: code.to_string(),
        message,
        fix: String::new(),
    }
}

/// Whether some node computes on the CPU: whether [`planned_fallbacks`] has any.
pub fn any_on_cpu(plan: &Arc<dyn ExecutionPlan>) -> bool {
    computes_on_cpu(plan, true)
}

fn computes_on_cpu(plan: &Arc<dyn ExecutionPlan>, is_fed: bool) -> bool {
    let place = Place::of(plan, is_fed);
    let mut children = plan.children().into_iter();
    place.off_cpu.is_none() || children.any(|child| computes_on_cpu(child, place.feeds))
}

/// The nodes that compute on the CPU, as the fallbacks they are when a GPU was asked
/// for.
pub fn planned_fallbacks(plan: &Arc<dyn ExecutionPlan>) -> Vec<Fallback> {
    let kept = placements(plan)
        .into_iter()
        .filter(|placement| matches!(placement.verdict, Verdict::CannotRun | Verdict::NotWorthIt));
    kept.flat_map(|placement| {
        let node = placement.node;
        placement.reasons.into_iter().map(move |reason| Fallback {
            node: node.clone(),
            when: FallbackTime::Plan,
            reason,
            rows: None,
            cpu_ms: None,
        })
    })
    .collect()
}

/// What the GPU nodes of an executed plan did, and which of them fell back.
pub fn outcomes(plan: &Arc<dyn ExecutionPlan>) -> (Vec<PipelineReport>, Vec<Fallback>) {
    let (mut pipelines, mut fallbacks) = (Vec::new(), Vec::new());
    collect(plan, &mut pipelines, &mut fallbacks);
    (pipelines, fallbacks)
}

fn collect(
    plan: &Arc<dyn ExecutionPlan>,
    pipelines: &mut Vec<PipelineReport>,
    fallbacks: &mut Vec<Fallback>,
) {
    if let Some(gpu) = gpu_node(plan) {
        match gpu.outcome {
            Some(Outcome::Ran(report)) => pipelines.push(report),
            Some(Outcome::FellBack(fallback)) => fallbacks.push(fallback),
            None => {}
        }
    }
    for child in plan.children() {
        collect(child, pipelines, fallbacks);
    }
}

/// The placements as lines that people already grep for: a glyph, the kind, the name
/// in angle brackets, the verdict. `only_refused` keeps those that are not on the GPU.
pub fn lines(placements: &[NodePlacement], only_refused: bool) -> String {
    let mut text = String::new();
    for placement in placements {
        let refused = matches!(placement.verdict, Verdict::CannotRun | Verdict::NotWorthIt);
        if only_refused && !refused {
            continue;
        }
        let verdict = match placement.verdict {
            Verdict::OnGpu => "will run on GPU".to_string(),
            Verdict::CannotRun => {
                let reasons: Vec<&str> = placement
                    .reasons
                    .iter()
                    .map(|reason| reason.message.as_str())
                    .collect();
                format!("cannot run on GPU because {}", reasons.join("; "))
            }
            Verdict::Source => "feeds rows to the GPU".to_string(),
            Verdict::KeptOnCpu => "could run on GPU".to_string(),
            Verdict::Removed => "will be removed".to_string(),
            Verdict::NotWorthIt => "is not worth the transfer".to_string(),
        };
        text.push_str(&format!(
            "{:indent$}{} Exec <{}> {verdict}\n",
            "",
            placement.verdict.glyph(),
            placement.node,
            indent = 2 * placement.depth
        ));
    }
    text
}
