//! From the positioned tree to plain data, checked against the schema of the types.
//!
//! Serde stops at its first error. This walk does not: it reports every unknown key, missing key
//! and misshapen value with its place, leaves those out of what it returns, and so lets the rest
//! of the spec be checked too. It knows shapes only; what values mean together is checked later.

use serde_json::{Map, Value as Json};

use crate::problem::{Problems, nearest};
use crate::yaml::{Node, Value, join};
use crate::{Duration, MemorySize, TaskShare};

/// Reads a node as the schema says. `None` when it is absent or unusable.
pub fn read(node: &Node, schema: &Json, path: &str, problems: &mut Problems) -> Option<Json> {
    let branch = choose(node, schema);
    match (&node.value, schema_type(branch)) {
        (Value::Null, _) => None,
        (_, Some("object")) => read_object(node, branch, path, problems),
        (_, Some("array")) => read_list(node, branch, path, problems),
        (Value::Scalar { text, plain }, _) => match read_scalar(text, *plain, schema, branch) {
            Ok(value) => Some(value),
            Err((code, message, hint)) => {
                problems.error(
                    code,
                    path,
                    node.place,
                    format!("{}: {message}", shown(path)),
                    hint,
                );
                None
            }
        },
        (value, _) => {
            let message = format!(
                "{}: expected {}, found {}",
                shown(path),
                expected(schema),
                kind_of(value)
            );
            problems.error("wrong-type", path, node.place, message, "");
            None
        }
    }
}

fn shown(path: &str) -> String {
    if path.is_empty() {
        "the spec".to_owned()
    } else {
        format!("`{path}`")
    }
}

/// The branch of a union whose shape fits the node; the schema itself when it is no union.
fn choose<'s>(node: &Node, schema: &'s Json) -> &'s Json {
    let Some(branches) = branches(schema) else {
        return schema;
    };
    let first = branches.iter().find(|b| fits(node, b));
    let chosen = first.or_else(|| branches.iter().find(|b| schema_type(b) != Some("null")));
    chosen.map_or(schema, |branch| choose(node, branch))
}

/// Whether a schema is about nodes of this shape.
fn fits(node: &Node, schema: &Json) -> bool {
    if let Some(branches) = branches(schema) {
        return branches.iter().any(|b| fits(node, b));
    }
    let is_scalar = !matches!(node.value, Value::Map(_) | Value::List(_));
    match schema_type(schema) {
        Some("null") => false,
        Some("object") => matches!(node.value, Value::Map(_)),
        Some("array") => matches!(node.value, Value::List(_)),
        _ => is_scalar,
    }
}

fn branches(schema: &Json) -> Option<&Vec<Json>> {
    schema
        .get("anyOf")
        .or_else(|| schema.get("oneOf"))
        .and_then(Json::as_array)
}

/// The type, not counting null.
fn schema_type(schema: &Json) -> Option<&str> {
    match schema.get("type")? {
        Json::String(t) => Some(t),
        Json::Array(types) => types.iter().filter_map(Json::as_str).find(|t| *t != "null"),
        _ => None,
    }
}

