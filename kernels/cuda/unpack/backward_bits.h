// Bits that are read from the last one back to the first (RFC 8878, 4.1.2): behind them is a
// one, and zeros up to the end of the byte.
//
//   window   the next 33 bits or more, the next one highest
//   ahead    the word before them, read already: its way from memory takes a while
//
// Words are read up to 32 bytes before the first bit: sources start that far within their
// buffer.
#pragma once

struct BackwardBits {
  const u32* at;  // of `ahead`
  u64 window;
  u32 ahead;
  u32 n_window;
  i32 left;  // negative once more was taken than there is

  // False when there is no end mark.
  WL_MEMBER bool open(const u8* bytes, u32 n) {
    if (n == 0 || n >= PACKED_BYTES_MAX) return false;
    const u32 last = bytes[n - 1];
    if (last == 0) return false;
    left = static_cast<i32>((n - 1) * 8 + 31 - clz(last));
    const u64 end = reinterpret_cast<u64>(bytes) * 8 + static_cast<u32>(left);
    const u64 top = (end - 1) >> 5;
    n_window = static_cast<u32>(end - (top << 5));
    at = reinterpret_cast<const u32*>(top << 2);
    window = u64(*at) << (64 - n_window);
    ahead = *--at;
    fill();
    return true;
  }

  // At least 33 bits are in the window then.
  WL_MEMBER void fill() {
    if (n_window > 32) return;
    window |= u64(ahead) << (32 - n_window);
    n_window += 32;
    ahead = *--at;
  }

  // The next `n` bits, at most 32, which stay.
  WL_MEMBER u32 peek(u32 n) const { return static_cast<u32>((window >> 1) >> (63 - n)); }

  WL_MEMBER void drop(u32 n) {
    window <<= n;
    n_window -= n;
    left -= static_cast<i32>(n);
  }

  WL_MEMBER u32 take(u32 n) {
    const u32 bits = peek(n);
    drop(n);
    return bits;
  }
};
