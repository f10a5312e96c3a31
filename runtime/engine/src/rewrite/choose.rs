//! Is it worth it? Rows cross to the device and back.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;

use super::mark::{Candidate, computes_nothing, mark};
use crate::report::Reason;

/// Whether what can run on the GPU should. Without `allow_fallback` everything that
/// can should.
pub fn choose(candidate: &Candidate, allow_fallback: bool) -> bool {
    let Candidate::Collect(collect) = candidate else {
        return true;
    };
    !allow_fallback || !is_fed_by_cpu(&collect.source)
}

/// Whether rows come out of an operator that computes on the CPU, rather than from a
/// scan or from the GPU.
fn is_fed_by_cpu(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let children = plan.children();
    if children.is_empty() || crate::exec::gpu_node(plan).is_some() {
        return false;
    }
    if computes_nothing(plan) {
        return children.iter().any(|child| is_fed_by_cpu(child));
    }
    match mark(plan) {
        Some(Ok(candidate)) => !choose(&candidate, true),
        _ => true,
    }
}

/// Why a node that could run on the GPU was kept on the CPU.
pub fn not_worth_it() -> Reason {
    Reason {
        code: "not-worth-it".to_string(),
        message: "its rows come from the CPU, and moving them costs more than it saves".to_string(),
        fix: "accelerator.fallback: fail places everything that can run on the GPU".to_string(),
    }
}
