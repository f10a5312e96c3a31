//! The CPU subtree over the rows that a device did not get to.
//!
//! ```text
//!   Projection              Projection
//!     Filter          ->      Filter
//!       source                  the chunk that failed, then the rest of the partition
//! ```
//!
//! The source has given these rows to nobody else and need not be read again, which may
//! give other rows to the same partition. So a partition can go on at any chunk.

use std::fmt;
use std::sync::{Arc, Mutex};

use arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{EmptyRecordBatchStream, ExecutionPlan};

use super::codes::internal;

/// Runs the filters and projections of `original`, the `depth` topmost nodes, over rows.
pub fn run_over(
    original: &Arc<dyn ExecutionPlan>,
    depth: usize,
    rows: SendableRecordBatchStream,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    over(original, depth, rows)?.execute(0, context)
}

fn over(
    plan: &Arc<dyn ExecutionPlan>,
    depth: usize,
    rows: SendableRecordBatchStream,
) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(depth) = depth.checked_sub(1) else {
        let given: Arc<dyn PartitionStream> = Arc::new(Given {
            schema: plan.schema(),
            rows: Mutex::new(Some(rows)),
        });
        let source =
            StreamingTableExec::try_new(plan.schema(), vec![given], None, [], false, None)?;
        return Ok(Arc::new(source));
    };
    let children = plan.children();
    let [child] = children.as_slice() else {
        return Err(internal(format!("{} has several sources", plan.name())));
    };
    let below = over(child, depth, rows)?;
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(plan).replace_children(vec![below], options)
}

/// How many nodes stand above a source, one below the other.
pub fn depth_of(plan: &Arc<dyn ExecutionPlan>, source: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    if Arc::ptr_eq(plan, source) {
        return Some(0);
    }
    match plan.children().as_slice() {
        [child] => depth_of(child, source).map(|depth| depth + 1),
        _ => None,
    }
}

/// Rows that are there once.
struct Given {
    schema: SchemaRef,
    rows: Mutex<Option<SendableRecordBatchStream>>,
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Given")
    }
}

impl PartitionStream for Given {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = self.rows.lock().ok().and_then(|mut rows| rows.take());
        rows.unwrap_or_else(|| {
            let schema = Arc::clone(&self.schema);
            Box::pin(EmptyRecordBatchStream::new(schema))
        })
    }
}
