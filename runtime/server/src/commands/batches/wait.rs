//! Waiting for the end of a batch, with a bar or with its log.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::{print_json, print_text};
use super::{act, unprinted};
use crate::api::logs::LogPage;
use crate::api::resource::BatchResource;
use crate::arguments::{BatchLogs, Output, WaitForBatch};
use crate::client::{Client, ClientError, events, plain, segment};
use crate::exit::Exit;
use crate::{print, progress};

/// One question to the service waits so long.
const LOOK: Duration = Duration::from_secs(20);
/// A second Ctrl-C within this time cancels the batch.
const SECOND_CTRL_C: Duration = Duration::from_secs(3);

/// How a wait was over.
pub enum Waited {
    /// The batch has ended.
    Ended(Box<BatchResource>),
    /// It goes on, or was told to stop; the command exits so.
    Left(Exit),
}

/// Runs `warpline batches wait`.
pub async fn wait(
    client: &Client,
    arguments: &WaitForBatch,
    output: Output,
) -> Result<Exit, ClientError> {
    match until_end(client, &arguments.id, arguments.timeout).await? {
        Waited::Ended(batch) => {
            if output == Output::Json {
                print_json(&json!(&*batch)).map_err(unprinted)?;
            }
            print_summary(&batch);
            Ok(exit_of(&batch))
        }
        Waited::Left(exit) => Ok(exit),
    }
}

/// Runs `warpline batches logs`.
pub async fn logs(
    client: &Client,
    arguments: &BatchLogs,
    output: Output,
) -> Result<Exit, ClientError> {
    let mut unshown = None;
    let mut show = |line: &Value| {
        let text = match output {
            Output::Json => line.to_string(),
            Output::Table => log_line(line),
        };
        if let Err(error) = print_text(&format!("{text}\n")) {
            unshown.get_or_insert(error);
        }
    };
    if arguments.follow {
        let followed = with_ctrl_c(
            client,
            &arguments.id,
            events::follow(client, &arguments.id, arguments.attempt, &mut show),
        );
        let followed = followed.await?;
        if let Some(error) = unshown {
            return Err(unprinted(error));
        }
        return Ok(match followed {
            Ok(_) => Exit::Done,
            Err(exit) => exit,
        });
    }
    let attempt = arguments
        .attempt
        .map_or_else(String::new, |n| format!("&attempt={n}"));
    let mut offset = 0;
    loop {
        let path = format!(
            "/v1/batches/{}/logs?offset={offset}{attempt}",
            segment(&arguments.id)
        );
        let page: LogPage = client.get(&path).await?;
        page.lines.iter().for_each(&mut show);
        if page.lines.is_empty() || page.next_offset == offset {
            break;
        }
        offset = page.next_offset;
    }
    match unshown {
        Some(error) => Err(unprinted(error)),
        None => Ok(Exit::Done),
    }
}

/// Follows the log on standard error, then says how the batch ended.
pub async fn follow_to_end(client: &Client, id: &str) -> Result<Waited, ClientError> {
    let mut show = |line: &Value| eprintln!("{}", log_line(line));
    let followed = events::follow(client, id, None, &mut show);
    match with_ctrl_c(client, id, followed).await? {
        Ok(_) => Ok(Waited::Ended(Box::new(get(client, id).await?))),
        Err(exit) => Ok(Waited::Left(exit)),
    }
}

/// Waits with a bar.
pub async fn until_end(
    client: &Client,
    id: &str,
    timeout: Option<Duration>,
) -> Result<Waited, ClientError> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let bar = progress::bar(id, 1);
    let waiting = async {
        let mut etag = String::new();
        loop {
            let left = deadline.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
            // The service counts in seconds; the last wait is cut here.
            let seconds = left.min(LOOK).as_secs().max(1);
            let path = format!("/v1/batches/{}?wait={seconds}s&etag={etag}", segment(id));
            let asked = client.get::<BatchResource>(&path);
            let batch = match deadline {
                None => asked.await?,
                Some(end) => match tokio::time::timeout_at(end, asked).await {
                    Ok(batch) => batch?,
                    Err(_) => return Ok(None),
                },
            };
            if has_ended(&batch) {
                return Ok(Some(batch));
            }
            etag.clone_from(&batch.etag);
            if let Some(attempt) = batch.attempts.last() {
                bar.set_length(attempt.stages.max(1).into());
                bar.set_position(attempt.stages_done.into());
            }
            bar.set_message(plain(&status(&batch)));
        }
    };
    let waited = with_ctrl_c(client, id, waiting).await;
    bar.finish_and_clear();
    match waited? {
        Ok(Some(batch)) => Ok(Waited::Ended(Box::new(batch))),
        Ok(None) => {
            eprintln!("{id} goes on; the wait is over");
            Ok(Waited::Left(Exit::StillRunning))
        }
        Err(exit) => Ok(Waited::Left(exit)),
    }
}

