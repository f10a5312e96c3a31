//! YAML text as a tree in which every key and value knows where it stands.
//!
//! Scalars stay text: what `8`, `no` or `1995-01-01` means is decided by the field that it is
//! written for, so no value changes its type behind the author's back. This module knows no field.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Span};

use crate::problem::{Place, Problems};

/// Largest accepted text. A spec of this size is a generated one gone wrong.
const TEXT_BYTES_MAX: usize = 4 << 20;
/// Nodes that aliases may add by copying; a few nested aliases would otherwise grow without bound.
const ALIAS_NODES_MAX: usize = 100_000;
/// Deepest nesting; the spec's own types need less than ten levels.
const DEPTH_MAX: usize = 64;

/// A value with its position.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where it starts; `{0, 0}` when it came from `--set`.
    pub place: Place,
    /// What it is.
    pub value: Value,
    /// First content line and indentation, for `|` and `>` blocks.
    pub block: Option<Block>,
    /// What stood here before `--set` replaced it.
    pub replaced: Option<Box<Node>>,
    /// True when `--set` put it here.
    pub set: bool,
}

/// Where the lines of a block scalar start.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// Line of the first content line, from 1.
    pub line: usize,
    /// Columns that every content line is indented by.
    pub indent: usize,
}

/// The shapes a node can have.
#[derive(Debug, Clone)]
pub enum Value {
    /// Nothing was written, or `~` or `null`.
    Null,
    /// A scalar; `plain` is false when it was quoted or a block.
    Scalar {
        /// The text after YAML's own escapes.
        text: String,
        /// Written without quotes.
        plain: bool,
    },
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order written.
    Map(Vec<Entry>),
}

/// One key of a mapping with its value.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key as written.
    pub key: String,
    /// Where the key stands.
    pub place: Place,
    /// Its value.
    pub node: Node,
}

impl Node {
    /// A node that stands nowhere in the file.
    pub fn loose(value: Value) -> Node {
        Node {
            place: Place::default(),
            value,
            block: None,
            replaced: None,
            set: false,
        }
    }

    /// The value of `key`, when this is a mapping that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries()
            .iter()
            .find(|e| e.key == key)
            .map(|e| &e.node)
    }

    /// The entries, when this is a mapping.
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The scalar's text.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The node that a path such as `stages[0].output` leads to, and the place of its key.
    pub fn find(&self, path: &str) -> Option<(&Node, Place)> {
        let (node, place, rest) = self.walk(path);
        rest.is_empty().then_some((node, place))
    }

    /// The place of a path, or of the nearest thing around it that was written.
    pub fn place_of(&self, path: &str) -> Place {
        self.walk(path).1
    }

    fn walk<'a, 'p>(&'a self, path: &'p str) -> (&'a Node, Place, &'p str) {
        let (mut node, mut place, mut rest) = (self, self.place, path);
        while !rest.is_empty() {
            if let Some(tail) = rest.strip_prefix('[') {
                let Some((index, after)) = tail.split_once(']') else {
                    break;
                };
                let Value::List(items) = &node.value else {
                    break;
                };
                let Some(item) = index.parse().ok().and_then(|i: usize| items.get(i)) else {
                    break;
                };
                (node, place, rest) = (item, item.place, after.strip_prefix('.').unwrap_or(after));
                continue;
            }
            // The longest key wins, because keys of `properties` contain dots themselves.
            let next = node
                .entries()
                .iter()
                .filter_map(|e| {
                    let after = rest.strip_prefix(e.key.as_str())?;
                    (after.is_empty() || after.starts_with(['.', '['])).then_some((e, after))
                })
                .max_by_key(|(e, _)| e.key.len());
            let Some((entry, after)) = next else { break };
            node = &entry.node;
            place = if node.set { node.place } else { entry.place };
            rest = after.strip_prefix('.').unwrap_or(after);
        }
        (node, place, rest)
    }

    /// The place in the file of a character of this scalar's text, counted in the text's own
    /// lines and columns (both from 1). Exact for `|` blocks and one-line scalars.
    pub fn inner_place(&self, line: usize, column: usize) -> Place {
        if self.place.line == 0 {
            return Place::default();
        }
        match (self.block, &self.value) {
            (Some(block), _) => Place {
                line: block.line + line - 1,
                column: block.indent + column,
            },
            (None, Value::Scalar { plain, .. }) if line == 1 => Place {
                line: self.place.line,
                column: self.place.column + column - usize::from(*plain),
            },
            _ => self.place,
        }
    }

    /// Nodes, with long texts counted by their length.
    fn n_nodes(&self) -> usize {
        match &self.value {
            Value::Null => 1,
            Value::Scalar { text, .. } => 1 + text.len() / 64,
            Value::List(items) => 1 + items.iter().map(Node::n_nodes).sum::<usize>(),
            Value::Map(entries) => 1 + entries.iter().map(|e| e.node.n_nodes()).sum::<usize>(),
        }
    }
}

