//! The WebAssembly engine: one configuration for compiling and for running, and the clock
//! that ends calls.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use wasmtime::{Config, Engine};

use crate::error::{Error, Result};
use crate::slots::Slots;

/// How often a running guest looks at the time.
pub const TICK: Duration = Duration::from_millis(1);

/// What a guest may put on the stack of the thread that runs it.
pub(crate) const STACK_BYTES: usize = 512 << 10;

/// Address space of a guest's memory; what lies beyond it cannot be addressed.
const RESERVATION: u64 = 4 << 30;
/// Unmapped after it, for the constant offsets of loads and stores.
const GUARD: u64 = 32 << 20;

/// The engine that both compiles modules and runs them: machine code fits only the
/// configuration that it was made with.
pub(crate) fn new(deterministic: bool) -> Result<Engine> {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .max_wasm_stack(STACK_BYTES)
        .with_host_memory(Arc::new(Slots::default()))
        // An image of the initial data would be mapped over a slot's pages.
        .memory_init_cow(false)
        .memory_may_move(false)
        .memory_reservation(RESERVATION)
        .memory_guard_size(GUARD)
        .wasm_relaxed_simd(false)
        .wasm_tail_call(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_backtrace_max_frames(None)
        .generate_address_map(false)
        .cranelift_nan_canonicalization(deterministic);
    Engine::new(&config).map_err(|error| Error::System {
        what: "set up its WebAssembly engine",
        problem: format!("{error:#}"),
    })
}

/// Advances the engine's epoch while any guest runs, and sleeps while none does.
pub(crate) struct Ticker {
    shared: Arc<Shared>,
}

struct Shared {
    n_running: AtomicUsize,
    is_asleep: AtomicBool,
    has_ended: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

/// Ticks without a guest after which the clock stops.
const TICKS_IDLE: u32 = 100;

impl Ticker {
    /// Starts the clock's thread.
    pub(crate) fn start(engine: &Engine) -> Result<Ticker> {
        let shared = Arc::new(Shared {
            n_running: AtomicUsize::new(0),
            is_asleep: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let (engine, clock) = (engine.clone(), Arc::clone(&shared));
        std::thread::Builder::new()
            .name("udf-clock".into())
            .spawn(move || tick(&engine, &clock))
            .map_err(|error| Error::System {
                what: "start the clock of user functions",
                problem: error.to_string(),
            })?;
        Ok(Ticker { shared })
    }

    /// Says that a guest runs until the value is dropped.
    pub(crate) fn running(&self) -> Running<'_> {
        // The order with `is_asleep` matters: either this thread sees that the clock
        // sleeps, or the clock sees this guest before it sleeps.
        self.shared.n_running.fetch_add(1, Ordering::SeqCst);
        if self.shared.is_asleep.load(Ordering::SeqCst) {
            self.wake();
        }
        Running(&self.shared)
    }

    fn wake(&self) {
        let _held = self
            .shared
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.shared.wake.notify_all();
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        self.wake();
    }
}

/// A guest that runs.
pub(crate) struct Running<'a>(&'a Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.n_running.fetch_sub(1, Ordering::SeqCst);
    }
}

fn tick(engine: &Engine, shared: &Shared) {
    let mut n_idle = 0;
    while !shared.has_ended.load(Ordering::SeqCst) {
        std::thread::sleep(TICK);
        engine.increment_epoch();
        n_idle = match shared.n_running.load(Ordering::SeqCst) {
            0 => n_idle + 1,
            _ => 0,
        };
        if n_idle < TICKS_IDLE {
            continue;
        }
        let mut held = shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
        shared.is_asleep.store(true, Ordering::SeqCst);
        while shared.n_running.load(Ordering::SeqCst) == 0
            && !shared.has_ended.load(Ordering::SeqCst)
        {
            held = shared
                .wake
                .wait(held)
                .unwrap_or_else(PoisonError::into_inner);
        }
        shared.is_asleep.store(false, Ordering::SeqCst);
        n_idle = 0;
    }
}
