//! The aggregate sink: what is grouped by what, and which functions.

use std::fmt;

use super::expr::Expr;
use super::steps::{Step, columns_read};

/// Aggregates of the rows that come through `steps`, grouped by `keys`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Aggregate {
    /// What happens to a row before.
    pub steps: Vec<Step>,
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
    /// What variances of floats are made of: how many, their mean, and the sum of their
    /// squared distances from it.
    Moments,
    /// Of values that are equal only one counts.
    CountDistinct,
    /// Of values that are equal only one is added.
    SumDistinct,
}

impl Function {
    /// Whether it counts: it is then 0 and not null where nothing goes in.
    pub fn is_count(self) -> bool {
        matches!(self, Function::Count | Function::CountDistinct)
    }

    /// Whether it takes one of equal values.
    pub fn is_distinct(self) -> bool {
        matches!(self, Function::CountDistinct | Function::SumDistinct)
    }
}

impl Aggregate {
    /// The aggregate with every expression replaced by what `map` gives for it.
    pub fn map(&self, map: &dyn Fn(&Expr) -> Expr) -> Aggregate {
        let calls = self.calls.iter().map(|call| Call {
            function: call.function,
            arg: call.arg.as_ref().map(map),
            filter: call.filter.as_ref().map(map),
        });
        Aggregate {
            steps: self.steps.iter().map(|step| step.map(map)).collect(),
            keys: self.keys.iter().map(map).collect(),
            calls: calls.collect(),
        }
    }

    /// How often a row goes on that comes through the other steps.
    pub fn n_sets(&self) -> usize {
        let sets = self.steps.iter().map(|step| match step {
            Step::EachSet(n) => *n as usize,
            _ => 1,
        });
        sets.product()
    }

    /// Whether some call takes one of equal values.
    pub fn has_distinct(&self) -> bool {
        self.calls.iter().any(|call| call.function.is_distinct())
    }

    /// The columns that are read, in order.
    pub fn columns(&self) -> Vec<usize> {
        let steps = self.steps.iter().flat_map(Step::expressions);
        let calls = self
            .calls
            .iter()
            .flat_map(|call| call.arg.iter().chain(&call.filter));
        columns_read(steps.chain(&self.keys).chain(calls))
    }
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            write!(f, "{step}")?;
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
