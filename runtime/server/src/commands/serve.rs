//! `warpline serve`: the batch service.

use crate::arguments::Serve;
use crate::exit::Exit;
use crate::serve::{self, settings::Settings};

/// Runs the command.
pub fn serve(arguments: &Serve) -> Exit {
    let settings = match Settings::load(arguments) {
        Ok(settings) => settings,
        Err(problem) => {
            eprintln!("error: {problem}");
            return Exit::Usage;
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let served = match runtime {
        Ok(runtime) => {
            let served = runtime.block_on(serve::serve(settings));
            runtime.shutdown_timeout(std::time::Duration::from_secs(2));
            served
        }
        Err(error) => Err(engine::words::io_problem(&error)),
    };
    match served {
        Ok(()) => Exit::Done,
        Err(problem) => {
            eprintln!("error: {problem}");
            Exit::Failed
        }
    }
}
