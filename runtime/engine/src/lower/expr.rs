//! One physical expression to one pipeline expression.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, DynamicFilterPhysicalExpr, InListExpr, IsNotNullExpr,
    IsNullExpr, LikeExpr, Literal as PhysicalLiteral, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_plan::PhysicalExpr;
use kernels::codegen::Unsupported;
use kernels::columns::type_of;
use kernels::ir::{BinaryOp, Expr, Kind, Literal, Type, UnaryOp};

use super::functions::{lower_function, lower_like};
use super::inputs::Inputs;
use crate::cpu::narrow::NarrowExpr;
use crate::report::Reason;

/// Lowers an expression over these inputs, or says why it cannot run on the GPU.
pub fn lower(expr: &Arc<dyn PhysicalExpr>, inputs: &Inputs) -> Result<Expr, Reason> {
    if let Some(column) = expr.downcast_ref::<Column>() {
        return match inputs.column(column.index()) {
            Some(known) => known.clone(),
            None => Err(unsupported_expression(expr)),
        };
    }
    if expr.is::<ScalarSubqueryExpr>() {
        return inputs.late().lower(expr);
    }
    if let Some(literal) = expr.downcast_ref::<PhysicalLiteral>() {
        return lower_literal(literal.value()).map_err(|e| reason(&e, expr));
    }
    if is_hint(expr) {
        return Ok(Expr::literal(Literal::Bool(true), Type::Bool));
    }
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return lower_binary(expr, binary, inputs);
    }
    if let Some(narrow) = expr.downcast_ref::<NarrowExpr>() {
        return lower(narrow.plain(), inputs);
    }
    if let Some(not) = expr.downcast_ref::<NotExpr>() {
        return unary(UnaryOp::Not, not.arg(), inputs);
    }
    if let Some(negative) = expr.downcast_ref::<NegativeExpr>() {
        return unary(UnaryOp::Negate, negative.arg(), inputs);
    }
    if let Some(is_null) = expr.downcast_ref::<IsNullExpr>() {
        return unary(UnaryOp::IsNull, is_null.arg(), inputs);
    }
    if let Some(is_not_null) = expr.downcast_ref::<IsNotNullExpr>() {
        return unary(UnaryOp::IsNotNull, is_not_null.arg(), inputs);
    }
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        let arg = lower(cast.expr(), inputs)?;
        let ty = value_type(cast.cast_type()).map_err(|e| reason(&e, expr))?;
        if arg.ty == ty {
            return Ok(arg);
        }
        let nullable = arg.nullable;
        let kind = Kind::Cast {
            arg: Arc::new(arg),
            try_cast: cast.cast_options().safe,
        };
        return Ok(Expr { kind, ty, nullable });
    }
    if let Some(cast) = expr.downcast_ref::<TryCastExpr>() {
        let arg = lower(cast.expr(), inputs)?;
        let ty = value_type(cast.cast_type()).map_err(|e| reason(&e, expr))?;
        if arg.ty == ty {
            return Ok(arg);
        }
        let kind = Kind::Cast {
            arg: Arc::new(arg),
            try_cast: true,
        };
        let nullable = true;
        return Ok(Expr { kind, ty, nullable });
    }
    if let Some(case) = expr.downcast_ref::<CaseExpr>() {
        return lower_case(expr, case, inputs);
    }
    if let Some(in_list) = expr.downcast_ref::<InListExpr>() {
        let arg = lower(in_list.expr(), inputs)?;
        let items = in_list
            .list()
            .iter()
            .map(|item| lower(item, inputs))
            .collect::<Result<Vec<_>, _>>()?;
        let nullable = arg.nullable || items.iter().any(|item| item.nullable);
        let kind = Kind::InList {
            arg: Arc::new(arg),
            items,
            negated: in_list.negated(),
        };
        return Ok(Expr {
            kind,
            ty: Type::Bool,
            nullable,
        });
    }
    if let Some(like) = expr.downcast_ref::<LikeExpr>() {
        return lower_like(expr, like, inputs);
    }
    if let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() {
        return lower_function(expr, call, inputs);
    }
    Err(unsupported_expression(expr))
}

/// Whether a condition only lets rows out that an operator above would not keep: a CPU
/// operator fills it in while it runs, and any answer is right without it.
pub fn is_hint(expr: &Arc<dyn PhysicalExpr>) -> bool {
    match expr.downcast_ref::<BinaryExpr>() {
        Some(both) if *both.op() == Operator::And => is_hint(both.left()) && is_hint(both.right()),
        _ => expr.is::<DynamicFilterPhysicalExpr>(),
    }
}