fn read_object(node: &Node, schema: &Json, path: &str, problems: &mut Problems) -> Option<Json> {
    let Value::Map(entries) = &node.value else {
        let message = format!(
            "{}: expected a mapping, found {}",
            shown(path),
            kind_of(&node.value)
        );
        problems.error("wrong-type", path, node.place, message, "");
        return None;
    };
    let empty = Map::new();
    let fields = schema
        .get("properties")
        .and_then(Json::as_object)
        .unwrap_or(&empty);
    let other = schema.get("additionalProperties").filter(|s| s.is_object());
    let mut out = Map::new();
    for entry in entries {
        let here = join(path, &entry.key);
        match (fields.get(&entry.key), other) {
            (Some(field), _) => {
                if let Some(value) = read(&entry.node, field, &here, problems) {
                    out.insert(entry.key.clone(), value);
                }
            }
            (None, Some(value_schema)) => {
                let value = read(&entry.node, value_schema, &here, problems);
                let value = match (value, schema_type(value_schema)) {
                    (None, Some("string")) if matches!(entry.node.value, Value::Null) => {
                        Json::String(String::new())
                    }
                    (None, _) => continue,
                    (Some(value), _) => value,
                };
                out.insert(entry.key.clone(), value);
            }
            (None, None) => {
                let hint = match nearest(&entry.key, fields.keys().map(String::as_str)) {
                    Some(key) => format!("did you mean `{key}`?"),
                    None => format!("the keys here are {}", list(fields.keys())),
                };
                let place = if path.is_empty() {
                    "a spec has".to_owned()
                } else {
                    format!("`{path}` has")
                };
                problems.error(
                    "unknown-key",
                    &here,
                    entry.place,
                    format!("{place} no key `{}`", entry.key),
                    hint,
                );
            }
        }
    }
    let required = schema.get("required").and_then(Json::as_array);
    for key in required.into_iter().flatten().filter_map(Json::as_str) {
        if !out.contains_key(key) {
            let here = join(path, key);
            match node.get(key) {
                None => problems.error(
                    "missing-key",
                    &here,
                    node.place,
                    format!("{} needs the key `{key}`", shown(path)),
                    "",
                ),
                Some(n) if matches!(n.value, Value::Null) => {
                    problems.error(
                        "missing-value",
                        &here,
                        n.place,
                        format!("`{here}` has no value"),
                        "",
                    );
                }
                Some(_) => {}
            }
            out.insert(key.to_owned(), stand_in(&fields[key]));
        }
    }
    Some(Json::Object(out))
}

/// A value of the right shape for a required key that is missing, so that reading can go on. The
/// spec is refused already.
fn stand_in(schema: &Json) -> Json {
    if let Some(first) = branches(schema).and_then(|b| b.first()) {
        return first
            .get("const")
            .cloned()
            .unwrap_or_else(|| stand_in(first));
    }
    if let Some(first) = schema.get("enum").and_then(|e| e.get(0)) {
        return first.clone();
    }
    match schema_type(schema) {
        Some("integer" | "number") => Json::from(0),
        Some("boolean") => Json::Bool(false),
        Some("array") => Json::Array(Vec::new()),
        Some("object") => Json::Object(Map::new()),
        _ => Json::String(String::new()),
    }
}

fn read_list(node: &Node, schema: &Json, path: &str, problems: &mut Problems) -> Option<Json> {
    let Value::List(items) = &node.value else {
        let message = format!(
            "{}: expected a list, found {}",
            shown(path),
            kind_of(&node.value)
        );
        problems.error(
            "wrong-type",
            path,
            node.place,
            message,
            "write one item as `[item]`, or a `- ` line for each",
        );
        return None;
    };
    let item_schema = schema.get("items").unwrap_or(&Json::Null);
    let mut out = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let here = format!("{path}[{i}]");
        let value = match &item.value {
            Value::Null => {
                problems.error(
                    "missing-value",
                    &here,
                    item.place,
                    format!("`{here}` has no value"),
                    "",
                );
                None
            }
            _ => read(item, item_schema, &here, problems),
        };
        // An unusable item keeps its seat, so that the paths of the later ones stay right.
        out.push(value.unwrap_or_else(|| stand_in_item(item_schema)));
    }
    Some(Json::Array(out))
}

fn stand_in_item(schema: &Json) -> Json {
    let mut value = stand_in(schema);
    let required = schema.get("required").and_then(Json::as_array);
    if let (Json::Object(out), Some(required)) = (&mut value, required) {
        for key in required.iter().filter_map(Json::as_str) {
            out.insert(key.to_owned(), stand_in(&schema["properties"][key]));
        }
    }
    value
}

