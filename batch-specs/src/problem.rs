//! What is wrong with a spec, where, and what to do about it.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// How much a [`Problem`] matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The spec is refused.
    Error,
    /// The spec runs, but probably not as its author expects.
    Warning,
    /// Something was decided or tidied on the author's behalf.
    Notice,
}

impl Severity {
    /// The word that messages print.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Notice => "notice",
        }
    }
}

/// One finding about a spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Whether the spec is refused because of it.
    pub severity: Severity,
    /// A stable kebab-case name; programs decide on this, never on the message.
    pub code: String,
    /// The key concerned, such as `executors.cores` or `stages[0].sql`; empty for the whole file.
    pub path: String,
    /// Line in the spec, from 1; 0 when the value did not come from the file (`--set`).
    pub line: usize,
    /// Column in characters, from 1; 0 when the line is 0.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to change; empty when there is nothing useful to add.
    pub hint: String,
}

impl Problem {
    /// The text form: `file:line:col: error[code]: message`, and the hint on a line of its own.
    pub fn render(&self, file: &str) -> String {
        let mut out = String::from(file);
        if self.line > 0 {
            out.push_str(&format!(":{}:{}", self.line, self.column));
        }
        out.push_str(&format!(
            ": {}[{}]: {}",
            self.severity.word(),
            self.code,
            self.message
        ));
        if !self.hint.is_empty() {
            out.push_str(&format!("\n  hint: {}", self.hint));
        }
        out
    }
}

/// A place in the spec's text; `{0, 0}` stands for "not in the file".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Line from 1.
    pub line: usize,
    /// Column from 1, in characters.
    pub column: usize,
}

/// Collects problems, so that every one is reported and not only the first.
#[derive(Debug, Default)]
pub struct Problems {
    found: Vec<Problem>,
}

/// No spec needs more lines of complaint than this; a garbage file would give one per key.
const KEPT_MAX: usize = 500;

impl Problems {
    /// Adds a finding.
    pub fn push(
        &mut self,
        severity: Severity,
        code: &str,
        path: &str,
        place: Place,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        if self.is_full() && severity != Severity::Error {
            return;
        }
        if self.found.len() >= 2 * KEPT_MAX {
            return;
        }
        self.found.push(Problem {
            severity,
            code: code.to_owned(),
            path: path.to_owned(),
            line: place.line,
            column: place.column,
            message: message.into(),
            hint: hint.into(),
        });
    }

    /// Adds an error.
    pub fn error(
        &mut self,
        code: &str,
        path: &str,
        place: Place,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.push(Severity::Error, code, path, place, message, hint);
    }

    /// True when nothing but errors is taken any more. Callers that would search for a place or a
    /// hint ask first.
    pub fn is_full(&self) -> bool {
        self.found.len() >= KEPT_MAX
    }

    /// Paths that have an error.
    pub fn error_paths(&self) -> HashSet<String> {
        let errors = self.found.iter().filter(|p| p.severity == Severity::Error);
        errors.map(|p| p.path.clone()).collect()
    }

    /// True once anything refuses the spec.
    pub fn has_errors(&self) -> bool {
        self.found.iter().any(|p| p.severity == Severity::Error)
    }

    /// Everything found, in the order of the file; exact repetitions are dropped.
    pub fn into_sorted(mut self) -> Vec<Problem> {
        self.found.sort_by(|a, b| {
            (a.line, a.column, a.severity, &a.code).cmp(&(b.line, b.column, b.severity, &b.code))
        });
        self.found.dedup();
        self.found
    }
}

/// The candidate closest to what was written, when it is close enough to be what was meant.
pub(crate) fn nearest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let written = written.to_ascii_lowercase();
    let budget = (written.chars().count() / 3).clamp(1, 6);
    candidates
        .into_iter()
        .filter(|c| c.len().abs_diff(written.len()) <= budget)
        .map(|c| (strsim::osa_distance(&written, &c.to_ascii_lowercase()), c))
        .filter(|(distance, _)| *distance <= budget)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, c)| c)
}
