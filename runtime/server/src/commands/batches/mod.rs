//! `warpline batches`: a client of the batch service.

mod act;
mod show;
mod submit;
mod wait;

use std::future::Future;

use crate::arguments::{Batches, BatchesCommand, Output};
use crate::client::context::Target;
use crate::client::{Client, ClientError};
use crate::exit::Exit;

/// Runs the command.
pub fn run(arguments: &Batches) -> Exit {
    let client = match Target::find(&arguments.service) {
        Ok(target) => Client::new(target),
        Err(problem) => Err(ClientError::new(Exit::Usage, problem)),
    };
    let done = client.and_then(|client| {
        let output = arguments.service.output;
        match &arguments.command {
            BatchesCommand::Submit(submit) => block_on(submit::submit(&client, submit, output)),
            BatchesCommand::List(list) => block_on(show::list(&client, list, output)),
            BatchesCommand::Describe(one) => block_on(show::describe(&client, one, output)),
            BatchesCommand::Wait(wait) => block_on(wait::wait(&client, wait, output)),
            BatchesCommand::Logs(logs) => block_on(wait::logs(&client, logs, output)),
            BatchesCommand::Report(report) => block_on(show::report(&client, report)),
            BatchesCommand::Cancel(cancel) => block_on(act::cancel(&client, cancel, output)),
            BatchesCommand::Retry(one) => block_on(act::retry(&client, one, output)),
            BatchesCommand::Delete(one) => block_on(act::delete(&client, one)),
        }
    });
    told(done, arguments.service.output)
}

/// The exit of a command, after telling why it failed.
pub fn told(done: Result<Exit, ClientError>, output: Output) -> Exit {
    let error = match done {
        Ok(exit) => return exit,
        Err(error) => error,
    };
    // A program reads the service's own words.
    if output == Output::Json
        && !error.body.is_null()
        && let Err(problem) = super::print_json(&error.body)
    {
        eprintln!("error: {problem}");
    }
    eprintln!("error: {}", error.message);
    error.exit
}

/// Runs what waits for a service.
pub fn block_on<T>(work: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ClientError::new(Exit::Failed, engine::words::io_problem(&error)))?;
    let done = runtime.block_on(work);
    // Reading standard input or names of hosts may still go on.
    runtime.shutdown_background();
    done
}

/// A failure to print.
pub fn unprinted(error: std::io::Error) -> ClientError {
    ClientError::new(Exit::Failed, error.to_string())
}
