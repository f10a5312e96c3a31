//! Names in a statement that nothing answers to.
//!
//! Called when planning failed, to say which name was at fault without reading the
//! planner's message.

use std::ops::ControlFlow;

use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, Visit, Visitor};

use crate::error::{Error, nearest};

/// The first table or function of a statement that does not exist.
pub fn unknown(statement: &Statement, context: &SessionContext) -> Option<Error> {
    let state = context.state();
    for table in state.resolve_table_references(statement).ok()? {
        if !context.table_exist(table.clone()).unwrap_or(true)
            && !is_defined_here(statement, table.table())
        {
            let known = table_names(context);
            return Some(Error::UnknownTable {
                name: table.to_string(),
                suggestion: nearest(table.table(), known.iter().map(String::as_str)),
            });
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
    let name = functions
        .names
        .into_iter()
        .find(|name| !known().any(|function| function.eq_ignore_ascii_case(name)))?;
    let suggestion = nearest(&name, known());
    Some(Error::UnknownFunction { name, suggestion })
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
    names: Vec<String>,
}

impl Visitor for Functions {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr {
            self.names.push(function.name.to_string());
        }
        ControlFlow::Continue(())
    }
}
