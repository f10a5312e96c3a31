//! One file for each command.

pub mod attempt;
pub mod batches;
pub mod compile_guest;
pub mod devices;
pub mod plan;
pub mod run;
pub mod serve;
pub mod tokens;
pub mod tpch;
pub mod triggers;
pub mod udf;
pub mod validate;

use std::io::{self, Write};

use engine::words::io_problem;
use serde::Serialize;

/// Prints `value` as JSON, the whole of standard output of a command. A reader that went
/// away (`| head`) is not an error.
fn print_json(value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    print_text(&text)
}

/// Prints to standard output; see [`print_json`].
fn print_text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => {
            let problem = io_problem(&error);
            let message = format!("cannot write to standard output: {problem}");
            Err(io::Error::new(error.kind(), message))
        }
        Ok(()) => Ok(()),
    }
}
