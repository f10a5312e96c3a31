//! A stage's text to statements that are fit to be planned.

use datafusion::sql::parser::{DFParserBuilder, Statement as Parsed};
use datafusion::sql::sqlparser::dialect::{
    DatabricksDialect, Dialect as SqlDialect, DuckDbDialect, GenericDialect, PostgreSqlDialect,
};
use datafusion::sql::sqlparser::tokenizer::Tokenizer;

use crate::error::{Error, Result, clean};
use crate::guard::statement::{self, Role};
use crate::settings::Dialect;

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
    let syntax = |message: String| Error::Syntax {
        message: clean(&message),
    };
    let tokens = Tokenizer::new(dialect.as_ref(), sql)
        .tokenize_with_location()
        .map_err(|error| syntax(error.to_string()))?;
    statement::check_tokens(&tokens)?;
    let parsed = DFParserBuilder::new(sql)
        .with_dialect(dialect.as_ref())
        .build()
        .and_then(|mut parser| parser.parse_statements())
        .map_err(|error| Error::from_datafusion(&error, 0))?;
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
