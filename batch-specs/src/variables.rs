//! `${name}` in SQL. Values are bound: the text gets a placeholder, and the value travels beside
//! it, so nothing in a value can become SQL. Inside quotes no placeholder is possible; there, and
//! only for variables of type `identifier` or `text`, the value is written in, escaped for the
//! quotes around it.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::problem::nearest;
use crate::read::{cut, list};
use crate::spec::{Variable, VariableType};
use crate::sql_text::{Kind, Piece, pieces, place_in};

/// A value with its type, ready for the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type", content = "value")]
pub enum BoundValue {
    /// Days since 1970-01-01.
    Date(i32),
    /// Microseconds since 1970-01-01 00:00:00.
    Timestamp(i64),
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
    /// `unscaled / 10^scale`.
    Decimal {
        /// The digits as a whole number.
        unscaled: i128,
        /// Digits in all.
        precision: u8,
        /// Digits after the point.
        scale: i8,
    },
    /// Text.
    String(String),
    /// A truth value.
    Boolean(bool),
}

/// A placeholder of a statement with its value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Binding {
    /// The placeholder without its `$`.
    pub placeholder: String,
    /// The variable it stands for.
    pub variable: String,
    /// The value.
    pub value: BoundValue,
}

/// SQL whose variables are bound.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bound {
    /// The text, with `$placeholder` where values go.
    pub sql: String,
    /// The values, in order of first use.
    pub bindings: Vec<Binding>,
    /// Names of all variables that the text uses.
    pub used: BTreeSet<String>,
    /// What could not be bound; the text is unusable when there are any.
    pub problems: Vec<BindProblem>,
}

/// A use of a variable that cannot be honoured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindProblem {
    /// Stable name.
    pub code: &'static str,
    /// Line in the SQL text, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to change.
    pub hint: String,
}

/// More complaints about one statement help nobody.
const PROBLEMS_MAX: usize = 50;

/// Binds every `${name}` of a SQL text. Comments are left as they are.
pub fn bind(sql: &str, variables: &IndexMap<String, Variable>) -> Bound {
    let mut bound = Bound::default();
    for piece in pieces(sql) {
        let text = &sql[piece.start..piece.end];
        if piece.kind == Kind::Comment || !text.contains("${") {
            bound.sql.push_str(text);
            continue;
        }
        let mut at = 0;
        while let Some(n) = text[at..].find("${") {
            let start = at + n;
            bound.sql.push_str(&text[at..start]);
            let Some(length) = text[start..].find('}') else {
                refuse(
                    &mut bound,
                    sql,
                    piece.start + start,
                    "variable-syntax",
                    "`${` is not closed".into(),
                    "write `${name}`".into(),
                );
                at = start + 2;
                continue;
            };
            let name = text[start + 2..start + length].trim();
            at = start + length + 1;
            place_value(&mut bound, sql, piece, piece.start + start, name, variables);
        }
        bound.sql.push_str(&text[at..]);
    }
    bound
}

fn refuse(
    bound: &mut Bound,
    sql: &str,
    offset: usize,
    code: &'static str,
    message: String,
    hint: String,
) {
    if bound.problems.len() >= PROBLEMS_MAX {
        return;
    }
    let (line, column) = place_in(sql, offset);
    bound.problems.push(BindProblem {
        code,
        line,
        column,
        message,
        hint,
    });
}

fn place_value(
    bound: &mut Bound,
    sql: &str,
    piece: Piece,
    offset: usize,
    name: &str,
    variables: &IndexMap<String, Variable>,
) {
    let Some(variable) = variables.get(name) else {
        let hint = match nearest(name, variables.keys().map(String::as_str)) {
            Some(known) => format!("did you mean `${{{known}}}`?"),
            None if variables.is_empty() => "declare it under `variables` with its type".to_owned(),
            None => format!("the variables are {}", list(variables.keys())),
        };
        let message = format!("`${{{}}}` is not a variable of the spec", cut(name));
        return refuse(bound, sql, offset, "unknown-variable", message, hint);
    };
    bound.used.insert(name.to_owned());
    let Some(text) = variable.value.as_deref() else {
        let message = format!("`${{{name}}}` has no value");
        let hint = format!("give `variables.{name}.value`, or pass `--var {name}=...`");
        return refuse(bound, sql, offset, "variable-without-value", message, hint);
    };
    let is_pasted = matches!(variable.kind, VariableType::Identifier | VariableType::Text);
    match piece.kind {
        Kind::Code if variable.kind == VariableType::Identifier => {
            bound
                .sql
                .push_str(&format!("\"{}\"", text.replace('"', "\"\"")));
        }
        Kind::Code => match parse(text, variable.kind) {
            Ok(value) => {
                let placeholder = placeholder(bound, name, value);
                bound.sql.push('$');
                bound.sql.push_str(&placeholder);
            }
            // Reported once, where the variable is declared.
            Err(_) => bound.sql.push_str("NULL"),
        },
        _ if !is_pasted => {
            let message = format!(
                "`${{{name}}}` of type {} stands inside quotes",
                variable.kind.word()
            );
            let hint = "take it out of the quotes, or declare it as `type: text`".to_owned();
            refuse(bound, sql, offset, "variable-in-quotes", message, hint);
        }
        Kind::Dollar => {
            let message =
                format!("`${{{name}}}` stands inside a `$$` text, where nothing can be escaped");
            refuse(
                bound,
                sql,
                offset,
                "variable-in-quotes",
                message,
                "use ordinary quotes".into(),
            );
        }
        Kind::Single { escapes } => {
            let text = if escapes {
                text.replace('\\', "\\\\")
            } else {
                text.to_owned()
            };
            bound.sql.push_str(&text.replace('\'', "''"));
        }
        Kind::Double => bound.sql.push_str(&text.replace('"', "\"\"")),
        _ => bound.sql.push_str(&text.replace('`', "``")),
    }
}

