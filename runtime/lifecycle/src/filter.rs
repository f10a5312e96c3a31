//! The filter of lists: `state = RUNNING AND labels.env = prod`.
//!
//! The grammar is that of Google's AIP-160, in which OR binds tighter than AND:
//! `a AND b OR c` is `a AND (b OR c)`.

use chrono::DateTime;

use crate::batch::Batch;
use crate::state::BatchState;

/// What a batch must be like to be listed.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// All of these; none is no condition.
    All(Vec<Filter>),
    /// One of these.
    Any(Vec<Filter>),
    /// Not this.
    Not(Box<Filter>),
    /// A comparison.
    Compare(Field, Comparison, Value),
    /// A label is there, whatever its value.
    HasLabel(String),
}

/// What is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// `batch_id`.
    Id,
    /// `name`, the spec's.
    Name,
    /// `owner`.
    Owner,
    /// `state`.
    State,
    /// `trigger`.
    Trigger,
    /// `create_time`.
    CreateTime,
    /// `state_time`.
    StateTime,
    /// `labels.KEY`.
    Label(String),
}

/// How it is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

/// What it is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text, compared by its code points.
    Text(String),
    /// A time.
    Millis(i64),
}

/// What is wrong with a filter, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (at character {})", .offset + 1)]
pub struct FilterError {
    /// Characters before the place.
    pub offset: usize,
    /// What is wrong.
    pub message: String,
}

const FIELDS: &str = "batch_id, name, owner, state, trigger, create_time, state_time, labels.KEY";
/// Filters within filters; people write one or two.
const DEPTH_MAX: usize = 20;

impl Filter {
    /// The filter that everything passes.
    pub fn everything() -> Filter {
        Filter::All(Vec::new())
    }

    /// Reads a filter.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        let mut parser = Parser {
            tokens: tokens(text)?,
            at: 0,
            end: text.chars().count(),
            depth: 0,
        };
        if parser.tokens.is_empty() {
            return Ok(Filter::everything());
        }
        let filter = parser.all()?;
        match parser.peek() {
            None => Ok(filter),
            Some(_) => Err(parser.wrong("expected AND, OR or the end")),
        }
    }

    /// Whether a batch passes.
    pub fn matches(&self, batch: &Batch) -> bool {
        match self {
            Filter::All(parts) => parts.iter().all(|part| part.matches(batch)),
            Filter::Any(parts) => parts.iter().any(|part| part.matches(batch)),
            Filter::Not(part) => !part.matches(batch),
            Filter::HasLabel(key) => batch.labels.contains_key(key),
            Filter::Compare(field, how, Value::Millis(time)) => {
                let of = match field {
                    Field::StateTime => batch.state_ms,
                    _ => batch.created_ms,
                };
                how.holds(of.cmp(time))
            }
            Filter::Compare(field, how, Value::Text(text)) => {
                let of = match field {
                    Field::Name => Some(batch.name.as_str()),
                    Field::Owner => Some(batch.owner.as_str()),
                    Field::State => Some(batch.state.name()),
                    Field::Trigger => batch.trigger.as_deref(),
                    Field::Label(key) => batch.labels.get(key).map(String::as_str),
                    _ => Some(batch.id.as_str()),
                };
                match of {
                    Some(of) => how.holds(of.cmp(text)),
                    None => *how == Comparison::NotEqual,
                }
            }
        }
    }
}

impl Comparison {
    fn holds(self, order: std::cmp::Ordering) -> bool {
        match self {
            Comparison::Equal => order.is_eq(),
            Comparison::NotEqual => order.is_ne(),
            Comparison::Less => order.is_lt(),
            Comparison::LessOrEqual => order.is_le(),
            Comparison::Greater => order.is_gt(),
            Comparison::GreaterOrEqual => order.is_ge(),
        }
    }

