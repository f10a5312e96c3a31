//! Plain values that may be copied to and from a device as bytes.

mod sealed {
    pub trait Sealed {}
}

/// A number whose every bit pattern is a value, so that bytes from a device can be
/// read as it.
///
/// # Safety
/// Implemented only here, for types without padding and without invalid patterns.
pub unsafe trait Pod: sealed::Sealed + Copy + Default + Send + Sync + 'static {}

macro_rules! pod {
    ($($t:ty),*) => { $(
        impl sealed::Sealed for $t {}
        // SAFETY: a primitive number has neither padding nor invalid patterns.
        unsafe impl Pod for $t {}
    )* };
}

pod!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64);

/// The bytes of a slice of numbers.
pub(crate) fn bytes_of<T: Pod>(values: &[T]) -> &[u8] {
    // SAFETY: T has no padding, so all bytes are initialised; u8 has no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) }
}
