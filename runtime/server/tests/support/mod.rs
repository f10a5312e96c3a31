//! A folder with a spec in it, and the real binary run there.

// Each test file uses its part of this.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A spec of one stage with one row, on the CPU.
pub const ONE_ROW: &str = "\
version: 1
name: one-row
accelerator: {type: none}
stages:
  - name: answer
    sql: SELECT 42 AS answer
";

/// A folder with `spec.yaml` in it, to run `warpline` in.
pub struct Case {
    folder: TempDir,
}

impl Case {
    pub fn new(spec: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let case = Case { folder };
        case.write_spec(spec);
        case
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write_spec(&self, spec: &str) {
        fs::write(self.path("spec.yaml"), spec).expect("the spec is written");
    }

    /// A command in the folder that has nothing of the caller's settings for Warpline.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.folder.path())
            .env_remove("WARPLINE_LOG");
        command
    }

    pub fn warpline(&self, arguments: &[&str]) -> Output {
        self.command(env!("CARGO_BIN_EXE_warpline"))
            .args(arguments)
            .output()
            .expect("warpline starts")
    }

    /// Starts `warpline run spec.yaml --report report.json`.
    pub fn start(&self) -> Child {
        self.command(env!("CARGO_BIN_EXE_warpline"))
            .args(["run", "spec.yaml", "--report", "report.json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("warpline starts")
    }

    /// The run report that [`Case::start`] asks for.
    #[track_caller]
    pub fn report(&self) -> serde_json::Value {
        json(&fs::read_to_string(self.path("report.json")).expect("a report"))
    }

    /// Every file below the folder with its size, hidden ones too, in order.
    pub fn files(&self) -> Vec<(String, u64)> {
        let mut files = Vec::new();
        walk(self.folder.path(), &mut |path, size| {
            let below = path.strip_prefix(self.folder.path()).expect("a path below");
            files.push((below.display().to_string(), size));
        });
        files.sort();
        files
    }
}

/// Calls `each` for every file and every empty folder below `folder`.
fn walk(folder: &Path, each: &mut dyn FnMut(&Path, u64)) {
    let mut is_empty = true;
    // What a run removes meanwhile is not there.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        is_empty = false;
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => walk(&entry.path(), each),
            Ok(meta) => each(&entry.path(), meta.len()),
            Err(_) => {}
        }
    }
    if is_empty {
        each(folder, 0);
    }
}

/// Asserts the exit code and returns standard output and standard error.
#[track_caller]
pub fn check(output: Output, exit_code: i32) -> (String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("warpline prints UTF-8");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert_eq!(
        output.status.code(),
        Some(exit_code),
        "{:?}\nstdout:\n{stdout}\nstderr:\n{stderr}",
        output.status
    );
    assert_own_words(&stderr);
    (stdout, stderr)
}

/// What a user reads is ours: no panic, no library's name or error prefix.
#[track_caller]
pub fn assert_own_words(stderr: &str) {
    if let Some(foreign) = foreign_word(stderr) {
        panic!("`{foreign}` in:\n{stderr}");
    }
}

/// The first word that only a library or a panic says.
pub fn foreign_word(stderr: &str) -> Option<&'static str> {
    const FOREIGN: [&str; 20] = [
        "panicked",
        "RUST_BACKTRACE",
        "internal error",
        "DataFusion",
        "Arrow",
        "ParserError",
        "ParquetError",
        "Execution error",
        "Error during planning",
        "Generic S3",
        "Generic LocalFileSystem",
        "Generic {",
        "object_store",
        "reqwest",
        "Object at location",
        "No such file or directory",
        "os error",
        "<?xml",
        "valid UTF-8",
        "Some(",
    ];
    FOREIGN.into_iter().find(|word| stderr.contains(word))
}

#[track_caller]
pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("not JSON: {error}\n{text}"))
}

/// Waits until `is_so`, a minute at most.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "no {what} after a minute"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal, such as `INT`, to a process of ours.
pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("sh")
        .args(["-c", &format!("kill -{name} {}", child.id())])
        .status()
        .expect("a shell");
    assert!(sent.success(), "{sent}");
}
