//! Integer arithmetic that fails instead of wrapping.
//!
//! DataFusion evaluates `+`, `-` and `*` on integers with wrapping arithmetic. Its
//! physical `BinaryExpr` can check, but nothing in SQL planning asks for it:
//!
//! ```text
//! a + b     --MarkChecked-->   checked_add(a, b)     --UseChecked-->   a + b, failing
//! logical                      logical, folded,                        physical
//!                              pushed and shared
//! ```
//!
//! A node that [`UseChecked`] does not know keeps the function, which gives the same
//! answer.

use std::sync::Arc;

use datafusion::arrow::compute::kernels::numeric::{add, mul, sub};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    BinaryExpr as LogicalBinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator,
    ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};
use datafusion::optimizer::analyzer::AnalyzerRule;
use datafusion::physical_expr::expressions::BinaryExpr;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_common::datum::apply;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, PhysicalGroupBy};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

use crate::error::Error;

/// `checked_add`, `checked_subtract` or `checked_multiply`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Checked {
    op: Operator,
    signature: Signature,
}

impl Checked {
    fn new(op: Operator) -> Self {
        Self {
            op,
            signature: Signature::any(2, Volatility::Immutable),
        }
    }

    /// The operator that is checked: plus, minus or multiply.
    pub fn operator(&self) -> Operator {
        self.op
    }

    fn call(op: Operator, left: Expr, right: Expr) -> Expr {
        let udf = Arc::new(ScalarUDF::new_from_impl(Checked::new(op)));
        Expr::ScalarFunction(ScalarFunction::new_udf(udf, vec![left, right]))
    }
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        match self.op {
            Operator::Plus => "checked_add",
            Operator::Minus => "checked_subtract",
            _ => "checked_multiply",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        Ok(arg_types[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(
            self.name(),
            args.arg_fields[0].data_type().clone(),
            nullable,
        )))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [left, right] = args.args.as_slice() else {
            return internal_err!("two arguments expected");
        };
        match self.op {
            Operator::Plus => apply(left, right, add),
            Operator::Minus => apply(left, right, sub),
            _ => apply(left, right, mul),
        }
    }
}

/// Logical: integer `+`, `-`, `*` and unary minus become checked functions.
#[derive(Debug)]
pub struct MarkChecked;

impl AnalyzerRule for MarkChecked {
    fn name(&self) -> &str {
        "mark_checked_arithmetic"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        use Operator::{Minus, Multiply, Plus};
        let computes = |expr: &Expr| match expr {
            Expr::BinaryExpr(binary) => matches!(binary.op, Plus | Minus | Multiply),
            other => matches!(other, Expr::Negative(_)),
        };
        let plan = super::map_expressions(plan, computes, |expr, schema| {
            expr.transform_up(|expr| {
                let is_integer = |expr: &Expr| {
                    expr.get_type(schema)
                        .is_ok_and(|data_type| data_type.is_integer())
                };
                match expr {
                    Expr::BinaryExpr(LogicalBinaryExpr {
                        left,
                        op: op @ (Operator::Plus | Operator::Minus | Operator::Multiply),
                        right,
                    }) if is_integer(&left) && is_integer(&right) => {
                        Ok(Transformed::yes(Checked::call(op, *left, *right)))
                    }
                    Expr::Negative(inner)
                        if is_integer(&inner) && !matches!(inner.as_ref(), Expr::Literal(_, _)) =>
                    {
                        let zero = ScalarValue::new_zero(&inner.get_type(schema)?)?;
                        Ok(Transformed::yes(Checked::call(
                            Operator::Minus,
                            lit(zero),
                            *inner,
                        )))
                    }
                    other => Ok(Transformed::no(other)),
                }
            })
        })?;
        Ok(plan.data)
    }
}

/// Physical: checked functions become operators that check.
#[derive(Debug)]
pub struct UseChecked;

