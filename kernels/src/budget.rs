//! Who may use how much memory, and how many chunks may be in flight.
//!
//! A [`Budget`] only counts. It knows neither devices nor what the memory is for;
//! reserving before allocating is what its users agree on.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::error::OutOfMemory;

/// A limit on memory that many share. Cheap to clone; clones share the limit.
#[derive(Clone)]
pub struct Budget {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    released: Condvar,
}

struct State {
    limit: usize,
    used: usize,
    peak: usize,
}

impl Budget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Budget {
        let state = State {
            limit: limit_bytes,
            used: 0,
            peak: 0,
        };
        Budget {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                released: Condvar::new(),
            }),
        }
    }

    /// Reserves memory, or says how much there is.
    pub fn reserve(&self, bytes: usize) -> Result<Reservation, OutOfMemory> {
        self.shared.lock().take(bytes)?;
        Ok(Reservation {
            budget: self.clone(),
            bytes,
        })
    }

    /// Reserves memory; waits at most `timeout` for others to release theirs.
    /// Blocks the thread. What could never fit fails at once.
    pub fn reserve_or_wait(
        &self,
        bytes: usize,
        timeout: Duration,
    ) -> Result<Reservation, OutOfMemory> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        loop {
            let refused = match state.take(bytes) {
                Ok(()) => {
                    return Ok(Reservation {
                        budget: self.clone(),
                        bytes,
                    });
                }
                Err(refused) => refused,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if bytes > state.limit || left.is_zero() {
                return Err(refused);
            }
            state = self
                .shared
                .released
                .wait_timeout(state, left)
                .unwrap_or_else(|e| e.into_inner())
                .0;
        }
    }

    /// The limit.
    pub fn limit(&self) -> usize {
        self.shared.lock().limit
    }

    /// Bytes reserved now.
    pub fn used(&self) -> usize {
        self.shared.lock().used
    }

    /// Bytes that can be reserved now.
    pub fn free(&self) -> usize {
        let state = self.shared.lock();
        state.limit.saturating_sub(state.used)
    }

    /// The most bytes that were ever reserved at once.
    pub fn peak(&self) -> usize {
        self.shared.lock().peak
    }

    /// Forgets the peak, so that a later one can be read on its own.
    pub fn reset_peak(&self) {
        let mut state = self.shared.lock();
        state.peak = state.used;
    }

    fn release(&self, bytes: usize) {
        self.shared.lock().used -= bytes;
        self.shared.released.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl State {
    fn take(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        let free = self.limit.saturating_sub(self.used);
        if bytes > free {
            return Err(OutOfMemory {
                what: "memory budget",
                requested: bytes,
                free,
                limit: self.limit,
            });
        }
        self.used += bytes;
        self.peak = self.peak.max(self.used);
        Ok(())
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        write!(
            f,
            "Budget({} of {} bytes used, peak {})",
            state.used, state.limit, state.peak
        )
    }
}

/// Memory set aside in a [`Budget`]; released when dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Budget,
    bytes: usize,
}

impl Reservation {
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The budget it counts against.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Reserves more; on failure it keeps what it has.
    pub fn grow(&mut self, more: usize) -> Result<(), OutOfMemory> {
        self.budget.shared.lock().take(more)?;
        self.bytes += more;
        Ok(())
    }

    /// Releases all but `bytes`, if it has more.
    pub fn shrink_to(&mut self, bytes: usize) {
        if bytes < self.bytes {
            self.budget.release(self.bytes - bytes);
            self.bytes = bytes;
        }
    }

    /// Takes `bytes` out into a reservation of their own.
    ///
    /// Panics if there are fewer.
    pub fn split(&mut self, bytes: usize) -> Reservation {
        assert!(
            bytes <= self.bytes,
            "{bytes} bytes out of a reservation of {}",
            self.bytes
        );
        self.bytes -= bytes;
        Reservation {
            budget: self.budget.clone(),
            bytes,
        }
    }

    /// Adds another reservation of the same budget to this one.
    pub fn merge(&mut self, mut other: Reservation) {
        assert!(
            Arc::ptr_eq(&self.budget.shared, &other.budget.shared),
            "reservations of two budgets"
        );
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.release(self.bytes);
        }
    }
}

/// How many chunks may be in flight on a device: a first-come-first-served
/// semaphore that never blocks an async worker. Cheap to clone.
#[derive(Clone)]
pub struct Admission {
    gate: Arc<Gate>,
}

struct Gate {
    n_permits: usize,
    line: Mutex<Line>,
    next_ticket: AtomicU64,
}

struct Line {
    n_free: usize,
    /// In order of arrival. Whoever got a permit while waiting has `granted` set.
    waiting: Vec<Waiter>,
}

struct Waiter {
    ticket: u64,
    waker: Waker,
    granted: bool,
}

impl Admission {
    /// Lets `n_permits` in at a time; at least one.
    pub fn new(n_permits: usize) -> Admission {
        let n_permits = n_permits.max(1);
        let line = Mutex::new(Line {
            n_free: n_permits,
            waiting: Vec::new(),
        });
        Admission {
            gate: Arc::new(Gate {
                n_permits,
                line,
                next_ticket: AtomicU64::new(0),
            }),
        }
    }

    /// How many it lets in at a time.
    pub fn n_permits(&self) -> usize {
        self.gate.n_permits
    }

    /// How many more it would let in now.
    pub fn n_free(&self) -> usize {
        self.gate.lock().n_free
    }

    /// Waits for a permit. Dropping the future leaves the line.
    pub fn acquire(&self) -> Acquire {
        Acquire {
            gate: self.gate.clone(),
            ticket: None,
        }
    }

