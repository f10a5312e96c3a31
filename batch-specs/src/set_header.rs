//! `SET key=value;` lines at the head of a SQL script, and the statements after them.
//!
//! Only the leading block counts as settings of the batch. A later SET belongs to the session, so
//! it stays a statement; [`Statement::as_set`] tells whether a statement is one.

use serde::{Deserialize, Serialize};

use crate::sql_text::{Kind, Places, comment_end, pieces};

/// A script, taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script {
    /// The header's settings, in order.
    pub settings: Vec<Setting>,
    /// Locations of `add jar` lines.
    pub add_jars: Vec<AddJar>,
    /// Everything after the header.
    pub statements: Vec<Statement>,
    /// What the header holds that is no setting.
    pub problems: Vec<HeaderProblem>,
}

/// One `SET key=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key, trimmed.
    pub key: String,
    /// The raw text up to the semicolon, trimmed.
    pub value: String,
    /// Line of SET in the script, from 1.
    pub line: usize,
    /// Column of SET, from 1.
    pub column: usize,
}

/// One `add jar location`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddJar {
    /// Where the jar is.
    pub location: String,
    /// Line in the script, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
}

/// A statement without its semicolon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Its text, trimmed.
    pub sql: String,
    /// Line of its first character in the script, from 1.
    pub line: usize,
    /// Column of its first character, from 1.
    pub column: usize,
}

impl Statement {
    /// Key and value, when the statement is `SET key = value`.
    pub fn as_set(&self) -> Option<(&str, &str)> {
        let rest = after_word(&self.sql, "set")?;
        let (key, value) = rest.split_once('=')?;
        let key = key.trim();
        let is_key = !key.is_empty() && !key.contains(char::is_whitespace);
        is_key.then_some((key, value.trim()))
    }
}

/// A line of the header that sets nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderProblem {
    /// Line in the script, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

/// Takes a script apart.
pub fn split(sql: &str) -> Script {
    let mut script = Script::default();
    let mut places = Places::new(sql);
    let mut at = 0;
    loop {
        at = skip_blank(sql, at);
        let rest = &sql[at..];
        let (line, column) = places.place(at);
        if let Some(body) = after_word(rest, "set") {
            let from = at + (rest.len() - body.len());
            let end = header_end(sql, from);
            let body = without_comments(&sql[from..end]);
            at = (end + 1).min(sql.len());
            match body.split_once('=') {
                Some((key, value)) if is_key(key.trim()) && !value.trim().is_empty() => {
                    script.settings.push(Setting {
                        key: key.trim().to_owned(),
                        value: value.trim().to_owned(),
                        line,
                        column,
                    });
                }
                _ => script.problems.push(HeaderProblem {
                    line,
                    column,
                    message: format!(
                        "`SET {}` asks for a setting and gives none",
                        crate::read::cut(body.trim())
                    ),
                }),
            }
        } else if let Some(body) =
            after_word(rest, "add").and_then(|b| after_word(b.trim_start(), "jar"))
        {
            let from = at + (rest.len() - body.len());
            let end = header_end(sql, from);
            let location = without_comments(&sql[from..end])
                .trim()
                .trim_matches(['\'', '"'])
                .to_owned();
            at = (end + 1).min(sql.len());
            if location.is_empty() {
                let message = "`add jar` names no jar".to_owned();
                script.problems.push(HeaderProblem {
                    line,
                    column,
                    message,
                });
            } else {
                script.add_jars.push(AddJar {
                    location,
                    line,
                    column,
                });
            }
        } else {
            break;
        }
    }
    script.statements = statements(sql, at, &mut places);
    script
}

/// The statements from a byte of the script on.
fn statements(sql: &str, from: usize, places: &mut Places<'_>) -> Vec<Statement> {
    let body = &sql[from..];
    let mut ends = Vec::new();
    for piece in pieces(body).iter().filter(|p| p.kind == Kind::Code) {
        let semicolons = body[piece.start..piece.end].match_indices(';');
        ends.extend(semicolons.map(|(n, _)| piece.start + n));
    }
    ends.push(body.len());
    let mut out = Vec::new();
    let mut start = 0;
    for end in ends {
        let first = skip_blank(body, start).min(end);
        let text = body[first..end].trim();
        if !text.is_empty() {
            let (line, column) = places.place(from + first);
            out.push(Statement {
                sql: text.to_owned(),
                line,
                column,
            });
        }
        start = (end + 1).min(body.len());
    }
    out
}