impl PhysicalOptimizerRule for UseChecked {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(plan.transform_up(rewrite_node)?.data)
    }

    fn name(&self) -> &str {
        "use_checked_arithmetic"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn rewrite(expr: &Arc<dyn PhysicalExpr>) -> Result<Transformed<Arc<dyn PhysicalExpr>>> {
    Arc::clone(expr).transform_up(|expr| {
        let Some(function) = expr.downcast_ref::<ScalarFunctionExpr>() else {
            return Ok(Transformed::no(expr));
        };
        let Some(checked) = function.fun().inner().downcast_ref::<Checked>() else {
            return Ok(Transformed::no(expr));
        };
        let [left, right] = function.args() else {
            return internal_err!("two arguments expected");
        };
        let binary = BinaryExpr::new(Arc::clone(left), checked.operator(), Arc::clone(right))
            .with_fail_on_overflow(true);
        Ok(Transformed::yes(Arc::new(binary) as Arc<dyn PhysicalExpr>))
    })
}

fn rewrite_filter(filter: Option<&JoinFilter>) -> Result<Option<Option<JoinFilter>>> {
    let Some(filter) = filter else {
        return Ok(None);
    };
    let expression = rewrite(filter.expression())?;
    Ok(expression.transformed.then(|| {
        Some(JoinFilter::new(
            expression.data,
            filter.column_indices().to_vec(),
            Arc::clone(filter.schema()),
        ))
    }))
}

fn rewrite_node(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let predicate = rewrite(filter.predicate())?;
        if predicate.transformed {
            let filter = FilterExecBuilder::from(filter)
                .with_predicate(predicate.data)
                .build()?;
            return Ok(Transformed::yes(Arc::new(filter)));
        }
    } else if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let mut changed = false;
        let exprs = projection
            .expr()
            .iter()
            .map(|projected| {
                let expr = rewrite(&projected.expr)?;
                changed |= expr.transformed;
                Ok(ProjectionExpr {
                    expr: expr.data,
                    alias: projected.alias.clone(),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        if changed {
            let projection = ProjectionExec::try_new(exprs, Arc::clone(projection.input()))?;
            return Ok(Transformed::yes(Arc::new(projection)));
        }
    } else if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        return rewrite_aggregate(&plan, aggregate);
    } else if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        let mut changed = false;
        let on = join
            .on
            .iter()
            .map(|(left, right)| {
                let (left, right) = (rewrite(left)?, rewrite(right)?);
                changed |= left.transformed || right.transformed;
                Ok((left.data, right.data))
            })
            .collect::<Result<Vec<_>>>()?;
        let filter = rewrite_filter(join.filter.as_ref())?;
        if changed || filter.is_some() {
            let filter = filter.unwrap_or_else(|| join.filter.clone());
            let join = join.builder().with_on(on).with_filter(filter).build()?;
            return Ok(Transformed::yes(Arc::new(join)));
        }
    } else if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>()
        && let Some(filter) = rewrite_filter(join.filter())?
    {
        let join = NestedLoopJoinExec::try_new(
            Arc::clone(join.left()),
            Arc::clone(join.right()),
            filter,
            join.join_type(),
            join.projection()
                .as_ref()
                .map(|projection| projection.to_vec()),
        )?;
        return Ok(Transformed::yes(Arc::new(join)));
    }
    Ok(Transformed::no(plan))
}

fn rewrite_aggregate(
    plan: &Arc<dyn ExecutionPlan>,
    aggregate: &AggregateExec,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let mut changed = false;
    let mut rewrite_all =
        |exprs: Vec<Arc<dyn PhysicalExpr>>| -> Result<Vec<Arc<dyn PhysicalExpr>>> {
            exprs
                .iter()
                .map(|expr| {
                    let expr = rewrite(expr)?;
                    changed |= expr.transformed;
                    Ok(expr.data)
                })
                .collect()
        };
    let functions = aggregate
        .aggr_expr()
        .iter()
        .map(|function| {
            let args = rewrite_all(function.expressions())?;
            let order = rewrite_all(
                function
                    .order_bys()
                    .iter()
                    .map(|sort| Arc::clone(&sort.expr))
                    .collect(),
            )?;
            function
                .with_new_expressions(args, order)
                .map(Arc::new)
                .ok_or_else(|| {
                    DataFusionError::External(Box::new(Error::Internal {
                        message: format!("the arguments of {} cannot be replaced", function.name()),
                    }))
                })
        })
        .collect::<Result<Vec<_>>>()?;
    let groups = aggregate.group_expr();
    let (keys, names): (Vec<_>, Vec<_>) = groups.expr().iter().cloned().unzip();
    let keys = rewrite_all(keys)?.into_iter().zip(names).collect();
    let filters = aggregate
        .filter_expr()
        .iter()
        .map(|filter| match filter {
            Some(filter) => Ok(rewrite_all(vec![Arc::clone(filter)])?.pop()),
            None => Ok(None),
        })
        .collect::<Result<Vec<_>>>()?;
    // Rebuilding loses the flag of a reversed aggregate; none exists this early.
    if !changed {
        return Ok(Transformed::no(Arc::clone(plan)));
    }
    let groups = PhysicalGroupBy::new(
        keys,
        groups.null_expr().to_vec(),
        groups.groups().to_vec(),
        groups.has_grouping_set(),
    );
    let aggregate = AggregateExec::try_new(
        *aggregate.mode(),
        groups,
        functions,
        filters,
        Arc::clone(aggregate.input()),
        aggregate.input_schema(),
    )?
    .with_limit_options(aggregate.limit_options());
    Ok(Transformed::yes(Arc::new(aggregate)))
}
