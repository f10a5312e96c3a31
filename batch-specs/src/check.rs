//! Rules that the shape of the spec cannot say. Each looks at one part and reports all it finds.

mod cross;
mod data;
mod dataproc;
mod names;
mod variables;

use std::collections::HashSet;

use crate::derive::Derivation;
use crate::problem::{Problems, Severity};
use crate::spec::Spec;
use crate::yaml::Node;

/// The spec with its tree, so that a rule can say where.
pub(crate) struct Check<'a> {
    pub spec: &'a Spec,
    pub root: &'a Node,
    pub problems: &'a mut Problems,
    /// Paths whose values have the wrong shape.
    pub misread: HashSet<String>,
}

impl Check<'_> {
    fn refuse(
        &mut self,
        code: &str,
        path: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.report(Severity::Error, code, path, message, hint);
    }

    fn report(
        &mut self,
        severity: Severity,
        code: &str,
        path: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        // What could not even be read needs no second complaint.
        if self.misread.contains(path) || self.problems.is_full() {
            return;
        }
        self.problems.push(
            severity,
            code,
            path,
            self.root.place_of(path),
            message,
            hint,
        );
    }
}

/// Checks everything that does not need derived values.
pub(crate) fn spec(check: &mut Check<'_>) {
    if check.spec.version != 1 {
        let version = check.spec.version;
        let hint = "this program reads version 1";
        check.refuse(
            "version",
            "version",
            format!("version {version} of the format is not known"),
            hint,
        );
    }
    names::check(check);
    data::check(check);
    dataproc::check(check);
    variables::check(check);
}

/// Checks what settings and properties say together.
pub(crate) fn settings(d: &mut Derivation<'_>) {
    cross::check(d);
}
