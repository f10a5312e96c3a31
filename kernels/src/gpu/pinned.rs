//! Page-locked host memory, and a pool of it: page-locking is slow (over a second
//! for 2 GiB), so pieces are kept and used again.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use super::{DevicePtr, Gpu, Pod, Stream, StreamId};
use crate::error::{OutOfMemory, Result};
use crate::gpu::Event;

/// An owned piece of page-locked host memory.
///
/// Copies from and to it are asynchronous. It knows which are under way, and waits
/// for them before it lets its bytes be touched or its memory be used again.
pub struct PinnedBuffer {
    piece: Option<Piece>,
    bytes: usize,
    sends: Mutex<Vec<(StreamId, Event)>>,
    receives: Mutex<Vec<(StreamId, Event)>>,
    pool: Weak<PoolShared>,
}

impl PinnedBuffer {
    /// Memory outside any pool.
    pub fn allocate(gpu: &Arc<dyn Gpu>, bytes: usize) -> Result<PinnedBuffer> {
        Ok(PinnedBuffer::new(
            Piece::allocate(gpu, bytes)?,
            bytes,
            Weak::new(),
        ))
    }

    fn new(piece: Piece, bytes: usize, pool: Weak<PoolShared>) -> PinnedBuffer {
        PinnedBuffer {
            piece: Some(piece),
            bytes,
            sends: Mutex::default(),
            receives: Mutex::default(),
            pool,
        }
    }

    /// Its size, as asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it starts. For code that orders its own accesses.
    pub fn as_ptr(&self) -> *mut u8 {
        self.piece().ptr
    }

    /// Its bytes. Waits for copies into it; a copy that failed leaves bytes that
    /// mean nothing, and the stream reports it.
    pub fn as_slice(&self) -> &[u8] {
        wait_for_all(&self.receives);
        // SAFETY: the piece has that many bytes, initialised when it was allocated;
        // no copy into it is under way, and a new one needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.piece().ptr, self.bytes) }
    }

    /// Its bytes, to be written. Waits for copies out of it and into it.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        wait_for_all(&self.receives);
        wait_for_all(&self.sends);
        // SAFETY: as in `as_slice`; `&mut self` excludes every other access, and no
        // copy out of it is under way.
        unsafe { std::slice::from_raw_parts_mut(self.piece().ptr, self.bytes) }
    }

    /// Its bytes as values, as many as fit.
    pub fn as_values<T: Pod>(&self) -> &[T] {
        let bytes = self.as_slice();
        // SAFETY: the piece is aligned to 4 KiB, and any bytes make a Pod.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
    }

    /// Its bytes as values to be written, as many as fit.
    pub fn as_mut_values<T: Pod>(&mut self) -> &mut [T] {
        let bytes = self.as_mut_slice();
        // SAFETY: as in `as_values`; every Pod is made of initialised bytes.
        unsafe {
            std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>())
        }
    }

    /// Enqueues a copy out of it.
    pub(super) fn send(&self, stream: &Stream, dst: DevicePtr, range: Range<usize>) -> Result<()> {
        self.check(&range);
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller checked the target. The source lies within this piece;
        // the noted event keeps it alive and unchanged until the stream has passed.
        unsafe {
            stream.gpu().copy_to_device(
                stream.id(),
                dst,
                self.piece().ptr.add(range.start),
                range.len(),
            )?;
        }
        note(&self.sends, stream)
    }

    /// Enqueues a copy into it.
    pub(super) fn receive(
        &mut self,
        stream: &Stream,
        src: DevicePtr,
        range: Range<usize>,
    ) -> Result<()> {
        self.check(&range);
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller checked the source. The target lies within this piece;
        // the noted event keeps it alive and unread until the stream has passed.
        unsafe {
            stream.gpu().copy_to_host(
                stream.id(),
                self.piece().ptr.add(range.start),
                src,
                range.len(),
            )?;
        }
        note(&self.receives, stream)
    }

    fn piece(&self) -> &Piece {
        self.piece.as_ref().expect("taken only by drop")
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "bytes {range:?} of a pinned buffer of {}",
            self.bytes
        );
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let piece = self.piece.take().expect("taken only here");
        let mut under_way = std::mem::take(unpoisoned(&mut self.sends));
        under_way.append(unpoisoned(&mut self.receives));
        match self.pool.upgrade() {
            Some(pool) => pool.give_back(piece, under_way),
            None => wait(under_way),
        }
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({} bytes)", self.bytes)
    }
}

