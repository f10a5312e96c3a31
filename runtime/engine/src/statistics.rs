//! What DataFusion says of a plan's rows.

use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

/// The statistics of all rows of a plan, if it has any.
pub fn statistics_of(plan: &dyn ExecutionPlan) -> Option<Arc<Statistics>> {
    StatisticsContext::new()
        .compute(plan, &StatisticsArgs::new())
        .ok()
}
