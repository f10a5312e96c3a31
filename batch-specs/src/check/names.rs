//! Names and labels.

use std::collections::HashMap;

use super::Check;
use crate::read::cut;
use crate::yaml::join;

const LABELS_MAX: usize = 32;
const NAME_CHARS_MAX: usize = 63;

pub(super) fn check(check: &mut Check<'_>) {
    let spec = check.spec;
    if !spec.name.is_empty() && !is_name(&spec.name) {
        let message = format!("`{}` is not a name for a batch", cut(&spec.name));
        check.refuse("name", "name", message, "use lower-case letters, digits and hyphens, start with a letter, 63 characters at most");
    }
    labels(check);
    unique(check, "tables", spec.tables.iter().map(|t| t.name.as_str()));
    unique(check, "stages", spec.stages.iter().map(|s| s.name.as_str()));
    for (i, stage) in spec.stages.iter().enumerate() {
        let ok = stage
            .name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if !ok || stage.name.len() > NAME_CHARS_MAX {
            let message = format!("`{}` is not a name for a stage", cut(&stage.name));
            check.refuse(
                "name",
                &format!("stages[{i}].name"),
                message,
                "use letters, digits, `_` and `-`, 63 characters at most",
            );
        }
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= NAME_CHARS_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn labels(check: &mut Check<'_>) {
    let labels = &check.spec.labels;
    if labels.len() > LABELS_MAX {
        let message = format!(
            "{} labels are given; at most {LABELS_MAX} are allowed",
            labels.len()
        );
        check.refuse("too-many-labels", "labels", message, "");
    }
    for (key, value) in labels {
        let path = join("labels", key);
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        let key_ok = (1..=NAME_CHARS_MAX).contains(&key.chars().count())
            && key.starts_with(|c: char| c.is_ascii_lowercase())
            && key.chars().all(inner);
        if !key_ok {
            let message = format!("`{}` is not a label key", cut(key));
            check.refuse("label-key", &path, message, "use lower-case letters, digits, `_` and `-`, start with a letter, 1 to 63 characters");
        }
        if value.chars().count() > NAME_CHARS_MAX || !value.chars().all(inner) {
            let message = format!("`{}` is not a label value", cut(value));
            check.refuse(
                "label-value",
                &path,
                message,
                "use lower-case letters, digits, `_` and `-`, up to 63 characters, or nothing",
            );
        }
    }
}

fn unique<'s>(check: &mut Check<'_>, what: &str, names: impl Iterator<Item = &'s str>) {
    let mut first: HashMap<String, usize> = HashMap::new();
    for (i, name) in names.enumerate() {
        let path = format!("{what}[{i}].name");
        if name.is_empty() {
            if check
                .root
                .find(&path)
                .is_some_and(|(n, _)| n.text() == Some(""))
            {
                check.refuse("name", &path, "the name is empty", "");
            }
            continue;
        }
        // SQL does not tell `Orders` from `orders`.
        match first.get(&name.to_lowercase()) {
            Some(before) => {
                let line = check.root.place_of(&format!("{what}[{before}].name")).line;
                let message = format!("`{}` is the name of another one, on line {line}", cut(name));
                check.refuse("duplicate-name", &path, message, "");
            }
            None => {
                first.insert(name.to_lowercase(), i);
            }
        }
    }
}