/// The placeholder of a variable: its name with anything but letters, digits and `_` replaced.
fn placeholder(bound: &mut Bound, name: &str, value: BoundValue) -> String {
    if let Some(known) = bound.bindings.iter().find(|b| b.variable == name) {
        return known.placeholder.clone();
    }
    let mut base: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '_'
            }
        })
        .collect();
    if !base.starts_with(|c: char| c.is_ascii_alphabetic()) {
        base.insert_str(0, "v_");
    }
    let mut placeholder = base.clone();
    let mut n = 2;
    while bound.bindings.iter().any(|b| b.placeholder == placeholder) {
        placeholder = format!("{base}_{n}");
        n += 1;
    }
    bound.bindings.push(Binding {
        placeholder: placeholder.clone(),
        variable: name.to_owned(),
        value,
    });
    placeholder
}

/// Why a text is no value of a type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct ValueError {
    text: String,
    expected: &'static str,
}

/// Reads a variable's value as its type says.
pub fn parse(text: &str, kind: VariableType) -> Result<BoundValue, ValueError> {
    let wrong = |expected| ValueError {
        text: cut(text),
        expected,
    };
    let trimmed = text.trim();
    match kind {
        VariableType::Date => date(trimmed)
            .map(BoundValue::Date)
            .ok_or_else(|| wrong("a date such as 1995-01-31")),
        VariableType::Timestamp => timestamp(trimmed)
            .map(BoundValue::Timestamp)
            .ok_or_else(|| wrong("a timestamp such as 1995-01-31 12:00:00")),
        VariableType::Integer => trimmed
            .parse()
            .map(BoundValue::Integer)
            .map_err(|_| wrong("a whole number of 64 bits")),
        VariableType::Float => trimmed
            .parse()
            .map(BoundValue::Float)
            .map_err(|_| wrong("a number")),
        VariableType::Decimal => {
            decimal(trimmed).ok_or_else(|| wrong("a decimal of at most 38 digits, such as 12.50"))
        }
        VariableType::Boolean => match trimmed.to_ascii_lowercase().as_str() {
            "true" => Ok(BoundValue::Boolean(true)),
            "false" => Ok(BoundValue::Boolean(false)),
            _ => Err(wrong("`true` or `false`")),
        },
        VariableType::String => Ok(BoundValue::String(text.to_owned())),
        VariableType::Identifier if text.is_empty() || text.chars().any(char::is_control) => Err(
            wrong("a name; names are not empty and hold no control characters"),
        ),
        VariableType::Text if text.contains('\0') => Err(wrong("text; it holds a NUL character")),
        VariableType::Identifier | VariableType::Text => Ok(BoundValue::String(text.to_owned())),
    }
}

fn decimal(text: &str) -> Option<BoundValue> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{fraction}");
    if all.is_empty() || !all.bytes().all(|b| b.is_ascii_digit()) || fraction.len() > 38 {
        return None;
    }
    let n_digits = all.trim_start_matches('0').len().max(fraction.len()).max(1);
    if n_digits > 38 {
        return None;
    }
    let unscaled: i128 = all.trim_start_matches('0').parse().unwrap_or(0);
    Some(BoundValue::Decimal {
        unscaled: if negative { -unscaled } else { unscaled },
        precision: n_digits as u8,
        scale: fraction.len() as i8,
    })
}

fn number(text: &str, n_digits: usize) -> Option<i64> {
    (text.len() == n_digits && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.parse().ok())?
}

fn date(text: &str) -> Option<i32> {
    let mut parts = text.splitn(3, '-');
    let (year, month, day) = (
        number(parts.next()?, 4)?,
        number(parts.next()?, 2)?,
        number(parts.next()?, 2)?,
    );
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let n_days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return None,
    };
    if !(1..=n_days).contains(&day) {
        return None;
    }
    // Count with the year starting in March, so that the leap day is the last of its year.
    let (y, m) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days =
        365 * y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (153 * m + 2) / 5 + day
            - 1;
    i32::try_from(days - 719_468).ok()
}