/// Does `work` until Ctrl-C. The first leaves the batch alone and says so, a second one soon
/// after cancels it.
async fn with_ctrl_c<T>(
    client: &Client,
    id: &str,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<Result<T, Exit>, ClientError> {
    tokio::select! {
        done = work => return done.map(Ok),
        pressed = tokio::signal::ctrl_c() => {
            pressed.map_err(|error| ClientError::new(Exit::Failed, error.to_string()))?;
        }
    }
    eprintln!(
        "\n{id} goes on; come back with: warpline batches wait {id}\n\
         press Ctrl-C again within {} s to cancel it",
        SECOND_CTRL_C.as_secs()
    );
    let again = tokio::time::timeout(SECOND_CTRL_C, tokio::signal::ctrl_c()).await;
    if again.is_err() {
        return Ok(Err(Exit::StillRunning));
    }
    act::cancel_one(client, id).await?;
    eprintln!("{id} was told to stop");
    Ok(Err(Exit::Cancelled))
}

/// The batch as it is now.
pub async fn get(client: &Client, id: &str) -> Result<BatchResource, ClientError> {
    client.get(&format!("/v1/batches/{}", segment(id))).await
}

/// Whether nothing happens any more.
pub fn has_ended(batch: &BatchResource) -> bool {
    lifecycle::state::BatchState::from_name(&batch.state).is_some_and(|state| state.is_terminal())
}

/// What a batch that has ended makes a command exit with.
pub fn exit_of(batch: &BatchResource) -> Exit {
    let kind = batch.failure.as_ref().map(|failure| failure.kind.as_str());
    match (batch.state.as_str(), kind) {
        ("SUCCEEDED", _) => Exit::Done,
        ("CANCELLED", _) => Exit::Cancelled,
        ("TIMED_OUT", _) => Exit::TimedOut,
        ("FAILED", Some("queue_expired")) => Exit::QueueExpired,
        ("FAILED", _) => Exit::Failed,
        _ => Exit::StillRunning,
    }
}

/// What a batch does, in a few words.
pub fn status(batch: &BatchResource) -> String {
    if let Some(queue) = &batch.queue {
        return format!("{}: {}", batch.state, queue.reason);
    }
    let stage = batch
        .attempts
        .last()
        .and_then(|attempt| attempt.stage.as_ref());
    match stage {
        Some(stage) if batch.state == "RUNNING" => format!("{}: {stage}", batch.state),
        _ => batch.state.clone(),
    }
}

fn log_line(line: &Value) -> String {
    let text = |name: &str| plain(line[name].as_str().unwrap_or_default());
    let time = text("time");
    let clock = time.get(11..23).unwrap_or(&time);
    let level = match line["level"].as_str() {
        Some("info") | None => String::new(),
        Some(level) => format!("{}: ", plain(level)),
    };
    let stage = match line["stage"].as_str() {
        Some(stage) => format!("[{}] ", plain(stage)),
        None => String::new(),
    };
    format!("{clock} {stage}{level}{}", text("message"))
}

/// How the batch went, in a few lines on standard error.
pub fn print_summary(batch: &BatchResource) {
    if let Some(failure) = &batch.failure {
        let stage = failure
            .stage
            .as_ref()
            .map_or_else(String::new, |stage| format!("stage {}: ", plain(stage)));
        eprintln!(
            "error[{}]: {stage}{}",
            plain(&failure.kind),
            plain(&failure.message)
        );
    }
    let took = millis(&batch.create_time, &batch.state_time);
    let mut parts = vec![format!(
        "{} {} in {}",
        plain(&batch.batch_id),
        plain(&batch.state.to_lowercase().replace('_', " ")),
        print::duration(took)
    )];
    if batch.attempts.len() > 1 {
        parts.push(format!("{} attempts", batch.attempts.len()));
    }
    if let Some(attempt) = batch.attempts.last() {
        if let Some(rows) = attempt.rows {
            parts.push(format!("{} rows", print::grouped(rows)));
        }
        if let Some(ms) = attempt.device_ms.filter(|ms| *ms > 0.0) {
            parts.push(format!("{} on GPUs", print::duration(ms)));
        }
        if let Some(n) = attempt.fallbacks.filter(|n| *n > 0) {
            parts.push(format!(
                "{n} fallbacks to the CPU, see: warpline batches report {}",
                plain(&batch.batch_id)
            ));
        }
    }
    eprintln!("{}", parts.join(", "));
}

/// Milliseconds between two times of the service.
pub fn millis(from: &str, to: &str) -> f64 {
    let read = |text: &str| chrono::DateTime::parse_from_rfc3339(text).ok();
    match (read(from), read(to)) {
        (Some(from), Some(to)) => (to - from).num_milliseconds().max(0) as f64,
        _ => 0.0,
    }
}
