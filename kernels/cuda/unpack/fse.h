// Tables of finite state entropy (RFC 8878, 4.1): their descriptions, and how they are made.
#pragma once

// A state of a table, packed so that a step is one read:
//   bits 0-31   what is added to the extra bits of the symbol
//   bits 32-39  how many extra bits
//   bits 40-47  how many bits the next state takes
//   bits 48-63  what is added to those
WL_DEVICE u64 fse_entry(u32 base, u32 n_extra, u32 n_bits, u32 next) {
  return u64(base) | u64(n_extra) << 32 | u64(n_bits) << 40 | u64(next) << 48;
}
WL_DEVICE u32 fse_base(u64 entry) { return static_cast<u32>(entry); }
WL_DEVICE u32 fse_extra(u64 entry) { return static_cast<u32>(entry >> 32) & 0xff; }
WL_DEVICE u32 fse_bits(u64 entry) { return static_cast<u32>(entry >> 40) & 0xff; }
WL_DEVICE u32 fse_next(u64 entry) { return static_cast<u32>(entry >> 48); }

static constexpr u32 FSE_SYMBOLS_MAX = 64;

// How often each symbol is in a table: -1 for one that is rarer than one state.
struct FseCounts {
  i16 n[FSE_SYMBOLS_MAX];
  u32 n_symbols;
  u32 log;
};

// Reads a description that starts at `at` and ends before `end`; moves `at` behind it. False
// when it is not well-formed.
WL_DEVICE bool read_fse_counts(const u8* source, u32& at, u32 end, u32 log_max, u32 symbol_max, FseCounts& counts) {
  if (at >= end) return false;
  const u8* const bytes = source + at;
  const u32 n_bits = (end - at) * 8;
  counts.log = (bytes[0] & 15) + 5;
  if (counts.log > log_max) return false;
  u32 bit = 4, symbol = 0, remaining = 1u << counts.log;
  while (remaining > 0) {
    if (symbol > symbol_max || bit >= n_bits) return false;
    // Of `width` bits; small numbers take one less.
    const u32 width = 32 - clz(remaining + 1);
    const u32 low_mask = (1u << (width - 1)) - 1, threshold = (1u << width) - 2 - remaining;
    u32 value = read_bits(bytes, bit, width);
    if ((value & low_mask) < threshold) {
      value &= low_mask;
      bit += width - 1;
    } else {
      if (value > low_mask) value -= threshold;
      bit += width;
    }
    counts.n[symbol++] = static_cast<i16>(static_cast<i32>(value) - 1);
    remaining -= value == 0 ? 1 : value - 1;
    if (value != 1) continue;
    // After a symbol that is not there, how many more are not.
    for (u32 more = 3; more == 3;) {
      if (bit >= n_bits) return false;
      more = read_bits(bytes, bit, 2);
      bit += 2;
      for (u32 i = 0; i < more; ++i) {
        if (symbol > symbol_max) return false;
        counts.n[symbol++] = 0;
      }
    }
  }
  counts.n_symbols = symbol;
  const u32 n_bytes = (bit + 7) / 8;
  at += n_bytes;
  return n_bytes <= end - (at - n_bytes);
}

// Makes a table of 1 << log states. `Entries` gives a symbol's base and extra bits. The
// counts are used up.
template <class Entries>
WL_DEVICE void make_fse_table(u64* table, FseCounts& counts, Entries entries) {
  const u32 log = counts.log, n_states = 1u << log;
  const u32 step = (n_states >> 1) + (n_states >> 3) + 3;
  // Rare symbols have the last states.
  u32 end = n_states;
  for (u32 symbol = 0; symbol < counts.n_symbols; ++symbol) {
    if (counts.n[symbol] == -1) table[--end] = symbol;
  }
  u32 at = 0;
  for (u32 symbol = 0; symbol < counts.n_symbols; ++symbol) {
    for (i32 i = 0; i < counts.n[symbol]; ++i) {
      table[at] = symbol;
      // The step has no divisor in common with the number of states: this ends.
      do {
        at = (at + step) & (n_states - 1);
      } while (at >= end);
    }
    if (counts.n[symbol] == -1) counts.n[symbol] = 1;
  }
  for (u32 state = 0; state < n_states; ++state) {
    const u32 symbol = static_cast<u32>(table[state]);
    const u32 number = static_cast<u32>(counts.n[symbol]++);
    const u32 n_bits = log - (31 - clz(number));
    u32 base, n_extra;
    entries(symbol, base, n_extra);
    table[state] = fse_entry(base, n_extra, n_bits, (number << n_bits) - n_states);
  }
}
