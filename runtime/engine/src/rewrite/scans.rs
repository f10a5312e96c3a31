//! Scans read columns; what is computed of them stands above.
//!
//! ```text
//!                                      Projection: x + 1, y
//!   Scan: x + 1, y          ->           Scan: x, y
//! ```
//!
//! DataFusion moves projections into the scans of files, which then compute on the CPU
//! what the GPU could, and nobody is told. The rule that moves them goes on doing so with
//! columns.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// DataFusion's rules, of which none moves computation into a scan.
pub fn with_plain_scans(rules: Vec<Rule>) -> Vec<Rule> {
    let kept = rules.into_iter().map(|rule| match rule.name() {
        "ProjectionPushdown" => Arc::new(PlainScans(rule)) as Rule,
        _ => rule,
    });
    kept.collect()
}

/// The rule that moves projections, and what takes computation out of scans again.
#[derive(Debug)]
struct PlainScans(Rule);

impl PhysicalOptimizerRule for PlainScans {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let before = scans(&plan)?;
        let moved = self.0.optimize(plan, config)?;
        if scans(&moved)?.len() != before.len() {
            return Ok(moved);
        }
        // Projections move; the scans stay in their sequence.
        let mut before = before.into_iter();
        let plain = moved.transform_up(|node| {
            if !node.is::<DataSourceExec>() {
                return Ok(Transformed::no(node));
            }
            let plain = match before.next() {
                Some(before) => split(&before, &node)?,
                None => None,
            };
            Ok(plain.map_or_else(|| Transformed::no(node), Transformed::yes))
        });
        plain.map(|plain| plain.data)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

fn scans(plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<Arc<dyn ExecutionPlan>>> {
    let mut found = Vec::new();
    plan.apply(|node| {
        if node.is::<DataSourceExec>() {
            found.push(Arc::clone(node));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// The scan as it was, reading the columns that are needed, and above it what `now`
/// computes. `None` when it computes nothing.
fn split(
    before: &Arc<dyn ExecutionPlan>,
    now: &Arc<dyn ExecutionPlan>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let (Some(was), Some(is)) = (file_projection(before), file_projection(now)) else {
        return Ok(None);
    };
    let computes = is
        .iter()
        .any(|output| !output.expr.is::<Column>() && !output.expr.is::<Literal>());
    if !computes {
        return Ok(None);
    }
    // The number of each table column in the output of the scan as it was.
    let own = |index: usize| {
        was.iter().position(|output| {
            let column = output.expr.downcast_ref::<Column>();
            column.is_some_and(|column| column.index() == index)
        })
    };
    let schema = before.schema();
    let mut read: Vec<usize> = Vec::new();
    for column in is.iter().flat_map(|output| collect_columns(&output.expr)) {
        match own(column.index()) {
            Some(number) if !read.contains(&number) => read.push(number),
            Some(_) => {}
            None => return Ok(None),
        }
    }
    read.sort_unstable();
    let columns = ProjectionExprs::from_indices(&read, &schema);
    let columns = ProjectionExec::try_new(columns.iter().cloned(), Arc::clone(before))?;
    let Some(scan) = before.try_swapping_with_projection(&columns)? else {
        return Ok(None);
    };
    let schema = scan.schema();
    let outputs = is.iter().map(|output| {
        let expr = Arc::clone(&output.expr).transform(|node| {
            let number = node.downcast_ref::<Column>().and_then(|column| {
                let number = own(column.index())?;
                read.iter().position(|other| *other == number)
            });
            Ok(match number {
                Some(number) => {
                    let name = schema.field(number).name();
                    let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, number));
                    Transformed::yes(column)
                }
                None => Transformed::no(node),
            })
        })?;
        Ok(ProjectionExpr::new(expr.data, output.alias.clone()))
    });
    let outputs = outputs.collect::<Result<Vec<_>>>()?;
    Ok(Some(Arc::new(ProjectionExec::try_new(outputs, scan)?)))
}

/// What a scan of files gives out, over the columns of its table.
fn file_projection(scan: &Arc<dyn ExecutionPlan>) -> Option<ProjectionExprs> {
    let scan = scan.downcast_ref::<DataSourceExec>()?;
    let files = scan.data_source().downcast_ref::<FileScanConfig>()?;
    files.file_source().projection().cloned()
}
