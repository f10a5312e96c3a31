// A group's words as the values of its columns.
#pragma once

WL_DEVICE i128 wide_of(const u64* words) {
  return static_cast<i128>(static_cast<u128>(words[1]) << 64 | words[0]);
}

// A sum held in 192 bits; its third word repeats the sign if the sum fits 128.
WL_DEVICE i128 sum_of(Thread& thread, const u64* words, u32 code) {
  const i128 low = wide_of(words);
  if (words[2] != static_cast<u64>(low >> 127)) raise(thread, code);
  return low;
}

WL_DEVICE f64 float_of(u64 word) {
  f64 v;
  copy_bits(v, word);
  return v;
}

// The inverses of `ordered`.
WL_DEVICE i64 integer_of_ordered(u64 word) { return static_cast<i64>(word ^ (1ULL << 63)); }
WL_DEVICE i128 wide_of_ordered(const u64* words) {
  return wide_of(words) ^ static_cast<i128>(static_cast<u128>(1) << 127);
}
WL_DEVICE f64 float_of_ordered(u64 word) {
  if (word == ~0ULL) return float_of(0x7ff8000000000000ULL);
  return float_of((word >> 63) != 0 ? word ^ (1ULL << 63) : ~word);
}

// A variance, or its root, of the values that went in. One value has no variance as a
// sample.
template <bool IsSample, bool IsRoot>
WL_DEVICE Opt<f64> spread(const u64* words) {
  const u64 n = words[0], divisor = IsSample && n > 0 ? n - 1 : n;
  if (divisor == 0) return null<f64>();
  const f64 variance = float_of(words[2]) / static_cast<f64>(divisor);
  return some(IsRoot ? sqrt_of(variance) : variance);
}

// A value that is there only when rows went in.
template <class T>
WL_DEVICE Opt<T> if_rows(u64 n_rows, T value) {
  return Opt<T>{value, n_rows != 0};
}