    /// The operator, which is also SQL's.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Comparison::Equal => "=",
            Comparison::NotEqual => "!=",
            Comparison::Less => "<",
            Comparison::LessOrEqual => "<=",
            Comparison::Greater => ">",
            Comparison::GreaterOrEqual => ">=",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Quoted(String),
    Symbol(&'static str),
}

fn tokens(text: &str) -> Result<Vec<(usize, Token)>, FilterError> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(c) = chars.get(at).copied() {
        let start = at;
        at += 1;
        let next = chars.get(at).copied();
        let token = match c {
            c if c.is_whitespace() => continue,
            '(' => Token::Symbol("("),
            ')' => Token::Symbol(")"),
            ':' => Token::Symbol(":"),
            '=' => Token::Symbol("="),
            '!' | '<' | '>' if next == Some('=') => {
                at += 1;
                Token::Symbol(match c {
                    '!' => "!=",
                    '<' => "<=",
                    _ => ">=",
                })
            }
            '<' => Token::Symbol("<"),
            '>' => Token::Symbol(">"),
            '"' | '\'' => {
                let mut inner = String::new();
                loop {
                    match chars.get(at).copied() {
                        None => {
                            return Err(FilterError {
                                offset: start,
                                message: "the quote is not closed".into(),
                            });
                        }
                        Some(end) if end == c => break,
                        Some('\\') if at + 1 < chars.len() => {
                            inner.push(chars[at + 1]);
                            at += 2;
                        }
                        Some(other) => {
                            inner.push(other);
                            at += 1;
                        }
                    }
                }
                at += 1;
                Token::Quoted(inner)
            }
            c if is_word(c) => {
                while chars.get(at).copied().is_some_and(is_word) {
                    at += 1;
                }
                Token::Word(chars[start..at].iter().collect())
            }
            other => {
                return Err(FilterError {
                    offset: start,
                    message: format!("`{}` means nothing here", other.escape_default()),
                });
            }
        };
        found.push((start, token));
    }
    Ok(found)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '*' | '+' | '/')
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    end: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn wrong(&self, message: impl Into<String>) -> FilterError {
        let offset = self.tokens.get(self.at).map_or(self.end, |(at, _)| *at);
        FilterError {
            offset,
            message: message.into(),
        }
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Some(Token::Word(found)) if found == word);
        self.at += usize::from(is);
        is
    }

    fn takes(&mut self, symbol: &'static str) -> bool {
        let is = self.peek() == Some(&Token::Symbol(symbol));
        self.at += usize::from(is);
        is
    }

    fn all(&mut self) -> Result<Filter, FilterError> {
        let mut parts = vec![self.any()?];
        while self.takes_word("AND") {
            parts.push(self.any()?);
        }
        Ok(one_or(parts, Filter::All))
    }

    fn any(&mut self) -> Result<Filter, FilterError> {
        let mut parts = vec![self.term()?];
        while self.takes_word("OR") {
            parts.push(self.term()?);
        }
        Ok(one_or(parts, Filter::Any))
    }

    fn term(&mut self) -> Result<Filter, FilterError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.wrong("the filter is nested too deeply"));
        }
        let term = if self.takes_word("NOT") {
            Filter::Not(Box::new(self.term()?))
        } else if self.takes("(") {
            let inner = self.all()?;
            if !self.takes(")") {
                return Err(self.wrong("expected `)`"));
            }
            inner
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(term)
    }

    fn comparison(&mut self) -> Result<Filter, FilterError> {
        let field = match self.peek() {
            Some(Token::Word(name)) => match name.as_str() {
                "batch_id" => Field::Id,
                "name" => Field::Name,
                "owner" => Field::Owner,
                "state" => Field::State,
                "trigger" => Field::Trigger,
                "create_time" => Field::CreateTime,
                "state_time" => Field::StateTime,
                other => match other.strip_prefix("labels.") {
                    Some(key) if !key.is_empty() => Field::Label(key.to_owned()),
                    _ => {
                        let message = format!("there is no field `{other}`; there are {FIELDS}");
                        return Err(self.wrong(message));
                    }
                },
            },
            _ => return Err(self.wrong(format!("expected a field: {FIELDS}"))),
        };
        self.at += 1;
        let how = match self.peek() {
            Some(Token::Symbol("=")) => Comparison::Equal,
            Some(Token::Symbol("!=")) => Comparison::NotEqual,
            Some(Token::Symbol("<")) => Comparison::Less,
            Some(Token::Symbol("<=")) => Comparison::LessOrEqual,
            Some(Token::Symbol(">")) => Comparison::Greater,
            Some(Token::Symbol(">=")) => Comparison::GreaterOrEqual,
            Some(Token::Symbol(":")) => {
                return match field {
                    Field::Label(key) => {
                        self.at += 1;
                        if !self.takes_word("*") {
                            return Err(self.wrong("write `labels.KEY:*` or `labels.KEY = value`"));
                        }
                        Ok(Filter::HasLabel(key))
                    }
                    _ => Err(self.wrong("`:` is for labels; write `=`")),
                };
            }
            _ => return Err(self.wrong("expected one of = != < <= > >=")),
        };
        self.at += 1;
        let text = match self.peek() {
            Some(Token::Word(text) | Token::Quoted(text)) => text.clone(),
            _ => return Err(self.wrong("expected a value")),
        };
        let value = match &field {
            Field::CreateTime | Field::StateTime => {
                let time = DateTime::parse_from_rfc3339(&text).map_err(|_| {
                    self.wrong(format!(
                        "`{}` is not a time; write it as \"2026-01-31T12:00:00Z\"",
                        text.escape_default()
                    ))
                })?;
                Value::Millis(time.timestamp_millis())
            }
            field => {
                if !matches!(how, Comparison::Equal | Comparison::NotEqual) {
                    return Err(self.wrong("text can be compared by = and != only"));
                }
                if *field == Field::State && BatchState::from_name(&text).is_none() {
                    let known = BatchState::ALL.map(BatchState::name).join(", ");
                    return Err(self.wrong(format!(
                        "there is no state `{}`; there are {known}",
                        text.escape_default()
                    )));
                }
                Value::Text(text)
            }
        };
        self.at += 1;
        Ok(Filter::Compare(field, how, value))
    }
}

