//! `warpline validate`: every problem of a spec, without running it.

use serde_json::json;

use super::print_json;
use crate::arguments::{Output, Validate};
use crate::exit::Exit;
use crate::spec_file::SpecFile;

/// Runs the command. The machine is left out: whether a spec is valid does not depend on
/// where it was checked.
pub fn validate(arguments: &Validate) -> Exit {
    let spec = match SpecFile::load(&arguments.spec, None) {
        Ok(spec) => spec,
        Err(error) => {
            eprintln!("error: {error}");
            return Exit::Usage;
        }
    };
    match arguments.output {
        Output::Table => {
            spec.print_problems();
            eprintln!("{}", spec.summary());
        }
        Output::Json => {
            let answer = json!({
                "file": spec.name,
                "valid": !spec.is_refused(),
                "problems": spec.loaded.problems,
            });
            if let Err(error) = print_json(&answer) {
                eprintln!("error: {error}");
                return Exit::Failed;
            }
        }
    }
    if spec.is_refused() {
        Exit::Usage
    } else {
        Exit::Done
    }
}
