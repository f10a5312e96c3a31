//! Blocks of device memory that were freed and wait for the next allocation: a driver's
//! allocation takes over ten microseconds, and a query makes hundreds.

use std::collections::{BTreeMap, HashMap};

use super::ALIGNMENT;

/// Sizes up to here are rounded up to eight steps a doubling, larger ones to
/// [`LARGE_STEP`], which is what the driver hands out anyway.
const LARGE: usize = 16 << 20;
const LARGE_STEP: usize = 2 << 20;

/// A block may be larger than what is asked for by this part of it.
const SLACK_PART: usize = 8;

/// Blocks by address.
#[derive(Debug, Default)]
pub(super) struct KeptBlocks {
    by_size: BTreeMap<usize, Vec<u64>>,
    /// The sizes of blocks that are handed out.
    sizes: HashMap<u64, usize>,
    bytes: usize,
    /// Bytes of blocks that are handed out.
    out: usize,
}

impl KeptBlocks {
    /// The size of a block for so many bytes.
    pub(super) fn rounded(bytes: usize) -> usize {
        let step = match bytes {
            0..LARGE => (bytes.next_power_of_two() / 16).max(ALIGNMENT),
            _ => LARGE_STEP,
        };
        bytes.div_ceil(step).max(1) * step
    }

    /// A kept block of at least `bytes`, and not much more.
    pub(super) fn take(&mut self, bytes: usize) -> Option<u64> {
        let most = bytes + bytes / SLACK_PART;
        let (size, blocks) = self.by_size.range_mut(bytes..=most).next()?;
        let (size, block) = (*size, blocks.pop()?);
        if blocks.is_empty() {
            self.by_size.remove(&size);
        }
        self.bytes -= size;
        self.out += size;
        self.sizes.insert(block, size);
        Some(block)
    }

    /// Notes a block that was made and handed out.
    pub(super) fn made(&mut self, block: u64, bytes: usize) {
        self.out += bytes;
        self.sizes.insert(block, bytes);
    }

    /// Whether a new block takes all blocks past a limit that they would not pass without
    /// the kept ones.
    pub(super) fn would_pass(&self, bytes: usize, limit: usize) -> bool {
        self.bytes > 0 && self.out + self.bytes + bytes > limit
    }

    /// Keeps a block that was handed out; false if it is unknown.
    pub(super) fn keep(&mut self, block: u64) -> bool {
        let Some(size) = self.sizes.remove(&block) else {
            return false;
        };
        self.by_size.entry(size).or_default().push(block);
        self.bytes += size;
        self.out -= size;
        true
    }

    /// Bytes that are kept.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All kept blocks, to be given back.
    pub(super) fn drain(&mut self) -> Vec<u64> {
        self.bytes = 0;
        std::mem::take(&mut self.by_size)
            .into_values()
            .flatten()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_by_an_eighth_at_most() {
        assert_eq!(KeptBlocks::rounded(0), ALIGNMENT);
        assert_eq!(KeptBlocks::rounded(ALIGNMENT + 1), 2 * ALIGNMENT);
        for bytes in [5000, 70_001, 1 << 20, (1 << 20) + 1, LARGE - 1, LARGE + 1] {
            let rounded = KeptBlocks::rounded(bytes);
            assert!(rounded >= bytes && rounded <= bytes + bytes / 8, "{bytes}");
            assert_eq!(rounded % ALIGNMENT, 0);
            assert_eq!(KeptBlocks::rounded(rounded), rounded);
        }
    }

    #[test]
    fn the_smallest_block_that_fits_is_taken_and_a_far_larger_one_is_not() {
        let mut kept = KeptBlocks::default();
        kept.made(1, 4096);
        kept.made(2, 4608);
        kept.made(3, 65536);
        assert!(kept.keep(3) && kept.keep(2) && kept.keep(1));
        assert!(!kept.keep(4), "a block that was never handed out");
        assert_eq!(kept.bytes(), 4096 + 4608 + 65536);
        assert_eq!(kept.take(4096), Some(1));
        assert_eq!(kept.take(4096), Some(2));
        assert_eq!(kept.take(4096), None);
        assert!(kept.keep(2));
        assert!(kept.would_pass(1000, 75_000) && !kept.would_pass(1000, 76_000));
        let mut rest = kept.drain();
        rest.sort_unstable();
        assert_eq!((rest, kept.bytes()), (vec![2, 3], 0));
        assert!(!kept.would_pass(1 << 40, 0), "nothing is kept");
    }
}
