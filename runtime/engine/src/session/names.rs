//! Names in a statement that nothing answers to.
//!
//! Called when planning failed, to say which name was at fault without reading the
//! planner's message.

use std::ops::ControlFlow;

use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, ObjectName, ObjectNamePart, Spanned, Visit, Visitor, visit_expressions, visit_relations,
};
use datafusion::sql::sqlparser::tokenizer::Location;

use super::script::place;
use crate::error::{Error, nearest};

/// The first table or function of a statement that does not exist.
pub fn unknown(statement: &Statement, context: &SessionContext) -> Option<Error> {
    let state = context.state();
    for table in state.resolve_table_references(statement).ok()? {
        if !context.table_exist(table.clone()).unwrap_or(true)
            && !is_defined_here(statement, table.table())
        {
            let known = table_names(context);
            let unknown = Error::UnknownTable {
                name: table.to_string(),
                suggestion: nearest(table.table(), known.iter().map(String::as_str)),
            };
            return Some(placed(unknown, table_place(statement, table.table())));
        }
    }
    let Statement::Statement(statement) = statement else {
        return None;
    };
    let mut functions = Functions { names: Vec::new() };
    let _ = Visit::visit(statement.as_ref(), &mut functions);
    let known = || {
        let state = &state;
        let scalar = state.scalar_functions().keys();
        let aggregate = state.aggregate_functions().keys();
        let window = state.window_functions().keys();
        scalar
            .chain(aggregate)
            .chain(window)
            .chain(state.higher_order_functions().keys())
            .map(String::as_str)
    };
    let (name, start) = functions
        .names
        .into_iter()
        .find(|(name, _)| !known().any(|function| function.eq_ignore_ascii_case(name)))?;
    let suggestion = nearest(&name, known());
    let unknown = Error::UnknownFunction { name, suggestion };
    Some(placed(unknown, Some(start)))
}

/// Where the function or operator stands that a planner's complaint names; none when the
/// statement has it twice.
pub fn named_place(statement: &Statement, complaint: &Error) -> Option<String> {
    let Statement::Statement(statement) = statement else {
        return None;
    };
    let text = complaint.to_string();
    let mut starts = Vec::new();
    let _ = visit_expressions(statement.as_ref(), |expr| {
        let name = match expr {
            Expr::Function(function) => {
                format!(
                    "the function `{}`",
                    function.name.to_string().to_lowercase()
                )
            }
            Expr::BinaryOp { op, .. } => format!("the operator `{op}`"),
            _ => return ControlFlow::<()>::Continue(()),
        };
        if text.contains(&name) {
            starts.push(expr.span().start);
        }
        ControlFlow::Continue(())
    });
    match starts.as_slice() {
        [start] => Some(place(start.line, start.column)),
        _ => None,
    }
}

fn placed(error: Error, start: Option<Location>) -> Error {
    match start {
        // Line 0 is a place that the parser does not know.
        Some(start) if start.line > 0 => error.at(place(start.line, start.column)),
        _ => error,
    }
}

/// Where a statement first names a table.
fn table_place(statement: &Statement, table: &str) -> Option<Location> {
    let Statement::Statement(statement) = statement else {
        return None;
    };
    let mut place = None;
    let _ = visit_relations(statement.as_ref(), |name: &ObjectName| {
        match name.0.last().and_then(ObjectNamePart::as_ident) {
            Some(last) if last.value.eq_ignore_ascii_case(table) => {
                place = Some(name.span().start);
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    });
    place
}

fn table_names(context: &SessionContext) -> Vec<String> {
    context
        .catalog_names()
        .into_iter()
        .filter_map(|name| context.catalog(&name))
        .flat_map(|catalog| {
            let schemas: Vec<_> = catalog
                .schema_names()
                .into_iter()
                .filter_map(|name| catalog.schema(&name))
                .collect();
            schemas.into_iter().flat_map(|schema| schema.table_names())
        })
        .collect()
}

/// CREATE VIEW v refers to v.
fn is_defined_here(statement: &Statement, name: &str) -> bool {
    use datafusion::sql::sqlparser::ast::Statement as Sql;
    let Statement::Statement(statement) = statement else {
        return false;
    };
    let defined = match statement.as_ref() {
        Sql::CreateView(view) => &view.name,
        Sql::CreateTable(table) => &table.name,
        _ => return false,
    };
    defined.0.last().is_some_and(|part| {
        part.to_string()
            .trim_matches(['"', '`'])
            .eq_ignore_ascii_case(name)
    })
}

struct Functions {
    names: Vec<(String, Location)>,
}

impl Visitor for Functions {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr {
            self.names
                .push((function.name.to_string(), function.name.span().start));
        }
        ControlFlow::Continue(())
    }
}
