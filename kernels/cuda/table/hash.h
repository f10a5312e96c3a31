// Hashes of keys that every table shares.
#pragma once

WL_DEVICE u64 mix(u64 h) {
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93ULL;
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93ULL;
  h ^= h >> 32;
  return h;
}

WL_DEVICE u64 hash_key(const u64* key, u32 n_words) {
  u64 h = 0x9e3779b97f4a7c15ULL;
  for (u32 w = 0; w < n_words; ++w) h = mix(h ^ key[w]);
  return h;
}

// A key value as a word in which equal values have equal bits: one zero, one NaN.
WL_DEVICE u64 key_word(i32 v) { return static_cast<u64>(static_cast<i64>(v)); }
WL_DEVICE u64 key_word(i64 v) { return static_cast<u64>(v); }
WL_DEVICE u64 key_word(bool v) { return v ? 1 : 0; }
WL_DEVICE u64 key_word(f64 v) {
  if (v != v) return 0x7ff8000000000000ULL;
  if (v == 0) v = 0;
  u64 bits;
  copy_bits(bits, v);
  return bits;
}
WL_DEVICE u64 key_word(f32 v) { return key_word(static_cast<f64>(v)); }
