//! The modules of user functions that a session has.

use std::sync::{Arc, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
use datafusion::object_store::ObjectStoreExt;
use sandbox::{Compiler, Limits, OnError, Runtime, Setup, Stop, loader};

use super::Session;
use crate::error::{Error, Result};
use crate::memory::Budget;
use crate::report::UdfModuleReport;
use crate::settings::{UdfErrors, UdfModule};
use crate::sources::Location;
use crate::udf::{Charged, Loaded};

/// The most memory that columns have in an instance.
const ARENA_BYTES_MAX: u64 = 16 << 20;
/// The least: a record batch of a few columns.
const ARENA_BYTES_MIN: u64 = 1 << 20;
/// The part of a batch's memory that the arenas of all its cores may take.
const ARENAS_PART: u64 = 16;

impl Session {
    /// Loads modules of user functions and lets SQL call the functions that are named.
    /// `compiler` makes machine code of what is not in the cache yet.
    pub async fn open_modules(&self, modules: &[UdfModule], compiler: &Compiler) -> Result<()> {
        if modules.is_empty() {
            return Ok(());
        }
        let cache = self.settings.cache_dir.join("udf");
        let runtime = Runtime::new(Setup {
            compiler: compiler.clone(),
            cache: Some(&cache),
            deterministic: self.settings.deterministic,
        });
        let runtime = runtime.map_err(|error| Error::Internal {
            message: error.to_string(),
        })?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let query_time = now.map_or(0, |since| since.as_micros() as i64);
        for wanted in modules {
            let loaded = self.load(wanted, &runtime).await?;
            let on_error = match wanted.on_error {
                UdfErrors::Fail => OnError::Fail,
                UdfErrors::Null => OnError::Null,
            };
            loaded.register(&self.context, on_error, query_time)?;
            self.guests
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(loaded);
        }
        Ok(())
    }

    /// What ends the calls that run, and every later one.
    pub fn guest_stop(&self) -> Stop {
        self.guest_stop.clone()
    }

    /// What user functions did so far.
    pub fn module_reports(&self) -> Vec<UdfModuleReport> {
        let guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        guests.iter().map(Loaded::report).collect()
    }

    /// Drops the instances that wait for calls, and gives their memory back to the batch.
    pub(super) fn rest_guests(&self) {
        let guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        for loaded in guests.iter() {
            loaded.module.drop_idle();
        }
    }

    async fn load(&self, wanted: &UdfModule, runtime: &Arc<Runtime>) -> Result<Loaded> {
        let refused = |problem: String| Error::UdfModule {
            location: wanted.location.clone(),
            problem,
        };
        let wasm = self.fetch(wanted).await?;
        let threads = self.settings.compute_threads.max(1) as u64;
        let arena = self.settings.memory_limit_bytes / ARENAS_PART / threads;
        let mut limits = Limits {
            arena_bytes: arena.clamp(ARENA_BYTES_MIN, ARENA_BYTES_MAX) as usize,
            ..Limits::default()
        };
        if let Some(bytes) = wanted.memory_bytes {
            limits.memory_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        if let Some(time) = wanted.call_time {
            limits.call_time = time;
        }
        let consumer = MemoryConsumer::new(format!("user functions of `{}`", wanted.location));
        let pool: Arc<dyn MemoryPool> = Arc::<Budget>::clone(&self.budget);
        let budget = Arc::new(Charged(consumer.register(&pool)));
        let (runtime, stop) = (Arc::clone(runtime), self.guest_stop.clone());
        // Compiling takes a while, and other tasks have to go on.
        let module = tokio::task::spawn_blocking(move || runtime.load(&wasm, limits, budget, stop))
            .await
            .map_err(|error| Error::Internal {
                message: error.to_string(),
            })?
            .map_err(|error| refused(error.to_string()))?;
        if let Some(pin) = &wanted.sha256 {
            let found = module.facts().sha256_hex();
            if !pin.eq_ignore_ascii_case(&found) {
                return Err(refused(format!(
                    "its SHA-256 is {found}, and the spec pins {pin}; look at what changed and \
                     correct `sha256`"
                )));
            }
        }
        let functions = wanted
            .functions
            .iter()
            .map(|name| {
                module
                    .find(name)
                    .map_err(|error| refused(error.to_string()))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Loaded {
            location: wanted.location.clone(),
            module,
            functions,
        })
    }

    async fn fetch(&self, wanted: &UdfModule) -> Result<Vec<u8>> {
        let location = Location::parse(&wanted.location)?;
        if location.pattern.is_some() || location.is_directory {
            return Err(Error::UdfModule {
                location: wanted.location.clone(),
                problem: "it has to be one file".into(),
            });
        }
        let store = self.open_storage(&location, wanted.storage.as_deref())?;
        let told = |error| match error {
            datafusion::object_store::Error::NotFound { .. } => Error::UdfModule {
                location: wanted.location.clone(),
                problem: "there is no such file".into(),
            },
            other => Error::from_store(&wanted.location, &other),
        };
        let found = store.get(&location.prefix).await.map_err(told)?;
        let (size, most) = (found.meta.size, loader::MODULE_BYTES_MAX as u64);
        if size > most {
            return Err(Error::UdfModule {
                location: wanted.location.clone(),
                problem: format!("it has {size} bytes, and a module may have {most}"),
            });
        }
        Ok(found.bytes().await.map_err(told)?.to_vec())
    }
}
