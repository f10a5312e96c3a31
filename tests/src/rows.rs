//! Results as lines of text, and whether two results are the same.
//!
//! A row is one line, its values separated by a blank. NULL is `NULL`, the empty text
//! `(empty)`, and a line break within a text `\n`. A float is the same as a number that
//! differs from it by a billionth (single precision: by a millionth) of the larger.

use std::fmt::Write as _;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// A result.
#[derive(Debug, Clone)]
pub struct Rows(Vec<Row>);

type Row = Vec<Value>;

#[derive(Debug, Clone, PartialEq, PartialOrd)]
struct Value {
    text: String,
    /// How far off an equal number may be, as a part of it; 0 for what is exact.
    tolerance: f64,
}

impl Rows {
    /// The rows of record batches, in their order.
    pub fn of(batches: &[RecordBatch]) -> Result<Rows, String> {
        let options = FormatOptions::new().with_null("NULL");
        let mut rows = Vec::new();
        for batch in batches {
            let formatters = batch.columns().iter().map(|column| {
                ArrayFormatter::try_new(column, &options).map_err(|error| error.to_string())
            });
            let formatters = formatters.collect::<Result<Vec<_>, _>>()?;
            for row in 0..batch.num_rows() {
                let columns = batch.columns().iter().zip(&formatters);
                let values = columns.map(|(column, formatter)| Value {
                    text: shown(formatter, row),
                    tolerance: match column.data_type() {
                        DataType::Float64 => 1e-9,
                        DataType::Float32 => 1e-6,
                        _ => 0.0,
                    },
                });
                rows.push(values.collect());
            }
        }
        Ok(Rows(rows))
    }

    /// The rows of expected lines. Only a text that is the last value may have blanks.
    pub fn of_lines(lines: &[String], n_columns: usize) -> Rows {
        let row = |line: &String| {
            let values = line.splitn(n_columns.max(1), ' ').map(|text| Value {
                text: text.to_string(),
                tolerance: 0.0,
            });
            values.collect()
        };
        Rows(lines.iter().map(row).collect())
    }

    /// The rows as lines.
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().map(|row| line(row)).collect()
    }

    /// How many rows there are.
    pub fn n_rows(&self) -> usize {
        self.0.len()
    }

    /// How this result differs from another. Without `ordered` rows may stand in any
    /// order.
    pub fn difference(&self, other: &Rows, ordered: bool) -> Option<String> {
        let same = self.0.len() == other.0.len()
            && match ordered {
                true => self.0.iter().zip(&other.0).all(|(a, b)| same_row(a, b)),
                false => is_matching(self.0.clone(), other.0.clone()),
            };
        if same {
            return None;
        }
        let mut text = format!("{} rows instead of {}\n", self.0.len(), other.0.len());
        let mut tell = |what: &str, rows: &[Row], others: &[Row]| {
            for row in rows.iter().filter(|row| !has(others, row)).take(5) {
                let _ = writeln!(text, "  {what} {}", line(row));
            }
        };
        tell("too much:", &self.0, &other.0);
        tell("missing: ", &other.0, &self.0);
        Some(text)
    }
}

fn line(row: &[Value]) -> String {
    let values: Vec<&str> = row.iter().map(|value| value.text.as_str()).collect();
    values.join(" ")
}

fn shown(formatter: &ArrayFormatter, row: usize) -> String {
    let text = formatter.value(row).to_string();
    match text.is_empty() {
        true => "(empty)".to_string(),
        false => text.replace('\n', "\\n"),
    }
}

fn has(rows: &[Row], row: &[Value]) -> bool {
    rows.iter().any(|other| same_row(other, row))
}

/// Whether every row of one has a row of its own in the other.
fn is_matching(mut left: Vec<Row>, mut right: Vec<Row>) -> bool {
    // Sorted, equal rows stand at about the same place, so the search below is short.
    let by_text = |a: &Row, b: &Row| line(a).cmp(&line(b));
    left.sort_by(by_text);
    right.sort_by(by_text);
    let mut free = right.into_iter().collect::<std::collections::VecDeque<_>>();
    left.iter().all(|row| {
        let found = free.iter().position(|other| same_row(row, other));
        found.and_then(|at| free.remove(at)).is_some()
    })
}

fn same_row(left: &[Value], right: &[Value]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(a, b)| same_value(a, b))
}

fn same_value(left: &Value, right: &Value) -> bool {
    if left.text == right.text {
        return true;
    }
    let tolerance = left.tolerance.max(right.tolerance);
    match (left.text.parse::<f64>(), right.text.parse::<f64>()) {
        (Ok(a), Ok(b)) if tolerance > 0.0 => {
            a == b || (a - b).abs() <= tolerance * a.abs().max(b.abs())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Decimal128Array, Float64Array, StringArray};
    use std::sync::Arc;

    fn rows(floats: Vec<f64>, decimals: Vec<i128>, texts: Vec<Option<&str>>) -> Rows {
        let decimals = Decimal128Array::from(decimals)
            .with_precision_and_scale(38, 2)
            .unwrap();
        let batch = RecordBatch::try_from_iter_with_nullable(vec![
            ("f", Arc::new(Float64Array::from(floats)) as ArrayRef, true),
            ("d", Arc::new(decimals) as ArrayRef, true),
            ("s", Arc::new(StringArray::from(texts)) as ArrayRef, true),
        ]);
        Rows::of(&[batch.unwrap()]).unwrap()
    }

    #[test]
    fn floats_are_close_and_decimals_are_exact() {
        let a = rows(vec![0.1 + 0.2], vec![1_000_000_000_000], vec![None]);
        let b = rows(vec![0.3], vec![1_000_000_000_000], vec![None]);
        let c = rows(vec![0.3], vec![1_000_000_000_001], vec![None]);
        assert_eq!(a.difference(&b, true), None);
        assert!(b.difference(&c, true).is_some());
    }

    #[test]
    fn rows_are_compared_with_their_number() {
        let (x, y) = (Some("x"), Some(""));
        let a = rows(vec![1.0, 1.0, 2.0], vec![1, 1, 1], vec![x, x, y]);
        let b = rows(vec![1.0, 2.0, 1.0], vec![1, 1, 1], vec![x, y, x]);
        let c = rows(vec![1.0, 2.0, 2.0], vec![1, 1, 1], vec![x, y, y]);
        assert_eq!(a.difference(&b, false), None);
        assert!(a.difference(&b, true).is_some());
        assert!(a.difference(&c, false).is_some());
        let expected = ["1.0 0.01 x", "1.0 0.01 x", "2.0 0.01 (empty)"].map(str::to_owned);
        assert_eq!(a.difference(&Rows::of_lines(&expected, 3), true), None);
    }
}
