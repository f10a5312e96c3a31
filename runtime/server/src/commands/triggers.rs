//! `warpline triggers`: by which objects start batches.

use std::fmt::Write as _;

use reqwest::{Method, header};
use serde_json::{Value, json};

use super::batches::{block_on, told, unprinted};
use super::{print_json, print_text};
use crate::api::triggers::TriggerResource;
use crate::arguments::{Output, Triggers, TriggersCommand};
use crate::client::context::Target;
use crate::client::{Client, ClientError, plain, segment};
use crate::exit::Exit;
use crate::{print, spec_file};

/// Runs the command.
pub fn run(arguments: &Triggers) -> Exit {
    let output = arguments.service.output;
    let client = match Target::find(&arguments.service) {
        Ok(target) => Client::new(target),
        Err(problem) => Err(ClientError::new(Exit::Usage, problem)),
    };
    let done = client.and_then(|client| block_on(perform(&client, &arguments.command, output)));
    told(done, output)
}

async fn perform(
    client: &Client,
    command: &TriggersCommand,
    output: Output,
) -> Result<Exit, ClientError> {
    let act = async |name: &str, verb: &str| {
        client
            .post(&format!("/v1/triggers/{}:{verb}", segment(name)))
            .await
    };
    let answer = match command {
        TriggersCommand::Create { file } => {
            let (_, text) = spec_file::read(file)
                .map_err(|error| ClientError::new(Exit::Usage, error.to_string()))?;
            let request = client
                .request(Method::POST, "/v1/triggers")
                .header(header::CONTENT_TYPE, "application/yaml")
                .body(text);
            client.send(request).await?
        }
        TriggersCommand::List => client.get("/v1/triggers").await?,
        TriggersCommand::Describe(one) => {
            client
                .get(&format!("/v1/triggers/{}", segment(&one.name)))
                .await?
        }
        TriggersCommand::Pause(one) => act(&one.name, "pause").await?,
        TriggersCommand::Resume(one) => act(&one.name, "resume").await?,
        TriggersCommand::Replay(one) => act(&one.name, "replay").await?,
        TriggersCommand::Backfill { name, location } => {
            act(name, &format!("backfill?location={}", segment(location))).await?
        }
        TriggersCommand::Delete(one) => {
            let path = format!("/v1/triggers/{}", segment(&one.name));
            client.send(client.request(Method::DELETE, &path)).await?;
            eprintln!("{} is forgotten", plain(&one.name));
            return Ok(Exit::Done);
        }
    };
    if output == Output::Json {
        print_json(&answer).map_err(unprinted)?;
        return Ok(Exit::Done);
    }
    let all: Vec<TriggerResource> = match answer.get("triggers") {
        Some(all) => read(all)?,
        None => read(&json!([answer]))?,
    };
    match (command, all.as_slice()) {
        (TriggersCommand::Create { .. }, [made]) => {
            eprintln!("{} takes events in", plain(&made.name));
            if let (Some(path), Some(token)) = (&made.webhook, &made.webhook_token) {
                eprintln!(
                    "post notifications to {}{} with this token; it is shown once",
                    client.server(),
                    plain(path)
                );
                print_text(&format!("{}\n", plain(token))).map_err(unprinted)?;
            }
        }
        (TriggersCommand::List, all) => {
            let head = ["name", "owner", "pending", "submitted", "dead", "paused"];
            let mut rows = vec![head.map(String::from).to_vec()];
            rows.extend(all.iter().map(row));
            let mut text = Vec::new();
            print::columns(&mut text, &rows, &[2, 3, 4]).map_err(unprinted)?;
            print_text(&String::from_utf8_lossy(&text)).map_err(unprinted)?;
        }
        (_, all) => {
            let text: String = all.iter().map(description).collect();
            print_text(&text).map_err(unprinted)?;
        }
    }
    Ok(Exit::Done)
}

fn read(all: &Value) -> Result<Vec<TriggerResource>, ClientError> {
    serde_json::from_value(all.clone())
        .map_err(|_| ClientError::new(Exit::Unreachable, "the service's answer is no trigger"))
}

fn count(trigger: &TriggerResource, state: &str) -> u64 {
    let of = trigger.events.iter().filter(|count| count.state == state);
    of.map(|count| count.count).sum()
}

fn row(trigger: &TriggerResource) -> Vec<String> {
    vec![
        plain(&trigger.name),
        plain(&trigger.owner),
        count(trigger, "PENDING").to_string(),
        count(trigger, "SUBMITTED").to_string(),
        count(trigger, "DEAD").to_string(),
        plain(trigger.paused.as_deref().unwrap_or("-")),
    ]
}

fn description(trigger: &TriggerResource) -> String {
    let mut text = String::new();
    let paused = trigger.paused.as_deref().unwrap_or("no");
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "name      {}\nowner     {}\npaused    {}",
        plain(&trigger.name),
        plain(&trigger.owner),
        plain(paused)
    );
    for count in &trigger.events {
        let state = plain(&count.state.to_lowercase());
        let _ = writeln!(
            text,
            "{state:<10}{}, came again {} times",
            count.count, count.repeated
        );
    }
    for dead in &trigger.dead {
        let location = dead.location.as_deref().unwrap_or("unreadable");
        let _ = writeln!(
            text,
            "  {}  {}: {}",
            plain(&dead.receive_time),
            plain(location),
            plain(&dead.reason)
        );
    }
    text
}
