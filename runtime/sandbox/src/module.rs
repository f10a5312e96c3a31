//! Modules: loaded once a batch, called from every core.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wasmtime::{InstancePre, Linker};

use crate::abi::{self, PAGE};
use crate::cache::{self, Cache};
use crate::compile::Compiler;
use crate::engine::{self, Ticker};
use crate::error::{CallError, Error, Fault, Result};
use crate::guest::{Budget, Guest, Limits, State, Stop};
use crate::loader::{self, Checked};
use crate::metadata::Function;

/// Memory that an instance may have gained by the end of a call and be used again.
const GROWTH_KEPT: usize = 8 << 20;

/// Idle instances that a shard keeps. One a thread is enough, but threads may share a
/// shard, and looking for a row that fails makes more.
const IDLE_MAX: usize = 4;

/// How the sandbox of a process is set up.
#[derive(Debug, Clone)]
pub struct Setup<'a> {
    /// Who compiles.
    pub compiler: Compiler,
    /// Where machine code is kept, if anywhere.
    pub cache: Option<&'a Path>,
    /// Whether floats are the same bits on every machine, NaN included. It costs time.
    pub deterministic: bool,
}

/// The sandbox of a process.
pub struct Runtime {
    engine: wasmtime::Engine,
    ticker: Ticker,
    compiler: Compiler,
    cache: Option<Cache>,
    deterministic: bool,
    /// Modules whose machine code is loaded.
    loaded: Mutex<HashMap<[u8; 32], InstancePre<State>>>,
    /// Where machine code came from, for those who measure.
    n_compiled: AtomicU64,
}

impl Runtime {
    /// Sets the sandbox up.
    pub fn new(setup: Setup<'_>) -> Result<Arc<Runtime>> {
        let engine = engine::new(setup.deterministic)?;
        Ok(Arc::new(Runtime {
            ticker: Ticker::start(&engine)?,
            engine,
            compiler: setup.compiler,
            cache: setup.cache.and_then(Cache::open),
            deterministic: setup.deterministic,
            loaded: Mutex::default(),
            n_compiled: AtomicU64::new(0),
        }))
    }

    /// Checks, compiles and links a module. `budget` is charged for its instances.
    pub fn load(
        self: &Arc<Self>,
        wasm: &[u8],
        limits: Limits,
        budget: Arc<dyn Budget>,
        stop: Stop,
    ) -> Result<Arc<Module>> {
        let facts = loader::check(wasm)?;
        let at_start = facts.memory_pages_min.saturating_mul(PAGE as u64);
        if at_start > limits.memory_bytes as u64 {
            return Err(Error::TooLarge {
                what: "bytes of memory that it starts with".into(),
                found: at_start,
                limit: limits.memory_bytes as u64,
            });
        }
        if let Some(most) = facts.memory_pages_max {
            let columns = limits.arena_bytes.div_ceil(PAGE) as u64;
            if most.saturating_sub(facts.memory_pages_min) < columns {
                return Err(Error::Abi {
                    problem: format!(
                        "its memory may not grow beyond {most} pages of 64 KiB, and columns need \
                         {columns} pages on top of the {} that it starts with; link it without \
                         a maximum",
                        facts.memory_pages_min
                    ),
                });
            }
        }
        let pre = self.linked(wasm, &facts)?;
        let meters = facts.functions.iter().map(|_| Meter::default()).collect();
        let n_shards = std::thread::available_parallelism().map_or(1, usize::from);
        let entries = facts
            .functions
            .iter()
            .map(|function| abi::scalar_entry(&function.name))
            .collect();
        Ok(Arc::new(Module {
            entries,
            runtime: Arc::clone(self),
            facts,
            pre,
            limits,
            budget,
            stop,
            idle: (0..n_shards).map(|_| Mutex::default()).collect(),
            meters,
        }))
    }

    /// How many modules this process had to compile.
    pub fn n_compiled(&self) -> u64 {
        self.n_compiled.load(Ordering::Relaxed)
    }

    pub(crate) fn ticker(&self) -> &Ticker {
        &self.ticker
    }

    fn linked(&self, wasm: &[u8], facts: &Checked) -> Result<InstancePre<State>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pre) = loaded.get(&facts.sha256) {
            return Ok(pre.clone());
        }
        let name = cache::name(&self.engine, &facts.sha256);
        let kept = self.cache.as_ref().and_then(|cache| cache.get(&name));
        let code = match kept {
            Some(code) => code,
            None => {
                let code = self
                    .compiler
                    .compile(&self.engine, wasm, self.deterministic)?;
                self.n_compiled.fetch_add(1, Ordering::Relaxed);
                if let Some(cache) = &self.cache {
                    cache.put(&name, &code);
                }
                code
            }
        };
        // SAFETY: this is machine code that our own compiler has just made, or made earlier
        // and kept in a folder of this user's under a keyed hash that was checked.
        let module = unsafe { wasmtime::Module::deserialize(&self.engine, &code) };
        let compile = |error: wasmtime::Error| Error::Compile {
            problem: format!("{error:#}").replace('\n', " "),
        };
        let pre = Linker::new(&self.engine)
            .instantiate_pre(&module.map_err(compile)?)
            .map_err(compile)?;
        loaded.insert(facts.sha256, pre.clone());
        Ok(pre)
    }
}

