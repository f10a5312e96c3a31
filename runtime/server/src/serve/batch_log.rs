//! The log of an attempt: JSON lines, written to the store in parts with offsets.

use std::time::Duration;

use chrono::{SecondsFormat, Utc};
use lifecycle::batches::Batches;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// An attempt's log is cut here; what writes more is in a loop.
const BYTES_MAX: i64 = 8 << 20;
/// A line is cut here.
const LINE_CHARS_MAX: usize = 8 << 10;
/// How long lines are gathered before they are written.
const GATHER: Duration = Duration::from_millis(200);
/// How long a store that fails is tried again for the last lines.
const PATIENCE: Duration = Duration::from_secs(10);

/// A line on its way.
struct Line {
    level: String,
    stage: Option<String>,
    message: String,
}

/// Where an attempt's lines go.
#[derive(Clone)]
pub struct BatchLog {
    lines: mpsc::Sender<Line>,
}

impl BatchLog {
    /// Opens the log of an attempt. The task ends when every handle is dropped and all is
    /// written.
    pub fn open(
        batches: Batches,
        batch_id: String,
        uid: String,
        attempt: u32,
    ) -> (BatchLog, JoinHandle<()>) {
        let (lines, receiver) = mpsc::channel(1_024);
        let writer = Writer {
            batches,
            batch_id,
            uid,
            attempt,
            offset: 0,
            pending: Vec::new(),
            is_full: false,
        };
        (BatchLog { lines }, tokio::spawn(writer.run(receiver)))
    }

    /// Adds a line. Characters that would move a terminal's cursor or begin another line
    /// are escaped by JSON.
    pub async fn line(&self, level: &str, stage: Option<String>, message: impl Into<String>) {
        let mut message: String = message.into();
        if message.len() > LINE_CHARS_MAX {
            message = message.chars().take(LINE_CHARS_MAX).collect();
            message.push('…');
        }
        let line = Line {
            level: level.to_owned(),
            stage,
            message,
        };
        // The writer is there as long as this handle is.
        let _ = self.lines.send(line).await;
    }
}

struct Writer {
    batches: Batches,
    batch_id: String,
    uid: String,
    attempt: u32,
    offset: i64,
    pending: Vec<u8>,
    is_full: bool,
}

impl Writer {
    async fn run(mut self, mut lines: mpsc::Receiver<Line>) {
        while let Some(line) = lines.recv().await {
            self.add(&line);
            let until = Instant::now() + GATHER;
            while let Ok(Some(line)) = tokio::time::timeout_at(until, lines.recv()).await {
                self.add(&line);
            }
            self.flush().await;
        }
        let since = Instant::now();
        while !self.pending.is_empty() && since.elapsed() < PATIENCE {
            self.flush().await;
            if !self.pending.is_empty() {
                tokio::time::sleep(GATHER).await;
            }
        }
    }

    fn add(&mut self, line: &Line) {
        if self.is_full {
            return;
        }
        let mut text = json!({
            "time": Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true),
            "batch": self.batch_id,
            "attempt": self.attempt,
            "stage": line.stage,
            "level": line.level,
            "message": line.message,
        });
        if self.offset + self.pending.len() as i64 > BYTES_MAX {
            self.is_full = true;
            text["level"] = "warning".into();
            text["message"] = format!("the log is cut here, after {} MiB", BYTES_MAX >> 20).into();
        }
        self.pending.extend_from_slice(text.to_string().as_bytes());
        self.pending.push(b'\n');
    }

    async fn flush(&mut self) {
        let store = self.batches.store();
        let written = store.append_log(&self.uid, self.attempt, self.offset, &self.pending);
        match written.await {
            Ok(()) => {
                self.offset += self.pending.len() as i64;
                self.pending.clear();
                self.batches.announce_log();
            }
            Err(error) => tracing::warn!(batch = self.batch_id, %error, "log lines wait"),
        }
    }
}
