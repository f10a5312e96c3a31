//! `warpline udf test`: a module's examples, and what must hold for every function.

use std::path::Path;

use engine::session::Session;
use engine::settings::{Settings, Stage, UdfModule};
use engine::words::io_problem;
use lifecycle::Cancel;
use sandbox::{Function, properties};

use super::{Outcome, load, read};
use crate::commands::compile_guest::GUEST_COMPILER;

/// Runs the command.
pub fn test(path: &Path) -> Outcome<()> {
    let module = load(path, &read(path)?)?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| io_problem(&error))?;
    let mut n_wrong = 0;
    for (at, function) in module.facts().functions.iter().enumerate() {
        let mut told = Vec::new();
        for failure in runtime.block_on(examples(path, function))? {
            n_wrong += 1;
            told.push(format!("wrong: {failure}"));
        }
        let findings = properties::check(&module, at).map_err(|error| error.to_string())?;
        for finding in findings {
            n_wrong += u32::from(finding.is_wrong);
            let word = if finding.is_wrong { "wrong" } else { "look at" };
            told.push(format!("{word}: {}", finding.message));
        }
        let n_examples = match function.examples.len() {
            0 => "no examples".to_string(),
            1 => "1 example".to_string(),
            n => format!("{n} examples"),
        };
        let verdict = if told.is_empty() { "ok" } else { "see below" };
        eprintln!("{}: {n_examples}, {verdict}", function.signature());
        for line in told {
            eprintln!("  {line}");
        }
    }
    match n_wrong {
        0 => Ok(()),
        1 => Err("1 thing is wrong".into()),
        n => Err(format!("{n} things are wrong")),
    }
}

/// The examples that do not hold, in words.
async fn examples(path: &Path, function: &Function) -> Outcome<Vec<String>> {
    let mut failures = Vec::new();
    if function.examples.is_empty() {
        return Ok(failures);
    }
    let settings = Settings {
        cache_dir: lifecycle::cache_dir(),
        ..Settings::default()
    };
    let session = Session::new(settings).map_err(|error| error.to_string())?;
    let module = UdfModule::new(path.to_string_lossy(), &[&function.name]);
    session
        .open_modules(&[module], &GUEST_COMPILER)
        .await
        .map_err(|error| error.to_string())?;
    for (n, example) in function.examples.iter().enumerate() {
        // As text, so that both sides are shown as they would be compared.
        let sql = format!(
            "SELECT made IS NOT DISTINCT FROM meant AS holds, CAST(made AS VARCHAR) AS made FROM \
             (SELECT {} AS made, {} AS meant)",
            example.call, example.result
        );
        let stage = Stage::new(format!("example_{n}"), sql);
        let said = format!("{} = {}", example.call, example.result);
        match session.run_stage(&stage, &|_| {}, &Cancel::new()).await {
            Ok(run) => {
                let rows = &run.report.preview;
                let cell = |column: usize| {
                    rows.first().map_or(String::new(), |rows| {
                        arrow::util::display::array_value_to_string(rows.column(column), 0)
                            .unwrap_or_default()
                    })
                };
                if cell(0) != "true" {
                    let made = match cell(1) {
                        empty if empty.is_empty() => "NULL or empty".to_string(),
                        other => other,
                    };
                    failures.push(format!("the example {said} gives {made}"));
                }
            }
            Err(error) => failures.push(format!("the example {said}: {}", error.without_stage())),
        }
    }
    Ok(failures)
}