type Refusal = (&'static str, String, String);

fn read_scalar(text: &str, plain: bool, whole: &Json, branch: &Json) -> Result<Json, Refusal> {
    let words = words_of(whole);
    if !words.is_empty() {
        if words.contains(&text) {
            return Ok(Json::from(text));
        }
        let hint = match nearest(text, words.iter().copied()) {
            Some(word) => format!("did you mean `{word}`?"),
            None => String::new(),
        };
        let message = format!("`{}` is not one of {}", cut(text), list(&words));
        return Err(("unknown-value", message, hint));
    }
    let wrong = |message: String| ("wrong-value", message, String::new());
    match branch.get("format").and_then(Json::as_str) {
        Some("memory-size") => {
            let size: MemorySize = text.parse().map_err(|e| wrong(format!("{e}")))?;
            return Ok(Json::from(size.to_string()));
        }
        Some("time-span") => {
            let span: Duration = text.parse().map_err(|e| wrong(format!("{e}")))?;
            return Ok(Json::from(span.to_string()));
        }
        Some("gpu-share") => {
            text.parse::<TaskShare>()
                .map_err(|e| wrong(format!("{e}")))?;
            return Ok(Json::from(text));
        }
        _ => {}
    }
    let wrong_type = |what: &str| {
        let quoted = if plain { "" } else { " in quotes" };
        let hint = if plain { "" } else { "remove the quotes" };
        (
            "wrong-type",
            format!("expected {what}, found `{}`{quoted}", cut(text)),
            hint.to_owned(),
        )
    };
    match schema_type(branch) {
        Some("integer") => {
            let smallest = branch
                .get("minimum")
                .and_then(Json::as_i64)
                .unwrap_or(i64::MIN);
            let number = text.parse::<i64>().ok().filter(|_| plain);
            let number = number.ok_or_else(|| wrong_type("a whole number"))?;
            let largest = match branch.get("format").and_then(Json::as_str) {
                Some("uint32") => i64::from(u32::MAX),
                _ => i64::MAX,
            };
            if number < smallest || number > largest {
                return Err(wrong(format!("{number} is out of range")));
            }
            Ok(Json::from(number))
        }
        Some("number") => {
            let number = text.parse::<f64>().ok().filter(|n| plain && n.is_finite());
            number.map(Json::from).ok_or_else(|| wrong_type("a number"))
        }
        Some("boolean") => match text {
            "true" if plain => Ok(Json::Bool(true)),
            "false" if plain => Ok(Json::Bool(false)),
            _ => Err(wrong_type("`true` or `false`")),
        },
        Some("string") => Ok(Json::from(text)),
        _ => Err(wrong_type(&expected(whole))),
    }
}

/// The words of an enumeration, however the schema spells it.
fn words_of(schema: &Json) -> Vec<&str> {
    let mut words = Vec::new();
    if let Some(word) = schema.get("const").and_then(Json::as_str) {
        words.push(word);
    }
    let named = schema
        .get("enum")
        .and_then(Json::as_array)
        .into_iter()
        .flatten();
    words.extend(named.filter_map(Json::as_str));
    for branch in branches(schema).into_iter().flatten() {
        words.extend(words_of(branch));
    }
    words
}

fn expected(schema: &Json) -> String {
    let words = words_of(schema);
    if !words.is_empty() {
        return format!("one of {}", list(&words));
    }
    let branch = branches(schema).and_then(|b| b.iter().find(|b| schema_type(b) != Some("null")));
    match schema_type(branch.unwrap_or(schema)) {
        Some("object") => "a mapping",
        Some("array") => "a list",
        Some("integer") => "a whole number",
        Some("number") => "a number",
        Some("boolean") => "`true` or `false`",
        _ => "a single value",
    }
    .to_owned()
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Scalar { .. } => "a single value",
        Value::List(_) => "a list",
        Value::Map(_) => "a mapping",
    }
}

/// Backquoted names, with commas.
pub(crate) fn list<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let quoted: Vec<String> = names
        .into_iter()
        .map(|n| format!("`{}`", n.as_ref()))
        .collect();
    quoted.join(", ")
}

/// A text short enough for a message.
pub(crate) fn cut(text: &str) -> String {
    let mut out: String = text
        .chars()
        .take(60)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().count() > 60 {
        out.push('…');
    }
    out
}
