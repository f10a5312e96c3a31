//! The log of an attempt: a part of it, or as it grows.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, Stream};
use lifecycle::batch::Batch;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::error::{ApiError, ErrorBody};
use super::extract::{Named, Parameters};
use super::{App, json, visible};
use crate::serve::tokens::Caller;

/// Bytes of one part.
const PART_BYTES: usize = 256 << 10;
/// How often a log is looked at that another server may write.
const SHARED_LOOK: Duration = Duration::from_millis(500);
/// How often it is looked at for all that nobody has told.
const LOOK: Duration = Duration::from_secs(15);

/// Which part of which log.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
pub struct LogParameters {
    /// The attempt's number; the last one unless given.
    pub attempt: Option<u32>,
    /// Bytes to leave out; what `next_offset` of the part before says.
    pub offset: Option<i64>,
}

/// A part of a log.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LogPage {
    /// The attempt; 0 while none has started.
    pub attempt: u32,
    /// JSON objects with `time`, `batch`, `attempt`, `stage`, `level` and `message`.
    #[schema(value_type = Vec<Object>)]
    pub lines: Vec<serde_json::Value>,
    /// Where the next part begins.
    pub next_offset: i64,
    /// Whether nothing more will come.
    pub is_complete: bool,
}

/// A part of a log; with `Accept: text/event-stream`, all of it as it grows, one event a line
/// and an `end` event with the state. `Last-Event-ID` goes on where another stream ended.
#[utoipa::path(
    get, path = "/v1/batches/{batch_id}/logs", params(("batch_id" = String, Path), LogParameters),
    responses((status = 200, body = LogPage), (status = 404, body = ErrorBody))
)]
pub async fn logs(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
    Parameters(parameters): Parameters<LogParameters>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let batch = visible(&app, &caller, &id).await?;
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let wants_stream =
        text(header::ACCEPT).is_some_and(|kinds| kinds.contains("text/event-stream"));
    let last = batch.last_attempt().map_or(0, |attempt| attempt.number);
    let offset = parameters.offset.unwrap_or(0);
    if offset < 0 {
        return Err(ApiError::parameter("offset", "offset", "it is below 0"));
    }
    if wants_stream {
        let seen = text(header::HeaderName::from_static("last-event-id")).and_then(read_event_id);
        let (attempt, offset) = seen.unwrap_or((parameters.attempt.unwrap_or(1).max(1), offset));
        let follower = Follower {
            app,
            caller,
            id,
            attempt,
            offset,
            only: parameters.attempt.is_some(),
            ready: Vec::new(),
            is_over: false,
        };
        let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
        return Ok(Sse::new(follower.events())
            .keep_alive(keep_alive)
            .into_response());
    }
    let attempt = parameters.attempt.unwrap_or(last);
    let (lines, next_offset) = read(&app, &batch, attempt, offset).await?;
    let is_complete = has_ended(&batch, attempt) && lines.is_empty();
    Ok(json(LogPage {
        attempt,
        lines: lines.into_iter().map(|(line, _)| line).collect(),
        next_offset,
        is_complete,
    }))
}

/// Whether an attempt's log grows no more.
fn has_ended(batch: &Batch, attempt: u32) -> bool {
    let record = batch
        .attempts
        .iter()
        .find(|record| record.number == attempt);
    record.map_or(batch.state.is_terminal(), |record| record.end.is_some())
}

/// Whole lines from an offset on, each with the offset behind it.
async fn read(
    app: &App,
    batch: &Batch,
    attempt: u32,
    offset: i64,
) -> Result<(Vec<(serde_json::Value, i64)>, i64), ApiError> {
    let part = app
        .batches
        .store()
        .read_log(&batch.uid, attempt, offset, PART_BYTES)
        .await?;
    let whole = part
        .bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    let mut lines = Vec::new();
    let mut next = offset;
    for line in part.bytes[..whole].split_inclusive(|byte| *byte == b'\n') {
        next += line.len() as i64;
        // A reader that begins within a line gets the next one.
        if let Ok(value) = serde_json::from_slice(line) {
            lines.push((value, next));
        }
    }
    Ok((lines, next))
}

/// The event's id: the attempt and the offset behind the line.
fn read_event_id(text: &str) -> Option<(u32, i64)> {
    let (attempt, offset) = text.split_once('-')?;
    Some((
        attempt.parse().ok()?,
        offset.parse().ok().filter(|offset| *offset >= 0)?,
    ))
}

/// Somebody who follows a log.
struct Follower {
    app: App,
    caller: Caller,
    id: String,
    attempt: u32,
    offset: i64,
    /// Whether only this attempt is followed.
    only: bool,
    /// Events to give out, the last first.
    ready: Vec<Event>,
    is_over: bool,
}

impl Follower {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, async |mut follower| {
            let event = follower.next().await?;
            Some((Ok(event), follower))
        })
    }

    async fn next(&mut self) -> Option<Event> {
        let mut stop = self.app.stop.clone();
        let (mut moves, mut logs) = (self.app.batches.moves(), self.app.batches.logs());
        let look = match self.app.batches.store().is_shared() {
            true => SHARED_LOOK,
            false => LOOK,
        };
        loop {
            moves.mark_unchanged();
            logs.mark_unchanged();
            if let Some(event) = self.ready.pop() {
                return Some(event);
            }
            if self.is_over || *stop.borrow() {
                return None;
            }
            match self.look().await {
                Ok(true) => {}
                // A batch that was deleted, or a store that fails: the reader may come back.
                Err(_) => return None,
                Ok(false) => {
                    tokio::select! {
                        _ = logs.changed() => {}
                        _ = moves.changed() => {}
                        () = tokio::time::sleep(look) => {}
                        _ = stop.changed() => {}
                    }
                }
            }
        }
    }

    /// Looks for more; false when there is nothing yet.
    async fn look(&mut self) -> Result<bool, ApiError> {
        let batch = visible(&self.app, &self.caller, &self.id).await?;
        let (lines, next) = read(&self.app, &batch, self.attempt, self.offset).await?;
        self.offset = next;
        if !lines.is_empty() {
            let events = lines.into_iter().rev().map(|(line, behind)| {
                let id = format!("{}-{behind}", self.attempt);
                Event::default().id(id).data(line.to_string())
            });
            self.ready = events.collect();
            return Ok(true);
        }
        let later = batch
            .attempts
            .iter()
            .any(|attempt| attempt.number > self.attempt);
        if !self.only && later && has_ended(&batch, self.attempt) {
            self.attempt += 1;
            self.offset = 0;
            return Ok(true);
        }
        if batch.state.is_terminal() || (self.only && has_ended(&batch, self.attempt)) {
            self.is_over = true;
            let state = serde_json::json!({"state": batch.state.name()});
            self.ready
                .push(Event::default().event("end").data(state.to_string()));
            return Ok(true);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_id_names_attempt_and_offset() {
        assert_eq!(read_event_id("2-100"), Some((2, 100)));
        for wrong in ["", "2", "2-", "x-1", "1-x", "1--5"] {
            assert_eq!(read_event_id(wrong), None, "{wrong}");
        }
    }
}
