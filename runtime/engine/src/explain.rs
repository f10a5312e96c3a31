//! Where each node of a plan runs, and the reason for each that is not on the GPU.

use std::sync::Arc;

use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, displayable};

use crate::exec::{GpuAggregateExec, Outcome};
use crate::report::{Fallback, FallbackTime, NodePlacement, PipelineReport, Reason, Verdict};
use crate::rewrite;

/// The placement of every node, root first. Operators inside a GPU node are listed
/// below it, so that the plan hides nothing.
pub fn placements(plan: &Arc<dyn ExecutionPlan>) -> Vec<NodePlacement> {
    let mut found = Vec::new();
    walk(plan, 0, false, &mut found);
    found
}

fn walk(
    plan: &Arc<dyn ExecutionPlan>,
    depth: usize,
    feeds_gpu: bool,
    found: &mut Vec<NodePlacement>,
) {
    let (verdict, reasons) = if plan.is::<GpuAggregateExec>() {
        (Verdict::OnGpu, Vec::new())
    } else if feeds_gpu || is_exchange(plan) {
        // A source is read on the CPU for the GPU, and an exchange computes nothing.
        (Verdict::Source, Vec::new())
    } else {
        (Verdict::CannotRun, vec![reason(plan)])
    };
    found.push(NodePlacement {
        depth,
        node: plan.name().to_string(),
        detail: detail(plan),
        verdict,
        reasons,
    });
    if let Some(gpu) = plan.downcast_ref::<GpuAggregateExec>() {
        for (inside, operator) in gpu.operators().iter().enumerate() {
            found.push(NodePlacement {
                depth: depth + 1 + inside,
                node: operator.clone(),
                detail: String::new(),
                verdict: Verdict::OnGpu,
                reasons: Vec::new(),
            });
        }
    }
    let below = depth + 1;
    for child in plan.children() {
        // Only a plain scan is a source; an operator below a GPU node is still CPU work.
        let feeds_gpu =
            (plan.is::<GpuAggregateExec>() || feeds_gpu) && (is_leaf(child) || is_exchange(child));
        walk(child, below, feeds_gpu, found);
    }
}

fn is_leaf(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.children().is_empty()
}

fn is_exchange(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<CoalescePartitionsExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<CooperativeExec>()
        || plan.is::<SortPreservingMergeExec>()
}

fn detail(plan: &Arc<dyn ExecutionPlan>) -> String {
    let line = displayable(plan.as_ref()).one_line().to_string();
    let line = line.trim();
    line.strip_prefix(plan.name())
        .map(|rest| rest.trim_start_matches(':').trim())
        .unwrap_or(line)
        .to_string()
}

fn reason(plan: &Arc<dyn ExecutionPlan>) -> Reason {
    if let Some(Err(reason)) = rewrite::mark(plan) {
        return reason;
    }
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

/// The nodes that compute on the CPU, as the fallbacks they are when a GPU was asked
/// for.
pub fn planned_fallbacks(plan: &Arc<dyn ExecutionPlan>) -> Vec<Fallback> {
    let kept = placements(plan)
        .into_iter()
        .filter(|placement| placement.verdict == Verdict::CannotRun);
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
    if let Some(gpu) = plan.downcast_ref::<GpuAggregateExec>() {
        match gpu.outcome() {
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
        if only_refused && placement.verdict != Verdict::CannotRun {
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
            Verdict::Source => "feeds rows on the CPU".to_string(),
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
