//! The memory of modules: blocks of powers of two, and a list of free ones for each size.
//!
//! The allocator that comes with Rust for this target is 8 KiB of code, more than most
//! functions. This one gives up to twice the memory that was asked for, and never gives
//! any back to the host, which drops an instance that has grown much.

use core::alloc::Layout;

/// The size of the host's pages.
const PAGE: usize = 1 << 16;
/// The smallest block, and the alignment of the smallest.
const LEAST: usize = 16;
/// Larger blocks are not aligned to more than this.
const ALIGN_MAX: usize = 64;
/// Blocks of half the address space are the largest.
const N_CLASSES: usize = 28;

/// Free memory.
pub(crate) struct Heap {
    /// The first free block of each size; each holds the address of the next.
    free: [usize; N_CLASSES],
    /// What was never given out.
    from: usize,
    to: usize,
}

impl Heap {
    /// A heap that has nothing yet.
    pub(crate) const fn new() -> Self {
        Heap {
            free: [0; N_CLASSES],
            from: 0,
            to: 0,
        }
    }

    /// Adds memory that nobody uses.
    pub(crate) fn add(&mut self, from: usize, to: usize) {
        if from != self.to {
            self.from = from;
        }
        self.to = to;
    }

    /// Which list a layout's blocks are in; none where there are no such blocks.
    fn class(layout: &Layout) -> Option<usize> {
        let bytes = layout.size().max(layout.align()).max(LEAST);
        let class = bytes.checked_next_power_of_two()?.trailing_zeros() as usize - 4;
        (class < N_CLASSES && layout.align() <= ALIGN_MAX).then_some(class)
    }

    /// The address of a block; 0 where there is none. `grow` gets that many pages of the
    /// host and returns where they start, or 0.
    ///
    /// # Safety
    ///
    /// All memory that was added or grown is the heap's alone.
    pub(crate) unsafe fn alloc(
        &mut self,
        layout: &Layout,
        grow: impl FnOnce(usize) -> usize,
    ) -> usize {
        let Some(class) = Self::class(layout) else {
            return 0;
        };
        let block = self.free[class];
        if block != 0 {
            // SAFETY: a free block holds the address of the next.
            self.free[class] = unsafe { (block as *const usize).read() };
            return block;
        }
        let bytes = LEAST << class;
        let aligned = |from: usize| from.next_multiple_of(bytes.min(ALIGN_MAX));
        if self.to.saturating_sub(aligned(self.from)) < bytes {
            let n_pages = bytes.div_ceil(PAGE);
            let at = grow(n_pages);
            if at == 0 {
                return 0;
            }
            self.add(at, at + n_pages * PAGE);
        }
        let block = aligned(self.from);
        self.from = block + bytes;
        block
    }

    /// Takes a block back.
    ///
    /// # Safety
    ///
    /// `alloc` gave it out for this layout, and nobody uses it any more.
    pub(crate) unsafe fn free(&mut self, block: usize, layout: &Layout) {
        if let Some(class) = Self::class(layout) {
            // SAFETY: the block has room for an address, and is nobody else's.
            unsafe { (block as *mut usize).write(self.free[class]) };
            self.free[class] = block;
        }
    }

    /// Whether a block for one layout will do for another size.
    pub(crate) fn is_enough(layout: &Layout, bytes: usize) -> bool {
        Layout::from_size_align(bytes, layout.align())
            .is_ok_and(|other| Self::class(layout) == Self::class(&other))
    }
}

#[cfg(target_arch = "wasm32")]
mod global {
    use super::{Heap, Layout, PAGE};
    use core::alloc::GlobalAlloc;
    use core::arch::wasm32::memory_grow;

    struct OneThread;

    #[global_allocator]
    static GLOBAL: OneThread = OneThread;

    static mut HEAP: Heap = Heap::new();

    fn grow(n_pages: usize) -> usize {
        match memory_grow(0, n_pages) {
            usize::MAX => 0,
            page => page * PAGE,
        }
    }

    // SAFETY: blocks do not overlap, and are as large and as aligned as their layout says:
    // see `Heap`. A module has one thread.
    unsafe impl GlobalAlloc for OneThread {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the heap's memory is that of `grow`, which nobody else gets.
            unsafe { (*(&raw mut HEAP)).alloc(&layout, grow) as *mut u8 }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            // SAFETY: the caller's promise is that of `Heap::free`.
            unsafe { (*(&raw mut HEAP)).free(block as usize, &layout) }
        }

        unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
            if Heap::is_enough(&layout, bytes) {
                return block;
            }
            // SAFETY: the caller promises a layout that is valid with the new size, and a
            // block of the old one; the new block overlaps nothing.
            unsafe {
                let other = Layout::from_size_align_unchecked(bytes, layout.align());
                let moved = self.alloc(other);
                if !moved.is_null() {
                    let kept = layout.size().min(bytes);
                    core::ptr::copy_nonoverlapping(block, moved, kept);
                    self.dealloc(block, layout);
                }
                moved
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of all sizes never overlap, are aligned, and are used again.
    #[test]
    fn blocks_are_apart_and_used_again() {
        let mut pages: Vec<Vec<u8>> = Vec::new();
        let mut heap = Heap::new();
        let mut held: Vec<(usize, Layout)> = Vec::new();
        let mut random = 12_345_u64;
        for _ in 0..20_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let pick = (random >> 33) as usize;
            if pick % 5 < 3 || held.is_empty() {
                let layout = Layout::from_size_align(pick % 3_000, 1 << (pick % 7)).expect("valid");
                let grow = |n: usize| {
                    pages.push(vec![0; (n + 1) * PAGE]);
                    let at = pages.last().map_or(0, |page| page.as_ptr() as usize);
                    at.next_multiple_of(PAGE)
                };
                // SAFETY: the pages outlive the heap.
                let block = unsafe { heap.alloc(&layout, grow) };
                assert!(block != 0 && block % layout.align() == 0);
                for (other, its) in &held {
                    assert!(block + layout.size() <= *other || other + its.size() <= block);
                }
                held.push((block, layout));
            } else {
                let (block, layout) = held.swap_remove(pick % held.len());
                // SAFETY: it was given out for this layout.
                unsafe { heap.free(block, &layout) };
            }
            if held.len() > 200 {
                for (block, layout) in held.drain(..) {
                    // SAFETY: as above.
                    unsafe { heap.free(block, &layout) };
                }
            }
        }
        assert!(pages.len() < 40, "{} pages", pages.len());
    }

    #[test]
    fn what_cannot_be_had_is_null() {
        let mut heap = Heap::new();
        let huge = Layout::from_size_align(1 << 40, 8).expect("valid");
        let wide = Layout::from_size_align(8, 4_096).expect("valid");
        let small = Layout::from_size_align(8, 8).expect("valid");
        // SAFETY: nothing is given out.
        unsafe {
            assert_eq!(heap.alloc(&huge, |_| 64), 0);
            assert_eq!(heap.alloc(&wide, |_| 64), 0);
            assert_eq!(heap.alloc(&small, |_| 0), 0);
        }
        assert!(Heap::is_enough(&small, 16) && !Heap::is_enough(&small, 17));
    }
}
