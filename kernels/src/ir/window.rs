//! Window functions: values of a row that follow from the rows around it.

use std::fmt;

use super::expr::Expr;
use super::rows::Sort;
use super::steps::columns_read;

/// All rows of a source in window order, with computed columns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Window {
    /// The order: keys of partitions first, then keys of the order in them, then keys that
    /// tell nothing but which of some peers comes first.
    pub sort: Sort,
    /// How many keys of the order say which partition a row belongs to.
    pub n_partition: usize,
    /// How many keys, those of the partition too, are the same for peers.
    pub n_peers: usize,
    /// What is computed of each row by itself.
    pub passed: Vec<Expr>,
    /// The functions; their columns come after those.
    pub calls: Vec<WindowCall>,
}

/// One window function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WindowCall {
    /// What is computed.
    pub function: WindowFunction,
    /// Of which rows; functions that look at none or at the whole partition ignore it.
    pub frame: Frame,
    /// The type of the result.
    pub ty: super::Type,
}

/// Window functions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WindowFunction {
    /// The row's number in its partition, from 1.
    RowNumber,
    /// The number of its first peer.
    Rank,
    /// The number of its group of peers.
    DenseRank,
    /// `(rank - 1) / (rows of the partition - 1)`.
    PercentRank,
    /// The part of the partition that is not after the row.
    CumeDist,
    /// The row's bucket of so many, which is at least 1.
    Ntile(i64),
    /// The value of the row that is `distance` further on, or `otherwise` where the
    /// partition has none.
    Shift {
        /// What is looked at there.
        value: Expr,
        /// How far; negative for rows before.
        distance: i64,
        /// A constant of the type of `value`.
        otherwise: Expr,
        /// Whether rows without a value do not count; the distance is then not 0.
        over_nulls: bool,
    },
    /// The value of the frame's row of this number, from 1, or from the end when it is
    /// negative.
    Nth {
        /// What is looked at there.
        value: Expr,
        /// Which row; there is none of number 0.
        n: i64,
        /// Whether rows without a value do not count.
        over_nulls: bool,
    },
    /// How many rows of the frame have this value; all have when there is none to ask for.
    Count(Option<Expr>),
    /// Sum over the frame.
    Sum(Expr),
    /// Sum over the frame divided by the number of its values, which have `scale` digits
    /// after the point.
    Average {
        /// What is added up.
        value: Expr,
        /// Digits after the point; 0 for what is no decimal.
        scale: i8,
    },
    /// The smallest value of the frame.
    Min(Expr),
    /// The largest value of the frame.
    Max(Expr),
}

/// Some rows of the partition around a row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// What the bounds count.
    pub unit: FrameUnit,
    /// The first row.
    pub start: Bound,
    /// The last row.
    pub end: Bound,
}

/// What the bounds of a frame count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameUnit {
    /// Rows.
    Rows,
    /// Groups of peers.
    Groups,
    /// Differences of the only key of the order.
    Range,
}

/// Where a frame starts or ends. Offsets are constants that are not negative: integers, or
/// of the key's type when the unit is [`FrameUnit::Range`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Bound {
    /// With the partition.
    Unbounded,
    /// With the row, or with its peers unless the unit is [`FrameUnit::Rows`].
    Current,
    /// So much before that.
    Before(Expr),
    /// So much after that.
    After(Expr),
}

impl Frame {
    /// The whole partition.
    pub const WHOLE: Frame = Frame {
        unit: FrameUnit::Rows,
        start: Bound::Unbounded,
        end: Bound::Unbounded,
    };
}

