//! `--set path=value` and `--var name=value`: what the submitter says over the file.

use crate::problem::{Place, Problems, nearest};
use crate::read::{cut, list};
use crate::yaml::{self, Entry, Node, Value};

/// Applies each `path=value` in order.
pub fn apply_sets(root: &mut Node, sets: &[String], problems: &mut Problems) {
    for set in sets {
        let Some((path, text)) = set.split_once('=') else {
            let message = format!("`--set {}` has no `=`", cut(set));
            problems.error(
                "set-syntax",
                "",
                Place::default(),
                message,
                "write `--set executors.cores=8`",
            );
            continue;
        };
        let path = path.trim();
        let Some(value) = value_of(text, path, problems) else {
            continue;
        };
        if let Err(reason) = place(root, path, value) {
            let message = format!("`--set {}`: {reason}", cut(path));
            problems.error("set-path", path, Place::default(), message, "paths look like `executors.cores`, `stages[0].sql` or `properties.spark.executor.cores`");
        }
    }
}

/// Applies each `name=value` to the declared variables.
pub fn apply_variables(root: &mut Node, variables: &[String], problems: &mut Problems) {
    for variable in variables {
        let Some((name, text)) = variable.split_once('=') else {
            let message = format!("`--var {}` has no `=`", cut(variable));
            problems.error(
                "var-syntax",
                "",
                Place::default(),
                message,
                "write `--var since=1995-01-01`",
            );
            continue;
        };
        let name = name.trim();
        let declared: Vec<&str> = root
            .get("variables")
            .map(|v| v.entries().iter().map(|e| e.key.as_str()).collect())
            .unwrap_or_default();
        if !declared.contains(&name) {
            let hint = match nearest(name, declared.iter().copied()) {
                Some(known) => format!("did you mean `{known}`?"),
                None if declared.is_empty() => {
                    "declare it under `variables` with its type".to_owned()
                }
                None => format!("the variables are {}", list(&declared)),
            };
            let message = format!("`--var {}` names no variable of the spec", cut(name));
            problems.error(
                "unknown-variable",
                "variables",
                Place::default(),
                message,
                hint,
            );
            continue;
        }
        let mut node = Node::loose(Value::Scalar {
            text: text.to_owned(),
            plain: true,
        });
        node.set = true;
        if let Some(Node {
            value: Value::Map(entries),
            ..
        }) = child(root, "variables")
        {
            for entry in entries.iter_mut().filter(|e| e.key == name) {
                put(&mut entry.node, "value", node.clone());
            }
        }
    }
}

/// Scalars and flow collections are read as YAML; anything else is taken as text.
fn value_of(text: &str, path: &str, problems: &mut Problems) -> Option<Node> {
    let trimmed = text.trim();
    let mut node = if trimmed.starts_with(['{', '[', '"', '\'']) {
        let mut inner = Problems::default();
        match yaml::parse(trimmed, &mut inner) {
            Some(node) if !inner.has_errors() => node,
            _ => {
                let why = inner
                    .into_sorted()
                    .into_iter()
                    .next()
                    .map(|p| p.message)
                    .unwrap_or_default();
                let message = format!("the value of `--set {}` cannot be read: {why}", cut(path));
                problems.error("set-syntax", path, Place::default(), message, "");
                return None;
            }
        }
    } else if trimmed.is_empty() || trimmed == "null" {
        Node::loose(Value::Null)
    } else {
        Node::loose(Value::Scalar {
            text: trimmed.to_owned(),
            plain: true,
        })
    };
    loosen(&mut node);
    Some(node)
}

fn loosen(node: &mut Node) {
    node.place = Place::default();
    node.block = None;
    node.set = true;
    match &mut node.value {
        Value::List(items) => items.iter_mut().for_each(loosen),
        Value::Map(entries) => entries.iter_mut().for_each(|e| {
            e.place = Place::default();
            loosen(&mut e.node);
        }),
        _ => {}
    }
}

/// Mappings whose keys may hold dots, so that the rest of a path is one key.
const OPEN_MAPS: [&str; 3] = ["properties", "labels", "query_variables"];

