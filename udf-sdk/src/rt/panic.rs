//! What the host is told of errors and panics.

use core::fmt::{self, Display, Write};

const ROW: usize = 0;
const CODE: usize = 4;
const MESSAGE_LEN: usize = 8;
const MESSAGE: usize = 12;
const MESSAGE_MAX: usize = 500;

/// No row.
pub(super) const NONE: u32 = u32::MAX;

const FAILED: u32 = 1;
const PANICKED: u32 = 2;

/// The `Error` of the call that runs; 0 while none does.
static mut ERROR: u32 = 0;
/// The row that is worked on, where that is known.
static mut AT: u32 = NONE;
static mut HAS_HOOK: bool = false;

/// A call starts.
#[inline(never)]
pub(super) fn enter(error: u32) {
    // SAFETY: a module has one thread, and nobody else touches these.
    unsafe {
        ERROR = error;
        AT = NONE;
        if !HAS_HOOK {
            HAS_HOOK = true;
            hook();
        }
    }
}

/// Lets a panic leave its message before the module traps.
fn hook() {
    std::panic::set_hook(Box::new(|info| {
        // SAFETY: as in `enter`.
        let Some(mut message) = (unsafe { Message::new(AT, PANICKED) }) else {
            return;
        };
        let text = info.payload_as_str().unwrap_or("a panic without a message");
        message.add(text);
        if let Some(place) = info.location() {
            // Without `write!`, whose padding is more code than most functions.
            message.add(" (");
            message.add(place.file());
            message.add(":");
            message.add_number(place.line());
            message.add(")");
        }
    }));
}

/// The row that the next panic is about.
#[inline]
pub(super) fn at(row: usize) {
    // SAFETY: as in `enter`.
    unsafe { AT = row as u32 };
}

/// Tells of a row that failed.
#[cold]
pub(super) fn fail(row: usize, error: &dyn Display) {
    if let Some(mut message) = Message::new(row as u32, FAILED) {
        let _ = write!(message, "{error}");
    }
}

/// Sets the number of rows that became NULL, behind the first one's message.
pub(super) fn set_count(n: u32) {
    // SAFETY: as in `enter`; the host's struct has 512 bytes.
    unsafe {
        if ERROR != 0 {
            ((ERROR as usize + CODE) as *mut u32).write(n);
        }
    }
}

/// Fills the host's struct.
struct Message {
    at: usize,
    length: usize,
}

impl Message {
    fn new(row: u32, code: u32) -> Option<Message> {
        // SAFETY: as in `enter`; the host's struct has 512 bytes.
        unsafe {
            if ERROR == 0 {
                return None;
            }
            let at = ERROR as usize;
            ((at + ROW) as *mut u32).write(row);
            ((at + CODE) as *mut u32).write(code);
            ((at + MESSAGE_LEN) as *mut u32).write(0);
            Some(Message { at, length: 0 })
        }
    }
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text);
        Ok(())
    }
}

impl Message {
    fn add_number(&mut self, number: u32) {
        if number >= 10 {
            self.add_number(number / 10);
        }
        let digit = (number % 10) as usize;
        self.add(&"0123456789"[digit..=digit]);
    }

    #[inline(never)]
    fn add(&mut self, text: &str) {
        let n = text.floor_char_boundary(MESSAGE_MAX - self.length);
        // SAFETY: the host's struct has room for `MESSAGE_MAX` bytes of text.
        unsafe {
            let to = (self.at + MESSAGE + self.length) as *mut u8;
            core::ptr::copy_nonoverlapping(text.as_ptr(), to, n);
            self.length += n;
            ((self.at + MESSAGE_LEN) as *mut u32).write(self.length as u32);
        }
    }
}
