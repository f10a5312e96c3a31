//! `warpline`, the command line.
//!
//! Arguments, wiring and printing; what a batch does is decided in `lifecycle` and below.
//! Data goes to standard output, everything for people to standard error, and every
//! command ends in one of the codes of [`exit::Exit`].

mod api;
mod arguments;
mod client;
mod commands;
mod exit;
mod gpus;
mod interrupt;
mod panic_notice;
mod print;
mod progress;
mod serve;
mod spec_file;
mod worker_protocol;

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
    log_to_stderr(&arguments.command);
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
        Command::Serve(serve) => commands::serve::serve(serve),
        Command::Tokens(tokens) => commands::tokens::run(&tokens.command),
        Command::Batches(batches) => commands::batches::run(batches),
        Command::Triggers(triggers) => commands::triggers::run(triggers),
        Command::Attempt(attempt) => commands::attempt::attempt(attempt),
        Command::CompileGuest => commands::compile_guest::serve(),
        Command::Tpch(tpch) => match &tpch.command {
            TpchCommand::Generate(generate) => commands::tpch::generate(generate),
        },
    }
}

/// Logs what `WARPLINE_LOG` asks for, such as `info` or `engine=debug`. By default a server
/// tells what it does and the other commands nothing. `WARPLINE_LOG_FORMAT=json` gives one
/// JSON object a line.
fn log_to_stderr(command: &Command) {
    let default = match command {
        Command::Serve(_) => "warn,warpline=info,lifecycle=info",
        _ => "off",
    };
    let filter =
        EnvFilter::try_from_env("WARPLINE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false);
    match std::env::var("WARPLINE_LOG_FORMAT").as_deref() {
        Ok("json") => log.json().init(),
        _ => log.init(),
    }
}