/// A pool of page-locked memory with a limit on its total. Cheap to clone.
#[derive(Clone)]
pub struct PinnedPool {
    shared: Arc<PoolShared>,
}

/// What a pool holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PinnedStats {
    /// The most it may hold.
    pub limit_bytes: usize,
    /// Bytes in buffers that are in use, rounded up to their size class.
    pub used_bytes: usize,
    /// Bytes kept for reuse.
    pub kept_bytes: usize,
    /// The most that was ever used at once.
    pub peak_used_bytes: usize,
    /// Buffers made by page-locking new memory.
    pub n_allocated: u64,
    /// Buffers made from kept memory.
    pub n_reused: u64,
}

impl PinnedPool {
    /// A pool that holds at most `limit_bytes`, used and kept together.
    pub fn new(gpu: &Arc<dyn Gpu>, limit_bytes: usize) -> PinnedPool {
        let state = PoolState {
            stats: PinnedStats {
                limit_bytes,
                ..Default::default()
            },
            kept: BTreeMap::new(),
        };
        PinnedPool {
            shared: Arc::new(PoolShared {
                gpu: gpu.clone(),
                state: Mutex::new(state),
                released: Condvar::new(),
            }),
        }
    }

    /// A buffer of `bytes`; out of memory if the limit does not allow it now.
    pub fn take(&self, bytes: usize) -> Result<PinnedBuffer> {
        self.take_or_wait(bytes, Duration::ZERO)
    }

    /// A buffer of `bytes`; waits at most `timeout` for others to be dropped.
    /// Blocks the thread.
    pub fn take_or_wait(&self, bytes: usize, timeout: Duration) -> Result<PinnedBuffer> {
        let size = size_class(bytes);
        let deadline = Instant::now() + timeout;
        let mut state = lock(&self.shared.state);
        let reused = loop {
            if let Some(kept) = state.reuse(size) {
                break Some(kept);
            }
            if state.make_room(size) {
                break None;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || size > state.stats.limit_bytes {
                return Err(state.out_of_memory(bytes).into());
            }
            state = self
                .shared
                .released
                .wait_timeout(state, left)
                .unwrap_or_else(|e| e.into_inner())
                .0;
        };
        state.stats.used_bytes += size;
        state.stats.peak_used_bytes = state.stats.peak_used_bytes.max(state.stats.used_bytes);
        drop(state);
        let piece = match reused {
            Some(kept) => {
                wait(kept.under_way);
                kept.piece
            }
            // Page-locking is slow, so it runs outside the lock.
            None => match Piece::allocate(&self.shared.gpu, size) {
                Ok(piece) => piece,
                Err(error) => {
                    self.shared.forget(size);
                    return Err(error);
                }
            },
        };
        Ok(PinnedBuffer::new(
            piece,
            bytes,
            Arc::downgrade(&self.shared),
        ))
    }

    /// What it holds.
    pub fn stats(&self) -> PinnedStats {
        lock(&self.shared.state).stats
    }

    /// Frees what is kept for reuse.
    pub fn trim(&self) {
        let mut state = lock(&self.shared.state);
        let kept = std::mem::take(&mut state.kept);
        state.stats.kept_bytes = 0;
        drop(state);
        kept.into_values()
            .flatten()
            .for_each(|kept| wait(kept.under_way));
    }
}

impl fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

struct PoolShared {
    gpu: Arc<dyn Gpu>,
    state: Mutex<PoolState>,
    released: Condvar,
}

struct PoolState {
    stats: PinnedStats,
    kept: BTreeMap<usize, VecDeque<Kept>>,
}

struct Kept {
    piece: Piece,
    under_way: Vec<(StreamId, Event)>,
}

impl PoolShared {
    fn give_back(&self, piece: Piece, under_way: Vec<(StreamId, Event)>) {
        let mut state = lock(&self.state);
        state.stats.used_bytes -= piece.bytes;
        state.stats.kept_bytes += piece.bytes;
        state
            .kept
            .entry(piece.bytes)
            .or_default()
            .push_back(Kept { piece, under_way });
        drop(state);
        self.released.notify_all();
    }

