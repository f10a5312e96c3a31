//! How many chunks may be in flight on a device.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

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
    use super::*;

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
