//! The server's settings: a YAML file, then the environment, then the command line; the later
//! wins.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::words::io_problem;
use serde::Deserialize;

use super::locations::LocationPolicy;
use crate::arguments::Serve;

/// The settings file as it is written. Each comment is its manual.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    /// Address and port to listen on.
    listen: Option<String>,
    /// Folder for everything that the server keeps.
    data_dir: Option<PathBuf>,
    /// `sqlite`, or the URL of a PostgreSQL database.
    store: Option<String>,
    /// YAML file with the tokens' hashes.
    token_file: Option<PathBuf>,
    /// Certificate and key, PEM files.
    tls: Option<Tls>,
    /// Prefixes of the locations that specs may name; local paths too.
    locations: Vec<String>,
    /// Addresses of object stores that specs may name.
    endpoints: Vec<String>,
    /// Prefixes of environment variables with credentials that specs may name.
    credentials: Vec<String>,
    /// Cores for batches on the CPU.
    cpu_slots: Option<u32>,
    /// Memory that no attempt may hold more of, whatever its spec says, such as `16g`.
    worker_memory: Option<batch_specs::MemorySize>,
    /// How long an ended batch is kept, such as `30d`.
    retention: Option<batch_specs::Duration>,
    /// How long a server may be silent before others run its batches.
    lease: Option<batch_specs::Duration>,
    /// How long running batches may go on once the server is told to stop.
    drain: Option<batch_specs::Duration>,
    /// The label by which batches take turns.
    fair_label: Option<String>,
}

/// Where the certificate is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate and those above it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Where batches are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreSetting {
    /// A file in the data folder.
    Sqlite,
    /// A PostgreSQL database.
    Postgres(String),
}

/// Everything that a server goes by.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address and port to listen on.
    pub listen: SocketAddr,
    /// Folder for everything that the server keeps.
    pub data_dir: PathBuf,
    /// Where batches are kept.
    pub store: StoreSetting,
    /// The tokens' hashes; without it everybody who reaches the port may do everything.
    pub token_file: Option<PathBuf>,
    /// Certificate and key.
    pub tls: Option<Tls>,
    /// What specs may touch.
    pub locations: LocationPolicy,
    /// Cores for batches on the CPU; all of them unless given.
    pub cpu_slots: Option<u32>,
    /// Memory that no attempt may hold more of.
    pub worker_memory_mib: Option<u64>,
    /// How long an ended batch is kept.
    pub retention: Duration,
    /// How long a server may be silent.
    pub lease: Duration,
    /// How long running batches may go on at the end.
    pub drain: Duration,
    /// The label by which batches take turns.
    pub fair_label: String,
}

/// The port of the service.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8470";

impl Settings {
    /// Reads and checks everything; an error says what to change.
    pub fn load(arguments: &Serve) -> Result<Settings, String> {
        let file = match &arguments.config {
            Some(path) => read(path)?,
            None => File::default(),
        };
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let listen = arguments.listen.clone().or_else(|| env("WARPLINE_LISTEN"));
        let listen = listen
            .or(file.listen)
            .unwrap_or_else(|| DEFAULT_LISTEN.into());
        let listen: SocketAddr = listen.parse().map_err(|_| {
            format!("`{listen}` is not an address and port to listen on, such as {DEFAULT_LISTEN}")
        })?;
        let data_dir = arguments
            .data_dir
            .clone()
            .or_else(|| env("WARPLINE_DATA_DIR").map(PathBuf::from))
            .or(file.data_dir)
            .unwrap_or_else(default_data_dir);
        // Attempts run in folders of their own, from where a relative path leads elsewhere.
        let data_dir = std::path::absolute(&data_dir)
            .map_err(|error| format!("`{}`: {}", data_dir.display(), io_problem(&error)))?;
        let store = arguments.store.clone().or_else(|| env("WARPLINE_STORE"));
        let store = match store.or(file.store).as_deref() {
            None | Some("sqlite") => StoreSetting::Sqlite,
            Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                StoreSetting::Postgres(url.to_owned())
            }
            Some(_) => {
                return Err("`store` is `sqlite` or the URL of a PostgreSQL database, \
                            postgres://user@host/database"
                    .into());
            }
        };
        let token_file = arguments
            .token_file
            .clone()
            .or_else(|| env("WARPLINE_TOKEN_FILE").map(PathBuf::from))
            .or(file.token_file);
        if token_file.is_none() && !listen.ip().is_loopback() {
            return Err(format!(
                "`{listen}` can be reached from other machines, and there is no token file; \
                 give one with --token-file, or listen on 127.0.0.1"
            ));
        }
        if token_file.is_some() && !listen.ip().is_loopback() && file.tls.is_none() {
            tracing::warn!(%listen, "tokens cross the network unencrypted; set `tls`, or put a proxy with TLS in front");
        }
        let mut locations = file.locations;
        locations.extend(arguments.location.iter().cloned());
        let seconds = |duration: Option<batch_specs::Duration>, otherwise: u64| {
            Duration::from_secs(duration.map_or(otherwise, |duration| duration.seconds()))
        };
        let lease = seconds(file.lease, 15);
        if lease < Duration::from_secs(3) {
            return Err(
                "`lease` is shorter than 3s, so a busy moment would look like a death".into(),
            );
        }
        if file.cpu_slots == Some(0) {
            return Err("`cpu_slots` is 0, so no batch would ever run".into());
        }
        Ok(Settings {
            listen,
            data_dir,
            store,
            token_file,
            tls: file.tls,
            locations: LocationPolicy::new(&locations, file.endpoints, file.credentials)?,
            cpu_slots: arguments.cpu_slots.or(file.cpu_slots),
            worker_memory_mib: file.worker_memory.map(|size| size.bytes() >> 20),
            retention: seconds(file.retention, 30 * 86_400),
            lease,
            drain: seconds(file.drain, 30),
            fair_label: file.fair_label.unwrap_or_else(|| "team".into()),
        })
    }
}

fn read(path: &Path) -> Result<File, String> {
    let told = |problem: &str| format!("the settings file `{}`: {problem}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| told(&io_problem(&error)))?;
    if text.trim().is_empty() {
        return Ok(File::default());
    }
    serde_saphyr::from_str(&text).map_err(|error| told(error.to_string().trim()))
}

/// Where a user's programs keep what they need.
fn default_data_dir() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".local/state")))
        .unwrap_or_else(std::env::temp_dir)
        .join("warpline")
}
