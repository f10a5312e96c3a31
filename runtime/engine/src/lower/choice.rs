//! Text that is one of some constants: the device computes which.
//!
//! ```text
//! case when v > 15 then 'big' else 'small' end     case when c1 > 15 then 0 else 1 end
//!                                                  0 big, 1 small
//! ```

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::physical_expr::expressions::{CaseExpr, Literal as PhysicalLiteral};
use datafusion::physical_plan::PhysicalExpr;
use kernels::ir::{Expr, IntWidth, Kind, Literal, Type};

use super::expr::{condition, lower};
use super::inputs::Inputs;

const CODE: Type = Type::Int(IntWidth::W32);

/// Which of its texts a value is.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The number of the text, or null.
    pub code: Expr,
    /// The texts, by their numbers.
    pub texts: Arc<Vec<String>>,
}

impl Choice {
    /// The expression as one of some constants, if it is a constant text or a `CASE` whose
    /// values are.
    pub fn of(expr: &Arc<dyn PhysicalExpr>, inputs: &Inputs) -> Option<Choice> {
        let mut texts = Vec::new();
        let code = code_of(expr, inputs, &mut texts)?;
        let texts = Arc::new(texts);
        Some(Choice { code, texts })
    }

    /// The same over columns of another relation.
    pub fn of_relation(self, relation: usize) -> Choice {
        Choice {
            code: self.code.of_relation(relation),
            ..self
        }
    }
}

fn code_of(expr: &Arc<dyn PhysicalExpr>, inputs: &Inputs, texts: &mut Vec<String>) -> Option<Expr> {
    if let Some(literal) = expr.downcast_ref::<PhysicalLiteral>() {
        return match literal.value() {
            ScalarValue::Utf8(Some(text)) => {
                let known = texts.iter().position(|other| other == text);
                let code = known.unwrap_or_else(|| {
                    texts.push(text.clone());
                    texts.len() - 1
                });
                Some(Expr::literal(Literal::Integer(code as i128), CODE))
            }
            ScalarValue::Utf8(None) | ScalarValue::Null => Some(Expr::literal(Literal::Null, CODE)),
            _ => None,
        };
    }
    let case = expr.downcast_ref::<CaseExpr>()?;
    let subject = case.expr().map(|subject| lower(subject, inputs));
    let subject = subject.transpose().ok()?;
    let mut branches = Vec::new();
    for (when, then) in case.when_then_expr() {
        let condition = condition(subject.as_ref(), lower(when, inputs).ok()?);
        branches.push((condition, code_of(then, inputs, texts)?));
    }
    let otherwise = match case.else_expr() {
        Some(value) => Some(Arc::new(code_of(value, inputs, texts)?)),
        None => None,
    };
    let mut values = branches
        .iter()
        .map(|(_, value)| value)
        .chain(otherwise.as_deref());
    let nullable = otherwise.is_none() || values.any(|value| value.nullable);
    Some(Expr {
        ty: CODE,
        nullable,
        kind: Kind::Case {
            branches,
            otherwise,
        },
    })
}
