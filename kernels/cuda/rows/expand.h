// Rows that come through any number of times, in the order of the source.
//
// First every thread counts for its rows, then the tile learns where its output starts,
// then each row goes through its steps again and is written where it belongs.
#pragma once

static constexpr u32 EXPAND_ROUNDS = 8;
static constexpr u64 EXPAND_TILE_ROWS = u64(EXPAND_ROUNDS) * WL_BLOCK_THREADS;

// `count()` tells how often the row `thread.row` comes through; `write(to)` writes it
// that often from row `to` of the output on.
template <class Count, class Write>
WL_DEVICE void expand_rows(Thread& thread, u64 n_rows, const TilesRef& tiles, Count count, Write write) {
  WL_SHARED TileScratch scratch;
  for (;;) {
    const u64 tile = take_tile(tiles, scratch);
    if (tile * EXPAND_TILE_ROWS >= n_rows) break;
    const u64 first = tile * EXPAND_TILE_ROWS + u64(warp_index()) * (EXPAND_ROUNDS * WARP_LANES) + lane_index();
    u32 counts[EXPAND_ROUNDS];
    u64 mine = 0;
    WL_UNROLL
    for (u32 r = 0; r < EXPAND_ROUNDS; ++r) {
      thread.row = first + r * WARP_LANES;
      counts[r] = thread.row < n_rows ? count() : 0;
      mine += counts[r];
    }
    WL_UNROLL
    for (u32 delta = WARP_LANES / 2; delta > 0; delta /= 2) mine += shuffle_down(mine, delta);
    mine = shuffle(mine, 0);
    const BlockTotals totals = warps_before(mine, scratch);
    u64 to = total_before_tile(tiles, tile, totals.all, scratch) + totals.before;
    WL_UNROLL
    for (u32 r = 0; r < EXPAND_ROUNDS; ++r) {
      const u64 up_to = warp_scan(u64(counts[r]));
      if (counts[r] != 0) {
        thread.row = first + r * WARP_LANES;
        write(to + up_to - counts[r]);
      }
      to += shuffle(up_to, WARP_LANES - 1);
    }
  }
}

// Adds up how often all rows come through.
template <class Count>
WL_DEVICE void count_rows(Thread& thread, u64 n_rows, u64* total, Count count) {
  u64 mine = 0;
  for (thread.row = first_row(); thread.row < n_rows; thread.row += row_step()) mine += count();
  WL_UNROLL
  for (u32 delta = WARP_LANES / 2; delta > 0; delta /= 2) mine += shuffle_down(mine, delta);
  if (lane_index() == 0 && mine != 0) atomic_add_u64(total, mine);
}
