// Rows in window order: which partition each belongs to, and which rows are its peers.
//
//   place           0   1   2   3   4   5   6
//   sort key       [a 1 a 1 a 2][b 1 b 3 b 3 b 3]     partition key, order key
//   partition_of    0   0   0   1   1   1   1
//   peers_of        0   0   1   2   3   3   3
//   partition_first 0 3 7          peers_first 0 2 3 4 7
//
// A place is a row's number in window order. Both lists of firsts end with the number of
// rows, so that a group ends where the next one starts.
#pragma once

static constexpr u32 HEADS_ROUNDS = 8;
static constexpr u64 HEADS_TILE_ROWS = u64(HEADS_ROUNDS) * WL_BLOCK_THREADS;
// Two counts of fewer than 2^31 groups share the total of a tile.
static constexpr u32 PARTITION_SHIFT = 31;
static constexpr u64 PEERS_MASK = (1ULL << PARTITION_SHIFT) - 1;

struct WindowHeads {
  alignas(16) u64 n_rows;
  alignas(16) TilesRef tiles;
  alignas(16) const u64* words;  // sort keys: word w of row i is words[w * n_rows + i]
  alignas(16) u64 n_words;
  alignas(16) u64 partition_bit;  // the lowest bit that belongs to a partition key
  alignas(16) u64 order_bit;      // the lowest bit that belongs to an order key
  alignas(16) const u32* order;   // null: row i stands at place i
  alignas(16) u32* partition_of;
  alignas(16) u32* peers_of;
  alignas(16) u32* partition_first;
  alignas(16) u32* peers_first;
};

WL_DEVICE u64 row_at(const u32* order, u64 place) { return order != nullptr ? order[place] : place; }

// Whether the keys of two rows differ at or above a bit.
WL_DEVICE bool keys_differ(const WindowHeads& p, u64 a, u64 b, u64 bit) {
  for (u64 w = bit / 64; w < p.n_words; ++w) {
    u64 differ = p.words[w * p.n_rows + a] ^ p.words[w * p.n_rows + b];
    if (w == bit / 64) differ >>= bit % 64;
    if (differ != 0) return true;
  }
  return false;
}

WL_DEVICE void find_heads(const WindowHeads& p) {
  WL_SHARED TileScratch scratch;
  for (;;) {
    const u64 tile = take_tile(p.tiles, scratch);
    if (tile * HEADS_TILE_ROWS >= p.n_rows) break;
    const u64 first = tile * HEADS_TILE_ROWS + u64(warp_index()) * (HEADS_ROUNDS * WARP_LANES) + lane_index();
    u64 heads[HEADS_ROUNDS];  // of the rows of this warp's tile up to this one
    u32 is_partition = 0, is_peers = 0;
    u64 sum = 0;
    WL_UNROLL
    for (u32 r = 0; r < HEADS_ROUNDS; ++r) {
      const u64 at = first + r * WARP_LANES;
      bool partition = at == 0, peers = at == 0;
      if (at > 0 && at < p.n_rows) {
        const u64 row = row_at(p.order, at), before = row_at(p.order, at - 1);
        partition = keys_differ(p, row, before, p.partition_bit);
        peers = partition || keys_differ(p, row, before, p.order_bit);
      }
      is_partition |= (partition ? 1u : 0u) << r;
      is_peers |= (peers ? 1u : 0u) << r;
      const u64 upto = warp_scan((partition ? 1ULL << PARTITION_SHIFT : 0) + (peers ? 1 : 0));
      heads[r] = sum + upto;
      sum += shuffle(upto, WARP_LANES - 1);
    }
    const BlockTotals totals = warps_before(sum, scratch);
    const u64 start = total_before_tile(p.tiles, tile, totals.all, scratch) + totals.before;
    WL_UNROLL
    for (u32 r = 0; r < HEADS_ROUNDS; ++r) {
      const u64 at = first + r * WARP_LANES;
      if (at >= p.n_rows) continue;
      // The first row is a head of both, so neither number is below 0.
      const u32 partition = static_cast<u32>((start + heads[r]) >> PARTITION_SHIFT) - 1;
      const u32 peers = static_cast<u32>((start + heads[r]) & PEERS_MASK) - 1;
      p.partition_of[at] = partition;
      p.peers_of[at] = peers;
      if (((is_partition >> r) & 1) != 0) p.partition_first[partition] = static_cast<u32>(at);
      if (((is_peers >> r) & 1) != 0) p.peers_first[peers] = static_cast<u32>(at);
      if (at == p.n_rows - 1) {
        p.partition_first[partition + 1] = static_cast<u32>(p.n_rows);
        p.peers_first[peers + 1] = static_cast<u32>(p.n_rows);
      }
    }
  }
}
