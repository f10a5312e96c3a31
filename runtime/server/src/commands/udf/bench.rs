//! `warpline udf bench`: how long a row takes.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use sandbox::{Argument, Kind, Module, OnError, sample};

use super::{Outcome, load, read};
use crate::print;

/// Rows of the record batches that are measured.
const SIZES: [usize; 3] = [1_024, 8_192, 65_536];
/// Each figure is the shortest of as many calls as fit into this.
const PATIENCE: Duration = Duration::from_millis(300);

/// Runs the command.
pub fn bench(path: &Path) -> Outcome<()> {
    let module = load(path, &read(path)?)?;
    let mut rows = vec![
        ["function", "rows", "ns/row", "µs/call"]
            .map(String::from)
            .to_vec(),
    ];
    for (at, function) in module.facts().functions.iter().enumerate() {
        if function.kind != Kind::Scalar {
            continue;
        }
        for n_rows in SIZES {
            let shortest = shortest(&module, at, n_rows)?;
            rows.push(vec![
                function.name.clone(),
                print::grouped(n_rows as u64),
                format!("{:.2}", shortest.as_nanos() as f64 / n_rows as f64),
                format!("{:.1}", shortest.as_nanos() as f64 / 1_000.0),
            ]);
        }
    }
    print::columns(&mut io::stdout().lock(), &rows, &[1, 2, 3])
        .map_err(|error| error.to_string())?;
    eprintln!(
        "random columns without NULL; copies in and out are included; the shortest of many calls"
    );
    Ok(())
}

fn shortest(module: &Module, at: usize, n_rows: usize) -> Outcome<Duration> {
    let args: Vec<Argument> = module
        .function(at)
        .args
        .iter()
        .enumerate()
        .map(|(i, arg)| Argument::Column(sample::column(&arg.kind, n_rows, i as u64, false)))
        .collect();
    let started = Instant::now();
    let mut shortest = Duration::MAX;
    while started.elapsed() < PATIENCE {
        let clock = Instant::now();
        module
            .call(at, &args, n_rows, 0, OnError::Null)
            .map_err(|error| error.to_string())?;
        shortest = shortest.min(clock.elapsed());
    }
    Ok(shortest)
}
