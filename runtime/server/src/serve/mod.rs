//! The service: a store, a scheduler, processes of attempts, and the API in front.
//!
//! ```text
//! api --> Batches --> store
//!            ^
//! scheduler -+--> supervisor --pipes--> `warpline attempt`, a process for each attempt
//! ```

pub mod aws_signature;
pub mod batch_log;
pub mod figures;
pub mod locations;
pub mod outcome;
pub mod process;
pub mod scheduler;
pub mod settings;
pub mod sqs;
pub mod submit;
pub mod supervisor;
pub mod tls;
pub mod tokens;
pub mod triggers;
pub mod worker;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::words::io_problem;
use lifecycle::Machine;
use lifecycle::batches::{Batches, Policy};
use lifecycle::queue::Capacity;
use lifecycle::store::Store;
use lifecycle::store::sql::SqlStore;
use lifecycle::trigger::{Submitter, Triggers};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::api;
use crate::gpus::Gpus;
use crate::spec_file::known_machine;
use scheduler::Scheduler;
use settings::{Settings, StoreSetting};
use supervisor::Host;
use tokens::Tokens;
use triggers::Acceptor;

/// How long requests that are being answered may go on at the end.
const HTTP_DRAIN: Duration = Duration::from_secs(5);

/// Runs the service until SIGTERM or SIGINT. An error is about the start and says what to
/// change.
pub async fn serve(settings: Settings) -> Result<(), String> {
    let tokens = match &settings.token_file {
        Some(path) => Tokens::load(path)?,
        None => Tokens::default(),
    };
    let tls = settings.tls.as_ref().map(tls::configuration).transpose()?;
    let data = &settings.data_dir;
    // Two servers on one folder would take each other's batches for their own.
    let _lock = own(data)?;
    let scratch = data.join("scratch");
    let store: Arc<dyn Store> = match &settings.store {
        StoreSetting::Sqlite => Arc::new(
            SqlStore::sqlite(&data.join("batches.db"))
                .await
                .map_err(|error| format!("the store in `{}`: {error}", data.display()))?,
        ),
        StoreSetting::Postgres(url) => Arc::new(
            SqlStore::postgres(url)
                .await
                .map_err(|error| format!("the PostgreSQL store: {error}"))?,
        ),
    };
    let policy = Policy {
        lease_ms: i64::try_from(settings.lease.as_millis()).unwrap_or(i64::MAX),
        ..Policy::default()
    };
    let batches = Batches::new(store, policy);

    let (machine, gpus) = (Machine::detect(), Gpus::detect());
    let usable = gpus.ordinals();
    let cores = u32::try_from(machine.cores).unwrap_or(u32::MAX);
    let capacity = Capacity {
        server: server_name(data)?,
        cores: settings.cpu_slots.unwrap_or(cores),
        gpus: usable.len() as u32,
    };
    let host = Arc::new(Host {
        program: std::env::current_exe().map_err(|error| io_problem(&error))?,
        scratch: scratch.clone(),
        policy: settings.locations.clone(),
        memory_mib: [
            machine.memory_bytes.map(|bytes| bytes >> 20),
            settings.worker_memory_mib,
        ]
        .into_iter()
        .flatten()
        .min(),
    });
    let scheduler = Scheduler::new(batches.clone(), capacity.clone(), usable, Arc::clone(&host));
    scheduler.recover().await?;
    // What earlier attempts left; none of them runs any more.
    clear(&scratch)?;

    let listener = TcpListener::bind(settings.listen).await.map_err(|error| {
        let problem = io_problem(&error);
        format!(
            "cannot listen on {}: {problem}; choose another with --listen",
            settings.listen
        )
    })?;
    let address = listener.local_addr().map_err(|error| io_problem(&error))?;
    let (stop, stopping) = watch::channel(false);
    stop_on_signals(stop).map_err(|error| io_problem(&error))?;
    let known = known_machine(&machine, &gpus);
    let acceptor = Arc::new(Acceptor {
        machine: known.clone(),
        policy: settings.locations.clone(),
        fair_label: settings.fair_label.clone(),
        retention_ms: i64::try_from(settings.retention.as_millis()).unwrap_or(i64::MAX),
    });
    let submitter = Arc::<Acceptor>::clone(&acceptor) as Arc<dyn Submitter>;
    let triggers = Arc::new(Triggers::new(batches.clone(), submitter));
    let reading = Arc::clone(&acceptor);
    let app = api::router(api::Inner {
        batches: batches.clone(),
        triggers: Arc::clone(&triggers),
        acceptor,
        capacity,
        machine: known,
        host,
        tokens,
        fair_label: settings.fair_label.clone(),
        retention: settings.retention,
        stop: stopping.clone(),
        planners: Semaphore::new(machine.cores.max(1)),
    });
    let scheme = if tls.is_some() { "https" } else { "http" };
    tracing::info!(%address, scheme, "listening");
    // What starts a server waits for this line to know its port.
    eprintln!("warpline: listening on {scheme}://{address}");

    let mut until = stopping.clone();
    let stopped = async move {
        let _ = until.wait_for(|stop| *stop).await;
    };
    let http = match tls {
        None => tokio::spawn(async move {
            axum::serve(listener, app)
                .with_graceful_shutdown(stopped)
                .await
        }),
        Some(configuration) => {
            let listener = tls::TlsListener::new(listener, configuration)
                .map_err(|error| io_problem(&error))?;
            tokio::spawn(async move {
                axum::serve(listener, app)
                    .with_graceful_shutdown(stopped)
                    .await
            })
        }
    };
    let submitting = tokio::spawn(triggers::run(triggers, reading, batches, stopping.clone()));
    scheduler.run(stopping, settings.drain).await;
    if let Err(error) = submitting.await {
        tracing::error!(%error, "the loop of triggers failed");
    }
    match tokio::time::timeout(HTTP_DRAIN, http).await {
        Ok(Ok(Err(error))) => tracing::error!(%error, "the HTTP server failed"),
        Ok(Ok(Ok(()))) => {}
        Ok(Err(error)) => tracing::error!(%error, "the HTTP server failed"),
        Err(_) => tracing::warn!("requests that were being answered are cut off"),
    }
    tracing::info!("stopped");
    Ok(())
}