    /// A permit, if one is free and nobody waits.
    pub fn try_acquire(&self) -> Option<Permit> {
        let mut line = self.gate.lock();
        (line.n_free > 0).then(|| {
            line.n_free -= 1;
            Permit {
                gate: self.gate.clone(),
            }
        })
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.gate.lock();
        write!(
            f,
            "Admission({} of {} free, {} waiting)",
            line.n_free,
            self.gate.n_permits,
            line.waiting.len()
        )
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Hands a permit to the first who waits, or keeps it as free.
    fn put_back(&self) {
        let mut line = self.lock();
        let waker = match line.waiting.iter_mut().find(|w| !w.granted) {
            Some(waiter) => {
                waiter.granted = true;
                Some(waiter.waker.clone())
            }
            None => {
                line.n_free += 1;
                None
            }
        };
        drop(line);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The wait for a [`Permit`].
#[must_use = "a future does nothing unless awaited"]
pub struct Acquire {
    gate: Arc<Gate>,
    ticket: Option<u64>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        let gate = self.gate.clone();
        let mut line = gate.lock();
        let Some(ticket) = self.ticket else {
            // A free permit means that nobody waits: `put_back` serves the line first.
            if line.n_free > 0 {
                line.n_free -= 1;
                drop(line);
                return Poll::Ready(Permit { gate });
            }
            let ticket = gate.next_ticket.fetch_add(1, Ordering::Relaxed);
            line.waiting.push(Waiter {
                ticket,
                waker: context.waker().clone(),
                granted: false,
            });
            self.ticket = Some(ticket);
            return Poll::Pending;
        };
        let Some(at) = line.waiting.iter().position(|w| w.ticket == ticket) else {
            unreachable!("a waiter leaves the line only here and in drop");
        };
        if line.waiting[at].granted {
            line.waiting.remove(at);
            self.ticket = None;
            drop(line);
            return Poll::Ready(Permit { gate });
        }
        line.waiting[at].waker.clone_from(context.waker());
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut line = self.gate.lock();
        let Some(at) = line.waiting.iter().position(|w| w.ticket == ticket) else {
            return;
        };
        let granted = line.waiting.remove(at).granted;
        drop(line);
        if granted {
            self.gate.put_back();
        }
    }
}

/// Leave to have one chunk in flight; given back when dropped.
#[must_use = "the permit is given back when this is dropped"]
pub struct Permit {
    gate: Arc<Gate>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.put_back();
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permit")
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_reservation_counts_until_it_is_dropped() {
        let budget = Budget::new(100);
        let mut a = budget.reserve(60).unwrap();
        assert_eq!(
            budget.reserve(50).unwrap_err(),
            OutOfMemory {
                what: "memory budget",
                requested: 50,
                free: 40,
                limit: 100
            }
        );
        a.grow(40).unwrap();
        assert!(a.grow(1).is_err());
        assert_eq!((a.bytes(), budget.free(), budget.peak()), (100, 0, 100));
        let b = a.split(30);
        a.shrink_to(10);
        assert_eq!(budget.used(), 40);
        a.merge(b);
        assert_eq!((a.bytes(), budget.used()), (40, 40));
        drop(a);
        assert_eq!((budget.used(), budget.peak()), (0, 100));
        budget.reset_peak();
        assert_eq!(budget.peak(), 0);
    }

    #[test]
    fn a_waiting_reservation_gets_what_others_release() {
        let budget = Budget::new(100);
        let held = budget.reserve(80).unwrap();
        let waiter = thread::spawn({
            let budget = budget.clone();
            move || {
                budget
                    .reserve_or_wait(50, Duration::from_secs(60))
                    .map(|r| r.bytes())
            }
        });
        drop(held);
        assert_eq!(waiter.join().unwrap(), Ok(50));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn waiting_ends_at_the_timeout_and_never_starts_for_the_impossible() {
        let budget = Budget::new(100);
        let _held = budget.reserve(80).unwrap();
        let refused = budget
            .reserve_or_wait(50, Duration::from_millis(10))
            .unwrap_err();
        assert_eq!((refused.requested, refused.free), (50, 20));
        let start = Instant::now();
        assert!(
            budget
                .reserve_or_wait(101, Duration::from_secs(60))
                .is_err()
        );
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    fn poll(future: &mut Acquire) -> Option<Permit> {
        match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn permits_go_to_those_who_wait_in_order() {
        let admission = Admission::new(1);
        let held = admission.try_acquire().unwrap();
        assert!(admission.try_acquire().is_none());
        let (mut first, mut second) = (admission.acquire(), admission.acquire());
        assert!(poll(&mut first).is_none());
        assert!(poll(&mut second).is_none());
        drop(held);
        assert!(
            admission.try_acquire().is_none(),
            "the permit is the first waiter's"
        );
        assert!(poll(&mut second).is_none());
        let permit = poll(&mut first).unwrap();
        drop(permit);
        assert!(poll(&mut second).is_some());
        assert_eq!(admission.n_free(), 1);
    }

    #[test]
    fn leaving_the_line_passes_the_permit_on() {
        let admission = Admission::new(1);
        let held = admission.try_acquire().unwrap();
        let (mut first, mut second) = (admission.acquire(), admission.acquire());
        assert!(poll(&mut first).is_none());
        assert!(poll(&mut second).is_none());
        drop(held);
        drop(first);
        assert!(poll(&mut second).is_some());
        assert_eq!(admission.n_free(), 1);
    }
}
