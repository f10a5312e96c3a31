// Rows that pass, moved together without changing their order.
//
// A warp takes WARP_LANES * COLLECT_ROUNDS neighbouring rows. First all threads test
// their rows, then the tile learns where its output starts, then the rows that
// passed are computed and written: what is left out is never computed, so it cannot
// fault.
#pragma once

static constexpr u32 COLLECT_ROUNDS = 8;
static constexpr u64 COLLECT_TILE_ROWS = u64(COLLECT_ROUNDS) * WL_BLOCK_THREADS;

// `passes()` tells whether the row `thread.row` passes; `write(to)` writes it as row
// `to` of the output.
template <class Passes, class Write>
WL_DEVICE void collect_rows(Thread& thread, u64 n_rows, const TilesRef& tiles, u64* n_kept,
                            Passes passes, Write write) {
  WL_SHARED TileScratch scratch;
  for (;;) {
    const u64 tile = take_tile(tiles, scratch);
    if (tile * COLLECT_TILE_ROWS >= n_rows) break;
    const u64 first = tile * COLLECT_TILE_ROWS + u64(warp_index()) * (COLLECT_ROUNDS * WARP_LANES) + lane_index();
    u32 kept = 0, mine = 0;
    WL_UNROLL
    for (u32 r = 0; r < COLLECT_ROUNDS; ++r) {
      thread.row = first + r * WARP_LANES;
      const bool keep = thread.row < n_rows && passes();
      kept |= (keep ? 1u : 0u) << r;
      mine += popc(ballot(keep));
    }
    const BlockTotals totals = warps_before(mine, scratch);
    const u64 before = total_before_tile(tiles, tile, totals.all, scratch);
    if ((tile + 1) * COLLECT_TILE_ROWS >= n_rows && thread_index() == 0) *n_kept = before + totals.all;
    u64 to = before + totals.before;
    WL_UNROLL
    for (u32 r = 0; r < COLLECT_ROUNDS; ++r) {
      const bool keep = ((kept >> r) & 1) != 0;
      const u32 all = ballot(keep);
      if (keep) {
        thread.row = first + r * WARP_LANES;
        write(to + popc(all & lanes_before()));
      }
      to += popc(all);
    }
  }
}

// Every row passes.
template <class Write>
WL_DEVICE void write_rows(Thread& thread, u64 n_rows, Write write) {
  for (thread.row = first_row(); thread.row < n_rows; thread.row += row_step()) write(thread.row);
}