impl WindowFunction {
    /// What it reads of a row, if it reads anything.
    pub fn value(&self) -> Option<&Expr> {
        match self {
            WindowFunction::Shift { value, .. }
            | WindowFunction::Nth { value, .. }
            | WindowFunction::Average { value, .. }
            | WindowFunction::Count(Some(value))
            | WindowFunction::Sum(value)
            | WindowFunction::Min(value)
            | WindowFunction::Max(value) => Some(value),
            WindowFunction::RowNumber
            | WindowFunction::Rank
            | WindowFunction::DenseRank
            | WindowFunction::PercentRank
            | WindowFunction::CumeDist
            | WindowFunction::Ntile(_)
            | WindowFunction::Count(None) => None,
        }
    }

    fn map(&self, map: &dyn Fn(&Expr) -> Expr) -> WindowFunction {
        let mut mapped = self.clone();
        match &mut mapped {
            WindowFunction::Shift { value, .. }
            | WindowFunction::Nth { value, .. }
            | WindowFunction::Average { value, .. }
            | WindowFunction::Count(Some(value))
            | WindowFunction::Sum(value)
            | WindowFunction::Min(value)
            | WindowFunction::Max(value) => *value = map(value),
            _ => {}
        }
        mapped
    }
}

impl Window {
    /// The window with every expression of rows replaced by what `map` gives for it.
    pub fn map(&self, map: &dyn Fn(&Expr) -> Expr) -> Window {
        let mut sort = self.sort.clone();
        for key in &mut sort.keys {
            key.value = map(&key.value);
        }
        let calls = self.calls.iter().map(|call| WindowCall {
            function: call.function.map(map),
            frame: call.frame.clone(),
            ty: call.ty,
        });
        Window {
            sort,
            n_partition: self.n_partition,
            n_peers: self.n_peers,
            passed: self.passed.iter().map(map).collect(),
            calls: calls.collect(),
        }
    }

    /// The columns that are read, in order.
    pub fn columns(&self) -> Vec<usize> {
        let keys = self.sort.keys.iter().map(|key| &key.value);
        let values = self.calls.iter().filter_map(|call| call.function.value());
        columns_read(self.passed.iter().chain(keys).chain(values))
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.sort)?;
        writeln!(f, "of which {} {}", self.n_partition, self.n_peers)?;
        for passed in &self.passed {
            writeln!(f, "output {passed}")?;
        }
        for call in &self.calls {
            writeln!(f, "window {} {}", call.function, call.frame)?;
        }
        Ok(())
    }
}

impl fmt::Display for WindowFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WindowFunction::RowNumber => f.write_str("row_number()"),
            WindowFunction::Rank => f.write_str("rank()"),
            WindowFunction::DenseRank => f.write_str("dense_rank()"),
            WindowFunction::PercentRank => f.write_str("percent_rank()"),
            WindowFunction::CumeDist => f.write_str("cume_dist()"),
            WindowFunction::Ntile(n) => write!(f, "ntile({n})"),
            WindowFunction::Shift {
                value,
                distance,
                otherwise,
                over_nulls,
            } => {
                let over = if *over_nulls { " over nulls" } else { "" };
                write!(f, "shift({value}, {distance}, {otherwise}){over}")
            }
            WindowFunction::Nth {
                value,
                n,
                over_nulls,
            } => {
                let over = if *over_nulls { " over nulls" } else { "" };
                write!(f, "nth({value}, {n}){over}")
            }
            WindowFunction::Count(None) => f.write_str("count(*)"),
            WindowFunction::Count(Some(value)) => write!(f, "count({value})"),
            WindowFunction::Sum(value) => write!(f, "sum({value})"),
            WindowFunction::Average { value, .. } => write!(f, "avg({value})"),
            WindowFunction::Min(value) => write!(f, "min({value})"),
            WindowFunction::Max(value) => write!(f, "max({value})"),
        }
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = format!("{:?}", self.unit).to_lowercase();
        write!(f, "over {unit} from {} to {}", self.start, self.end)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Unbounded => f.write_str("unbounded"),
            Bound::Current => f.write_str("current"),
            Bound::Before(offset) => write!(f, "{offset} before"),
            Bound::After(offset) => write!(f, "{offset} after"),
        }
    }
}
