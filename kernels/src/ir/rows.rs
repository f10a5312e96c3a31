//! Sinks that give rows back: those that pass, computed, and rows in order.

use std::fmt;

use super::expr::Expr;
use super::steps::{Step, columns_read};

/// The rows that come through `steps`, in their order, with computed columns.
///
/// Columns of the source that are only passed through do not stand here when whoever
/// holds it takes them by the numbers of the rows that passed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collect {
    /// What happens to a row before; without steps every row passes.
    pub steps: Vec<Step>,
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
    /// The collect with every expression replaced by what `map` gives for it.
    pub fn map(&self, map: &dyn Fn(&Expr) -> Expr) -> Collect {
        Collect {
            steps: self.steps.iter().map(|step| step.map(map)).collect(),
            outputs: self.outputs.iter().map(map).collect(),
        }
    }

    /// The columns that are read, in order.
    pub fn columns(&self) -> Vec<usize> {
        let steps = self.steps.iter().flat_map(Step::expressions);
        columns_read(steps.chain(&self.outputs))
    }
}

impl Sort {
    /// The columns that are read, in order.
    pub fn columns(&self) -> Vec<usize> {
        columns_read(self.keys.iter().map(|key| &key.value))
    }
}

impl fmt::Display for Collect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            write!(f, "{step}")?;
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
