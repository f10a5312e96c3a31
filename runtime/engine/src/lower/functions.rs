//! Function calls, matched by their implementation: user functions and other dialects
//! reuse names with other meanings.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::functions::core::nullif::NullIfFunc;
use datafusion::functions::datetime::date_part::DatePartFunc;
use datafusion::functions::datetime::date_trunc::DateTruncFunc;
use datafusion::functions::string::lower::LowerFunc;
use datafusion::functions::string::octet_length::OctetLengthFunc;
use datafusion::functions::string::upper::UpperFunc;
use datafusion::functions::unicode::character_length::CharacterLengthFunc;
use datafusion::functions::unicode::substr::SubstrFunc;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, LikeExpr, Literal};
use datafusion::physical_plan::PhysicalExpr;
use kernels::columns::type_of;
use kernels::ir::{BinaryOp, DatePart, Expr, Kind, Literal as IrLiteral, TextOp, Type, UnaryOp};

use super::expr::{lower, lower_literal, reason, unary, unsupported_expression};
use super::inputs::Inputs;
use crate::guard::arithmetic::Checked;
use crate::guard::floats::FloatKey;
use crate::report::Reason;
use crate::udf::GuestFunction;

/// Lowers a function call, or says why it cannot run on the GPU.
pub(super) fn lower_function(
    expr: &Arc<dyn PhysicalExpr>,
    call: &ScalarFunctionExpr,
    inputs: &Inputs,
) -> Result<Expr, Reason> {
    let function = call.fun().inner();
    if function.is::<GuestFunction>() {
        return Err(Reason {
            code: "user-function".into(),
            message: format!("`{}` is a user function", call.name()),
            fix: "user functions run on the CPU".into(),
        });
    }
    let ty = type_of(call.return_type()).map_err(|e| reason(&e, expr))?;
    let refused = || unsupported_expression(expr);
    if function.is::<FloatKey>() {
        return match call.args() {
            [arg] => unary(UnaryOp::FloatKey, arg, inputs),
            _ => Err(refused()),
        };
    }
    if let (Some(checked), [left, right]) = (function.downcast_ref::<Checked>(), call.args()) {
        // Every operation is checked here; sort keys have it as a function.
        let (left, right) = (Arc::clone(left), Arc::clone(right));
        let plain = BinaryExpr::new(left, checked.operator(), right);
        return lower(&(Arc::new(plain) as Arc<dyn PhysicalExpr>), inputs);
    }
    if function.is::<NullIfFunc>() {
        let [value, other] = call.args() else {
            return Err(refused());
        };
        let (value, other) = (lower(value, inputs)?, lower(other, inputs)?);
        if value.ty != other.ty {
            return Err(refused());
        }
        let equal = Expr {
            nullable: value.nullable || other.nullable,
            kind: Kind::Binary(BinaryOp::Equal, value.clone().into(), other.into()),
            ty: Type::Bool,
        };
        return Ok(Expr {
            ty: value.ty,
            nullable: true,
            kind: Kind::Case {
                branches: vec![(equal, Expr::literal(IrLiteral::Null, value.ty))],
                otherwise: Some(Arc::new(value)),
            },
        });
    }
    if function.is::<DatePartFunc>() || function.is::<DateTruncFunc>() {
        let [part, arg] = call.args() else {
            return Err(refused());
        };
        let part = text(part)
            .and_then(|text| date_part(&text))
            .ok_or_else(refused)?;
        let arg = lower(arg, inputs)?;
        let nullable = arg.nullable;
        let kind = if function.is::<DatePartFunc>() {
            Kind::Extract(part, Arc::new(arg))
        } else if arg.ty == ty {
            Kind::Truncate(part, Arc::new(arg))
        } else {
            return Err(refused());
        };
        return Ok(Expr { kind, ty, nullable });
    }
    let op = if function.is::<CharacterLengthFunc>() {
        TextOp::CharacterLength
    } else if function.is::<OctetLengthFunc>() {
        TextOp::ByteLength
    } else if function.is::<UpperFunc>() {
        TextOp::Upper
    } else if function.is::<LowerFunc>() {
        TextOp::Lower
    } else if function.is::<SubstrFunc>() {
        TextOp::Substring
    } else {
        return Err(refused());
    };
    let args = call.args().iter().map(|arg| lower(arg, inputs));
    let args = args.collect::<Result<Vec<_>, _>>()?;
    if args.first().is_none_or(|first| first.ty != Type::Utf8) {
        return Err(refused());
    }
    let nullable = args.iter().any(|arg| arg.nullable);
    Ok(Expr {
        kind: Kind::Text(op, args),
        ty,
        nullable,
    })
}

/// Lowers a LIKE or ILIKE whose pattern is a constant. ILIKE compares lower-case forms,
/// which the device knows for ASCII; a pattern beyond that has no GPU form.
pub(super) fn lower_like(
    expr: &Arc<dyn PhysicalExpr>,
    like: &LikeExpr,
    inputs: &Inputs,
) -> Result<Expr, Reason> {
    let refused = || unsupported_expression(expr);
    let pattern = like.pattern().downcast_ref::<Literal>();
    let pattern = pattern.ok_or_else(refused)?.value();
    let mut args = vec![lower(like.expr(), inputs)?];
    if like.case_insensitive() {
        let pattern = pattern.try_as_str().flatten().filter(|p| p.is_ascii());
        let folded = ScalarValue::from(pattern.ok_or_else(refused)?.to_ascii_lowercase());
        args = vec![
            Expr {
                ty: Type::Utf8,
                nullable: args.iter().any(|arg| arg.nullable),
                kind: Kind::Text(TextOp::Lower, args),
            },
            lower_literal(&folded).map_err(|e| reason(&e, expr))?,
        ];
    } else {
        args.push(lower(like.pattern(), inputs)?);
    }
    if args.iter().any(|arg| arg.ty != Type::Utf8) {
        return Err(unsupported_expression(expr));
    }
    let op = if like.negated() {
        TextOp::NotLike
    } else {
        TextOp::Like
    };
    let nullable = args.iter().any(|arg| arg.nullable);
    Ok(Expr {
        kind: Kind::Text(op, args),
        ty: Type::Bool,
        nullable,
    })
}

/// A constant text.
fn text(expr: &Arc<dyn PhysicalExpr>) -> Option<String> {
    let value = expr.downcast_ref::<Literal>()?.value();
    value.try_as_str().flatten().map(str::to_ascii_lowercase)
}

fn date_part(name: &str) -> Option<DatePart> {
    Some(match name {
        "year" => DatePart::Year,
        "quarter" => DatePart::Quarter,
        "month" => DatePart::Month,
        "week" => DatePart::Week,
        "day" => DatePart::Day,
        "dow" => DatePart::DayOfWeek,
        "doy" => DatePart::DayOfYear,
        "hour" => DatePart::Hour,
        "minute" => DatePart::Minute,
        "second" => DatePart::Second,
        _ => return None,
    })
}
