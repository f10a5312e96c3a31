//! Just enough of SQL's lexing to tell code from quoted text and comments. It knows no grammar.

/// What a stretch of SQL text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Neither quoted nor commented.
    Code,
    /// In single quotes; `escapes` when backslashes mean something (`E'...'`).
    Single {
        /// Backslashes escape.
        escapes: bool,
    },
    /// In double quotes.
    Double,
    /// In back quotes.
    Back,
    /// Between dollar tags.
    Dollar,
    /// A comment of either kind.
    Comment,
}

/// A stretch, quotes included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// What it is.
    pub kind: Kind,
    /// First byte.
    pub start: usize,
    /// One past its last byte.
    pub end: usize,
}

/// Cuts the text into pieces that follow one another without a gap. What is not closed runs to
/// the end; the SQL parser complains about it later and better.
pub fn pieces(sql: &str) -> Vec<Piece> {
    let bytes = sql.as_bytes();
    let mut out: Vec<Piece> = Vec::new();
    let (mut at, mut code_from) = (0, 0);
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (kind, end) = match rest[0] {
            b'\'' => {
                let escapes = at > 0
                    && bytes[at - 1].eq_ignore_ascii_case(&b'e')
                    && !(at > 1
                        && (bytes[at - 2].is_ascii_alphanumeric() || bytes[at - 2] == b'_'));
                (Kind::Single { escapes }, close_quote(bytes, at, escapes))
            }
            b'"' => (Kind::Double, close_quote(bytes, at, false)),
            b'`' => (Kind::Back, close_quote(bytes, at, false)),
            b'-' if rest.starts_with(b"--") => {
                let length = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
                (Kind::Comment, at + length)
            }
            b'/' if rest.starts_with(b"/*") => (Kind::Comment, close_comment(bytes, at)),
            b'$' => match dollar_tag(rest) {
                Some(n_tag) => (Kind::Dollar, close_dollar(bytes, at, n_tag)),
                None => {
                    at += 1;
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        if code_from < at {
            out.push(Piece {
                kind: Kind::Code,
                start: code_from,
                end: at,
            });
        }
        out.push(Piece {
            kind,
            start: at,
            end,
        });
        at = end;
        code_from = end;
    }
    if code_from < bytes.len() {
        out.push(Piece {
            kind: Kind::Code,
            start: code_from,
            end: bytes.len(),
        });
    }
    out
}

fn close_quote(bytes: &[u8], open: usize, escapes: bool) -> usize {
    let quote = bytes[open];
    let mut at = open + 1;
    while at < bytes.len() {
        if escapes && bytes[at] == b'\\' {
            at += 2;
        } else if bytes[at] != quote {
            at += 1;
        } else if bytes.get(at + 1) == Some(&quote) {
            at += 2;
        } else {
            return at + 1;
        }
    }
    bytes.len()
}

/// The end of the comment that starts at a byte, if one does.
pub fn comment_end(sql: &str, at: usize) -> Option<usize> {
    let rest = &sql[at..];
    if rest.starts_with("--") {
        return Some(at + rest.find('\n').unwrap_or(rest.len()));
    }
    rest.starts_with("/*")
        .then(|| close_comment(sql.as_bytes(), at))
}

/// Tells the places of bytes that are asked for in ascending order, reading the text once.
pub struct Places<'s> {
    text: &'s str,
    at: usize,
    line: usize,
    column: usize,
}

impl<'s> Places<'s> {
    /// Starts at the first byte.
    pub fn new(text: &'s str) -> Self {
        Places {
            text,
            at: 0,
            line: 1,
            column: 1,
        }
    }

    /// Line and column, from 1, of a byte at a character's start, not before the last one asked.
    pub fn place(&mut self, offset: usize) -> (usize, usize) {
        for c in self.text.get(self.at..offset).unwrap_or("").chars() {
            if c == '\n' {
                self.line += 1;
                self.column = 1;
            } else {
                self.column += 1;
            }
        }
        self.at = self.at.max(offset);
        (self.line, self.column)
    }
}

fn close_comment(bytes: &[u8], open: usize) -> usize {
    let (mut at, mut depth) = (open + 2, 1);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// Length of `$$` or `$tag$`.
fn dollar_tag(rest: &[u8]) -> Option<usize> {
    let n_name = rest[1..]
        .iter()
        .take_while(|b| b.is_ascii_alphanumeric() || **b == b'_')
        .count();
    let starts_with_digit = rest.get(1).is_some_and(u8::is_ascii_digit);
    (rest.get(1 + n_name) == Some(&b'$') && !starts_with_digit).then_some(n_name + 2)
}

fn close_dollar(bytes: &[u8], open: usize, n_tag: usize) -> usize {
    let tag = &bytes[open..open + n_tag];
    let body = &bytes[open + n_tag..];
    let found = body.windows(n_tag).position(|w| w == tag);
    found.map_or(bytes.len(), |n| open + n_tag + n + n_tag)
}

/// Line and column (from 1, in characters) of a byte of the text.
pub fn place_in(text: &str, offset: usize) -> (usize, usize) {
    let mut end = offset.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = &text[..end];
    let line_start = before.rfind('\n').map_or(0, |n| n + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(sql: &str) -> Vec<(Kind, &str)> {
        pieces(sql)
            .into_iter()
            .map(|p| (p.kind, &sql[p.start..p.end]))
            .collect()
    }

    #[test]
    fn quotes_and_comments_are_told_from_code() {
        assert_eq!(
            kinds("a 'it''s; --' -- c;'\nb"),
            [
                (Kind::Code, "a "),
                (Kind::Single { escapes: false }, "'it''s; --'"),
                (Kind::Code, " "),
                (Kind::Comment, "-- c;'"),
                (Kind::Code, "\nb"),
            ]
        );
        assert_eq!(
            kinds(r"E'\'x'")[1],
            (Kind::Single { escapes: true }, r"'\'x'")
        );
        assert_eq!(
            kinds("/* a /* b */ ; */x")[0],
            (Kind::Comment, "/* a /* b */ ; */")
        );
        assert_eq!(kinds("$t$ ; $t$;")[0], (Kind::Dollar, "$t$ ; $t$"));
        assert_eq!(kinds("${a} = $1"), [(Kind::Code, "${a} = $1")]);
    }

    #[test]
    fn unclosed_quotes_run_to_the_end() {
        for sql in ["'", "\"a", "`", "/*", "$$x", "E'\\", "--", "$"] {
            assert_eq!(pieces(sql).iter().map(|p| p.end).max(), Some(sql.len()));
        }
    }
}
