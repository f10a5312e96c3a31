//! A server of a test's own, and its API.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::wait_until;

/// Longer than anything here takes, also on a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A running server with a lake that its specs may reach. It ends with the test.
pub struct Server {
    folder: TempDir,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    process: Option<Child>,
    port: u16,
    scheme: &'static str,
    /// Sent with every request.
    pub token: Option<String>,
    http: reqwest::Client,
    n_starts: usize,
}

impl Server {
    /// Starts a server that may run two batches at a time.
    pub fn start() -> Server {
        Self::start_with(&["--cpu-slots", "2"])
    }

    pub fn start_with(arguments: &[&str]) -> Server {
        let mut server = Self::prepare(arguments);
        server.launch();
        server
    }

    /// A server that has not started yet.
    pub fn prepare(arguments: &[&str]) -> Server {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(folder.path().join("lake")).expect("a lake");
        Server {
            folder,
            arguments: arguments.iter().map(|text| (*text).to_owned()).collect(),
            environment: Vec::new(),
            process: None,
            port: free_port(),
            scheme: "http",
            token: None,
            http: reqwest::Client::builder()
                .no_proxy()
                // A connection to a server that was killed since is no answer.
                .pool_max_idle_per_host(0)
                .timeout(PATIENCE)
                .build()
                .expect("a client"),
            n_starts: 0,
        }
    }

