//! The compiling child process of this crate's tests; `warpline compile-guest` is the one
//! that people get.

fn main() -> std::process::ExitCode {
    sandbox::compile::serve().into()
}