/// The type of a value inside a pipeline. Text is one there, however Arrow lays out columns
/// of it.
pub(super) fn value_type(data_type: &DataType) -> Result<Type, Unsupported> {
    match data_type {
        DataType::Utf8View | DataType::LargeUtf8 => Ok(Type::Utf8),
        _ => type_of(data_type),
    }
}

pub(super) fn unary(
    op: UnaryOp,
    arg: &Arc<dyn PhysicalExpr>,
    inputs: &Inputs,
) -> Result<Expr, Reason> {
    let arg = lower(arg, inputs)?;
    let (ty, nullable) = match op {
        UnaryOp::Negate | UnaryOp::FloatKey => (arg.ty, arg.nullable),
        UnaryOp::Not => (Type::Bool, arg.nullable),
        UnaryOp::IsNull | UnaryOp::IsNotNull => (Type::Bool, false),
    };
    Ok(Expr {
        kind: Kind::Unary(op, Arc::new(arg)),
        ty,
        nullable,
    })
}

fn lower_binary(
    expr: &Arc<dyn PhysicalExpr>,
    binary: &BinaryExpr,
    inputs: &Inputs,
) -> Result<Expr, Reason> {
    let op = match binary.op() {
        Operator::Plus => BinaryOp::Add,
        Operator::Minus => BinaryOp::Subtract,
        Operator::Multiply => BinaryOp::Multiply,
        Operator::Divide => BinaryOp::Divide,
        Operator::Modulo => BinaryOp::Modulo,
        Operator::Eq => BinaryOp::Equal,
        Operator::NotEq => BinaryOp::NotEqual,
        Operator::Lt => BinaryOp::Less,
        Operator::LtEq => BinaryOp::LessOrEqual,
        Operator::Gt => BinaryOp::Greater,
        Operator::GtEq => BinaryOp::GreaterOrEqual,
        Operator::IsDistinctFrom => BinaryOp::IsDistinctFrom,
        Operator::IsNotDistinctFrom => BinaryOp::IsNotDistinctFrom,
        Operator::And => BinaryOp::And,
        Operator::Or => BinaryOp::Or,
        _ => return Err(unsupported_expression(expr)),
    };
    let left = lower(binary.left(), inputs)?;
    let right = lower(binary.right(), inputs)?;
    let nullable = match op {
        BinaryOp::IsDistinctFrom | BinaryOp::IsNotDistinctFrom => false,
        _ => left.nullable || right.nullable,
    };
    let ty = match op {
        BinaryOp::Add
        | BinaryOp::Subtract
        | BinaryOp::Multiply
        | BinaryOp::Divide
        | BinaryOp::Modulo => result_type(expr, &left, &right)?,
        _ => Type::Bool,
    };
    Ok(Expr {
        kind: Kind::Binary(op, Arc::new(left), Arc::new(right)),
        ty,
        nullable,
    })
}

/// The planner's own result type: it needs a schema only to look columns up, and
/// the operands' types say all that it would find there.
fn result_type(expr: &Arc<dyn PhysicalExpr>, left: &Expr, right: &Expr) -> Result<Type, Reason> {
    let (Some(a), Some(b)) = (arrow_type(left.ty), arrow_type(right.ty)) else {
        return Err(unsupported_expression(expr));
    };
    let Some(binary) = expr.downcast_ref::<BinaryExpr>() else {
        return Err(unsupported_expression(expr));
    };
    let types = datafusion::logical_expr::binary::BinaryTypeCoercer::new(&a, binary.op(), &b);
    let result = types
        .get_result_type()
        .map_err(|_| unsupported_expression(expr))?;
    type_of(&result).map_err(|e| reason(&e, expr))
}

/// The Arrow type of a pipeline type.
fn arrow_type(ty: Type) -> Option<DataType> {
    use kernels::ir::IntWidth::{W8, W16, W32, W64};
    Some(match ty {
        Type::Bool => DataType::Boolean,
        Type::Int(W8) => DataType::Int8,
        Type::Int(W16) => DataType::Int16,
        Type::Int(W32) => DataType::Int32,
        Type::Int(W64) => DataType::Int64,
        Type::UInt(W8) => DataType::UInt8,
        Type::UInt(W16) => DataType::UInt16,
        Type::UInt(W32) => DataType::UInt32,
        Type::UInt(W64) => DataType::UInt64,
        Type::Float32 => DataType::Float32,
        Type::Float64 => DataType::Float64,
        Type::Decimal { precision, scale } => DataType::Decimal128(precision, scale),
        // Arithmetic on dates and times takes intervals, which have no device form.
        Type::Date32 | Type::Timestamp(_) | Type::Utf8 => return None,
    })
}