/// Makes the data folder this process's own.
fn own(data: &Path) -> Result<File, String> {
    use std::os::unix::fs::DirBuilderExt;
    let told = |error: std::io::Error| {
        format!(
            "the data folder `{}`: {}",
            data.display(),
            io_problem(&error)
        )
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .map_err(told)?;
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(data.join("lock"))
        .map_err(told)?;
    lock.try_lock().map_err(|_| {
        format!(
            "another server uses the data folder `{}`; stop it, or give --data-dir",
            data.display()
        )
    })?;
    Ok(lock)
}

/// Removes and makes a folder.
fn clear(folder: &Path) -> Result<(), String> {
    let told = |error: std::io::Error| format!("`{}`: {}", folder.display(), io_problem(&error));
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(told(error)),
        _ => {}
    }
    fs::create_dir_all(folder).map_err(told)
}

/// The name under which this server holds leases, the same after a restart.
fn server_name(data: &Path) -> Result<String, String> {
    let path = data.join("server-name");
    let told = |error: std::io::Error| format!("`{}`: {}", path.display(), io_problem(&error));
    match fs::read_to_string(&path) {
        Ok(name) if !name.trim().is_empty() => return Ok(name.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(told(error)),
    }
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).map_err(|error| format!("no random numbers: {error}"))?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("server-{digits}");
    let partial = data.join("server-name.partial");
    let mut file = File::create(&partial).map_err(told)?;
    file.write_all(name.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&partial, &path))
        .map_err(told)?;
    Ok(name)
}

/// The first signal asks for an orderly end, the second leaves at once.
fn stop_on_signals(stop: watch::Sender<bool>) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if *stop.borrow() {
                std::process::exit(1);
            }
            eprintln!(
                "warpline: stopping; running batches may go on for a while, a second signal ends them"
            );
            stop.send_replace(true);
        }
    });
    Ok(())
}
