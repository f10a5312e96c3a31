//! A log as the service sends it: server-sent events, read line by line, and gone on with
//! where a connection ended.

use std::time::Duration;

use futures::StreamExt;
use reqwest::{Method, header};
use serde_json::Value;

use super::{Client, ClientError, segment};
use crate::exit::Exit;

/// How long a server that does not answer is asked again.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);
/// A line beyond this is no log line of ours.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Calls `each` for every line of a batch's log, to the end of the batch. Returns its last
/// state.
pub async fn follow(
    client: &Client,
    id: &str,
    attempt: Option<u32>,
    each: &mut dyn FnMut(&Value),
) -> Result<String, ClientError> {
    let attempt = attempt.map_or_else(String::new, |attempt| format!("?attempt={attempt}"));
    let path = format!("/v1/batches/{}/logs{attempt}", segment(id));
    let mut last_id = String::new();
    let mut heard = tokio::time::Instant::now();
    loop {
        let mut request = client
            .request(Method::GET, &path)
            .header(header::ACCEPT, "text/event-stream");
        if !last_id.is_empty() {
            request = request.header("last-event-id", &last_id);
        }
        let problem = match request.send().await {
            Ok(response) if response.status().is_success() => {
                client.answered();
                let mut reader = Reader::default();
                let mut parts = response.bytes_stream();
                loop {
                    match parts.next().await {
                        Some(Ok(part)) => {
                            heard = tokio::time::Instant::now();
                            if let Some(state) = reader.take(&part, &mut last_id, each) {
                                return Ok(state);
                            }
                        }
                        Some(Err(error)) => break client.unreachable(&error),
                        None => {
                            let message = format!("{} ended the log early", client.server());
                            break ClientError::new(Exit::Unreachable, message);
                        }
                    }
                }
            }
            Ok(response) => {
                let status = response.status();
                let text = response.text().await.unwrap_or_default();
                client.refused(status, &text)
            }
            Err(error) => client.unreachable(&error),
        };
        let may_return = problem.exit == Exit::Unreachable && client.has_answered();
        if !may_return || heard.elapsed() > PATIENCE {
            return Err(problem);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The state of reading events.
#[derive(Default)]
struct Reader {
    bytes: Vec<u8>,
    event: String,
    data: String,
    id: String,
}

impl Reader {
    /// Reads what has come; the batch's state when it has ended.
    fn take(
        &mut self,
        part: &[u8],
        last_id: &mut String,
        each: &mut dyn FnMut(&Value),
    ) -> Option<String> {
        self.bytes.extend_from_slice(part);
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let rest = self.bytes.split_off(end + 1);
            let line = std::mem::replace(&mut self.bytes, rest);
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                let data: Value = serde_json::from_str(&self.data).unwrap_or(Value::Null);
                if self.event == "end" {
                    return Some(data["state"].as_str().unwrap_or_default().to_owned());
                }
                if !data.is_null() {
                    each(&data);
                    last_id.clone_from(&self.id);
                }
                self.event.clear();
                self.data.clear();
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut self.event),
                "data" => self.data.push_str(value),
                "id" => value.clone_into(&mut self.id),
                // Comments keep the connection alive.
                _ => {}
            }
        }
        if self.bytes.len() > LINE_BYTES_MAX {
            self.bytes.clear();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_they_are_cut() {
        let text = b": hello\n\nid: 1-5\ndata: {\"message\":\"a\"}\n\nid: 1-9\r\ndata: {\"message\":\"\xc3\xbc\"}\r\n\r\nevent: end\ndata: {\"state\":\"FAILED\"}\n\n";
        for size in [1, 2, 7, text.len()] {
            let (mut reader, mut last_id, mut lines) =
                (Reader::default(), String::new(), Vec::new());
            let mut end = None;
            for part in text.chunks(size) {
                let mut each = |line: &Value| lines.push(line["message"].clone());
                end = end.or(reader.take(part, &mut last_id, &mut each));
            }
            assert_eq!(lines, ["a", "ü"]);
            assert_eq!(last_id, "1-9");
            assert_eq!(end.as_deref(), Some("FAILED"));
        }
    }
}
