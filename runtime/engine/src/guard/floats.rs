//! One zero, one NaN, and NaN sorts last.
//!
//! Arrow compares floats in IEEE's total order: `-0.0` is not `0.0`, and a NaN with
//! its sign bit set (what x86 makes of `0.0 / 0.0`) sorts first. File statistics
//! leave NaN out, so pruning with them loses NaN rows. Every place that compares,
//! groups or orders floats gets its operands through `float_key`, which maps
//! `-0.0` to `0.0` and every NaN to the positive one. Statistics do not see through
//! a function, so such a predicate no longer prunes, which is the point.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, Float32Array, Float64Array};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr::{InSubquery, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, ColumnarValue, Distinct, Expr, ExprSchemable, LogicalPlan,
    LogicalPlanBuilder, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Subquery, Volatility,
};
use datafusion::optimizer::analyzer::AnalyzerRule;

/// `float_key(x)`: `x` with one zero and one NaN.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct FloatKey {
    signature: Signature,
}

impl FloatKey {
    /// The function's name, for those who look through it.
    pub const NAME: &'static str = "float_key";

    fn call(expr: Expr) -> Expr {
        let udf = ScalarUDF::new_from_impl(FloatKey {
            signature: Signature::any(1, Volatility::Immutable),
        });
        Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(udf), vec![expr]))
    }
}

fn key_64(value: f64) -> f64 {
    if value.is_nan() {
        f64::from_bits(0x7ff8_0000_0000_0000)
    } else {
        value + 0.0
    }
}

fn key_32(value: f32) -> f32 {
    if value.is_nan() {
        f32::from_bits(0x7fc0_0000)
    } else {
        value + 0.0
    }
}

