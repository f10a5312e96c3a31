//! Rows on the device that wait for others before a pipeline can start. They are the first
//! to leave it when memory is short.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use datafusion::error::Result;
use kernels::columns::DeviceChunk;
use kernels::launch::{JoinTable, StagedBatch};

use super::codes::internal;
use super::failure::Failure;
use super::spill::Spill;

/// Rows of one relation, wherever they are.
#[derive(Debug)]
pub enum Held {
    /// On the device.
    Rows(Arc<DeviceChunk>),
    /// On the device, with a table to look them up.
    Table(Box<JoinTable>),
    /// On the host.
    Host(StagedBatch),
}

impl Held {
    /// The rows on the host; they leave the device if they are there.
    pub fn into_host(self, spill: &Spill) -> Result<StagedBatch, Failure> {
        let chunk = match self {
            Held::Host(rows) => return Ok(rows),
            Held::Rows(chunk) => chunk,
            Held::Table(table) => table.into_rows(),
        };
        Ok(spill.keep_staged(StagedBatch::of_device(&chunk)?)?)
    }

    /// The rows, if they are on the device.
    pub fn on_device(&self) -> Option<&DeviceChunk> {
        match self {
            Held::Rows(chunk) => Some(chunk),
            Held::Table(table) => Some(table.rows()),
            Held::Host(_) => None,
        }
    }
}

/// A relation that waits.
#[derive(Debug)]
struct Entry {
    held: Option<Held>,
    spill: Arc<Spill>,
}

/// All that waits on one device.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<Vec<Weak<Mutex<Entry>>>>);

/// A relation that waits until it is taken; it may have left the device by then.
#[derive(Debug)]
pub struct Parked(Arc<Mutex<Entry>>);

impl Waiting {
    /// Lets a relation wait.
    pub fn park(&self, held: Held, spill: &Arc<Spill>) -> Parked {
        let entry = Arc::new(Mutex::new(Entry {
            held: Some(held),
            spill: Arc::clone(spill),
        }));
        let mut all = lock(&self.0);
        all.retain(|entry| entry.strong_count() > 0);
        all.push(Arc::downgrade(&entry));
        Parked(entry)
    }

    /// Moves the largest relation that waits to the host; false when there is none.
    pub fn spill_one(&self) -> bool {
        let all: Vec<Arc<Mutex<Entry>>> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        let bytes_of = |entry: &Arc<Mutex<Entry>>| -> usize {
            let held = try_lock(entry);
            let held = held.as_ref().and_then(|entry| entry.held.as_ref());
            held.and_then(Held::on_device).map_or(0, DeviceChunk::bytes)
        };
        let largest = all.into_iter().max_by_key(bytes_of);
        let Some(mut entry) = largest.as_ref().and_then(try_lock) else {
            return false;
        };
        let Some(chunk) = entry.held.as_ref().and_then(Held::on_device) else {
            return false;
        };
        let rows = StagedBatch::of_device(chunk).map_err(Failure::from);
        match rows.and_then(|rows| Ok(entry.spill.keep_staged(rows)?)) {
            Ok(rows) => {
                entry.held = Some(Held::Host(rows));
                true
            }
            Err(error) => {
                tracing::debug!(?error, "rows that wait could not leave the device");
                false
            }
        }
    }
}

impl Parked {
    /// The relation, which no longer waits.
    pub fn take(self) -> Result<Held, Failure> {
        let held = lock(&self.0).held.take();
        Ok(held.ok_or_else(|| internal("a relation that was taken already".into()))?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock(entry: &Arc<Mutex<Entry>>) -> Option<MutexGuard<'_, Entry>> {
    match entry.try_lock() {
        Ok(entry) => Some(entry),
        Err(TryLockError::Poisoned(entry)) => Some(entry.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
