//! The aggregate sink: what is grouped by what, and which functions.

use std::fmt;

use super::expr::Expr;

/// Aggregates of the rows that pass `filter`, grouped by `keys`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Aggregate {
    /// Rows for which this is not true do not take part.
    pub filter: Option<Expr>,
    /// Group keys; none for one group over everything.
    pub keys: Vec<Expr>,
    /// The functions, in output order.
    pub calls: Vec<Call>,
}

/// One aggregate function call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call {
    /// The function.
    pub function: Function,
    /// Its argument; `None` for `count(*)`.
    pub arg: Option<Expr>,
    /// `FILTER (WHERE ...)`: rows for which this is not true do not count.
    pub filter: Option<Expr>,
}

/// Aggregate functions. An average is a sum and a count, divided when finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each variant is its own documentation
pub enum Function {
    Count,
    Sum,
    Min,
    Max,
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(filter) = &self.filter {
            writeln!(f, "filter {filter}")?;
        }
        for key in &self.keys {
            writeln!(f, "key    {key}")?;
        }
        for call in &self.calls {
            let name = format!("{:?}", call.function).to_lowercase();
            write!(f, "{name:<6} ")?;
            match &call.arg {
                Some(arg) => write!(f, "{arg}")?,
                None => f.write_str("*")?,
            }
            if let Some(filter) = &call.filter {
                write!(f, " where {filter}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
