//! Physical plans, expressions and aggregates to `kernels::ir`. From here on nobody
//! mentions SQL.
//!
//! Only what is listed here goes to the GPU; everything else is refused with a
//! reason, which becomes the line of `explain` and the fallback in the report.

mod chain;
mod choice;
mod expr;
mod functions;
mod inputs;
mod join;
mod late;

pub use chain::{Chain, Joined, lower_chain, lower_exchanged, lower_source, without_exchange};
pub use choice::Choice;
pub(crate) use expr::lower_literal;
pub use expr::{is_hint, lower, reason};
pub use inputs::{DerivedText, Inputs, Origin};
pub use join::Join;
pub use late::LateValues;