/// Reads one YAML document. `None` means that nothing after the reported problem can be trusted.
pub fn parse(text: &str, problems: &mut Problems) -> Option<Node> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let start = Place { line: 1, column: 1 };
    if text.len() > TEXT_BYTES_MAX {
        let message = format!(
            "the spec has {} bytes; at most {TEXT_BYTES_MAX} are read",
            text.len()
        );
        problems.error(
            "too-large",
            "",
            start,
            message,
            "move long SQL to files and name them in `sql_file`",
        );
        return None;
    }
    let mut builder = Builder::new(text, problems);
    let root = builder.run()?;
    match root {
        Some(node) if !matches!(node.value, Value::Null) => Some(node),
        _ => {
            let hint = "start with `version: 1`, a `name` and one stage";
            problems.error("empty", "", start, "the file holds no spec", hint);
            None
        }
    }
}

struct Builder<'t, 'p> {
    lines: Vec<&'t str>,
    text: &'t str,
    problems: &'p mut Problems,
    anchors: HashMap<usize, Node>,
    alias_nodes: usize,
}

enum Open {
    List {
        node: Node,
        anchor: usize,
    },
    Map {
        node: Node,
        anchor: usize,
        key: Option<(String, Place)>,
    },
}

impl<'t, 'p> Builder<'t, 'p> {
    fn new(text: &'t str, problems: &'p mut Problems) -> Self {
        let lines = text.lines().collect();
        Builder {
            lines,
            text,
            problems,
            anchors: HashMap::new(),
            alias_nodes: 0,
        }
    }