impl ScalarUDFImpl for FloatKey {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        Ok(arg_types[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let field = &args.arg_fields[0];
        Ok(Arc::new(Field::new(
            self.name(),
            field.data_type().clone(),
            field.is_nullable(),
        )))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(match &args.args[0] {
            ColumnarValue::Scalar(ScalarValue::Float64(value)) => {
                ColumnarValue::Scalar(ScalarValue::Float64(value.map(key_64)))
            }
            ColumnarValue::Scalar(ScalarValue::Float32(value)) => {
                ColumnarValue::Scalar(ScalarValue::Float32(value.map(key_32)))
            }
            ColumnarValue::Array(array) => ColumnarValue::Array(match array.data_type() {
                DataType::Float64 => {
                    let keys: Float64Array = array.as_primitive::<Float64Type>().unary(key_64);
                    Arc::new(keys) as ArrayRef
                }
                DataType::Float32 => {
                    let keys: Float32Array = array.as_primitive::<Float32Type>().unary(key_32);
                    Arc::new(keys)
                }
                other => return internal_err!("float_key of {other}"),
            }),
            ColumnarValue::Scalar(other) => return internal_err!("float_key of {other}"),
        })
    }
}

/// The rule that puts `float_key` where it matters.
#[derive(Debug)]
pub struct OneZeroOneNan;

impl AnalyzerRule for OneZeroOneNan {
    fn name(&self) -> &str {
        "one_zero_one_nan"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        if !any_float_anywhere(&plan)? {
            return Ok(plan);
        }
        Ok(plan.transform_up_with_subqueries(rewrite_node)?.data)
    }
}

/// Whether a float may come up in a plan or one of its subqueries: in a column, or in an
/// expression that gives one of what is none.
fn any_float_anywhere(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= has_floats(node)
            || node.inputs().into_iter().any(has_floats)
            || matches!(node, LogicalPlan::TableScan(scan)
                if scan.source.schema().fields().iter().any(|f| is_float_type(f.data_type())));
        Ok(match found {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    // A column of an aggregate or a window has its type; any other function may give a
    // float that is used where it stands.
    Ok(found
        || super::any_expression(plan, |expr| match expr {
            Expr::Literal(value, _) => is_float_type(&value.data_type()),
            Expr::Cast(cast) => is_float_type(cast.field.data_type()),
            Expr::TryCast(cast) => is_float_type(cast.field.data_type()),
            Expr::ScalarFunction(_) | Expr::ScalarVariable(..) | Expr::Placeholder(_) => true,
            _ => false,
        })?)
}

fn is_float(expr: &Expr, schema: &DFSchema) -> bool {
    expr.get_type(schema)
        .is_ok_and(|data_type| is_float_type(&data_type))
}

fn is_float_type(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64)
}

fn is_key(expr: &Expr) -> bool {
    match expr {
        Expr::ScalarFunction(function) => function.func.name() == FloatKey::NAME,
        Expr::Literal(ScalarValue::Float64(Some(value)), _) => *value != 0.0 && !value.is_nan(),
        _ => false,
    }
}

fn key(expr: Expr, schema: &DFSchema) -> Expr {
    if is_float(&expr, schema) && !is_key(&expr) {
        FloatKey::call(expr)
    } else {
        expr
    }
}

fn key_box(expr: Expr, schema: &DFSchema) -> Box<Expr> {
    Box::new(key(expr, schema))
}

/// The same rows with every float column through `float_key`.
fn keyed(plan: LogicalPlan) -> Result<LogicalPlan> {
    let columns: Vec<Expr> = plan
        .schema()
        .iter()
        .map(|(qualifier, field)| {
            let column = Expr::Column(datafusion::common::Column::new(
                qualifier.cloned(),
                field.name(),
            ));
            if is_float_type(field.data_type()) {
                FloatKey::call(column).alias_qualified(qualifier.cloned(), field.name())
            } else {
                column
            }
        })
        .collect();
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}

fn has_floats(plan: &LogicalPlan) -> bool {
    plan.schema()
        .fields()
        .iter()
        .any(|field| is_float_type(field.data_type()))
}

fn rewrite_node(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let schema = super::input_schema(&plan)?;
    let plan = match plan {
        LogicalPlan::Distinct(Distinct::All(input)) if has_floats(&input) => {
            LogicalPlan::Distinct(Distinct::All(Arc::new(keyed(Arc::unwrap_or_clone(input))?)))
        }
        LogicalPlan::Distinct(Distinct::On(mut on)) => {
            on.on_expr = on
                .on_expr
                .into_iter()
                .map(|expr| key(expr, &schema))
                .collect();
            LogicalPlan::Distinct(Distinct::On(on))
        }
        LogicalPlan::Sort(mut sort) => {
            for by in &mut sort.expr {
                by.expr = key(by.expr.clone(), &schema);
            }
            LogicalPlan::Sort(sort)
        }
        LogicalPlan::Join(mut join) => {
            join.on = join
                .on
                .into_iter()
                .map(|(left, right)| (key(left, &schema), key(right, &schema)))
                .collect();
            LogicalPlan::Join(join)
        }
        LogicalPlan::Aggregate(aggregate) => key_groups(aggregate, &schema)?,
        other => other,
    };
    let names = NamePreserver::new(&plan);
    let plan = plan.map_expressions(|expr| {
        let name = names.save(&expr);
        let expr = expr.transform_up(|expr| rewrite_expr(expr, &schema))?;
        Ok(expr.update_data(|expr| name.restore(expr)))
    })?;
    Ok(Transformed::yes(plan.data.recompute_schema()?))
}

/// Group keys that are columns are replaced below the aggregate, so that grouping
/// sets keep referring to plain columns; other keys are replaced in place.
fn key_groups(aggregate: Aggregate, schema: &DFSchema) -> Result<LogicalPlan> {
    fn any_float(expr: &Expr, schema: &DFSchema) -> bool {
        match expr {
            Expr::GroupingSet(sets) => sets
                .distinct_expr()
                .iter()
                .any(|expr| is_float(expr, schema)),
            other => is_float(other, schema),
        }
    }
    if !aggregate
        .group_expr
        .iter()
        .any(|expr| any_float(expr, schema))
    {
        return Ok(LogicalPlan::Aggregate(aggregate));
    }
    let group_expr = aggregate
        .group_expr
        .into_iter()
        .map(|expr| match expr {
            Expr::Column(_) | Expr::GroupingSet(_) => expr,
            other if is_float(&other, schema) => {
                let (qualifier, name) = other.qualified_name();
                FloatKey::call(other.unalias()).alias_qualified(qualifier, name)
            }
            other => other,
        })
        .collect();
    let input = keyed(Arc::unwrap_or_clone(aggregate.input))?;
    Ok(LogicalPlan::Aggregate(Aggregate::try_new(
        Arc::new(input),
        group_expr,
        aggregate.aggr_expr,
    )?))
}

fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(
        op,
        Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom
    )
}

fn rewrite_expr(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if is_comparison(op) && (is_float(&left, schema) || is_float(&right, schema)) =>
        {
            Transformed::yes(Expr::BinaryExpr(BinaryExpr {
                left: key_box(*left, schema),
                op,
                right: key_box(*right, schema),
            }))
        }
        Expr::Between(mut between) if is_float(&between.expr, schema) => {
            between.expr = key_box(*between.expr, schema);
            between.low = key_box(*between.low, schema);
            between.high = key_box(*between.high, schema);
            Transformed::yes(Expr::Between(between))
        }
        Expr::InList(mut list) if is_float(&list.expr, schema) => {
            list.expr = key_box(*list.expr, schema);
            list.list = list
                .list
                .into_iter()
                .map(|item| key(item, schema))
                .collect();
            Transformed::yes(Expr::InList(list))
        }
        Expr::InSubquery(InSubquery {
            expr,
            subquery,
            negated,
        }) if is_float(&expr, schema) => {
            let plan = keyed(Arc::unwrap_or_clone(subquery.subquery))?;
            Transformed::yes(Expr::InSubquery(InSubquery {
                expr: key_box(*expr, schema),
                subquery: Subquery {
                    subquery: Arc::new(plan),
                    ..subquery
                },
                negated,
            }))
        }
        Expr::Case(mut case)
            if case
                .expr
                .as_ref()
                .is_some_and(|base| is_float(base, schema)) =>
        {
            case.expr = case.expr.map(|base| key_box(*base, schema));
            case.when_then_expr = case
                .when_then_expr
                .into_iter()
                .map(|(when, then)| (key_box(*when, schema), then))
                .collect();
            Transformed::yes(Expr::Case(case))
        }
        Expr::AggregateFunction(mut function) => {
            let compares =
                function.params.distinct || matches!(function.func.name(), "min" | "max");
            if compares {
                function.params.args = function
                    .params
                    .args
                    .into_iter()
                    .map(|arg| key(arg, schema))
                    .collect();
            }
            for by in &mut function.params.order_by {
                by.expr = key(by.expr.clone(), schema);
            }
            Transformed::yes(Expr::AggregateFunction(function))
        }
        Expr::WindowFunction(mut function) => {
            let compares = function.params.distinct || matches!(function.fun.name(), "min" | "max");
            if compares {
                function.params.args = function
                    .params
                    .args
                    .into_iter()
                    .map(|arg| key(arg, schema))
                    .collect();
            }
            function.params.partition_by = function
                .params
                .partition_by
                .into_iter()
                .map(|expr| key(expr, schema))
                .collect();
            for by in &mut function.params.order_by {
                by.expr = key(by.expr.clone(), schema);
            }
            Transformed::yes(Expr::WindowFunction(function))
        }
        Expr::ScalarFunction(mut function)
            if matches!(function.func.name(), "nullif" | "greatest" | "least") =>
        {
            function.args = function
                .args
                .into_iter()
                .map(|arg| key(arg, schema))
                .collect();
            Transformed::yes(Expr::ScalarFunction(function))
        }
        other => Transformed::no(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_zero_and_one_nan() {
        assert!(key_64(-0.0).is_sign_positive());
        assert_eq!(key_64(-f64::NAN).to_bits(), key_64(f64::NAN).to_bits());
        assert!(key_32(-0.0).is_sign_positive());
        assert_eq!(key_64(f64::MIN_POSITIVE), f64::MIN_POSITIVE);
    }
}
