//! Physical expressions and aggregates to `kernels::ir`. From here on nobody
//! mentions SQL.
//!
//! Only what is listed here goes to the GPU; everything else is refused with a
//! reason, which becomes the line of `explain` and the fallback in the report.

mod expr;
mod functions;

pub(crate) use expr::lower_literal;
pub use expr::{Inputs, Origin, lower, reason};
