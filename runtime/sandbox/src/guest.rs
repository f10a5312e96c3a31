//! One instance of a module: its memory, the host's arena in it, and calls under limits.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wasmtime::{InstancePre, Memory, ResourceLimiter, Store, Trap, TypedFunc, UpdateDeadline};

use crate::abi;
use crate::engine::{STACK_BYTES, Ticker};
use crate::error::Fault;

/// Where guests' memory is charged.
pub trait Budget: Send + Sync {
    /// Takes this many bytes more; false when there are not as many.
    fn grow(&self, bytes: usize) -> bool;
    /// Gives this many bytes back.
    fn shrink(&self, bytes: usize);
}

/// A budget without an end.
#[derive(Debug, Clone, Copy)]
pub struct Unbounded;

impl Budget for Unbounded {
    fn grow(&self, _: usize) -> bool {
        true
    }

    fn shrink(&self, _: usize) {}
}

/// Ends every running call of a batch.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends them, and every later one at its start.
    pub fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one instance may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory of its own: stack, data and heap, in bytes.
    pub memory_bytes: usize,
    /// Time of a call, which handles one record batch.
    pub call_time: Duration,
    /// The host's part of its memory, for columns, in bytes.
    pub arena_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes: 64 << 20,
            call_time: Duration::from_secs(5),
            arena_bytes: 16 << 20,
        }
    }
}

/// What a store knows beside the guest.
pub(crate) struct State {
    limiter: Limiter,
    deadline: Instant,
    stop: Stop,
    /// Why the clock ended the call.
    interrupted: Option<Fault>,
    call_time: Duration,
}

/// Charges memory and remembers what it refused: the guest then only says `unreachable`.
struct Limiter {
    budget: Arc<dyn Budget>,
    limit: usize,
    arena: usize,
    charged: usize,
    refused: Option<Fault>,
    table_max: usize,
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let own = desired - self.arena.min(desired);
        if own > self.limit {
            self.refused = Some(Fault::MemoryLimit {
                asked: own as u64,
                limit: self.limit as u64,
            });
            return Ok(false);
        }
        let more = desired.saturating_sub(self.charged);
        if !self.budget.grow(more) {
            self.refused = Some(Fault::OutOfMemory { asked: more as u64 });
            return Ok(false);
        }
        self.charged += more;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= self.table_max)
    }

    fn instances(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        4
    }

    fn memories(&self) -> usize {
        1
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        self.budget.shrink(self.charged);
    }
}

/// An instance. It is dropped after a trap.
pub(crate) struct Guest {
    store: Store<State>,
    instance: wasmtime::Instance,
    memory: Memory,
    /// The entry points that were used, by name.
    entries: Vec<(String, TypedFunc<u32, u32>)>,
    /// The host's part of the memory.
    arena: Range<usize>,
    /// The memory's size when it was made.
    size_at_start: usize,
}

/// What a call that did not trap returned.
pub(crate) enum Status {
    /// All is well.
    Done,
    /// The guest says that it failed; its `Error` says where and why.
    Failed,
}

impl Guest {
    /// Makes an instance, gives it an arena and runs its `udf1_init`.
    pub(crate) fn new(
        pre: &InstancePre<State>,
        ticker: &Ticker,
        limits: Limits,
        budget: &Arc<dyn Budget>,
        stop: &Stop,
    ) -> Result<Guest, Fault> {
        let engine = pre.module().engine();
        let state = State {
            limiter: Limiter {
                budget: Arc::clone(budget),
                limit: limits.memory_bytes,
                arena: 0,
                charged: 0,
                refused: None,
                table_max: 10_000,
            },
            deadline: Instant::now() + limits.call_time,
            stop: stop.clone(),
            interrupted: None,
            call_time: limits.call_time,
        };
        let mut store = Store::new(engine, state);
        store.limiter(|state| &mut state.limiter);
        store.epoch_deadline_callback(|mut context| {
            let state = context.data_mut();
            state.interrupted = if state.stop.is_set() {
                Some(Fault::Stopped)
            } else if Instant::now() >= state.deadline {
                Some(Fault::TimeLimit {
                    limit_ms: state.call_time.as_millis() as u64,
                })
            } else {
                return Ok(UpdateDeadline::Continue(1));
            };
            Ok(UpdateDeadline::Interrupt)
        });
        store.set_epoch_deadline(1);
        let instance = match pre.instantiate(&mut store) {
            Ok(instance) => instance,
            Err(error) => return Err(fault(&mut store, &error)),
        };
        let memory = instance
            .get_memory(&mut store, "memory")
            .ok_or_else(|| Fault::Trapped("the module lost its memory".into()))?;
        let from = memory.data_size(&store);
        let arena_bytes = limits.arena_bytes.next_multiple_of(abi::PAGE);
        store.data_mut().limiter.arena = arena_bytes;
        let grown = memory.grow(&mut store, (arena_bytes / abi::PAGE) as u64);
        if let Err(error) = grown {
            let refused = store.data_mut().limiter.refused.take();
            return Err(refused.unwrap_or_else(|| {
                Fault::Trapped(format!("its memory has no room for columns: {error:#}"))
            }));
        }
        let mut guest = Guest {
            size_at_start: memory.data_size(&store),
            arena: from..from + arena_bytes,
            store,
            instance,
            memory,
            entries: Vec::new(),
        };
        guest.init(ticker)?;
        Ok(guest)
    }

