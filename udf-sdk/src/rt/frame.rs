//! ABI 1's structs, as they lie in this module's memory.

/// The one argument of an entry point.
#[repr(C)]
pub struct Call {
    abi: u32,
    flags: u32,
    rows: u32,
    n_args: u32,
    args: u32,
    ret: u32,
    error: u32,
    state: u32,
    scratch: u32,
    scratch_len: u32,
    batch: u64,
    seed: u64,
    query_time: i64,
}

/// A row that fails becomes NULL.
const NULL_ON_ERROR: u32 = 8;

impl Call {
    /// The call that the host made.
    ///
    /// # Safety
    ///
    /// `at` is the pointer that an entry point got of a host of ABI 1. The call and what it
    /// points to stay as long as the entry point runs, which is as long as anything made of
    /// this reference is used.
    pub unsafe fn at(at: u32) -> &'static Call {
        let call = at as usize as *const Call;
        // SAFETY: the caller's promise; the host aligns it to 64 bytes.
        let call = unsafe { &*call };
        super::panic::enter(call.error);
        call
    }

    /// Number of rows.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows as usize
    }

    /// Number of arguments.
    pub fn n_args(&self) -> usize {
        self.n_args as usize
    }

    /// An argument.
    #[inline]
    pub fn arg(&self, i: usize) -> &'static Column {
        let first = self.args as usize as *const Column;
        // SAFETY: the host laid out as many columns as the metadata has arguments.
        unsafe { &*first.add(i) }
    }

    /// The result.
    #[inline]
    pub fn ret(&self) -> &'static Column {
        // SAFETY: the host laid out a column for the result.
        unsafe { &*(self.ret as usize as *const Column) }
    }

    /// Whether a row that fails becomes NULL.
    pub fn is_null_on_error(&self) -> bool {
        self.flags & NULL_ON_ERROR != 0
    }

    /// Room for text: where, and how much.
    pub fn scratch(&self) -> (*mut u8, usize) {
        (self.scratch as usize as *mut u8, self.scratch_len as usize)
    }

    /// The handle of an aggregate's states.
    pub fn state(&self) -> u32 {
        // SAFETY: the field is this module's to change, and reads and writes of it go
        // through raw pointers alone.
        unsafe { (&raw const self.state).read_volatile() }
    }

    /// Sets the handle, which the host gives back with the next call.
    pub fn set_state(&self, handle: u32) {
        // SAFETY: as in `state`.
        unsafe { (&raw const self.state).cast_mut().write_volatile(handle) };
    }
}

/// A column's buffers.
#[repr(C)]
pub struct Column {
    kind: u16,
    flags: u16,
    precision: u8,
    scale: i8,
    unit: u16,
    length: u32,
    nulls: u32,
    validity: u32,
    validity_len: u32,
    buf0: u32,
    buf0_len: u32,
    buf1: u32,
    buf1_len: u32,
    children: u32,
    n_children: u32,
    reserved: [u32; 4],
}

const HAS_VALIDITY: u16 = 2;
const CONSTANT: u16 = 4;

impl Column {
    /// Whether any row may be NULL.
    #[inline]
    pub fn has_validity(&self) -> bool {
        self.flags & HAS_VALIDITY != 0
    }

    /// Whether one element stands for all rows.
    #[inline]
    pub fn is_constant(&self) -> bool {
        self.flags & CONSTANT != 0
    }

    /// What a row's number is joined with to get its element's: nothing of it is left for a
    /// constant.
    #[inline]
    pub fn mask(&self) -> usize {
        if self.is_constant() { 0 } else { usize::MAX }
    }

    /// Whether a row is not NULL.
    #[inline]
    pub fn is_valid(&self, row: usize) -> bool {
        if !self.has_validity() {
            return true;
        }
        let row = row & self.mask();
        // SAFETY: the bitmap has a bit for each element.
        let byte = unsafe { self.validity().add(row / 8).read() };
        byte >> (row % 8) & 1 != 0
    }

    /// The validity bitmap.
    #[inline]
    pub fn validity(&self) -> *const u8 {
        self.validity as usize as *const u8
    }

    /// The validity bitmap of a result.
    #[inline]
    pub fn validity_mut(&self) -> *mut u8 {
        self.validity as usize as *mut u8
    }

    /// The values or offsets.
    #[inline]
    pub fn values<T>(&self) -> *const T {
        self.buf0 as usize as *const T
    }

    /// The values or offsets of a result.
    #[inline]
    pub fn values_mut<T>(&self) -> *mut T {
        self.buf0 as usize as *mut T
    }

    /// The bytes of text.
    #[inline]
    pub fn bytes(&self) -> *const u8 {
        self.buf1 as usize as *const u8
    }

    /// Says where a result's bytes are.
    pub fn set_bytes(&self, bytes: &[u8]) {
        // SAFETY: the two fields of a result are the guest's to set, and nothing else reads
        // them before the entry point ends.
        unsafe {
            let at = (&raw const self.buf1).cast_mut();
            at.write_volatile(bytes.as_ptr() as usize as u32);
            let at = (&raw const self.buf1_len).cast_mut();
            at.write_volatile(bytes.len() as u32);
        }
    }
}

/// Sets a bit.
///
/// # Safety
///
/// The bitmap has this bit, and nobody else uses it.
#[inline]
pub unsafe fn set_bit(bits: *mut u8, at: usize, to: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        let byte = bits.add(at / 8);
        let mask = 1 << (at % 8);
        let old = byte.read();
        byte.write(if to { old | mask } else { old & !mask });
    }
}
