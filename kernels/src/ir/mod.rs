//! What a pipeline computes, free of SQL and of CUDA: types, expressions, and the
//! ranges that narrow them. It prints as text, which is what the code generator's
//! file tests show.

mod aggregate;
mod expr;
mod rows;
mod spread;
mod steps;
mod types;
mod unmatched;
mod window;

pub use aggregate::{Aggregate, Call, Function};
pub use expr::{BinaryOp, DatePart, Expr, HASH_BITS, Kind, Literal, TextOp, UnaryOp};
pub use rows::{Collect, Sort, SortKey};
pub use spread::{Moments, Spread};
pub use steps::{Build, BuildKey, JoinKey, Probe, ProbeKind, RELATION_COLUMNS, Step, columns_read};
pub use types::{IntWidth, Range, Register, Type};
pub use unmatched::MATCHED_COLUMN;
pub use window::{Bound, Frame, FrameUnit, Window, WindowCall, WindowFunction};
