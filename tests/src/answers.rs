//! Known answers to queries, and whether a result is one of them.
//!
//! The rules are those of `tests/tpch/README.md`: sums and counts are exact; a value
//! whose answer is a double agrees within 1e-9 of it, or within the last digit of a
//! decimal result; rows that the ORDER BY leaves tied may stand in any order.

use std::path::Path;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// A query's answer as a file gives it.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows; `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
}

impl Answer {
    /// Reads a file: names first, `|` between fields, an empty field is NULL.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let mut lines = text.lines();
        let columns: Vec<String> = lines
            .next()
            .ok_or("the answer is empty")?
            .split('|')
            .map(str::to_owned)
            .collect();
        let rows = lines
            .map(|line| {
                line.split('|')
                    .map(|field| (!field.is_empty()).then(|| field.to_owned()))
                    .collect()
            })
            .collect();
        Ok(Self { columns, rows })
    }
}

/// One value of a result.
#[derive(Debug, Clone, PartialEq)]
struct Value {
    text: Option<String>,
    /// Digits after the point, of a decimal.
    scale: Option<i8>,
    is_float: bool,
}

/// Whether a result is the answer to `sql`; if not, where it first differs.
pub fn check(sql: &str, answer: &Answer, result: &[RecordBatch]) -> Result<(), String> {
    let rows = values(result)?;
    if rows.len() != answer.rows.len() {
        return Err(format!(
            "{} rows, expected {}",
            rows.len(),
            answer.rows.len()
        ));
    }
    if let Some(row) = rows.first()
        && row.len() != answer.columns.len()
    {
        return Err(format!(
            "{} columns, expected {}",
            row.len(),
            answer.columns.len()
        ));
    }
    let keys: Vec<usize> = order_columns(sql)
        .iter()
        .filter_map(|name| {
            answer
                .columns
                .iter()
                .position(|column| column.eq_ignore_ascii_case(name))
        })
        .collect();
    let key = |row: usize| {
        keys.iter()
            .map(|column| answer.rows[row][*column].clone())
            .collect::<Vec<_>>()
    };
    let mut start = 0;
    while start < rows.len() {
        let end = (start..rows.len())
            .find(|row| key(*row) != key(start))
            .unwrap_or(rows.len());
        let mut expected: Vec<&Vec<Option<String>>> = answer.rows[start..end].iter().collect();
        for (index, row) in rows[start..end].iter().enumerate() {
            let same = expected
                .iter()
                .position(|expected| is_same_row(expected, row));
            match same {
                Some(place) => {
                    expected.remove(place);
                }
                None => {
                    let got: Vec<&str> = row
                        .iter()
                        .map(|value| value.text.as_deref().unwrap_or("NULL"))
                        .collect();
                    return Err(format!(
                        "row {}: got {}, expected {:?}",
                        start + index + 1,
                        got.join("|"),
                        expected.first()
                    ));
                }
            }
        }
        start = end;
    }
    Ok(())
}

/// The columns of the last ORDER BY of a query.
fn order_columns(sql: &str) -> Vec<String> {
    let lower = sql.to_lowercase();
    let Some(start) = lower.rfind("order by") else {
        return Vec::new();
    };
    let list = &lower[start + "order by".len()..];
    let end = [list.find("limit"), list.find(';')]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(list.len());
    list[..end]
        .split(',')
        .filter_map(|item| item.split_whitespace().next().map(str::to_owned))
        .collect()
}

fn values(result: &[RecordBatch]) -> Result<Vec<Vec<Value>>, String> {
    let options = FormatOptions::new().with_null("");
    let mut rows = Vec::new();
    for batch in result {
        let formatters = batch
            .columns()
            .iter()
            .map(|column| {
                ArrayFormatter::try_new(column, &options).map_err(|error| error.to_string())
            })
            .collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let values = batch
                .columns()
                .iter()
                .zip(&formatters)
                .map(|(column, formatter)| Value {
                    text: column
                        .is_valid(row)
                        .then(|| formatter.value(row).to_string()),
                    scale: match column.data_type() {
                        DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) => {
                            Some(*scale)
                        }
                        _ => None,
                    },
                    is_float: column.data_type().is_floating(),
                })
                .collect();
            rows.push(values);
        }
    }
    Ok(rows)
}

fn is_same_row(expected: &[Option<String>], got: &[Value]) -> bool {
    expected
        .iter()
        .zip(got)
        .all(|(expected, got)| is_same(expected.as_deref(), got))
}

fn is_same(expected: Option<&str>, got: &Value) -> bool {
    let (expected, text) = match (expected, &got.text) {
        (None, None) => return true,
        // An empty string is written like a NULL.
        (None, Some(text)) => return text.is_empty(),
        (Some(_), None) => return false,
        (Some(expected), Some(text)) => (expected, text.as_str()),
    };
    if expected == text {
        return true;
    }
    if got.scale.is_none() && !got.is_float {
        return trimmed(expected) == trimmed(text) && expected.parse::<f64>().is_ok();
    }
    let (Ok(wanted), Ok(value)) = (expected.parse::<f64>(), text.parse::<f64>()) else {
        return false;
    };
    let n_digits = expected
        .split_once('.')
        .map_or(0, |(_, digits)| digits.len());
    if got.scale.is_some() && n_digits <= 6 && !expected.contains('e') {
        return trimmed(expected) == trimmed(text);
    }
    let last_digit = got
        .scale
        .map_or(0.0, |scale| 10_f64.powi(-i32::from(scale)));
    (wanted - value).abs() <= (1e-9 * wanted.abs()).max(last_digit * 1.000_001)
}

/// A number without zeros at its end.
fn trimmed(number: &str) -> &str {
    if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str, scale: i8) -> Value {
        Value {
            text: Some(text.into()),
            scale: Some(scale),
            is_float: false,
        }
    }

    #[test]
    fn money_is_exact_and_averages_are_not() {
        assert!(is_same(Some("380456.00"), &decimal("380456", 0)));
        assert!(!is_same(
            Some("505822441.4861"),
            &decimal("505822441.4862", 4)
        ));
        assert!(is_same(
            Some("25.575154611454693"),
            &decimal("25.575155", 6)
        ));
        assert!(!is_same(
            Some("25.575154611454693"),
            &decimal("25.575157", 6)
        ));
    }

    #[test]
    fn the_last_order_by_counts() {
        let sql = "SELECT a FROM (SELECT a FROM t ORDER BY b) ORDER BY revenue DESC,\n o_orderdate LIMIT 10;";
        assert_eq!(order_columns(sql), ["revenue", "o_orderdate"]);
    }
}
