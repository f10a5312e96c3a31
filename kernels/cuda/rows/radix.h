// One stable pass of a radix sort, 8 bits of a 64-bit key, in three kernels:
//
//   radix_count     counts[digit * n_tiles + tile] = rows of the tile with the digit
//   radix_scan      counts become where the tile's first row with the digit goes
//   radix_scatter   every row goes there, in the order it has in its tile
//
// A row is its key and its number in the source. Warps take neighbouring rows, so a
// row's place among equal digits follows from the lanes, the rounds and the warps
// before it, in that order.
#pragma once

static constexpr u32 RADIX_DIGITS = 256;
static constexpr u32 RADIX_ROUNDS = 16;
static constexpr u64 RADIX_TILE_ROWS = u64(RADIX_ROUNDS) * WL_BLOCK_THREADS;
static constexpr u32 RADIX_WARPS = WL_BLOCK_THREADS / WARP_LANES;

struct RadixPass {
  alignas(16) u64 n_rows;
  alignas(16) u64 n_tiles;
  alignas(16) u64 shift;
  alignas(16) const u64* keys;
  alignas(16) const u32* rows;  // null: row i has number i
  alignas(16) u32* counts;
  alignas(16) u64* keys_out;
  alignas(16) u32* rows_out;
};

// The row's digit; one that no row has for what is past the end.
WL_DEVICE u32 radix_digit(const RadixPass& p, u64 at) {
  return at < p.n_rows ? static_cast<u32>(p.keys[at] >> p.shift) & (RADIX_DIGITS - 1) : RADIX_DIGITS;
}

// The first row of this thread in the block's tile; the next ones are a warp apart.
WL_DEVICE u64 radix_first() {
  return block_index() * RADIX_TILE_ROWS + u64(warp_index()) * (RADIX_ROUNDS * WARP_LANES) + lane_index();
}

WL_DEVICE void radix_count_tile(const RadixPass& p) {
  WL_SHARED u32 n[RADIX_DIGITS];
  for (u32 d = thread_index(); d < RADIX_DIGITS; d += block_threads()) n[d] = 0;
  wl_barrier();
  const u64 first = radix_first();
  for (u32 r = 0; r < RADIX_ROUNDS; ++r) {
    const u32 digit = radix_digit(p, first + r * WARP_LANES);
    const u32 same = match_any(digit);
    if (digit < RADIX_DIGITS && (same & lanes_before()) == 0) atomic_add_u32(n + digit, popc(same));
  }
  wl_barrier();
  for (u32 d = thread_index(); d < RADIX_DIGITS; d += block_threads()) {
    p.counts[d * p.n_tiles + block_index()] = n[d];
  }
}

WL_DEVICE void radix_scatter_tile(const RadixPass& p) {
  WL_SHARED u32 of_warp[RADIX_WARPS][RADIX_DIGITS];
  for (u32 i = thread_index(); i < RADIX_WARPS * RADIX_DIGITS; i += block_threads()) {
    of_warp[i / RADIX_DIGITS][i % RADIX_DIGITS] = 0;
  }
  wl_barrier();
  const u64 first = radix_first();
  u32* const mine = of_warp[warp_index()];
  u32 rank[RADIX_ROUNDS];
  WL_UNROLL
  for (u32 r = 0; r < RADIX_ROUNDS; ++r) {
    const u32 digit = radix_digit(p, first + r * WARP_LANES);
    const u32 same = match_any(digit);
    const u32 earlier = popc(same & lanes_before());
    u32 start = 0;
    if (earlier == 0 && digit < RADIX_DIGITS) {
      start = mine[digit];
      mine[digit] = start + popc(same);
    }
    rank[r] = shuffle(start, ffs(same) - 1) + earlier;
    warp_sync();
  }
  wl_barrier();
  for (u32 d = thread_index(); d < RADIX_DIGITS; d += block_threads()) {
    u32 next = p.counts[d * p.n_tiles + block_index()];
    WL_UNROLL
    for (u32 w = 0; w < RADIX_WARPS; ++w) {
      const u32 n = of_warp[w][d];
      of_warp[w][d] = next;
      next += n;
    }
  }
  wl_barrier();
  WL_UNROLL
  for (u32 r = 0; r < RADIX_ROUNDS; ++r) {
    const u64 at = first + r * WARP_LANES;
    if (at < p.n_rows) {
      const u64 to = mine[radix_digit(p, at)] + rank[r];
      p.keys_out[to] = p.keys[at];
      p.rows_out[to] = p.rows != nullptr ? p.rows[at] : static_cast<u32>(at);
    }
  }
}

struct RadixScan {
  alignas(16) u64 n;
  alignas(16) TilesRef tiles;
  alignas(16) u32* counts;
};

// Every count becomes the sum of those before it.
WL_DEVICE void radix_scan_counts(const RadixScan& p) {
  WL_SHARED TileScratch scratch;
  for (;;) {
    const u64 tile = take_tile(p.tiles, scratch);
    if (tile * RADIX_TILE_ROWS >= p.n) break;
    const u64 first = tile * RADIX_TILE_ROWS + u64(warp_index()) * (RADIX_ROUNDS * WARP_LANES) + lane_index();
    u32 before[RADIX_ROUNDS];
    u32 sum = 0;
    WL_UNROLL
    for (u32 r = 0; r < RADIX_ROUNDS; ++r) {
      const u64 at = first + r * WARP_LANES;
      const u32 n = at < p.n ? p.counts[at] : 0;
      const u32 upto = warp_scan(n);
      before[r] = sum + upto - n;
      sum += shuffle(upto, WARP_LANES - 1);
    }
    const BlockTotals totals = warps_before(sum, scratch);
    const u32 start = static_cast<u32>(total_before_tile(p.tiles, tile, totals.all, scratch)) + totals.before;
    WL_UNROLL
    for (u32 r = 0; r < RADIX_ROUNDS; ++r) {
      const u64 at = first + r * WARP_LANES;
      if (at < p.n) p.counts[at] = start + before[r];
    }
  }
}

// The next word of every row's string, in the order that the words below it gave.
struct RadixGather {
  alignas(16) u64 n_rows;
  alignas(16) const u64* words;
  alignas(16) const u32* rows;
  alignas(16) u64* keys;
};

WL_DEVICE void radix_gather_keys(const RadixGather& p) {
  for (u64 at = first_row(); at < p.n_rows; at += row_step()) p.keys[at] = p.words[p.rows[at]];
}
