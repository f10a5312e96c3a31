//! Function calls, matched by their implementation: user functions and other dialects
//! reuse names with other meanings.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::functions::core::nullif::NullIfFunc;
use datafusion::functions::datetime::date_part::DatePartFunc;
use datafusion::functions::datetime::date_trunc::DateTruncFunc;
use datafusion::functions::string::btrim::BTrimFunc;
use datafusion::functions::string::contains::ContainsFunc;
use datafusion::functions::string::ends_with::EndsWithFunc;
use datafusion::functions::string::lower::LowerFunc;
use datafusion::functions::string::ltrim::LtrimFunc;
use datafusion::functions::string::octet_length::OctetLengthFunc;
use datafusion::functions::string::rtrim::RtrimFunc;
use datafusion::functions::string::split_part::SplitPartFunc;
use datafusion::functions::string::starts_with::StartsWithFunc;
use datafusion::functions::string::upper::UpperFunc;
use datafusion::functions::unicode::character_length::CharacterLengthFunc;
use datafusion::functions::unicode::left::LeftFunc;
use datafusion::functions::unicode::right::RightFunc;
use datafusion::functions::unicode::strpos::StrposFunc;
use datafusion::functions::unicode::substr::SubstrFunc;
use datafusion::logical_expr::ScalarUDF;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, LikeExpr, Literal};
use datafusion::physical_plan::PhysicalExpr;
use kernels::ir::{BinaryOp, DatePart, Expr, Kind, Literal as IrLiteral, TextOp, Type, UnaryOp};

use super::expr::{lower, lower_literal, reason, unary, unsupported_expression, value_type};
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
    let ty = value_type(call.return_type()).map_err(|e| reason(&e, expr))?;
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
    let Some((op, n_texts)) = text_op(call.fun()) else {
        return Err(refused());
    };
    let args = call.args().iter().map(|arg| lower(arg, inputs));
    let mut args = args.collect::<Result<Vec<_>, _>>()?;
    let is_trim = matches!(op, TextOp::Trim | TextOp::TrimLeft | TextOp::TrimRight);
    if is_trim && args.len() == 1 {
        args.push(Expr::literal(IrLiteral::Text(" ".into()), Type::Utf8));
    }
    let is_text = |arg: Option<&Expr>| arg.is_some_and(|arg| arg.ty == Type::Utf8);
    if !(0..n_texts).all(|i| is_text(args.get(i))) {
        return Err(refused());
    }
    if op == TextOp::SplitPart {
        // There is no field 0: the CPU says so.
        let number = args.get(2).map(|arg| &arg.kind);
        let is_field =
            matches!(number, Some(Kind::Literal(IrLiteral::Integer(number))) if *number != 0);
        if !is_field {
            return Err(refused());
        }
    }
    let nullable = args.iter().any(|arg| arg.nullable);
    Ok(Expr {
        kind: Kind::Text(op, args),
        ty,
        nullable,
    })
}

/// A function of text on the device, and how many of its arguments are text.
fn text_op(function: &ScalarUDF) -> Option<(TextOp, usize)> {
    let function = function.inner();
    Some(if function.is::<CharacterLengthFunc>() {
        (TextOp::CharacterLength, 1)
    } else if function.is::<OctetLengthFunc>() {
        (TextOp::ByteLength, 1)
    } else if function.is::<UpperFunc>() {
        (TextOp::Upper, 1)
    } else if function.is::<LowerFunc>() {
        (TextOp::Lower, 1)
    } else if function.is::<SubstrFunc>() {
        (TextOp::Substring, 1)
    } else if function.is::<LeftFunc>() {
        (TextOp::Left, 1)
    } else if function.is::<RightFunc>() {
        (TextOp::Right, 1)
    } else if function.is::<StrposFunc>() {
        (TextOp::Position, 2)
    } else if function.is::<ContainsFunc>() {
        (TextOp::Contains, 2)
    } else if function.is::<StartsWithFunc>() {
        (TextOp::StartsWith, 2)
    } else if function.is::<EndsWithFunc>() {
        (TextOp::EndsWith, 2)
    } else if function.is::<BTrimFunc>() {
        (TextOp::Trim, 2)
    } else if function.is::<LtrimFunc>() {
        (TextOp::TrimLeft, 2)
    } else if function.is::<RtrimFunc>() {
        (TextOp::TrimRight, 2)
    } else if function.is::<SplitPartFunc>() {
        (TextOp::SplitPart, 2)
    } else {
        return None;
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
