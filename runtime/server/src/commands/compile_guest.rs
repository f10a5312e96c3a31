//! `warpline compile-guest`: the child process that compiles modules of user functions,
//! within limits, for the process that runs a batch.

use std::sync::LazyLock;

use lifecycle::Compiler;

use crate::exit::Exit;

/// This program as the compiler of user functions.
pub static GUEST_COMPILER: LazyLock<Compiler> = LazyLock::new(|| Compiler::Child {
    // A program that cannot find itself says so when there is something to compile.
    program: std::env::current_exe().unwrap_or_else(|_| "warpline".into()),
    args: vec!["compile-guest".into()],
});

/// Runs the command.
pub fn serve() -> Exit {
    match sandbox::compile::serve() {
        0 => Exit::Done,
        _ => Exit::Failed,
    }
}
