//! The one memory budget of a batch, and the most that was ever taken from it.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::Result;
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

/// A pool that shares its limit fairly among operators that can spill, and
/// remembers its peak.
#[derive(Debug)]
pub struct Budget {
    pool: FairSpillPool,
    peak: AtomicUsize,
}

impl Budget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            pool: FairSpillPool::new(usize::try_from(limit_bytes).unwrap_or(usize::MAX)),
            peak: AtomicUsize::new(0),
        }
    }

    /// The most bytes reserved at once since the last [`Budget::reset_peak`].
    pub fn peak_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed) as u64
    }

    /// Starts a new measurement.
    pub fn reset_peak(&self) {
        self.peak.store(self.pool.reserved(), Ordering::Relaxed);
    }

    fn note(&self) {
        self.peak.fetch_max(self.pool.reserved(), Ordering::Relaxed);
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "budget({})", self.pool)
    }
}

impl MemoryPool for Budget {
    fn name(&self) -> &str {
        "budget"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.pool.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.pool.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.pool.grow(reservation, additional);
        self.note();
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.pool.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.pool.try_grow(reservation, additional)?;
        self.note();
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}
