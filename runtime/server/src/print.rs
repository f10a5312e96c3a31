//! Text for people: result rows, the run report, a plan.

use std::io::{self, Write};

use lifecycle::{Place, Placement};

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

/// What people call the place where a batch runs.
pub fn place_name(place: Place) -> &'static str {
    match place {
        Place::Cpu => "CPU",
        Place::Gpu => "GPU",
    }
}

/// Where a batch would run, and the estimate of each stage behind that.
pub fn placement(placement: &Placement) -> io::Result<String> {
    let mut text = Vec::new();
    let name = place_name(placement.on);
    writeln!(text, "placed on the {name}: {}", placement.why)?;
    let mut rows = vec![
        ["stage", "rows read", "on the CPU", "on the GPU"]
            .map(String::from)
            .to_vec(),
    ];
    rows.extend(placement.stages.iter().map(|stage| {
        vec![
            stage.stage.clone(),
            grouped(stage.estimate.rows),
            duration(stage.estimate.cpu_ms),
            duration(stage.estimate.gpu_ms),
        ]
    }));
    if rows.len() > 1 {
        columns(&mut text, &rows, &[1, 2, 3])?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
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
    use engine::estimate::Estimate;
    use lifecycle::StageEstimate;

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
    fn a_placement_says_why_and_shows_its_estimates() {
        let estimate = Estimate {
            rows: 12_345,
            values: 49_380,
            cpu_ms: 3.0,
            gpu_ms: 26.0,
        };
        let placed = Placement {
            on: Place::Cpu,
            why: "expected to take 3 ms there".to_string(),
            stages: vec![StageEstimate {
                stage: "q1".to_string(),
                estimate,
            }],
        };
        assert_eq!(
            placement(&placed).expect("memory takes every write"),
            "placed on the CPU: expected to take 3 ms there\n\
             stage  rows read  on the CPU  on the GPU\n\
             q1        12,345        3 ms       26 ms\n"
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
