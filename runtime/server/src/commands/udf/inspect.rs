//! `warpline udf inspect`: what a module says about itself, without running it.

use std::fmt::Write;
use std::path::Path;

use sandbox::{Checked, Nulls, Volatility};
use serde_json::json;

use super::{Outcome, check, kind, read};
use crate::arguments::Output;
use crate::commands::{print_json, print_text};

/// Runs the command.
pub fn inspect(path: &Path, output: Output) -> Outcome<()> {
    let facts = check(path, &read(path)?)?;
    let printed = match output {
        Output::Table => print_text(&text(&facts)),
        Output::Json => print_json(&json(&facts)),
    };
    printed.map_err(|error| error.to_string())
}

fn text(facts: &Checked) -> String {
    let mut text = format!(
        "sha256   {}\nsize     {} bytes\nmemory   {} KiB at the start, {}\nimports  none\n",
        facts.sha256_hex(),
        facts.n_bytes,
        facts.memory_pages_min * 64,
        match facts.memory_pages_max {
            Some(pages) => format!("at most {} KiB", pages * 64),
            None => "no limit of its own".to_string(),
        }
    );
    for function in &facts.functions {
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "\n{}\n  {}, {}, {}\n",
            function.signature(),
            kind(function),
            match function.nulls {
                Nulls::Strict => "NULL where an argument is",
                Nulls::Called => "sees NULL",
            },
            match function.volatility {
                Volatility::Immutable => "immutable",
                Volatility::Stable => "stable",
                Volatility::Volatile => "volatile",
            }
        );
        for line in function.doc.lines() {
            let _ = writeln!(text, "  {line}");
        }
        for example in &function.examples {
            let _ = writeln!(text, "  {} = {}", example.call, example.result);
        }
    }
    text
}

fn json(facts: &Checked) -> serde_json::Value {
    let functions: Vec<_> = facts
        .functions
        .iter()
        .map(|function| {
            let args: Vec<_> = function
                .args
                .iter()
                .map(|arg| json!({"name": arg.name, "type": arg.kind.to_string()}))
                .collect();
            json!({
                "name": function.name,
                "kind": function.kind,
                "args": args,
                "returns": function.returns.to_string(),
                "nulls": function.nulls,
                "volatility": function.volatility,
                "doc": function.doc,
                "examples": function.examples,
            })
        })
        .collect();
    json!({
        "sha256": facts.sha256_hex(),
        "bytes": facts.n_bytes,
        "memory_pages_min": facts.memory_pages_min,
        "memory_pages_max": facts.memory_pages_max,
        "functions": functions,
    })
}
