//! Text results.

use core::fmt;

/// Takes the text of one row after another.
///
/// `write!(out, ...)` works too.
pub struct StrWriter {
    /// What was written natively, or did not fit the host's room any more.
    own: Vec<u8>,
    /// The host's room for it; none natively.
    room: *mut u8,
    capacity: usize,
    length: usize,
}

impl StrWriter {
    /// An empty one, for an author's own tests.
    pub fn new() -> Self {
        StrWriter {
            own: Vec::new(),
            room: core::ptr::null_mut(),
            capacity: 0,
            length: 0,
        }
    }

    /// One that writes to this room as long as it suffices.
    ///
    /// # Safety
    ///
    /// Nobody else uses the room while the writer lives.
    #[doc(hidden)]
    pub unsafe fn over(room: *mut u8, capacity: usize, mut own: Vec<u8>) -> Self {
        own.clear();
        StrWriter {
            own,
            room,
            capacity,
            length: 0,
        }
    }

    /// Adds text.
    #[inline]
    pub fn push(&mut self, text: &str) {
        self.push_bytes(text.as_bytes());
    }

    /// Adds a character.
    #[inline]
    pub fn push_char(&mut self, c: char) {
        self.push(c.encode_utf8(&mut [0; 4]));
    }

    #[inline]
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if end <= self.capacity {
            // SAFETY: the room has `capacity` bytes, which end at or after this piece, and
            // it is this writer's alone.
            unsafe {
                let to = self.room.add(self.length);
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        } else {
            self.spill();
            self.own.extend_from_slice(bytes);
        }
        self.length = end;
    }

    /// Moves to memory of its own.
    fn spill(&mut self) {
        if self.capacity > 0 {
            // SAFETY: the room's first `length` bytes were written by this writer.
            let written = unsafe { core::slice::from_raw_parts(self.room, self.length) };
            self.own.extend_from_slice(written);
            self.capacity = 0;
        }
    }

    /// Bytes so far.
    #[doc(hidden)]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Forgets what was written after so many bytes.
    #[doc(hidden)]
    pub fn truncate(&mut self, length: usize) {
        self.length = length;
        if self.capacity == 0 {
            self.own.truncate(length);
        }
    }

    /// What was written.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self.written()).unwrap_or_default()
    }

    #[doc(hidden)]
    pub fn written(&self) -> &[u8] {
        match self.capacity {
            0 => &self.own,
            // SAFETY: the room's first `length` bytes were written by this writer.
            _ => unsafe { core::slice::from_raw_parts(self.room, self.length) },
        }
    }

    #[doc(hidden)]
    pub fn into_own(self) -> Vec<u8> {
        self.own
    }
}

impl Default for StrWriter {
    fn default() -> Self {
        StrWriter::new()
    }
}

impl fmt::Write for StrWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        Ok(())
    }
}

impl fmt::Debug for StrWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_on_when_the_room_is_full() {
        let mut room = [0_u8; 8];
        // SAFETY: the room outlives the writer and nobody else looks at it.
        let mut out = unsafe { StrWriter::over(room.as_mut_ptr(), room.len(), Vec::new()) };
        out.push("12345");
        assert_eq!(out.as_str(), "12345");
        out.push("678");
        out.push_char('ä');
        assert_eq!((out.as_str(), out.length()), ("12345678ä", 10));
        out.truncate(8);
        out.push("!");
        assert_eq!(out.as_str(), "12345678!");
    }
}
