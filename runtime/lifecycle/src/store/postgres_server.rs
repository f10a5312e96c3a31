//! A PostgreSQL server of a test's own, from the Debian package `postgresql`.

// Each test crate that includes this uses its part.
#![allow(dead_code)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user who is not root; PostgreSQL refuses to run as root.
const NOBODY: u32 = 65534;

/// A running server; it stops when this is dropped.
pub struct PostgresServer {
    folder: tempfile::TempDir,
    bin: PathBuf,
    port: u16,
    runs_as_nobody: bool,
}

impl PostgresServer {
    /// Starts a server, or says why there is none. With `WARPLINE_REQUIRE_POSTGRES` set, an
    /// absent package is a failure.
    pub fn start() -> Option<PostgresServer> {
        let Some(bin) = programs() else {
            let told = "PostgreSQL is not installed; infra/install-test-tools installs it";
            assert!(
                std::env::var_os("WARPLINE_REQUIRE_POSTGRES").is_none(),
                "{told}"
            );
            eprintln!("skipped: {told}");
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let id = Command::new("id").arg("-u").output().expect("id runs");
        let mut server = PostgresServer {
            folder,
            bin,
            port: 0,
            runs_as_nobody: id.stdout == b"0\n",
        };
        if server.runs_as_nobody {
            std::os::unix::fs::chown(server.folder.path(), Some(NOBODY), Some(NOBODY))
                .expect("root gives a folder away");
        }
        server.run(
            "initdb",
            &["--auth=trust", "--username=warpline", "--no-sync", "-D"],
        );
        // A port that was free may be taken a moment later; then another is tried.
        for _ in 0..5 {
            server.port = free_port();
            let options = format!(
                "-p {} -h 127.0.0.1 -k {} -c fsync=off -c max_connections=40",
                server.port,
                server.folder.path().display()
            );
            let log = server.folder.path().join("log").display().to_string();
            let arguments = ["start", "-w", "-t", "60", "-l", &log, "-o", &options, "-D"];
            if server.try_run("pg_ctl", &arguments) {
                return Some(server);
            }
        }
        panic!("PostgreSQL does not start: {}", server.log());
    }

    /// How to reach it.
    pub fn url(&self) -> String {
        format!("postgres://warpline@127.0.0.1:{}/postgres", self.port)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        assert!(self.try_run(program, arguments), "{program} failed");
    }

    fn try_run(&self, program: &str, arguments: &[&str]) -> bool {
        let mut command = Command::new(self.bin.join(program));
        command
            .args(arguments)
            .arg(self.data())
            .current_dir(self.folder.path())
            .env("LC_ALL", "C")
            .stdout(std::process::Stdio::null());
        if self.runs_as_nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.status().expect("the program starts").success()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.try_run("pg_ctl", &["stop", "-m", "immediate", "-w", "-D"]);
    }
}

/// The folder of the newest installed server's programs.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(Path::new("/usr/lib/postgresql")).ok()?;
    let mut folders: Vec<PathBuf> = versions
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .collect();
    folders.sort();
    folders.pop()
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}
