//! `warpline tokens`: tokens for the batch service.

use super::print_text;
use crate::arguments::{NewToken, TokensCommand};
use crate::exit::Exit;
use crate::serve::tokens::{self, Scope};

/// Runs the command.
pub fn run(command: &TokensCommand) -> Exit {
    let TokensCommand::New(new) = command;
    match make(new) {
        Ok(()) => Exit::Done,
        Err(problem) => {
            eprintln!("error: {problem}");
            Exit::Failed
        }
    }
}

fn make(new: &NewToken) -> Result<(), String> {
    let scopes = match new.scope.as_slice() {
        [] => vec![Scope::Read, Scope::Write],
        given => given.to_vec(),
    };
    let (token, entry) = tokens::create(&new.owner, &scopes)?;
    let words: Vec<String> = scopes
        .iter()
        .map(|scope| format!("{scope:?}").to_lowercase())
        .collect();
    eprintln!(
        "Add this to the token file under `tokens:`; the token itself is kept nowhere.\n  \
         - {{owner: {}, scopes: [{}], sha256: {}}}",
        entry.owner,
        words.join(", "),
        entry.sha256
    );
    print_text(&format!("{token}\n")).map_err(|error| error.to_string())
}
