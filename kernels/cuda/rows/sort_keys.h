// Sort keys as one string of bits a row, whose unsigned order is the wanted order.
//
//   most significant                                    least significant
//   [null? key 0 ...][null? key 1 ......][null? key 2 .]
//
// A key takes as many bits as its range needs, so two flags and a date are one word
// of two bytes that vary. The string is held in 64-bit words, the least significant
// first.
#pragma once

// Puts the low `Bits` bits of `v` at bit `At` of the string.
template <u32 At, u32 Bits>
WL_DEVICE void put_bits(u64* words, u64 v) {
  words[At / 64] |= v << (At % 64);
  if constexpr (At % 64 + Bits > 64) words[At / 64 + 1] |= v >> (64 - At % 64);
}
template <u32 At, u32 Bits>
WL_DEVICE void put_wide_bits(u64* words, u128 v) {
  put_bits<At, 64>(words, static_cast<u64>(v));
  put_bits<At + 64, Bits - 64>(words, static_cast<u64>(v >> 64));
}

// A value between `min` and `max` as its distance from the end that comes first.
template <bool Descending>
WL_DEVICE u128 integer_bits(i128 v, i128 min, i128 max) {
  return Descending ? static_cast<u128>(max) - static_cast<u128>(v)
                    : static_cast<u128>(v) - static_cast<u128>(min);
}
template <bool Descending>
WL_DEVICE u64 integer_bits(i64 v, i64 min, i64 max) {
  return Descending ? static_cast<u64>(max) - static_cast<u64>(v)
                    : static_cast<u64>(v) - static_cast<u64>(min);
}

// NaN is the largest, and -0.0 is 0.0.
template <bool Descending>
WL_DEVICE u64 float_bits(f64 v) {
  u64 bits = ~0ULL;
  if (v == v) {
    bits = bit_cast<u64>(v + 0.0);
    bits = (bits >> 63) != 0 ? ~bits : bits | (1ULL << 63);
  }
  return Descending ? ~bits : bits;
}
template <bool Descending>
WL_DEVICE u64 float_bits(f32 v) {
  u32 bits = ~0u;
  if (v == v) {
    bits = bit_cast<u32>(v + 0.0f);
    bits = (bits >> 31) != 0 ? ~bits : bits | (1u << 31);
  }
  return Descending ? ~bits : bits;
}

// Writes the string of every row: word w of row i is words[w * n_rows + i].
// seen[2 * w] collects the bits that are 1 in some row, seen[2 * w + 1] those that
// are 0 in some row; both start at 0. `key(words)` makes the string of `thread.row`.
template <u32 Words, class Key>
WL_DEVICE void write_sort_keys(Thread& thread, u64 n_rows, u64* words, u64* seen, Key key) {
  u64 ones[Words] = {};
  u64 zeros[Words] = {};
  for (thread.row = first_row(); thread.row < n_rows; thread.row += row_step()) {
    u64 mine[Words] = {};
    key(mine);
    WL_UNROLL
    for (u32 w = 0; w < Words; ++w) {
      words[w * n_rows + thread.row] = mine[w];
      ones[w] |= mine[w];
      zeros[w] |= ~mine[w];
    }
  }
  WL_UNROLL
  for (u32 w = 0; w < Words; ++w) {
    WL_UNROLL
    for (u32 mask = WARP_LANES / 2; mask > 0; mask /= 2) {
      ones[w] |= shuffle_xor(ones[w], mask);
      zeros[w] |= shuffle_xor(zeros[w], mask);
    }
    if (lane_index() == 0) {
      atomic_or_u64(seen + 2 * w, ones[w]);
      atomic_or_u64(seen + 2 * w + 1, zeros[w]);
    }
  }
}
