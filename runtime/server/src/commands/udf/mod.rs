//! `warpline udf`: write, build and try out user functions.

mod bench;
mod build;
mod inspect;
mod kit;
mod new;
mod pack;
mod test;
mod toolchain;

use std::path::Path;
use std::sync::Arc;

use engine::words::io_problem;
use sandbox::{Checked, Function, Kind, Limits, Module, Runtime, Setup, Stop, Unbounded, loader};

use super::compile_guest::GUEST_COMPILER;
use crate::arguments::UdfCommand;
use crate::exit::Exit;

/// Why a command did not do what was asked: a message for people.
type Outcome<T> = Result<T, String>;

/// Runs one of the commands.
pub fn run(command: &UdfCommand) -> Exit {
    let outcome = match command {
        UdfCommand::New(new) => new::new(&new.folder),
        UdfCommand::Build(build) => build::build(&build.folder),
        UdfCommand::Test(test) => test::test(&test.module),
        UdfCommand::Inspect(inspect) => inspect::inspect(&inspect.module, inspect.output),
        UdfCommand::Bench(bench) => bench::bench(&bench.module),
        UdfCommand::Pack(pack) => pack::pack(&pack.module, &pack.meta, &pack.output),
    };
    match outcome {
        Ok(()) => Exit::Done,
        Err(message) => {
            eprintln!("error: {message}");
            Exit::Failed
        }
    }
}

fn read(path: &Path) -> Outcome<Vec<u8>> {
    std::fs::read(path)
        .map_err(|error| format!("cannot read {}: {}", path.display(), io_problem(&error)))
}

fn write(path: &Path, contents: impl AsRef<[u8]>) -> Outcome<()> {
    std::fs::write(path, contents)
        .map_err(|error| format!("cannot write {}: {}", path.display(), io_problem(&error)))
}

/// What the loader says of a module's bytes.
fn check(path: &Path, wasm: &[u8]) -> Outcome<Checked> {
    loader::check(wasm).map_err(|error| refused(path, &error))
}

fn refused(path: &Path, error: &sandbox::Error) -> String {
    format!(
        "{} cannot be used as a module of user functions: {error}",
        path.display()
    )
}

/// A module, ready to be called, as a batch would have it.
fn load(path: &Path, wasm: &[u8]) -> Outcome<Arc<Module>> {
    let cache = lifecycle::cache_dir().join("udf");
    Runtime::new(Setup {
        compiler: GUEST_COMPILER.clone(),
        cache: Some(&cache),
        deterministic: false,
    })
    .and_then(|runtime| {
        runtime.load(
            wasm,
            Limits::default(),
            Arc::new(Unbounded),
            Stop::default(),
        )
    })
    .map_err(|error| refused(path, &error))
}

/// Whether SQL can call it, in words.
fn kind(function: &Function) -> &'static str {
    match function.kind {
        Kind::Scalar => "scalar",
        Kind::Aggregate => "aggregate",
        Kind::Table => "table",
    }
}

/// The lines that go into a spec to use a module.
fn spec_lines(path: &Path, facts: &Checked) -> String {
    let names: Vec<&str> = facts.functions.iter().map(|f| f.name.as_str()).collect();
    format!(
        "udfs:\n  - module: {}\n    sha256: {}\n    functions: [{}]\n",
        path.display(),
        facts.sha256_hex(),
        names.join(", ")
    )
}
