//! Declared variables.

use super::Check;
use crate::variables::parse;
use crate::yaml::join;

pub(super) fn check(check: &mut Check<'_>) {
    for (name, variable) in &check.spec.variables {
        let path = join("variables", name);
        let is_name = !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
        if !is_name {
            let message = format!("`{}` is not a variable name", crate::read::cut(name));
            check.refuse(
                "variable-name",
                &path,
                message,
                "use letters, digits, `_`, `-` and `.`",
            );
        }
        // Without a readable type there is nothing to hold the value to.
        let is_typed = !check.misread.contains(&join(&path, "type"));
        let Some(value) = variable.value.as_ref().filter(|_| is_typed) else {
            continue;
        };
        if let Err(error) = parse(value, variable.kind) {
            let kind = variable.kind.word();
            check.refuse(
                "variable-value",
                &join(&path, "value"),
                format!("variable `{name}` of type {kind}: {error}"),
                "",
            );
        }
    }
}
