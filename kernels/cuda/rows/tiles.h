// Totals that run through the warps of a block and through the tiles of a launch.
//
//   tile 0        tile 1        tile 2
//   [w0 w1 ..]    [w0 w1 ..]    [w0 w1 ..]     warps_before: within a tile
//   |----------------------->                  total_before_tile: over tiles
//
// A block takes the next tile when it has done one, so every tile before it is done
// or being worked on, and waiting for the totals of those ends.
#pragma once

static constexpr u64 TOTAL_OF_TILE = 1ULL << 62;
static constexpr u64 TOTAL_UP_TO_TILE = 2ULL << 62;
static constexpr u64 TOTAL_MASK = TOTAL_OF_TILE - 1;

// The state of a launch's tiles, all zero when it starts. words[0] is the next tile
// that nobody took; words[1 + t] is 0, or a flag and a total of tile t.
struct TilesRef {
  u64* words;
};

// What a block shares to talk about its tile.
struct TileScratch {
  u64 word;
  u64 of_warp[WL_BLOCK_THREADS / WARP_LANES];
};

// The block's next tile. Every thread of the block must get here.
WL_DEVICE u64 take_tile(const TilesRef& tiles, TileScratch& scratch) {
  wl_barrier();
  if (thread_index() == 0) scratch.word = atomic_add_u64(tiles.words, 1);
  wl_barrier();
  return scratch.word;
}

// The sum over this lane and those before it.
template <class T>
WL_DEVICE T warp_scan(T v) {
  WL_UNROLL
  for (u32 delta = 1; delta < WARP_LANES; delta *= 2) {
    const T below = shuffle_up(v, delta);
    if (lane_index() >= delta) v += below;
  }
  return v;
}

struct BlockTotals {
  u64 before;  // of the warps before this one
  u64 all;
};

// `mine` is the same in all lanes of a warp.
WL_DEVICE BlockTotals warps_before(u64 mine, TileScratch& scratch) {
  if (lane_index() == 0) scratch.of_warp[warp_index()] = mine;
  wl_barrier();
  BlockTotals totals{0, 0};
  WL_UNROLL
  for (u32 w = 0; w < WL_BLOCK_THREADS / WARP_LANES; ++w) {
    if (w < warp_index()) totals.before += scratch.of_warp[w];
    totals.all += scratch.of_warp[w];
  }
  wl_barrier();
  return totals;
}

// The sum of the totals of all tiles before this one, whose own total is `total`.
// Looks back a warp of tiles at a time, as far as nobody knows the sum up to there.
WL_DEVICE u64 total_before_tile(const TilesRef& tiles, u64 tile, u64 total, TileScratch& scratch) {
  u64* const states = tiles.words + 1;
  if (warp_index() == 0) {
    u64 before = 0;
    if (tile > 0) {
      if (lane_index() == 0) store_release(states + tile, TOTAL_OF_TILE | total);
      for (u64 end = tile;; end -= WARP_LANES) {
        // Lane l looks at tile end - 1 - l. Before the first tile there is nothing.
        u64 word = TOTAL_UP_TO_TILE;
        if (lane_index() < end) {
          do {
            word = load_acquire(states + (end - 1 - lane_index()));
          } while (word == 0);
        }
        const u32 known = ballot((word & TOTAL_UP_TO_TILE) != 0);
        const u32 last = known != 0 ? ffs(known) - 1 : WARP_LANES - 1;
        u64 part = lane_index() <= last ? word & TOTAL_MASK : 0;
        WL_UNROLL
        for (u32 delta = WARP_LANES / 2; delta > 0; delta /= 2) part += shuffle_down(part, delta);
        before += shuffle(part, 0);
        if (known != 0) break;
      }
    }
    if (lane_index() == 0) {
      store_release(states + tile, TOTAL_UP_TO_TILE | (before + total));
      scratch.word = before;
    }
  }
  wl_barrier();
  const u64 before = scratch.word;
  wl_barrier();
  return before;
}