/// The first byte at or after `at` that is neither blank, nor comment, nor a lone semicolon.
fn skip_blank(sql: &str, mut at: usize) -> usize {
    loop {
        let rest = &sql[at..];
        at += rest.len()
            - rest
                .trim_start_matches(|c: char| c.is_whitespace() || c == ';')
                .len();
        match comment_end(sql, at) {
            Some(end) => at = end,
            None => return at,
        }
    }
}

/// What follows a keyword, in any case, that ends at a blank, a semicolon or the end.
fn after_word<'s>(text: &'s str, word: &str) -> Option<&'s str> {
    let head = text.get(..word.len())?;
    let rest = &text[word.len()..];
    let ends = rest.is_empty() || rest.starts_with(|c: char| c.is_whitespace() || c == ';');
    (head.eq_ignore_ascii_case(word) && ends).then_some(rest)
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && !key.starts_with('-') && !key.contains(char::is_whitespace)
}

/// The semicolon that ends a header line. Values are raw text: a quote counts only when it is
/// closed on the same line, and `--` only after a blank, so `it's` and `a--b` are values.
fn header_end(sql: &str, from: usize) -> usize {
    let bytes = sql.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b';' => return at,
            quote @ (b'\'' | b'"' | b'`') => {
                let line = bytes[at + 1..].iter().take_while(|b| **b != b'\n');
                at += line.clone().position(|b| *b == quote).map_or(1, |n| n + 2);
            }
            b'-' if comment_at(bytes, from, at) => {
                at += bytes[at..]
                    .iter()
                    .position(|b| *b == b'\n')
                    .unwrap_or(bytes.len() - at);
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

fn comment_at(bytes: &[u8], from: usize, at: usize) -> bool {
    bytes[at..].starts_with(b"--") && (at == from || bytes[at - 1].is_ascii_whitespace())
}

fn without_comments(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at, mut kept) = (String::new(), 0, 0);
    while at < bytes.len() {
        if comment_at(bytes, 0, at) {
            out.push_str(&text[kept..at]);
            at += bytes[at..]
                .iter()
                .position(|b| *b == b'\n')
                .unwrap_or(bytes.len() - at);
            kept = at;
        } else {
            at += 1;
        }
    }
    out.push_str(&text[kept..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(sql: &str) -> Vec<(String, String)> {
        split(sql)
            .settings
            .into_iter()
            .map(|s| (s.key, s.value))
            .collect()
    }

    #[test]
    fn header_lines_become_settings() {
        let script = split(
            "-- resources\nset spark.executor.instances = 2;\nSET a.b=s3://x/y?z=1 2:3;\nadd jar oss://b/p.jar;\n\nSELECT 1; -- done;\nSET late=1;\nSELECT ';'",
        );
        assert_eq!(script.settings.len(), 2);
        assert_eq!((script.settings[0].line, script.settings[0].column), (2, 1));
        assert_eq!(script.settings[1].value, "s3://x/y?z=1 2:3");
        assert_eq!(script.add_jars[0].location, "oss://b/p.jar");
        let texts: Vec<&str> = script.statements.iter().map(|s| s.sql.as_str()).collect();
        assert_eq!(texts, ["SELECT 1", "SET late=1", "SELECT ';'"]);
        assert_eq!(
            (script.statements[0].line, script.statements[0].column),
            (6, 1)
        );
        assert_eq!(script.statements[1].as_set(), Some(("late", "1")));
    }

    #[test]
    fn line_breaks_end_comments_and_nothing_else_does() {
        let flat = "set a=1; -- size add jar x.jar; select 1;";
        assert!(split(flat).add_jars.is_empty());
        assert!(split(flat).statements.is_empty());
        assert_eq!(
            pairs("set a=1 -- why\n;select 1"),
            [("a".into(), "1".into())]
        );
        assert_eq!(pairs("set a='x;y';"), [("a".into(), "'x;y'".into())]);
        assert_eq!(
            pairs("set a=it's;set b=c--d;"),
            [("a".into(), "it's".into()), ("b".into(), "c--d".into())]
        );
    }

    #[test]
    fn questions_are_no_settings() {
        for sql in [
            "SET;",
            "set -v;",
            "SET spark.executor.cores;",
            "SET a=;",
            "SET =1;",
            "add jar ;",
        ] {
            assert_eq!(split(sql).problems.len(), 1, "{sql}");
        }
        assert_eq!(split("settle;").statements.len(), 1);
    }
}