fn timestamp(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let Some((day, time)) = text.split_once(['T', ' ']) else {
        return Some(i64::from(date(text)?) * 86_400_000_000);
    };
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut parts = clock.splitn(3, ':');
    let hour = number(parts.next()?, 2)?;
    let minute = number(parts.next()?, 2)?;
    let second = parts.next().map_or(Some(0), |s| number(s, 2))?;
    if hour > 23 || minute > 59 || second > 59 || fraction.is_empty() || fraction.len() > 6 {
        return None;
    }
    let micros = number(&format!("{fraction:0<6}"), 6)?;
    let seconds = i64::from(date(day)?) * 86_400 + hour * 3600 + minute * 60 + second;
    Some(seconds * 1_000_000 + micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(list: &[(&str, VariableType, &str)]) -> IndexMap<String, Variable> {
        let variable = |kind, value: &str| Variable {
            kind,
            value: Some(value.to_owned()),
        };
        list.iter()
            .map(|(n, k, v)| ((*n).to_owned(), variable(*k, v)))
            .collect()
    }

    #[test]
    fn values_travel_beside_the_text() {
        let vars = variables(&[
            ("since", VariableType::Date, "1995-01-01"),
            ("who", VariableType::String, "x'; DROP"),
        ]);
        let bound = bind(
            "SELECT 1 WHERE d >= ${since} AND w = ${who} OR d < ${since} -- ${gone}",
            &vars,
        );
        assert_eq!(
            bound.sql,
            "SELECT 1 WHERE d >= $since AND w = $who OR d < $since -- ${gone}"
        );
        assert_eq!(bound.bindings.len(), 2);
        assert_eq!(bound.bindings[0].value, BoundValue::Date(9131));
        assert!(bound.problems.is_empty());
    }

    #[test]
    fn quoted_places_take_text_only_and_escape_it() {
        let vars = variables(&[
            ("bucket-name", VariableType::Text, "a'b`c\"d"),
            ("t", VariableType::Identifier, "ord\"er"),
            ("n", VariableType::Integer, "5"),
        ]);
        let bound = bind(
            "'${bucket-name}' `${bucket-name}` \"${t}\" ${t} ${bucket-name}",
            &vars,
        );
        assert_eq!(
            bound.sql,
            "'a''b`c\"d' `a'b``c\"d` \"ord\"\"er\" \"ord\"\"er\" $bucket_name"
        );
        let refused = bind("SELECT\n '${n}'", &vars);
        assert_eq!(refused.problems[0].code, "variable-in-quotes");
        assert_eq!(
            (refused.problems[0].line, refused.problems[0].column),
            (2, 3)
        );
    }

    #[test]
    fn unknown_and_unclosed_names_are_placed() {
        let problems = bind(
            "a\n  ${misssing} ${",
            &variables(&[("missing", VariableType::Integer, "1")]),
        )
        .problems;
        assert_eq!(problems[0].code, "unknown-variable");
        assert_eq!((problems[0].line, problems[0].column), (2, 3));
        assert!(problems[0].hint.contains("missing"));
        assert_eq!(problems[1].code, "variable-syntax");
    }

    #[test]
    fn names_that_collapse_stay_apart() {
        let vars = variables(&[
            ("a-b", VariableType::Integer, "1"),
            ("a_b", VariableType::Integer, "2"),
        ]);
        let bound = bind("${a-b} ${a_b}", &vars);
        assert_eq!(bound.sql, "$a_b $a_b_2");
    }

    #[test]
    fn values_are_read_by_type() {
        use VariableType as T;
        assert_eq!(parse("1970-01-01", T::Date), Ok(BoundValue::Date(0)));
        assert_eq!(parse("2000-02-29", T::Date), Ok(BoundValue::Date(11_016)));
        assert_eq!(
            parse("1969-12-31 23:59:59.5", T::Timestamp),
            Ok(BoundValue::Timestamp(-500_000))
        );
        let unscaled = -1250;
        assert_eq!(
            parse("-12.50", T::Decimal),
            Ok(BoundValue::Decimal {
                unscaled,
                precision: 4,
                scale: 2
            })
        );
        for (text, kind) in [
            ("1995-02-29", T::Date),
            ("1995-1-1", T::Date),
            ("today", T::Date),
            ("1995-01-01 25:00:00", T::Timestamp),
            ("9223372036854775808", T::Integer),
            ("1.5", T::Integer),
            ("x", T::Float),
            ("1e5", T::Decimal),
            ("123456789012345678901234567890123456789", T::Decimal),
            ("yes", T::Boolean),
            ("", T::Identifier),
        ] {
            assert!(parse(text, kind).is_err(), "{text}");
        }
    }
}
