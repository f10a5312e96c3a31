//! Text for people: result rows, the run report, a plan.

use std::io::{self, Write};

/// Writes rows of cells as aligned columns, two spaces apart. Columns named in `right`
/// (by index) are aligned to the right, as numbers are.
pub fn columns(out: &mut dyn Write, rows: &[Vec<String>], right: &[usize]) -> io::Result<()> {
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..n_columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            let width = widths[column];
            if right.contains(&column) {
                line.push_str(&format!("{cell:>width$}"));
            } else {
                line.push_str(&format!("{cell:<width$}"));
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// A whole number with its thousands apart: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in the unit that people read it in.
pub fn duration(ms: f64) -> String {
    if ms < 1_000.0 {
        format!("{ms:.0} ms")
    } else if ms < 120_000.0 {
        format!("{:.2} s", ms / 1_000.0)
    } else {
        format!(
            "{:.0} min {:02.0} s",
            (ms / 60_000.0).floor(),
            (ms % 60_000.0 / 1_000.0).floor()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["stage".to_string(), "rows".to_string()],
            vec!["q1".to_string(), "12,345".to_string()],
        ];
        let mut out = Vec::new();
        columns(&mut out, &rows, &[1]).expect("memory takes every write");
        assert_eq!(
            String::from_utf8(out).expect("text"),
            "stage    rows\nq1     12,345\n"
        );
    }

    #[test]
    fn numbers_and_times_read_well() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
        for (ms, text) in [
            (12.4, "12 ms"),
            (1_500.0, "1.50 s"),
            (125_000.0, "2 min 05 s"),
        ] {
            assert_eq!(duration(ms), text);
        }
    }
}