    /// `None`: gave up. `Some(None)`: no document.
    fn run(&mut self) -> Option<Option<Node>> {
        let options = granit_parser::options! { emit_comments: false };
        let mut root: Option<Node> = None;
        let mut open: Vec<Open> = Vec::new();
        let mut n_documents = 0usize;
        for step in Parser::new_from_str_with_options(self.text, options) {
            let (event, span) = match step {
                Ok(step) => step,
                Err(error) => {
                    let mark = error.marker();
                    let place = Place {
                        line: mark.line().max(1),
                        column: mark.col() + 1,
                    };
                    self.syntax_error(place, &error.kind().to_string());
                    return None;
                }
            };
            let place = Place {
                line: span.start.line().max(1),
                column: span.start.col() + 1,
            };
            let done = match event {
                Event::DocumentStart(..) => {
                    n_documents += 1;
                    if n_documents > 1 {
                        let hint = "one file holds one batch; split it at `---`";
                        let message = "a second YAML document starts here";
                        self.problems
                            .error("several-documents", "", place, message, hint);
                        return Some(root);
                    }
                    continue;
                }
                Event::Scalar(text, style, anchor, tag) => {
                    let plain = style == ScalarStyle::Plain;
                    let tagged_text = tag.is_some();
                    let is_null = plain
                        && !tagged_text
                        && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                    let value = if is_null {
                        Value::Null
                    } else {
                        Value::Scalar {
                            text: text.into_owned(),
                            plain,
                        }
                    };
                    let mut node = Node {
                        place,
                        ..Node::loose(value)
                    };
                    if matches!(style, ScalarStyle::Literal | ScalarStyle::Folded) {
                        node.block = self.block_of(&span);
                    }
                    Some((node, anchor))
                }
                Event::Alias(id) => {
                    let Some(node) = self.anchors.get(&id) else {
                        self.problems.error(
                            "yaml-syntax",
                            "",
                            place,
                            "this alias refers to itself",
                            "",
                        );
                        return None;
                    };
                    self.alias_nodes += node.n_nodes();
                    if self.alias_nodes > ALIAS_NODES_MAX {
                        let message =
                            format!("aliases would copy more than {ALIAS_NODES_MAX} values");
                        self.problems.error(
                            "alias-budget",
                            "",
                            place,
                            message,
                            "write the values out, or generate the file",
                        );
                        return None;
                    }
                    Some((
                        Node {
                            place,
                            ..node.clone()
                        },
                        0,
                    ))
                }
                Event::SequenceStart(_, anchor, _) => {
                    let node = Node {
                        place,
                        ..Node::loose(Value::List(Vec::new()))
                    };
                    open.push(Open::List { node, anchor });
                    None
                }
                Event::MappingStart(_, anchor, _) => {
                    let node = Node {
                        place,
                        ..Node::loose(Value::Map(Vec::new()))
                    };
                    open.push(Open::Map {
                        node,
                        anchor,
                        key: None,
                    });
                    None
                }
                Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                    Some(Open::List { node, anchor } | Open::Map { node, anchor, .. }) => {
                        Some((node, anchor))
                    }
                    None => None,
                },
                _ => None,
            };
            if open.len() > DEPTH_MAX {
                let message = format!("nested more than {DEPTH_MAX} levels deep");
                self.problems.error("too-deep", "", place, message, "");
                return None;
            }
            let Some((node, anchor)) = done else { continue };
            if anchor != 0 {
                self.anchors.insert(anchor, node.clone());
            }
            match open.last_mut() {
                None => root = Some(node),
                Some(Open::List { node: list, .. }) => {
                    if let Value::List(items) = &mut list.value {
                        items.push(node);
                    }
                }
                Some(Open::Map { node: map, key, .. }) => match key.take() {
                    None => *key = Some(self.key(node)?),
                    Some((key, key_place)) => {
                        if let Value::Map(entries) = &mut map.value {
                            entries.push(Entry {
                                key,
                                place: key_place,
                                node,
                            });
                        }
                    }
                },
            }
        }
        if let Some(root) = &mut root {
            self.refuse_duplicates(root, "");
        }
        Some(root)
    }

    fn key(&mut self, node: Node) -> Option<(String, Place)> {
        match node.value {
            Value::Scalar { text, .. } => Some((text, node.place)),
            Value::Null => Some((String::new(), node.place)),
            _ => {
                let hint = "keys are single words; quote text that starts with `{` or `[`";
                self.problems.error(
                    "yaml-key",
                    "",
                    node.place,
                    "a list or mapping cannot be a key",
                    hint,
                );
                None
            }
        }
    }

    /// Keeps the first of each pair, so that the rest of the file can still be checked.
    fn refuse_duplicates(&mut self, node: &mut Node, path: &str) {
        match &mut node.value {
            Value::Map(entries) => {
                let mut first: HashMap<String, Place> = HashMap::new();
                entries.retain(|entry| {
                    let here = join(path, &entry.key);
                    if entry.key == "<<" {
                        let message = "merge keys (`<<`) are not supported";
                        self.problems.error(
                            "merge-key",
                            &here,
                            entry.place,
                            message,
                            "repeat the keys, or use an anchor for the whole value",
                        );
                        return false;
                    }
                    if let Some(before) = first.get(&entry.key) {
                        let message = format!(
                            "`{}` is given twice, on line {} and on line {}",
                            entry.key, before.line, entry.place.line
                        );
                        self.problems.error(
                            "duplicate-key",
                            &here,
                            entry.place,
                            message,
                            "keep one of them",
                        );
                        return false;
                    }
                    first.insert(entry.key.clone(), entry.place);
                    true
                });
                for entry in entries {
                    let here = join(path, &entry.key);
                    self.refuse_duplicates(&mut entry.node, &here);
                }
            }
            Value::List(items) => {
                for (i, item) in items.iter_mut().enumerate() {
                    self.refuse_duplicates(item, &format!("{path}[{i}]"));
                }
            }
            _ => {}
        }
    }

    fn block_of(&self, span: &Span) -> Option<Block> {
        // The span starts at the indicator on some inputs and at the content on others, so the
        // content is found in the text: the first line below the indicator that is not blank.
        let line = span.start.line();
        let header = self.lines.get(line.checked_sub(1)?)?;
        let from_header: String = header.chars().skip(span.start.col()).collect();
        let first = if from_header.starts_with(['|', '>']) {
            line + 1
        } else {
            line
        };
        let content = self
            .lines
            .iter()
            .skip(first - 1)
            .find(|l| !l.trim().is_empty())?;
        let indent = content.chars().take_while(|c| *c == ' ').count();
        Some(Block {
            line: first,
            indent,
        })
    }

    fn syntax_error(&mut self, place: Place, text: &str) {
        let line = self.lines.get(place.line - 1).copied().unwrap_or("");
        let leading: String = line.chars().take_while(|c| c.is_whitespace()).collect();
        let (code, hint) = if leading.contains('\t') {
            (
                "yaml-tab",
                "indent with spaces; YAML does not allow tabs there",
            )
        } else if line.contains("${") {
            (
                "yaml-syntax",
                "put text that holds `${...}` or `: ` in quotes, or in a `|` block",
            )
        } else {
            (
                "yaml-syntax",
                "check the indentation, and that brackets and quotes are closed",
            )
        };
        self.problems.error(
            code,
            "",
            place,
            format!("this is not valid YAML: {text}"),
            hint,
        );
    }
}

/// `a.b`, or `b` at the top.
pub fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
