//! `warpline udf pack`: metadata for a module whose compiler cannot write custom sections.

use std::path::Path;

use super::{Outcome, check, read, spec_lines, write};

/// What the file looks like, for whoever got it wrong.
const FORM: &str = r#"[{"abi": 1, "name": "add", "kind": "scalar", "args": [{"name": "a", "type": "i64"}, {"name": "b", "type": "i64"}], "returns": "i64"}]"#;

/// Runs the command.
pub fn pack(module: &Path, meta: &Path, output: &Path) -> Outcome<()> {
    let records: Vec<serde_json::Value> =
        serde_json::from_slice(&read(meta)?).map_err(|error| {
            format!(
                "{} is not a JSON list of functions ({error}); write {FORM}",
                meta.display()
            )
        })?;
    let packed = sandbox::pack(&read(module)?, &records)
        .map_err(|error| format!("{}: {error}", module.display()))?;
    // What a batch would refuse is not written.
    let facts = check(module, &packed)?;
    write(output, &packed)?;
    eprint!(
        "{}: {} bytes; to use it:\n\n{}",
        output.display(),
        facts.n_bytes,
        spec_lines(output, &facts)
    );
    Ok(())
}