fn place(root: &mut Node, path: &str, value: Node) -> Result<(), String> {
    let mut node = root;
    let mut rest = path;
    loop {
        let (key, after) = match rest.find(['.', '[']) {
            Some(end) => (&rest[..end], &rest[end..]),
            None => (rest, ""),
        };
        if key.is_empty() {
            return Err("a name is missing".to_owned());
        }
        if after.is_empty() {
            return put_checked(node, key, value);
        }
        if OPEN_MAPS.contains(&key) && after.starts_with('.') {
            let map = make_child(node, key)?;
            return put_checked(map, &after[1..], value);
        }
        node = make_child(node, key)?;
        rest = after;
        // List items: `[0]`, `[name]` or `.name`.
        if let Value::List(_) = node.value {
            let (which, after) = match rest.strip_prefix('[') {
                Some(tail) => tail.split_once(']').ok_or("a `]` is missing")?,
                None => {
                    let tail = &rest[1..];
                    tail.split_at(tail.find(['.', '[']).unwrap_or(tail.len()))
                }
            };
            let index = index_of(node, which)?;
            let Value::List(items) = &mut node.value else {
                return Err("not a list".to_owned());
            };
            let Some(item) = items.get_mut(index) else {
                return Err(format!("there is no item `{which}`"));
            };
            if after.is_empty() {
                replace(item, value);
                return Ok(());
            }
            node = item;
            rest = after;
        }
        rest = rest
            .strip_prefix('.')
            .ok_or_else(|| format!("`{key}` is not a list"))?;
    }
}

fn index_of(list_node: &Node, which: &str) -> Result<usize, String> {
    let Value::List(items) = &list_node.value else {
        return Err("not a list".to_owned());
    };
    if let Ok(index) = which.parse::<usize>() {
        return if index < items.len() {
            Ok(index)
        } else {
            Err(format!("there are only {} items", items.len()))
        };
    }
    let named = items
        .iter()
        .position(|i| i.get("name").and_then(Node::text) == Some(which));
    named.ok_or_else(|| format!("no item is named `{}`", cut(which)))
}

fn child<'n>(node: &'n mut Node, key: &str) -> Option<&'n mut Node> {
    match &mut node.value {
        Value::Map(entries) => entries
            .iter_mut()
            .find(|e| e.key == key)
            .map(|e| &mut e.node),
        _ => None,
    }
}

fn make_child<'n>(node: &'n mut Node, key: &str) -> Result<&'n mut Node, String> {
    if matches!(node.value, Value::Null) {
        node.value = Value::Map(Vec::new());
    }
    let Value::Map(entries) = &mut node.value else {
        return Err(format!("`{key}` would stand inside a single value"));
    };
    let at = match entries.iter().position(|e| e.key == key) {
        Some(at) => at,
        None => {
            let node = Node {
                set: true,
                ..Node::loose(Value::Map(Vec::new()))
            };
            entries.push(Entry {
                key: key.to_owned(),
                place: Place::default(),
                node,
            });
            entries.len() - 1
        }
    };
    Ok(&mut entries[at].node)
}

fn put_checked(node: &mut Node, key: &str, value: Node) -> Result<(), String> {
    match node.value {
        Value::Map(_) | Value::Null => {
            put(node, key, value);
            Ok(())
        }
        _ => Err(format!(
            "`{}` would stand inside a list or a single value",
            cut(key)
        )),
    }
}

fn put(node: &mut Node, key: &str, value: Node) {
    if matches!(node.value, Value::Null) {
        node.value = Value::Map(Vec::new());
    }
    let Value::Map(entries) = &mut node.value else {
        return;
    };
    match entries.iter_mut().find(|e| e.key == key) {
        Some(entry) => replace(&mut entry.node, value),
        None => entries.push(Entry {
            key: key.to_owned(),
            place: Place::default(),
            node: value,
        }),
    }
}

fn replace(node: &mut Node, mut value: Node) {
    let before = std::mem::replace(node, Node::loose(Value::Null));
    value.replaced = Some(Box::new(before));
    *node = value;
}
