//! States of aggregates: what is shipped, spilled and merged.

/// A state that can be written down and read again. `#[derive(State)]` makes it of a
/// struct's fields; it also needs `Default`, the state of no rows.
pub trait State: Sized {
    /// Appends the state.
    fn save(&self, into: &mut Vec<u8>);

    /// Reads a state from the front; none where it is damaged.
    fn load(from: &mut &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($kind:ty),*) => {$(
        impl State for $kind {
            fn save(&self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }

            fn load(from: &mut &[u8]) -> Option<Self> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(<$kind>::from_le_bytes(*bytes))
            }
        }
    )*};
}

numbers!(i8, i16, i32, i64, i128, u8, u16, u32, u64, u128, f32, f64);

impl State for bool {
    fn save(&self, into: &mut Vec<u8>) {
        into.push(u8::from(*self));
    }

    fn load(from: &mut &[u8]) -> Option<Self> {
        u8::load(from).map(|byte| byte != 0)
    }
}

impl<T: State> State for Option<T> {
    fn save(&self, into: &mut Vec<u8>) {
        self.is_some().save(into);
        if let Some(value) = self {
            value.save(into);
        }
    }

    fn load(from: &mut &[u8]) -> Option<Self> {
        match bool::load(from)? {
            true => T::load(from).map(Some),
            false => Some(None),
        }
    }
}

impl<T: State> State for Vec<T> {
    fn save(&self, into: &mut Vec<u8>) {
        (self.len() as u32).save(into);
        for value in self {
            value.save(into);
        }
    }

    fn load(from: &mut &[u8]) -> Option<Self> {
        let n = u32::load(from)?;
        (0..n).map(|_| T::load(from)).collect()
    }
}

impl State for String {
    fn save(&self, into: &mut Vec<u8>) {
        (self.len() as u32).save(into);
        into.extend_from_slice(self.as_bytes());
    }

    fn load(from: &mut &[u8]) -> Option<Self> {
        let n = u32::load(from)? as usize;
        let (text, rest) = from.split_at_checked(n)?;
        *from = rest;
        core::str::from_utf8(text).ok().map(str::to_owned)
    }
}

impl<T: State + Default + Copy, const N: usize> State for [T; N] {
    fn save(&self, into: &mut Vec<u8>) {
        for value in self {
            value.save(into);
        }
    }

    fn load(from: &mut &[u8]) -> Option<Self> {
        let mut all = [T::default(); N];
        for value in &mut all {
            *value = T::load(from)?;
        }
        Some(all)
    }
}

impl<A: State, B: State> State for (A, B) {
    fn save(&self, into: &mut Vec<u8>) {
        self.0.save(into);
        self.1.save(into);
    }

    fn load(from: &mut &[u8]) -> Option<Self> {
        Some((A::load(from)?, B::load(from)?))
    }
}
