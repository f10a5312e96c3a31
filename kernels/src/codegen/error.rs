//! What the generator cannot express.

use std::fmt;

/// A construct that has no device code: why, in a sentence that names it.
///
/// Not an error of the user: the planner turns it into a fallback reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// Stable, kebab-case.
    pub code: &'static str,
    /// A sentence that names the expression or type.
    pub message: String,
}

impl Unsupported {
    /// An expression that has no device code.
    pub fn expression(what: impl fmt::Display) -> Unsupported {
        Unsupported {
            code: "unsupported-expression",
            message: format!("{what} has no GPU form"),
        }
    }

    /// A type that has no device form.
    pub fn data_type(what: impl fmt::Display) -> Unsupported {
        Unsupported {
            code: "unsupported-type",
            message: format!("type {what} has no GPU form"),
        }
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Unsupported {}
