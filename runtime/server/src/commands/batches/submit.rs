//! `warpline batches submit`

use indexmap::IndexMap;
use reqwest::Method;
use serde_json::{Value, json};

use super::super::print_json;
use super::{unprinted, wait};
use crate::api::batches::CreateBody;
use crate::api::resource::BatchResource;
use crate::arguments::{Output, SubmitBatch};
use crate::client::{Client, ClientError, segment};
use crate::exit::Exit;
use crate::spec_file;

/// Runs the command.
pub async fn submit(
    client: &Client,
    arguments: &SubmitBatch,
    output: Output,
) -> Result<Exit, ClientError> {
    let (_, text) = spec_file::read(&arguments.spec.spec)
        .map_err(|error| ClientError::new(Exit::Usage, error.to_string()))?;
    let folder = arguments
        .spec
        .spec
        .parent()
        .unwrap_or(std::path::Path::new(""));
    let sql_files: IndexMap<String, String> = spec_file::sql_files(folder, &text);
    let body = CreateBody {
        spec: text,
        sql_files,
        sets: spec_file::pairs(&arguments.spec.set),
        variables: spec_file::pairs(&arguments.spec.var),
    };
    let mut path = String::from("/v1/batches?");
    for (name, value) in [
        ("batch_id", &arguments.batch_id),
        ("request_id", &arguments.request_id),
    ] {
        if let Some(value) = value {
            path.push_str(&format!("{name}={}&", segment(value)));
        }
    }
    path.push_str(&format!("validate_only={}", arguments.validate_only));
    let request = client.request(Method::POST, &path).json(&body);
    // A submit under a name of its own may be sent again; another might run twice.
    let answer = client.send(request).await?;
    if arguments.validate_only {
        match output {
            Output::Json => print_json(&answer).map_err(unprinted)?,
            Output::Table => eprintln!("valid"),
        }
        return Ok(Exit::Done);
    }
    let batch: BatchResource = serde_json::from_value(answer.clone())
        .map_err(|_| ClientError::new(Exit::Unreachable, "the service's answer is not a batch"))?;
    eprintln!("submitted {} to {}", batch.batch_id, client.server());
    if arguments.is_async {
        match output {
            Output::Json => print_json(&answer).map_err(unprinted)?,
            Output::Table => {
                super::super::print_text(&format!("{}\n", batch.batch_id)).map_err(unprinted)?;
                eprintln!(
                    "follow it with: warpline batches logs -f {}",
                    batch.batch_id
                );
            }
        }
        return Ok(Exit::Done);
    }
    let last = if arguments.wait {
        wait::until_end(client, &batch.batch_id, None).await?
    } else {
        wait::follow_to_end(client, &batch.batch_id).await?
    };
    match last {
        wait::Waited::Ended(batch) => {
            if output == Output::Json {
                print_json(&json!(&*batch)).map_err(unprinted)?;
            }
            wait::print_summary(&batch);
            Ok(wait::exit_of(&batch))
        }
        wait::Waited::Left(exit) => {
            if output == Output::Json {
                print_json(&json!({"batch_id": batch.batch_id, "state": Value::Null}))
                    .map_err(unprinted)?;
            }
            Ok(exit)
        }
    }
}
