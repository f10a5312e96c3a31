//! The process of an attempt: how it is started, and its pipes.

use std::io;
use std::path::Path;
use std::process::Stdio;

use bounded_lines::Lines;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

use super::batch_log::BatchLog;
use crate::worker_protocol::{FromWorker, JOB_FILE, Job, ToWorker};

/// Makes an attempt's folder with its job. Nobody else may look into it: a spec can be
/// private.
pub fn write_job(folder: &Path, job: &Job) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    std::fs::create_dir(folder.join("tmp"))?;
    std::fs::write(folder.join(JOB_FILE), serde_json::to_vec(job)?)
}

/// Starts the process of an attempt, in a group of its own.
pub fn start(program: &Path, folder: &Path, gpu: Option<u32>) -> io::Result<Child> {
    let mut command = Command::new(program);
    command
        .arg("attempt")
        .arg(folder)
        .current_dir(folder)
        .env("TMPDIR", folder.join("tmp"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    // The server's own settings hold what no batch needs to know.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let is_for_workers = name == "WARPLINE_LOG" || name.starts_with("WARPLINE_NV");
        if name.starts_with("WARPLINE_") && !is_for_workers {
            command.env_remove(name);
        }
    }
    if let Some(gpu) = gpu {
        command.env("CUDA_VISIBLE_DEVICES", gpu.to_string());
    }
    command.spawn()
}

pub async fn tell(stdin: &mut ChildStdin, message: &ToWorker) {
    let mut line = serde_json::to_string(message).unwrap_or_default();
    line.push('\n');
    // A worker that is gone hears nothing; its end is seen elsewhere.
    if stdin.write_all(line.as_bytes()).await.is_ok() {
        let _ = stdin.flush().await;
    }
}

/// Passes on what a worker says.
pub async fn listen(stdout: impl AsyncRead + Unpin, said: mpsc::Sender<FromWorker>) {
    let mut lines = Lines::new(stdout);
    while let Some(line) = lines.next().await {
        let message = serde_json::from_str(&line).unwrap_or_else(|_| FromWorker::Log {
            level: "info".into(),
            stage: None,
            message: line,
        });
        if said.send(message).await.is_err() {
            return;
        }
    }
}

/// Whatever a library prints belongs to the batch's log.
pub async fn copy_errors(stderr: impl AsyncRead + Unpin, log: BatchLog) {
    let mut lines = Lines::new(stderr);
    while let Some(line) = lines.next().await {
        log.line("warning", None, line).await;
    }
}

/// Lines of bounded length.
mod bounded_lines {
    use super::{AsyncRead, AsyncReadExt};

    /// A longer line is given in pieces.
    const LINE_BYTES_MAX: usize = 64 << 10;

    pub struct Lines<R> {
        from: R,
        bytes: Vec<u8>,
        is_over: bool,
    }

    impl<R: AsyncRead + Unpin> Lines<R> {
        pub fn new(from: R) -> Self {
            Lines {
                from,
                bytes: Vec::new(),
                is_over: false,
            }
        }

        pub async fn next(&mut self) -> Option<String> {
            loop {
                let end = self.bytes.iter().position(|byte| *byte == b'\n');
                let end = end.or((self.bytes.len() >= LINE_BYTES_MAX).then_some(LINE_BYTES_MAX));
                if let Some(end) = end {
                    let rest = self.bytes.split_off((end + 1).min(self.bytes.len()));
                    let line = std::mem::replace(&mut self.bytes, rest);
                    return Some(String::from_utf8_lossy(&line).trim_end().to_owned());
                }
                if self.is_over {
                    let line = std::mem::take(&mut self.bytes);
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    return (!text.is_empty()).then_some(text);
                }
                let mut part = [0; 4096];
                match self.from.read(&mut part).await {
                    Ok(0) | Err(_) => self.is_over = true,
                    Ok(n) => self.bytes.extend_from_slice(&part[..n]),
                }
            }
        }
    }
}