    fn forget(&self, size: usize) {
        lock(&self.state).stats.used_bytes -= size;
        self.released.notify_all();
    }
}

impl PoolState {
    /// The piece of that size that was given back longest ago: its copies are the
    /// likeliest to be done.
    fn reuse(&mut self, size: usize) -> Option<Kept> {
        let kept = self.kept.get_mut(&size)?.pop_front()?;
        self.stats.kept_bytes -= size;
        self.stats.n_reused += 1;
        Some(kept)
    }

    /// Whether a new piece fits, if need be after freeing kept ones of other sizes.
    fn make_room(&mut self, size: usize) -> bool {
        if self.stats.used_bytes + size > self.stats.limit_bytes {
            return false;
        }
        while self.stats.used_bytes + self.stats.kept_bytes + size > self.stats.limit_bytes {
            let Some(mut largest) = self.kept.last_entry() else {
                return false;
            };
            match largest.get_mut().pop_front() {
                Some(kept) => {
                    self.stats.kept_bytes -= kept.piece.bytes;
                    wait(kept.under_way);
                }
                None => drop(largest.remove()),
            }
        }
        self.stats.n_allocated += 1;
        true
    }

    fn out_of_memory(&self, requested: usize) -> OutOfMemory {
        let limit = self.stats.limit_bytes;
        OutOfMemory {
            what: "pinned memory",
            requested,
            free: limit - self.stats.used_bytes,
            limit,
        }
    }
}

/// Quarter steps between powers of two, from 64 KiB: at most a fifth is unused.
fn size_class(bytes: usize) -> usize {
    const SMALLEST: usize = 64 << 10;
    if bytes <= SMALLEST {
        return SMALLEST;
    }
    let step = (bytes.next_power_of_two() / 8).max(SMALLEST / 4);
    bytes.next_multiple_of(step)
}

/// The memory itself.
struct Piece {
    gpu: Arc<dyn Gpu>,
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: the pointer is to memory that this value owns; it is tied to no thread.
unsafe impl Send for Piece {}
// SAFETY: a shared piece only tells its address.
unsafe impl Sync for Piece {}

impl Piece {
    fn allocate(gpu: &Arc<dyn Gpu>, bytes: usize) -> Result<Piece> {
        let bytes = bytes.max(1);
        let ptr = gpu.allocate_pinned(bytes)?;
        Ok(Piece {
            gpu: gpu.clone(),
            ptr,
            bytes,
        })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: allocated by `allocate`; every owner waits for its copies first.
        unsafe { self.gpu.free_pinned(self.ptr, self.bytes) }
    }
}

fn note(list: &Mutex<Vec<(StreamId, Event)>>, stream: &Stream) -> Result<()> {
    let mut list = lock(list);
    let noted = match list.iter().find(|(id, _)| *id == stream.id()) {
        Some((_, event)) => event.record_on(stream),
        None => Event::record(stream).map(|event| list.push((stream.id(), event))),
    };
    // Without a mark the copy can't be waited for later, so it is waited for now.
    noted.or_else(|error| stream.synchronize().and(Err(error)))
}

fn wait_for_all(list: &Mutex<Vec<(StreamId, Event)>>) {
    wait(std::mem::take(&mut *lock(list)));
}

/// Waits for copies. One that failed is reported by its stream, not here.
fn wait(under_way: Vec<(StreamId, Event)>) {
    for (_, event) in under_way {
        if let Err(error) = event.wait() {
            tracing::debug!(%error, "a copy of pinned memory failed");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn unpoisoned<T>(mutex: &mut Mutex<T>) -> &mut T {
    mutex.get_mut().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_waste_at_most_a_quarter_and_repeat() {
        for bytes in [
            1,
            65_536,
            65_537,
            100_000,
            1 << 20,
            (1 << 20) + 1,
            3_000_000,
            123_456_789,
        ] {
            let size = size_class(bytes);
            assert!(size >= bytes);
            assert!(
                bytes <= 65_536 || size <= bytes + bytes / 4,
                "{bytes} -> {size}"
            );
            assert_eq!(size_class(size), size, "a class holds itself");
        }
    }
}