fn one_or(mut parts: Vec<Filter>, many: fn(Vec<Filter>) -> Filter) -> Filter {
    match parts.len() {
        1 => parts.remove(0),
        _ => many(parts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::NewBatch;

    fn batch() -> Batch {
        let new = NewBatch {
            id: "b-1".into(),
            owner: "ada".into(),
            name: "it's".into(),
            labels: [("env".to_owned(), "prod".to_owned())]
                .into_iter()
                .collect(),
            ..NewBatch::default()
        };
        let mut batch = Batch::accepted(new, "u".into(), String::new(), 1_700_000_000_000);
        batch.state = BatchState::Running;
        batch
    }

    #[track_caller]
    fn check(text: &str, expected: bool) {
        let filter = Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(filter.matches(&batch()), expected, "{text}");
    }

    #[test]
    fn batches_pass_or_not() {
        for (text, expected) in [
            ("", true),
            ("state = RUNNING", true),
            ("state=RUNNING AND labels.env=prod", true),
            ("state != RUNNING", false),
            ("labels.env:*", true),
            ("labels.team:*", false),
            ("labels.team != x", true),
            ("NOT labels.env = \"prod\"", false),
            ("create_time < \"2023-01-01T00:00:00Z\"", false),
            ("create_time >= \"2023-01-01T00:00:00+01:00\"", true),
            ("name = 'it\\'s' AND owner = ada", true),
            ("batch_id = b-1", true),
            ("trigger = x", false),
            // OR binds tighter than AND, so the left side alone refuses.
            ("state = FAILED AND owner = bob OR owner = ada", false),
            ("(state = FAILED AND owner = bob) OR owner = ada", true),
        ] {
            check(text, expected);
        }
    }

    #[track_caller]
    fn check_wrong(text: &str, offset: usize, message: &str) {
        let error = Filter::parse(text).expect_err(text);
        assert_eq!(error.offset, offset, "{text}: {error}");
        assert!(error.message.contains(message), "{text}: {error}");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        check_wrong("sate = RUNNING", 0, "no field `sate`");
        check_wrong("owner = \"ada", 8, "not closed");
        check_wrong("state = running", 8, "no state `running`");
        check_wrong("state ~ RUNNING", 6, "means nothing");
        check_wrong("owner < ada", 8, "= and != only");
        check_wrong("create_time < soon", 14, "not a time");
        check_wrong("owner = ada owner = bob", 12, "AND");
        check_wrong("(owner = ada", 12, "`)`");
        check_wrong("owner =", 7, "a value");
        check_wrong("AND", 0, "no field");
        check_wrong(&"(".repeat(1000), DEPTH_MAX, "too deeply");
        check_wrong(&"NOT ".repeat(1000), DEPTH_MAX * 4, "too deeply");
    }
}
