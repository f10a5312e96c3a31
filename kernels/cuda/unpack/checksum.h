// XXH64 with seed 0, as the xxHash specification says: what a zstd frame may end with.
#pragma once

static constexpr u64 XXH_1 = 0x9E3779B185EBCA87ull;
static constexpr u64 XXH_2 = 0xC2B2AE3D27D4EB4Full;
static constexpr u64 XXH_3 = 0x165667B19E3779F9ull;
static constexpr u64 XXH_4 = 0x85EBCA77C2B2AE63ull;
static constexpr u64 XXH_5 = 0x27D4EB2F165667C5ull;

WL_DEVICE u64 xxh_rotated(u64 word, u32 by) { return word << by | word >> (64 - by); }
WL_DEVICE u64 xxh_round(u64 sum, u64 word) { return xxh_rotated(sum + word * XXH_2, 31) * XXH_1; }

// One thread hashes all: few writers add checksums, and pages have many bytes only seldom.
WL_DEVICE u64 xxh64(const u8* bytes, u64 n) {
  u64 at = 0, hash = XXH_5;
  if (n >= 32) {
    u64 sum[4] = {XXH_1 + XXH_2, XXH_2, 0, 0 - XXH_1};
    for (; at + 32 <= n; at += 32) {
      WL_UNROLL
      for (u32 i = 0; i < 4; ++i) sum[i] = xxh_round(sum[i], read_u64(bytes + at + 8 * i));
    }
    hash = xxh_rotated(sum[0], 1) + xxh_rotated(sum[1], 7) + xxh_rotated(sum[2], 12) + xxh_rotated(sum[3], 18);
    WL_UNROLL
    for (u32 i = 0; i < 4; ++i) hash = (hash ^ xxh_round(0, sum[i])) * XXH_1 + XXH_4;
  }
  hash += n;
  for (; at + 8 <= n; at += 8) hash = xxh_rotated(hash ^ xxh_round(0, read_u64(bytes + at)), 27) * XXH_1 + XXH_4;
  if (at + 4 <= n) {
    hash = xxh_rotated(hash ^ u64(read_u32(bytes + at)) * XXH_1, 23) * XXH_2 + XXH_3;
    at += 4;
  }
  for (; at < n; ++at) hash = xxh_rotated(hash ^ bytes[at] * XXH_5, 11) * XXH_1;
  hash = (hash ^ hash >> 33) * XXH_2;
  hash = (hash ^ hash >> 29) * XXH_3;
  return hash ^ hash >> 32;
}
