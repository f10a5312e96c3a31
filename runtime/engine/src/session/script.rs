//! A stage's text to statements that are fit to be planned.

use datafusion::common::DataFusionError;
use datafusion::sql::parser::{DFParserBuilder, Statement as Parsed};
use datafusion::sql::sqlparser::dialect::{
    DatabricksDialect, Dialect as SqlDialect, DuckDbDialect, GenericDialect, PostgreSqlDialect,
};
use datafusion::sql::sqlparser::tokenizer::Tokenizer;

use crate::error::{Error, Result};
use crate::guard::statement::{self, Role};
use crate::settings::Dialect;
use crate::words::{clean, parser_place};

/// One statement of a stage.
#[derive(Debug, Clone)]
pub struct Statement {
    /// The parsed form, repaired where the planner would misread it.
    pub parsed: Parsed,
    /// The same as text.
    pub text: String,
    /// What it is for.
    pub role: Role,
}

/// Splits, checks and repairs a script.
pub fn parse(sql: &str, dialect: Dialect) -> Result<Vec<Statement>> {
    let dialect: Box<dyn SqlDialect> = match dialect {
        Dialect::Generic => Box::new(GenericDialect {}),
        Dialect::PostgreSql => Box::new(PostgreSqlDialect {}),
        Dialect::DuckDb => Box::new(DuckDbDialect {}),
        Dialect::Spark => Box::new(DatabricksDialect {}),
    };
    let tokens = Tokenizer::new(dialect.as_ref(), sql)
        .tokenize_with_location()
        .map_err(|error| {
            let message = clean(&error.message);
            Error::Syntax { message }.at(place(error.location.line, error.location.column))
        })?;
    statement::check_tokens(&tokens)?;
    let parsed = DFParserBuilder::new(sql)
        .with_dialect(dialect.as_ref())
        .build()
        .and_then(|mut parser| parser.parse_statements())
        .map_err(|error| {
            let text = match error.find_root() {
                DataFusionError::SQL(parser, _) => parser.to_string(),
                _ => return Error::from_datafusion(&error, 0),
            };
            let (message, at) = parser_place(&text);
            // Without a place it is the end of the text that was not expected.
            let (line, column) = at.unwrap_or_else(|| end(sql));
            Error::Syntax {
                message: clean(message),
            }
            .at(place(line, column))
        })?;
    parsed
        .into_iter()
        .map(|mut parsed| {
            let role = statement::check(&mut parsed)?;
            Ok(Statement {
                text: parsed.to_string(),
                parsed,
                role,
            })
        })
        .collect()
}

/// A place in a stage's SQL, as errors name it.
pub fn place(line: u64, column: u64) -> String {
    format!("line {line}, column {column}")
}

/// Just behind the last word.
fn end(sql: &str) -> (u64, u64) {
    let text = sql.trim_end().trim_end_matches(';').trim_end();
    let last = text.rsplit('\n').next().unwrap_or_default();
    (
        text.matches('\n').count() as u64 + 1,
        last.chars().count() as u64 + 1,
    )
}
