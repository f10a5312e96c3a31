//! Which expressions of a stage can have caused an error of its data.
//!
//! DataFusion says that something was divided by zero, not what. The stage's text says
//! which divisions there are: one that stands alone is named as the cause, of a few it is
//! told that it is one of them.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as Parsed;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CastKind, Expr, Function, Spanned, UnaryOperator, Value, Visit, Visitor,
};

use super::script::{Statement, place};
use crate::error::Error;
use crate::words::MANY_ROWS;

/// More suspects than this tell an author nothing.
const NAMED_MAX: usize = 3;
/// An expression is cut here.
const SHOWN_CHARS_MAX: usize = 60;

/// The error with the expressions that can have caused it.
pub fn name(error: Error, statements: &[Statement]) -> Error {
    let Some(of) = Cause::of(error.root()) else {
        return error;
    };
    let mut search = Search {
        of,
        depth: 0,
        found: Vec::new(),
    };
    for statement in statements {
        if let Parsed::Statement(statement) = &statement.parsed {
            let _ = Visit::visit(statement.as_ref(), &mut search);
        }
    }
    match search.found.as_slice() {
        [(text, place)] => error.at(format!("{place}, `{text}`")),
        [] => error,
        several if several.len() <= NAMED_MAX => {
            let each: Vec<String> = several
                .iter()
                .map(|(text, place)| format!("`{text}` ({place})"))
                .collect();
            error.at(format!("in one of {}", each.join(", ")))
        }
        _ => error,
    }
}

/// What went wrong, as far as it narrows the search.
#[derive(Clone, Copy, PartialEq)]
enum Cause {
    Division,
    Arithmetic,
    Sum,
    Cast,
    Subquery,
}

impl Cause {
    fn of(error: &Error) -> Option<Cause> {
        match error {
            Error::DivisionByZero => Some(Cause::Division),
            Error::Overflow { expression, .. } if expression == "sum" => Some(Cause::Sum),
            Error::Overflow { .. } => Some(Cause::Arithmetic),
            Error::BadCast { .. } => Some(Cause::Cast),
            Error::Data { message } if message == MANY_ROWS => Some(Cause::Subquery),
            _ => None,
        }
    }

    fn is_suspect(self, expr: &Expr) -> bool {
        use BinaryOperator::{Divide, Minus, Modulo, Multiply, Plus};
        match (self, expr) {
            (Cause::Division, Expr::BinaryOp { op, right, .. }) => {
                matches!(op, Divide | Modulo) && !is_nonzero(right)
            }
            (Cause::Division, Expr::Function(function)) => is_called(function, &["mod", "gcd"]),
            (Cause::Arithmetic, Expr::BinaryOp { op, .. }) => {
                matches!(op, Plus | Minus | Multiply | Divide)
            }
            (Cause::Arithmetic, Expr::UnaryOp { op, expr }) => {
                *op == UnaryOperator::Minus && !matches!(expr.as_ref(), Expr::Value(_))
            }
            (Cause::Arithmetic, Expr::Cast { kind, .. }) => {
                matches!(kind, CastKind::Cast | CastKind::DoubleColon)
            }
            // Any function may compute; the plain aggregates are told apart elsewhere.
            (Cause::Arithmetic, Expr::Function(function)) => {
                !is_called(function, &["sum", "avg", "min", "max", "count"])
            }
            (Cause::Sum, Expr::Function(function)) => is_called(function, &["sum", "avg"]),
            (Cause::Cast, Expr::Cast { kind, .. }) => {
                matches!(kind, CastKind::Cast | CastKind::DoubleColon)
            }
            // What casts without a word: a comparison of two types, most functions.
            (Cause::Cast, Expr::BinaryOp { .. } | Expr::Between { .. } | Expr::InList { .. }) => {
                true
            }
            (Cause::Cast, Expr::Function(function)) => {
                !is_called(function, &["sum", "avg", "min", "max", "count"])
            }
            (Cause::Subquery, Expr::Subquery(_)) => true,
            _ => false,
        }
    }
}

fn is_nonzero(expr: &Expr) -> bool {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(digits, _) => digits.chars().any(|c| ('1'..='9').contains(&c)),
            _ => false,
        },
        Expr::Nested(inner) => is_nonzero(inner),
        _ => false,
    }
}

fn is_called(function: &Function, names: &[&str]) -> bool {
    let name = function.name.to_string();
    names.iter().any(|known| known.eq_ignore_ascii_case(&name))
}

struct Search {
    of: Cause,
    /// How many suspects are around the expression that is looked at.
    depth: usize,
    found: Vec<(String, String)>,
}

impl Visitor for Search {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if self.of.is_suspect(expr) {
            // The outermost is named: its parts are in it.
            if self.depth == 0 {
                let start = expr.span().start;
                let mut text = expr.to_string();
                if let Some((end, _)) = text.char_indices().nth(SHOWN_CHARS_MAX) {
                    text.truncate(end);
                    text.push_str("...");
                }
                self.found.push((text, place(start.line, start.column)));
            }
            self.depth += 1;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if self.of.is_suspect(expr) {
            self.depth -= 1;
        }
        ControlFlow::Continue(())
    }
}