    fn init(&mut self, ticker: &Ticker) -> Result<(), Fault> {
        let init = self
            .instance
            .get_typed_func::<(), u32>(&mut self.store, "udf1_init");
        let Ok(init) = init else {
            return Ok(());
        };
        match self.run(ticker, |store| init.call(store, ()))? {
            abi::OK => Ok(()),
            status => Err(Fault::Failed(format!("`udf1_init` returned {status}"))),
        }
    }

    /// Runs an entry point over the `Call` at `call`.
    pub(crate) fn call(
        &mut self,
        ticker: &Ticker,
        entry: &str,
        call: u32,
    ) -> Result<Status, Fault> {
        let function = match self.entries.iter().find(|(name, _)| name == entry) {
            Some((_, function)) => function.clone(),
            None => {
                let function = self
                    .instance
                    .get_typed_func::<u32, u32>(&mut self.store, entry)
                    .map_err(|_| Fault::Trapped(format!("the module lost its export `{entry}`")))?;
                self.entries.push((entry.to_string(), function.clone()));
                function
            }
        };
        match self.run(ticker, |store| function.call(store, call))? {
            abi::OK => Ok(Status::Done),
            abi::FAILED => Ok(Status::Failed),
            status => Err(Fault::BadOutput(format!(
                "status {status}, which is neither 0 (done) nor 1 (failed)"
            ))),
        }
    }

    fn run<R>(
        &mut self,
        ticker: &Ticker,
        call: impl FnOnce(&mut Store<State>) -> wasmtime::Result<R>,
    ) -> Result<R, Fault> {
        let state = self.store.data_mut();
        if state.stop.is_set() {
            return Err(Fault::Stopped);
        }
        state.deadline = Instant::now() + state.call_time;
        state.interrupted = None;
        state.limiter.refused = None;
        self.store.set_epoch_deadline(1);
        let running = ticker.running();
        let store = &mut self.store;
        // The guest's stack is this thread's. Where little is left, such as deep in the
        // planning of a query, it runs on another piece of memory.
        let ran = stacker::maybe_grow(2 * STACK_BYTES, 4 * STACK_BYTES, || call(store));
        drop(running);
        ran.map_err(|error| fault(&mut self.store, &error))
    }

    /// The whole memory.
    pub(crate) fn memory(&self) -> &[u8] {
        self.memory.data(&self.store)
    }

    /// The whole memory, to write to. No guest code runs meanwhile.
    pub(crate) fn memory_mut(&mut self) -> &mut [u8] {
        self.memory.data_mut(&mut self.store)
    }

    /// Where the arena lies in the memory.
    pub(crate) fn arena(&self) -> Range<usize> {
        self.arena.clone()
    }

    /// Bytes that the guest took since it was made.
    pub(crate) fn growth(&self) -> usize {
        self.memory.data_size(&self.store) - self.size_at_start
    }

    /// Bytes that it has, without the arena.
    pub(crate) fn own_bytes(&self) -> usize {
        self.memory.data_size(&self.store) - self.arena.len()
    }
}

/// What a failed run means.
fn fault(store: &mut Store<State>, error: &wasmtime::Error) -> Fault {
    let state = store.data_mut();
    if let Some(fault) = state.interrupted.take() {
        return fault;
    }
    let refused = state.limiter.refused.take();
    match (error.downcast_ref::<Trap>(), refused) {
        (Some(Trap::StackOverflow), _) => Fault::StackOverflow,
        // A guest whose allocator gets nothing aborts.
        (Some(Trap::UnreachableCodeReached) | None, Some(refused)) => refused,
        (Some(Trap::UnreachableCodeReached), None) => {
            Fault::Trapped("it aborted (`unreachable`)".into())
        }
        (Some(trap), _) => Fault::Trapped(words(*trap).into()),
        (None, None) => Fault::Trapped(format!("{error:#}").replace('\n', " ")),
    }
}

/// A trap in the words of somebody who wrote the function.
fn words(trap: Trap) -> &'static str {
    match trap {
        Trap::MemoryOutOfBounds => "an access outside of its memory",
        Trap::TableOutOfBounds => "a call through a table index that is out of bounds",
        Trap::IndirectCallToNull | Trap::BadSignature => "a call through a wrong function pointer",
        Trap::IntegerOverflow => "an integer overflow in a division",
        Trap::IntegerDivisionByZero => "a division by zero",
        Trap::BadConversionToInteger => "a float that is no integer",
        _ => "an operation without a result",
    }
}
