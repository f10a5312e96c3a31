//! How much of a device's memory may be in use, and who gives some up when it is short.
//!
//! Every [`super::DeviceBuffer`] is counted here, so nothing that a pipeline holds is left
//! out: tables, outputs and scratch as well as columns.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::OutOfMemory;

/// Frees device memory that can be done without; told how many bytes are missing. False
/// when there is nothing left to give up.
pub type Reclaim = Arc<dyn Fn(usize) -> bool + Send + Sync>;

/// The account of one device's memory.
pub struct Meter {
    limit: AtomicUsize,
    used: AtomicUsize,
    peak: AtomicUsize,
    reclaim: Mutex<Option<Reclaim>>,
}

impl Meter {
    /// An account with this limit, in bytes.
    pub fn new(limit: usize) -> Meter {
        Meter {
            limit: AtomicUsize::new(limit),
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            reclaim: Mutex::new(None),
        }
    }

    /// Sets the limit. What is in use already stays.
    pub fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Sets who is asked when memory is short.
    pub fn set_reclaim(&self, reclaim: Reclaim) {
        *self.reclaim.lock().unwrap_or_else(PoisonError::into_inner) = Some(reclaim);
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that may still be used.
    pub fn free(&self) -> usize {
        self.limit().saturating_sub(self.used())
    }

    /// The most bytes that were in use at once since [`Meter::reset_peak`].
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Forgets the peak, so that a later one can be read on its own.
    pub fn reset_peak(&self) {
        self.peak.store(self.used(), Ordering::Relaxed);
    }

    /// Makes sure that so many bytes could be allocated now; others are asked to give some up
    /// if they must. Nothing is set aside.
    pub fn make_room(&self, bytes: usize) -> Result<(), OutOfMemory> {
        loop {
            let (free, limit) = (self.free(), self.limit());
            if bytes <= free {
                return Ok(());
            }
            if bytes > limit || !self.reclaim(bytes - free) {
                return Err(OutOfMemory {
                    what: "device memory",
                    requested: bytes,
                    free,
                    limit,
                });
            }
        }
    }

    /// Counts bytes that are about to be allocated. When they would pass the limit, others
    /// are asked to give some up, as long as they do.
    pub(super) fn take(&self, bytes: usize) -> Result<(), OutOfMemory> {
        loop {
            self.make_room(bytes)?;
            // Others may have taken the room in between; then there is less of it.
            let limit = self.limit();
            let within = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
            let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
            if let Ok(used) = self.used.fetch_update(set, fetch, within) {
                self.peak.fetch_max(used + bytes, Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    /// Asks for `bytes` to be freed; false when nothing was.
    pub(super) fn reclaim(&self, bytes: usize) -> bool {
        let reclaim = self
            .reclaim
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        reclaim.is_some_and(|reclaim| reclaim(bytes))
    }

    /// Counts bytes that were freed.
    pub(super) fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, limit, peak) = (self.used(), self.limit(), self.peak());
        write!(f, "Meter({used} of {limit} bytes used, peak {peak})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_and_the_peak_is_kept() {
        let meter = Meter::new(100);
        assert_eq!(meter.take(60), Ok(()));
        let refused = meter.take(41).unwrap_err();
        assert_eq!(
            (refused.requested, refused.free, refused.limit),
            (41, 40, 100)
        );
        meter.give(60);
        assert_eq!((meter.used(), meter.free(), meter.peak()), (0, 100, 60));
        meter.reset_peak();
        assert_eq!(meter.peak(), 0);
    }

    #[test]
    fn others_are_asked_as_long_as_they_give_something_up() {
        let meter = Arc::new(Meter::new(100));
        assert_eq!(meter.take(90), Ok(()));
        let (own, asked) = (Arc::downgrade(&meter), Arc::new(Mutex::new(Vec::new())));
        let told = Arc::clone(&asked);
        meter.set_reclaim(Arc::new(move |bytes| {
            let mut told = told.lock().unwrap();
            told.push(bytes);
            if told.len() > 2 {
                return false;
            }
            own.upgrade().unwrap().give(20);
            true
        }));
        assert_eq!(meter.take(50), Ok(()));
        assert_eq!(meter.used(), 100);
        assert!(meter.take(1).is_err());
        assert_eq!(*asked.lock().unwrap(), [40, 20, 1]);
        // What could never fit is nobody's business.
        assert!(meter.take(101).is_err());
        assert_eq!(asked.lock().unwrap().len(), 3);
    }
}
