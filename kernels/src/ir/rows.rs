//! Sinks that give rows back: those that pass, computed, and rows in order.

use std::fmt;

use super::expr::Expr;

/// The rows that pass `filter`, in their order, with computed columns.
///
/// Columns that are only passed through do not stand here: whoever holds the source
/// takes them by the numbers of the rows that passed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collect {
    /// Rows for which this is not true are left out; `None` keeps every row.
    pub filter: Option<Expr>,
    /// What is computed for each row that passes.
    pub outputs: Vec<Expr>,
}

/// The order of all rows of a source, stable where the keys are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sort {
    /// The keys, the most significant first.
    pub keys: Vec<SortKey>,
}

/// One key of an order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SortKey {
    /// The value that is compared. NaN is the largest float, and there is one zero.
    pub value: Expr,
    /// Whether large values come first.
    pub descending: bool,
    /// Whether nulls come first, whatever the direction.
    pub nulls_first: bool,
}

impl Collect {
    /// The columns that are read, in order.
    pub fn columns(&self) -> Vec<usize> {
        columns(self.filter.iter().chain(&self.outputs))
    }
}

impl Sort {
    /// The columns that are read, in order.
    pub fn columns(&self) -> Vec<usize> {
        columns(self.keys.iter().map(|key| &key.value))
    }
}

fn columns<'a>(exprs: impl Iterator<Item = &'a Expr>) -> Vec<usize> {
    let mut used = Vec::new();
    for expr in exprs {
        expr.walk(&mut |e| {
            if let super::Kind::Column(index) = e.kind {
                used.push(index);
            }
        });
    }
    used.sort_unstable();
    used.dedup();
    used
}

impl fmt::Display for Collect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(filter) = &self.filter {
            writeln!(f, "filter {filter}")?;
        }
        for output in &self.outputs {
            writeln!(f, "output {output}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for key in &self.keys {
            let direction = if key.descending { "desc" } else { "asc" };
            let nulls = if key.nulls_first { "first" } else { "last" };
            writeln!(f, "key    {} {direction} nulls {nulls}", key.value)?;
        }
        Ok(())
    }
}
