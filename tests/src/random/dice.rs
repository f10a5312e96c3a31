//! Numbers that look random and are the same on every machine (SplitMix64).

/// A stream of numbers.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Dice {
        let mut dice = Dice(seed);
        // Seeds that follow one another begin alike.
        dice.roll();
        dice
    }

    /// Any number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.roll() % n as u64) as usize
    }

    /// A number from `from` to `to`, both among them.
    pub fn within(&mut self, from: i64, to: i64) -> i64 {
        from + (self.roll() % (to - from + 1) as u64) as i64
    }

    /// True so many times of a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