    /// The folder that specs may read and write.
    pub fn lake(&self) -> PathBuf {
        self.folder.path().join("lake")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address begins with https.
    pub fn speaks_tls(&mut self) {
        self.scheme = "https";
    }

    pub fn add_argument(&mut self, argument: &str) {
        self.arguments.push(argument.to_owned());
    }

    pub fn set_env(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Specs may also reach what another server's may.
    pub fn add_location(&mut self, location: &Path) {
        self.add_argument("--location");
        self.add_argument(&location.display().to_string());
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warpline"));
        command
            .arg("serve")
            .args(["--listen", &format!("127.0.0.1:{}", self.port)])
            .arg("--data-dir")
            // From where it starts; attempts run elsewhere.
            .arg("data")
            .current_dir(self.folder.path())
            .arg("--location")
            .arg(self.lake())
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env_remove("WARPLINE_LOG")
            .env_remove("WARPLINE_STORE")
            .env_remove("WARPLINE_TOKEN_FILE")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    /// Starts it, and waits until it listens.
    pub fn launch(&mut self) {
        self.n_starts += 1;
        let log = self
            .folder
            .path()
            .join(format!("server-{}.log", self.n_starts));
        let stderr = fs::File::create(&log).expect("a log");
        let mut child = self
            .command()
            .stderr(stderr)
            .spawn()
            .expect("warpline starts");
        wait_until("server that listens", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if let Some(ended) = child.try_wait().expect("a child") {
                panic!("the server ended: {ended}\n{text}");
            }
            text.contains("listening on ")
        });
        self.process = Some(child);
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    /// Ends it as a loss of power would.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill().expect("it is killed");
        process.wait().expect("it ends");
    }

    /// Tells it to stop.
    pub fn terminate(&self) {
        let sent = Command::new("sh")
            .args(["-c", &format!("kill -TERM {}", self.pid())])
            .status()
            .expect("a shell");
        assert!(sent.success());
    }

    /// Waits for its end; the exit code.
    pub fn wait(&mut self) -> Option<i32> {
        let mut process = self.process.take().expect("it runs");
        wait_until("end of the server", || {
            process.try_wait().expect("a child").is_some()
        });
        process.wait().expect("it ended").code()
    }

    /// What all its lives have logged.
    pub fn log(&self) -> String {
        let mut text = String::new();
        for n in 1..=self.n_starts {
            let path = self.folder.path().join(format!("server-{n}.log"));
            text.push_str(&fs::read_to_string(path).unwrap_or_default());
        }
        text
    }

    /// The processes of attempts that run now.
    pub fn workers(&self) -> Vec<u32> {
        let scratch = self.data_dir().join("scratch").display().to_string();
        let mut workers = Vec::new();
        for entry in fs::read_dir("/proc").expect("the system").flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let is_ours = line.contains("\0attempt\0") && line.contains(&scratch);
            if is_ours && !is_zombie(pid) {
                workers.push(pid);
            }
        }
        workers
    }

    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> reqwest::Result<(StatusCode, Value)> {
        let mut request = self.http.request(method, format!("{}{path}", self.url()));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await?;
        let status = response.status();
        let text = response.text().await?;
        Ok((
            status,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        ))
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> (StatusCode, Value) {
        match self.try_send(method, path, body).await {
            Ok(answer) => answer,
            Err(error) => panic!("{path}: {error:?}\n{}", self.log()),
        }
    }

    #[track_caller]
    pub fn expect(answer: (StatusCode, Value), code: u16) -> Value {
        assert_eq!(answer.0.as_u16(), code, "{}", answer.1);
        answer.1
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.send(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str) -> (StatusCode, Value) {
        self.send(Method::POST, path, None).await
    }

    /// Submits a spec under an id.
    pub async fn submit(&self, id: &str, spec: &str) -> (StatusCode, Value) {
        let path = format!("/v1/batches?batch_id={id}");
        self.send(Method::POST, &path, Some(json!({ "spec": spec })))
            .await
    }

    /// Submits what must be accepted.
    pub async fn accept(&self, id: &str, spec: &str) {
        let answer = self.submit(id, spec).await;
        assert_eq!(answer.0.as_u16(), 201, "{}", answer.1);
    }

    /// Waits until a batch is as it should be.
    pub async fn wait_for(&self, id: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let since = std::time::Instant::now();
        let mut etag = "none".to_owned();
        loop {
            let (status, batch) = self
                .get(&format!("/v1/batches/{id}?wait=1s&etag={etag}"))
                .await;
            assert_eq!(status, StatusCode::OK, "{batch}");
            if is_so(&batch) {
                return batch;
            }
            etag = batch["etag"].as_str().unwrap_or_default().to_owned();
            let is_over = since.elapsed() > PATIENCE || is_terminal(&batch);
            assert!(!is_over, "{id} is not {what}: {batch:#}\n{}", self.log());
        }
    }

    /// The batch in its end.
    pub async fn end_of(&self, id: &str) -> Value {
        self.wait_for(id, "at its end", is_terminal).await
    }

    /// A worker that runs `id` and has begun a stage.
    pub async fn running(&self, id: &str) -> Value {
        self.wait_for(id, "running", |batch| {
            batch["state"] == "RUNNING"
                && batch["attempts"].as_array().is_some_and(|a| !a.is_empty())
        })
        .await
    }

    /// Runs the client.
    pub fn client(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warpline"));
        command
            .arg("batches")
            .args(arguments)
            .args(["--server", &self.url()])
            .current_dir(self.folder.path())
            .env("XDG_CONFIG_HOME", self.folder.path().join("config"))
            .env_remove("WARPLINE_LOG")
            .env_remove("WARPLINE_SERVER")
            .stdin(Stdio::null());
        match &self.token {
            Some(token) => command.env("WARPLINE_TOKEN", token),
            None => command.env_remove("WARPLINE_TOKEN"),
        };
        command
    }

    pub fn run_client(&self, arguments: &[&str]) -> Output {
        self.client(arguments).output().expect("warpline starts")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the server's log\n{}", self.log());
        }
    }
}

pub fn is_terminal(batch: &Value) -> bool {
    let state = batch["state"].as_str().unwrap_or_default();
    ["SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT"].contains(&state)
}

fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// A spec of one stage that writes one row to a folder of the lake.
pub fn one_row(lake: &Path, folder: &str, mode: &str) -> String {
    format!(
        "version: 1\nname: one-row\naccelerator: {{type: none}}\n\
         executors: {{instances: 1, cores: 1}}\n\
         stages:\n  - name: answer\n    sql: SELECT 42 AS answer\n    \
         output: {{location: \"{}/{folder}\", mode: {mode}}}\n",
        lake.display()
    )
}

/// A spec that runs for minutes unless it is stopped, and writes all the while.
pub fn long(lake: &Path, folder: &str) -> String {
    one_row(lake, folder, "error").replace(
        "SELECT 42 AS answer",
        "SELECT value, md5(CAST(value AS varchar)) AS hash FROM generate_series(1, 400000000) AS n(value)",
    )
}

/// Data files of an output that a reader sees.
pub fn data_files(lake: &Path, folder: &str) -> Vec<String> {
    let mut files: Vec<String> = fs::read_dir(lake.join(folder))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("part-"))
        .collect();
    files.sort();
    files
}