/// What the calls of one function did.
#[derive(Debug, Default)]
pub struct Meter {
    pub(crate) calls: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) nanoseconds: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) traps: AtomicU64,
    pub(crate) nulled_rows: AtomicU64,
    pub(crate) record_batches: AtomicU64,
    pub(crate) instances: AtomicU64,
    pub(crate) memory_bytes_max: AtomicUsize,
}

/// A [`Meter`]'s values at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metered {
    /// Calls into the sandbox.
    pub calls: u64,
    /// Rows handed over.
    pub rows: u64,
    /// Time in the calls and the copies around them, summed over all threads.
    pub nanoseconds: u64,
    /// Bytes of columns copied in.
    pub bytes_in: u64,
    /// Bytes of columns copied out.
    pub bytes_out: u64,
    /// Calls that trapped or panicked.
    pub traps: u64,
    /// Rows that an error policy made NULL.
    pub nulled_rows: u64,
    /// Instances made.
    pub instances: u64,
    /// The most memory that one instance had of its own.
    pub memory_bytes_max: u64,
}

impl Meter {
    pub(crate) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// The values so far.
    pub fn read(&self) -> Metered {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Metered {
            calls: get(&self.calls),
            rows: get(&self.rows),
            nanoseconds: get(&self.nanoseconds),
            bytes_in: get(&self.bytes_in),
            bytes_out: get(&self.bytes_out),
            traps: get(&self.traps),
            nulled_rows: get(&self.nulled_rows),
            instances: get(&self.instances),
            memory_bytes_max: self.memory_bytes_max.load(Ordering::Relaxed) as u64,
        }
    }
}

/// A loaded module, with its idle instances.
pub struct Module {
    pub(crate) runtime: Arc<Runtime>,
    facts: Checked,
    /// The entry point of each function, as far as it is a scalar one.
    entries: Vec<String>,
    pre: InstancePre<State>,
    limits: Limits,
    budget: Arc<dyn Budget>,
    stop: Stop,
    /// Instances that wait for the next call; each thread looks into a shard of its own
    /// first, so that threads do not wait for one another.
    idle: Vec<Mutex<Vec<Guest>>>,
    meters: Vec<Meter>,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module")
            .field("sha256", &self.facts.sha256_hex())
            .finish_non_exhaustive()
    }
}

impl Module {
    /// What the loader found.
    pub fn facts(&self) -> &Checked {
        &self.facts
    }

    /// The place of a function among [`Checked::functions`].
    pub fn find(&self, name: &str) -> Result<usize> {
        let functions = &self.facts.functions;
        functions
            .iter()
            .position(|function| function.name == name)
            .ok_or_else(|| {
                let known: Vec<&str> = functions.iter().map(|f| f.name.as_str()).collect();
                Error::UnknownFunction {
                    name: name.to_string(),
                    known: known.join(", "),
                }
            })
    }

    /// A function by its place.
    pub fn function(&self, at: usize) -> &Function {
        &self.facts.functions[at]
    }

    /// The entry point of a scalar function.
    pub(crate) fn scalar_entry(&self, at: usize) -> &str {
        &self.entries[at]
    }

    /// What the calls of a function did so far.
    pub fn meter(&self, at: usize) -> &Meter {
        &self.meters[at]
    }

    /// An instance: an idle one, or a new one.
    pub(crate) fn guest(&self, function: usize) -> std::result::Result<Guest, Fault> {
        let found = self
            .shard()
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        match found {
            Some(guest) => Ok(guest),
            None => self.fresh_guest(function),
        }
    }

    /// A new instance.
    pub(crate) fn fresh_guest(&self, function: usize) -> std::result::Result<Guest, Fault> {
        Meter::add(&self.meters[function].instances, 1);
        Guest::new(
            &self.pre,
            &self.runtime.ticker,
            self.limits,
            &self.budget,
            &self.stop,
        )
    }

    /// Keeps an instance for the next call. One that has grown much is dropped instead:
    /// functions that leak then run in bounded memory.
    pub(crate) fn keep(&self, guest: Guest) {
        if guest.growth() > GROWTH_KEPT {
            return;
        }
        let mut idle = self.shard().lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(guest);
        }
    }

    /// Drops the idle instances, and with them what they hold of the budget.
    pub fn drop_idle(&self) {
        for shard in &self.idle {
            shard.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    fn shard(&self) -> &Mutex<Vec<Guest>> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        &self.idle[MINE.with(|mine| *mine) % self.idle.len()]
    }

    /// An error of a call.
    pub(crate) fn call_error(
        &self,
        function: usize,
        record_batch: u64,
        row: Option<usize>,
        n_rows: usize,
        fault: Fault,
    ) -> Error {
        if fault == Fault::Stopped {
            return Error::Stopped;
        }
        let mut module = self.facts.sha256_hex();
        module.truncate(12);
        Error::Call(Box::new(CallError {
            function: self.function(function).name.clone(),
            module,
            record_batch,
            row,
            n_rows,
            fault,
        }))
    }
}
