//! `warpline udf build`: from a Rust crate to a checked module.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::toolchain::{self, TARGET};
use super::{Outcome, check, read, spec_lines, write};

/// Room for the module's own stack. Rust's default of 1 MiB would be part of every instance.
const STACK_BYTES: u32 = 128 << 10;

/// Runs the command.
pub fn build(folder: &Path) -> Outcome<()> {
    if !folder.join("Cargo.toml").exists() {
        return Err(format!(
            "{} has no Cargo.toml; `warpline udf new NAME` makes a folder that works",
            folder.display()
        ));
    }
    let built = cargo(folder)?;
    let wasm = read(&built)?;
    let facts = check(&built, &wasm)?;
    let name = built.file_name().unwrap_or_default();
    let module = folder.join(name);
    write(&module, &wasm)?;
    eprintln!("{}: {} bytes", module.display(), facts.n_bytes);
    for function in &facts.functions {
        eprintln!("  {}", function.signature());
    }
    eprint!("\nto use it in a batch:\n\n{}", spec_lines(&module, &facts));
    Ok(())
}

/// Builds the crate and returns where its module is.
fn cargo(folder: &Path) -> Outcome<PathBuf> {
    let toolchain = toolchain::find(folder)?;
    let here = std::path::absolute(folder).map_err(|error| error.to_string())?;
    let mut command = Command::new("cargo");
    command
        .current_dir(folder)
        .args(["build", "--release", "--target", TARGET])
        .arg("--message-format=json-render-diagnostics")
        .env(
            "RUSTFLAGS",
            format!(
                "-C target-feature=+simd128 -C link-arg=-zstack-size={STACK_BYTES} \
                 --remap-path-prefix={}=/udf",
                here.display()
            ),
        )
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3")
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .stdout(Stdio::piped());
    if let Some(rustc) = &toolchain.rustc {
        command.env("RUSTC", rustc);
    }
    if let Some(linker) = &toolchain.linker {
        command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
    }
    let mut child = command
        .spawn()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    let mut modules = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            modules.extend(modules_in(&line));
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if !status.success() {
        return Err("the crate does not build; the compiler's messages are above".into());
    }
    match modules.as_slice() {
        [module] => Ok(module.clone()),
        [] => Err(format!(
            "the crate makes no WebAssembly module; add `crate-type = [\"cdylib\", \"rlib\"]` under \
             `[lib]` in {}",
            folder.join("Cargo.toml").display()
        )),
        several => Err(format!(
            "the folder makes {} modules; build the folder of one crate",
            several.len()
        )),
    }
}

/// The modules that a line of cargo's messages tells of.
fn modules_in(line: &str) -> Vec<PathBuf> {
    let Ok(message) = serde_json::from_str::<Value>(line) else {
        return Vec::new();
    };
    if message["reason"] != "compiler-artifact" {
        return Vec::new();
    }
    let files = message["filenames"].as_array().into_iter().flatten();
    files
        .filter_map(Value::as_str)
        .filter(|name| name.ends_with(".wasm"))
        .map(PathBuf::from)
        .collect()
}
