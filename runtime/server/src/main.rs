//! `warpline`, the command line.
//!
//! Arguments, wiring and printing; what a batch does is decided in `lifecycle` and below.
//! Data goes to standard output, everything for people to standard error, and every
//! command ends in one of the codes of [`exit::Exit`].

mod arguments;
mod commands;
mod exit;
mod gpus;
mod interrupt;
mod panic_notice;
mod print;
mod progress;
mod spec_file;

use std::process::ExitCode;

use arguments::{Arguments, Command, TpchCommand};
use clap::Parser;
use exit::Exit;
use tracing_subscriber::EnvFilter;

/// Planning makes and drops small values by the hundred thousand; the system's allocator
/// takes a fifth of its time for them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    panic_notice::install();
    let arguments = Arguments::parse();
    log_to_stderr();
    // The hook has spoken when this catches something; only the exit code is left.
    std::panic::catch_unwind(|| dispatch(&arguments))
        .unwrap_or(Exit::Failed)
        .into()
}

fn dispatch(arguments: &Arguments) -> Exit {
    match &arguments.command {
        Command::Run(run) => commands::run::run(run),
        Command::Validate(validate) => commands::validate::validate(validate),
        Command::Plan(plan) => commands::plan::plan(plan),
        Command::Devices(devices) => commands::devices::devices(devices),
        Command::Udf(udf) => commands::udf::run(&udf.command),
        Command::CompileGuest => commands::compile_guest::serve(),
        Command::Tpch(tpch) => match &tpch.command {
            TpchCommand::Generate(generate) => commands::tpch::generate(generate),
        },
    }
}

/// Logs what `WARPLINE_LOG` asks for, such as `info` or `engine=debug`; nothing by default.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("WARPLINE_LOG").unwrap_or_else(|_| EnvFilter::new("off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
}
