//! Guest memory: reservations that never move and are used again.
//!
//! ```text
//! |<-- readable and writable -->|<------- no access: a trap -------->|
//! | stack, data, heap | arena   |  the rest of 4 GiB       |  guard  |
//! 0                             size
//! ```
//!
//! A slot keeps its address range, and as far as it is small its physical pages too, so
//! that a range can be page-locked for a device once. Wasmtime's own pooling allocator
//! gives pages back to the system on reset, which would leave a device reading the old
//! ones.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

/// Up to here a slot is cleared by writing zeros, beyond by giving the pages back: writing
/// would bring in pages that were never touched.
const MEMSET_BYTES_MAX: usize = 256 << 10;

/// Idle slots that are kept; the others are unmapped.
const IDLE_MAX: usize = 64;

/// Makes guest memories out of slots.
#[derive(Default)]
pub(crate) struct Slots {
    idle: Arc<Mutex<Vec<Slot>>>,
}

/// A reservation of address space.
struct Slot {
    base: NonNull<u8>,
    /// Bytes reserved, the guard included.
    reserved: usize,
    /// Bytes from the start that can be read and written.
    accessible: usize,
}

// SAFETY: a slot is the only owner of its mapping, and the address is used by whoever owns
// the slot.
unsafe impl Send for Slot {}
// SAFETY: nothing is reached through a shared reference to a slot but its numbers.
unsafe impl Sync for Slot {}

impl Slot {
    fn new(reserved: usize) -> Result<Slot, String> {
        // SAFETY: an anonymous mapping at an address of the system's choice touches no
        // memory that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                reserved,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(format!(
                "{reserved} bytes of address space: {}",
                std::io::Error::last_os_error()
            ));
        }
        let base = NonNull::new(base.cast()).ok_or("the system gave address 0")?;
        Ok(Slot {
            base,
            reserved,
            accessible: 0,
        })
    }

    /// Sets where the accessible part ends. What becomes accessible holds zeros.
    fn set_accessible(&mut self, bytes: usize) -> Result<(), std::io::Error> {
        let (from, to, protection) = if bytes > self.accessible {
            (self.accessible, bytes, libc::PROT_READ | libc::PROT_WRITE)
        } else {
            (bytes, self.accessible, libc::PROT_NONE)
        };
        if from < to {
            // SAFETY: the range lies within this slot's own mapping; `bytes` is at most
            // the reservation less the guard, which `grow_to` and `new_memory` check.
            let failed = unsafe {
                libc::mprotect(self.base.as_ptr().add(from).cast(), to - from, protection)
            };
            if failed != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        self.accessible = bytes;
        Ok(())
    }

    /// Fills the accessible part with zeros.
    fn clear(&mut self) -> Result<(), std::io::Error> {
        let written = self.accessible.min(MEMSET_BYTES_MAX);
        // SAFETY: the range is accessible and this slot owns it.
        unsafe { std::ptr::write_bytes(self.base.as_ptr(), 0, written) };
        if written < self.accessible {
            // SAFETY: the range is part of this slot's anonymous private mapping, whose
            // pages read as zeros after this.
            let failed = unsafe {
                libc::madvise(
                    self.base.as_ptr().add(written).cast(),
                    self.accessible - written,
                    libc::MADV_DONTNEED,
                )
            };
            if failed != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: the mapping is this slot's own, and nobody else holds its address.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.reserved) };
    }
}

/// One guest's memory.
struct SlotMemory {
    /// Always there until it is dropped.
    slot: Option<Slot>,
    /// The guest's size of its memory.
    size: usize,
    /// What it may grow to.
    capacity: usize,
    idle: Arc<Mutex<Vec<Slot>>>,
}

// SAFETY: the memory is page-aligned (mmap), zero-filled (`Slot::clear` before a slot is
// idle), does not move, and what lies between its size and the end of the guard cannot be
// accessed: `accessible` is `size` rounded up to the system's pages.
unsafe impl LinearMemory for SlotMemory {
    fn byte_size(&self) -> usize {
        self.size
    }

    fn byte_capacity(&self) -> usize {
        self.capacity
    }

    fn grow_to(&mut self, new_size: usize) -> wasmtime::Result<()> {
        let Some(slot) = &mut self.slot else {
            return Err(wasmtime::Error::msg("the memory is gone"));
        };
        if new_size > self.capacity {
            return Err(wasmtime::Error::msg("beyond the reservation"));
        }
        slot.set_accessible(new_size)?;
        self.size = new_size;
        Ok(())
    }

    fn as_ptr(&self) -> *mut u8 {
        match &self.slot {
            Some(slot) => slot.base.as_ptr(),
            None => std::ptr::null_mut(),
        }
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        let Some(mut slot) = self.slot.take() else {
            return;
        };
        // A slot that cannot be cleared is not used again.
        if slot.clear().is_err() {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(slot);
        }
    }
}

// SAFETY: see `SlotMemory`; each memory owns another slot.
unsafe impl MemoryCreator for Slots {
    fn new_memory(
        &self,
        _: MemoryType,
        minimum: usize,
        maximum: Option<usize>,
        reserved: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        let reserved = reserved.ok_or("a memory without a reservation")?;
        let whole = reserved
            .checked_add(guard)
            .ok_or("too large a reservation")?;
        let capacity = maximum.unwrap_or(reserved).min(reserved);
        if minimum > capacity {
            return Err(format!("{minimum} bytes are more than {capacity}"));
        }
        let found = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let at = idle.iter().rposition(|slot| slot.reserved == whole);
            at.map(|at| idle.swap_remove(at))
        };
        let mut slot = match found {
            Some(slot) => slot,
            None => Slot::new(whole)?,
        };
        slot.set_accessible(minimum)
            .map_err(|error| error.to_string())?;
        Ok(Box::new(SlotMemory {
            slot: Some(slot),
            size: minimum,
            capacity,
            idle: Arc::clone(&self.idle),
        }))
    }
}
