//! `warpline plan`: what a spec means here, with nothing executed.

use std::fmt::Write as _;
use std::io;

use lifecycle::{GpuSource, Machine};
use serde_json::{Value, json};

use super::{print_json, print_text};
use crate::arguments::{Output, Plan};
use crate::exit::Exit;
use crate::gpus::Gpus;
use crate::print;
use crate::spec_file::SpecFile;

/// Runs the command.
pub fn plan(arguments: &Plan) -> Exit {
    let (machine, gpus) = (Machine::detect(), Gpus::detect());
    let spec = match SpecFile::load(&arguments.spec, Some((&machine, &gpus))) {
        Ok(spec) => spec,
        Err(error) => {
            eprintln!("error: {error}");
            return Exit::Usage;
        }
    };
    let gpu = match spec.is_refused() {
        true => None,
        false => gpus.source_for(&spec.loaded),
    };
    let gpu = gpu.as_ref().map(|gpu| gpu as &dyn GpuSource);
    match show(arguments, &spec, machine, gpu) {
        Ok(exit) => exit,
        Err(error) => {
            eprintln!("error: {error}");
            Exit::Failed
        }
    }
}

fn show(
    arguments: &Plan,
    spec: &SpecFile,
    machine: Machine,
    gpu: Option<&dyn GpuSource>,
) -> io::Result<Exit> {
    if arguments.output == Output::Table {
        spec.print_problems();
    }
    let (plan, exit) = if spec.is_refused() {
        (None, Exit::Usage)
    } else {
        let runtime = tokio::runtime::Runtime::new()?;
        let plan = runtime.block_on(lifecycle::plan(spec.request(machine, gpu, 0)));
        let exit = if plan.error.is_some() {
            Exit::Failed
        } else {
            Exit::Done
        };
        (Some(plan), exit)
    };
    let effective = lifecycle::effective_json(&spec.loaded);
    match arguments.output {
        Output::Json => print_json(&json!({
            "effective": effective,
            "problems": spec.loaded.problems,
            "fallbacks": plan.as_ref().map_or(json!([]), |plan| json!(plan.fallbacks)),
            "placement": plan.as_ref().and_then(|plan| plan.placement.as_ref()),
            "stages": plan.as_ref().map_or(json!([]), |plan| json!(plan.stages)),
            "error": plan.as_ref().and_then(|plan| plan.error.as_ref()),
        }))?,
        Output::Table => {
            let mut text = effective_table(&effective)?;
            if let Some(placement) = plan.as_ref().and_then(|plan| plan.placement.as_ref()) {
                text.push('\n');
                text.push_str(&print::placement(placement)?);
            }
            for stage in plan.iter().flat_map(|plan| &plan.stages) {
                // Writing to a string cannot fail.
                let _ = write!(text, "\nstage {}\n{}", stage.name, stage.text);
                let _ = write!(text, "{}", engine::explain::lines(&stage.nodes, false));
            }
            print_text(&text)?;
            if let Some(error) = plan.as_ref().and_then(|plan| plan.error.as_ref()) {
                match &error.stage {
                    Some(stage) => eprintln!("error: stage {stage}: {}", error.message),
                    None => eprintln!("error: {}", error.message),
                }
            }
            if spec.is_refused() {
                eprintln!("{}", spec.summary());
            }
        }
    }
    Ok(exit)
}

/// The effective configuration as columns: name, value, where from, by which rule.
fn effective_table(effective: &Value) -> io::Result<String> {
    let mut rows = vec![
        ["setting", "value", "from", "rule"]
            .map(String::from)
            .to_vec(),
    ];
    for (name, entry) in effective.as_object().into_iter().flatten() {
        let cell = |field: &str| match &entry[field] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        rows.push(vec![
            name.clone(),
            cell("value"),
            cell("from"),
            cell("rule"),
        ]);
    }
    let mut text = Vec::new();
    print::columns(&mut text, &rows, &[])?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