/// When a branch of CASE is taken: its own condition, or that the subject equals its value.
pub(super) fn condition(subject: Option<&Expr>, when: Expr) -> Expr {
    let Some(subject) = subject else {
        return when;
    };
    Expr {
        nullable: subject.nullable || when.nullable,
        kind: Kind::Binary(BinaryOp::Equal, Arc::new(subject.clone()), Arc::new(when)),
        ty: Type::Bool,
    }
}

fn lower_case(
    expr: &Arc<dyn PhysicalExpr>,
    case: &CaseExpr,
    inputs: &Inputs,
) -> Result<Expr, Reason> {
    let subject = case
        .expr()
        .map(|subject| lower(subject, inputs))
        .transpose()?;
    let mut branches = Vec::new();
    for (when, then) in case.when_then_expr() {
        let condition = condition(subject.as_ref(), lower(when, inputs)?);
        branches.push((condition, lower(then, inputs)?));
    }
    let otherwise = case.else_expr().map(|e| lower(e, inputs)).transpose()?;
    let Some(ty) = branches.first().map(|(_, value)| value.ty) else {
        return Err(unsupported_expression(expr));
    };
    let values = branches.iter().map(|(_, value)| value).chain(&otherwise);
    let nullable = otherwise.is_none() || values.clone().any(|value| value.nullable);
    // A bare NULL branch has no type of its own worth comparing.
    if values.clone().any(|value| value.ty != ty) {
        return Err(unsupported_expression(expr));
    }
    let kind = Kind::Case {
        branches,
        otherwise: otherwise.map(Arc::new),
    };
    Ok(Expr { kind, ty, nullable })
}

/// A constant of the plan.
pub(crate) fn lower_literal(value: &ScalarValue) -> Result<Expr, Unsupported> {
    let ty = type_of(&value.data_type())?;
    if value.is_null() {
        return Ok(Expr::literal(Literal::Null, ty));
    }
    let integer = |v: i128| Ok(Expr::literal(Literal::Integer(v), ty));
    match value {
        ScalarValue::Boolean(Some(v)) => Ok(Expr::literal(Literal::Bool(*v), ty)),
        ScalarValue::Int8(Some(v)) => integer(i128::from(*v)),
        ScalarValue::Int16(Some(v)) => integer(i128::from(*v)),
        ScalarValue::Int32(Some(v)) | ScalarValue::Date32(Some(v)) => integer(i128::from(*v)),
        ScalarValue::Int64(Some(v))
        | ScalarValue::TimestampSecond(Some(v), None)
        | ScalarValue::TimestampMillisecond(Some(v), None)
        | ScalarValue::TimestampMicrosecond(Some(v), None)
        | ScalarValue::TimestampNanosecond(Some(v), None) => integer(i128::from(*v)),
        ScalarValue::UInt8(Some(v)) => integer(i128::from(*v)),
        ScalarValue::UInt16(Some(v)) => integer(i128::from(*v)),
        ScalarValue::UInt32(Some(v)) => integer(i128::from(*v)),
        ScalarValue::UInt64(Some(v)) => integer(i128::from(*v)),
        ScalarValue::Decimal128(Some(v), _, _) => integer(*v),
        ScalarValue::Float32(Some(v)) => {
            Ok(Expr::literal(Literal::Float(f64::from(*v).to_bits()), ty))
        }
        ScalarValue::Float64(Some(v)) => Ok(Expr::literal(Literal::Float(v.to_bits()), ty)),
        ScalarValue::Utf8(Some(v)) => Ok(Expr::literal(Literal::Text(v.as_str().into()), ty)),
        other => Err(Unsupported::data_type(other.data_type())),
    }
}

/// The reason that a kernel's refusal is, with whose it is.
pub fn reason(unsupported: &Unsupported, whose: impl std::fmt::Display) -> Reason {
    Reason {
        code: unsupported.code.to_string(),
        message: format!("{} ({whose})", unsupported.message),
        fix: String::new(),
    }
}

pub(super) fn unsupported_expression(expr: &Arc<dyn PhysicalExpr>) -> Reason {
    reason(&Unsupported::expression(expr), "expression")
}
