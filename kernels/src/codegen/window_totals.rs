//! Totals over frames: which ones the functions of a window need, how they are held, and
//! the statements that fill and read them.

use super::emit::{Value, ValueRegister};
use super::error::Unsupported;
use crate::ir::{Bound, Expr, Frame, Range, Register, WindowCall, WindowFunction};

/// More rows are never in one window.
pub const WINDOW_ROWS_MAX: usize = (1 << 31) - 1;

/// How a total is held. The names and sizes are those of `cuda/rows/window_totals.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TotalKind {
    /// How many values there are.
    Count,
    /// A sum that is proved to fit 64 bits.
    I64,
    /// A sum that is proved to fit 128 bits.
    I128,
    /// A sum in 192 bits.
    Wide,
    /// A sum of floats.
    F64,
    /// The smallest or largest value, held like this.
    Extreme {
        /// How a value is held.
        register: ValueRegister,
        /// Whether it is the largest.
        is_max: bool,
    },
}

impl TotalKind {
    /// The function in device code.
    pub(super) fn function(self) -> String {
        match self {
            TotalKind::Count => "CountRows".to_string(),
            TotalKind::I64 => "SumAs<i64>".to_string(),
            TotalKind::I128 => "SumAs<i128>".to_string(),
            TotalKind::Wide => "SumWide".to_string(),
            TotalKind::F64 => "SumAs<f64>".to_string(),
            TotalKind::Extreme { register, is_max } => {
                format!("ExtremeOf<{}, {is_max}>", register.name())
            }
        }
    }

    /// Bytes and alignment of a total.
    fn layout(self) -> (usize, usize) {
        match self {
            TotalKind::Count => (4, 4),
            TotalKind::I64 | TotalKind::F64 => (8, 8),
            TotalKind::I128 => (16, 16),
            TotalKind::Wide => (24, 8),
            TotalKind::Extreme { register, .. } => match register {
                ValueRegister::Bool | ValueRegister::F32 => (8, 4),
                ValueRegister::Integer(Register::I32, _) => (8, 4),
                ValueRegister::Integer(Register::I128, _) => (32, 16),
                _ => (16, 8),
            },
        }
    }

    /// Bytes of a total.
    pub fn bytes(self) -> usize {
        self.layout().0
    }

    /// Bytes of a total of a tile, which says whether a partition starts in it.
    pub fn tile_bytes(self) -> usize {
        let (bytes, align) = self.layout();
        (bytes + 4).next_multiple_of(align)
    }
}

/// What is added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Adds {
    Rows,
    Values,
    Min,
    Max,
}

/// A total by its place among those of its form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Total {
    /// Running totals, which any frame can be had from.
    Between(usize),
    /// Running totals, for frames that start with the partition.
    FromStart(usize),
    /// A tree.
    Tree(usize),
}

/// All totals of a window, each once.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) running: Vec<(Adds, Expr)>,
    pub(super) trees: Vec<(Adds, Expr)>,
}

/// The totals of one call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CallTotals {
    /// What the function adds up, if it does.
    pub(super) value: Option<Total>,
    /// How many values of the frame are there; absent when all are.
    pub(super) rows: Option<Total>,
}

impl Totals {
    /// What a call needs.
    pub(super) fn of(&mut self, call: &WindowCall) -> CallTotals {
        let from_start = call.frame.start == Bound::Unbounded;
        let (adds, arg) = match &call.function {
            WindowFunction::Shift {
                value, over_nulls, ..
            }
            | WindowFunction::Nth {
                value, over_nulls, ..
            } if *over_nulls => (None, value),
            WindowFunction::Count(Some(arg)) => (None, arg),
            WindowFunction::Sum(arg) | WindowFunction::Average { value: arg, .. } => {
                (Some(Adds::Values), arg)
            }
            WindowFunction::Min(arg) => (Some(Adds::Min), arg),
            WindowFunction::Max(arg) => (Some(Adds::Max), arg),
            _ => return CallTotals::default(),
        };
        let can_be_taken_back = adds == Some(Adds::Values) && !arg.ty.is_float();
        let value = adds.map(|adds| match (can_be_taken_back, from_start) {
            (true, _) => Total::Between(place(&mut self.running, adds, arg)),
            (false, true) => Total::FromStart(place(&mut self.running, adds, arg)),
            (false, false) => Total::Tree(place(&mut self.trees, adds, arg)),
        });
        let counts = !matches!(adds, Some(Adds::Min | Adds::Max)) && arg.nullable;
        let rows = counts.then(|| Total::Between(place(&mut self.running, Adds::Rows, arg)));
        CallTotals { value, rows }
    }
}

fn place(list: &mut Vec<(Adds, Expr)>, adds: Adds, arg: &Expr) -> usize {
    let known = list
        .iter()
        .position(|(other, expr)| *other == adds && expr == arg);
    known.unwrap_or_else(|| {
        list.push((adds, arg.clone()));
        list.len() - 1
    })
}

/// How a total of these values is held.
pub(super) fn kind_of(adds: Adds, value: &Value) -> Result<TotalKind, Unsupported> {
    Ok(match (adds, value.register) {
        (Adds::Rows, _) => TotalKind::Count,
        (Adds::Min | Adds::Max, ValueRegister::Text) => {
            return Err(Unsupported::expression("min or max of text over a window"));
        }
        (Adds::Min, register) => TotalKind::Extreme {
            register,
            is_max: false,
        },
        (Adds::Max, register) => TotalKind::Extreme {
            register,
            is_max: true,
        },
        (Adds::Values, ValueRegister::F32 | ValueRegister::F64) => TotalKind::F64,
        (Adds::Values, ValueRegister::Integer(_, range)) => {
            let values = range.union(Range::point(0));
            match values.product(Range::new(0, WINDOW_ROWS_MAX as i128)) {
                Some(total) if total.fits(64) => TotalKind::I64,
                Some(_) => TotalKind::I128,
                None => TotalKind::Wide,
            }
        }
        (Adds::Values, other) => {
            let what = format!("a sum of {} over a window", other.name());
            return Err(Unsupported::expression(what));
        }
    })
}

/// The call that reads a total of `frame`.
pub(super) fn read(
    total: Total,
    running: &[TotalKind],
    trees: &[TotalKind],
    frame: &str,
) -> String {
    match total {
        Total::Between(at) => format!(
            "total_between<{}>(p.r{at}, place, {frame})",
            running[at].function()
        ),
        Total::FromStart(at) => format!(
            "total_from_start<{}>(p.r{at}, place, {frame})",
            running[at].function()
        ),
        Total::Tree(at) => format!(
            "total_of_tree<{}>(p.t{at}, p.n_rows, {frame})",
            trees[at].function()
        ),
    }
}

/// Whether every row is in its own frame.
pub(super) fn holds_own_row(frame: &Frame) -> bool {
    !matches!(frame.start, Bound::After(_)) && !matches!(frame.end, Bound::Before(_))
}
