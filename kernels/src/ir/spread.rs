//! How far values are spread, from what is kept of them while they are added up.

/// A variance or a standard deviation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Spread {
    /// Whether the values are a sample: the divisor is then one less than their number,
    /// and one value alone has no spread.
    pub is_sample: bool,
    /// Whether it is the square root, a standard deviation.
    pub is_root: bool,
}

/// How many values there are, their mean, and the sum of their squared distances from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// How many.
    pub n: u64,
    /// Their mean.
    pub mean: f64,
    /// The sum of squared distances.
    pub m2: f64,
}

impl Moments {
    /// The moments of the values of both. As `combine_moments` in `cuda/table/moments.h`.
    pub fn and(self, other: Moments) -> Moments {
        if self.n == 0 {
            return other;
        }
        if other.n == 0 {
            return self;
        }
        let n = self.n + other.n;
        let share = other.n as f64 / n as f64;
        let delta = other.mean - self.mean;
        Moments {
            n,
            mean: self.mean + delta * share,
            m2: self.m2 + other.m2 + delta * delta * share * self.n as f64,
        }
    }

    /// The spread; `None` where there is none. As `spread` in `cuda/table/group_values.h`.
    pub fn spread(self, spread: Spread) -> Option<f64> {
        let divisor = match spread.is_sample {
            true => self.n.saturating_sub(1),
            false => self.n,
        };
        let variance = (divisor > 0).then(|| self.m2 / divisor as f64)?;
        Some(if spread.is_root {
            variance.sqrt()
        } else {
            variance
        })
    }
}
