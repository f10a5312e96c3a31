// Literals of zstd blocks (RFC 8878, 3.1.1.3.1 and 4.2): a Huffman table, and one stream or
// four.
#pragma once

static constexpr u32 HUFFMAN_BITS_MAX = 11;
static constexpr u32 HUFFMAN_SYMBOLS = 256;
static constexpr u32 WEIGHT_LOG_MAX = 6;

struct LiteralsShared {
  u16 table[1 << HUFFMAN_BITS_MAX];  // for the next bits: symbol, and how many bits it takes
  u64 weight_table[1 << WEIGHT_LOG_MAX];
  FseCounts counts;
  u8 weights[HUFFMAN_SYMBOLS];
  u32 rank[HUFFMAN_BITS_MAX + 1];  // of each weight, where its next code is in the table
  u32 n_symbols;
  u32 n_bits;  // of the longest code; 0: the description is not well-formed
};

// The weights that are described by a table of their own: two states take turns.
WL_DEVICE u32 read_packed_weights(LiteralsShared& shared, const u8* source, u32 at, u32 end) {
  if (!read_fse_counts(source, at, end, WEIGHT_LOG_MAX, HUFFMAN_BITS_MAX + 1, shared.counts)) return 0;
  const u32 log = shared.counts.log;
  make_fse_table(shared.weight_table, shared.counts, [](u32 symbol, u32& base, u32& n_extra) {
    base = symbol;
    n_extra = 0;
  });
  BackwardBits bits;
  if (!bits.open(source + at, end - at) || bits.left < static_cast<i32>(2 * log)) return 0;
  u32 state = bits.take(log), other = bits.take(log);
  for (u32 n = 0; n + 2 < HUFFMAN_SYMBOLS;) {
    bits.fill();
    const u64 entry = shared.weight_table[state];
    shared.weights[n++] = static_cast<u8>(fse_base(entry));
    const u32 next = fse_next(entry) + bits.take(fse_bits(entry));
    if (bits.left < 0) {
      // What the other state stands for is the last one.
      shared.weights[n++] = static_cast<u8>(fse_base(shared.weight_table[other]));
      return n;
    }
    state = other;
    other = next;
  }
  return 0;
}

// One lane reads the weights and finds where the codes of each weight start.
WL_DEVICE void read_weights(LiteralsShared& shared, const ZstdBlock& block) {
  shared.n_bits = 0;
  u32 at = block.tree_at, n = 0;
  const u32 header = block.source[at++];
  if (header < 128) {
    n = read_packed_weights(shared, block.source, at, block.tree_end);
  } else {
    n = header - 127;
    for (u32 i = 0; i < n; ++i) {
      const u32 pair = block.source[at + i / 2];
      shared.weights[i] = static_cast<u8>((i & 1) == 0 ? pair >> 4 : pair & 15);
    }
  }
  if (n == 0) return;
  u32 sum = 0;
  for (u32 i = 0; i < n; ++i) {
    const u32 weight = shared.weights[i];
    if (weight > HUFFMAN_BITS_MAX) return;
    sum += weight == 0 ? 0 : 1u << (weight - 1);
  }
  if (sum == 0) return;
  // The last symbol's weight is what is missing to the next power of two.
  const u32 n_bits = 32 - clz(sum);
  const u32 missing = (1u << n_bits) - sum;
  if (n_bits > HUFFMAN_BITS_MAX || (missing & (missing - 1)) != 0) return;
  shared.weights[n++] = static_cast<u8>(32 - clz(missing));
  for (u32 weight = 0; weight <= HUFFMAN_BITS_MAX; ++weight) shared.rank[weight] = 0;
  for (u32 i = 0; i < n; ++i) ++shared.rank[shared.weights[i]];
  // A code has an even number of longest siblings; with fewer than two there is no tree.
  if (shared.rank[1] < 2 || (shared.rank[1] & 1) != 0) return;
  u32 first = 0;
  for (u32 weight = 1; weight <= HUFFMAN_BITS_MAX; ++weight) {
    const u32 n_codes = shared.rank[weight];
    shared.rank[weight] = first;
    first += n_codes << (weight - 1);
  }
  shared.n_symbols = n;
  shared.n_bits = n_bits;
}

// The lanes fill the table, a symbol each.
WL_DEVICE void make_huffman_table(LiteralsShared& shared) {
  const u32 n_bits = shared.n_bits;
  for (u32 first = 0; first < shared.n_symbols; first += WARP_LANES) {
    const u32 symbol = first + lane_index();
    const u32 weight = symbol < shared.n_symbols ? shared.weights[symbol] : 0;
    const u32 same = match_any(weight);
    u32 at = 0;
    if (weight > 0) at = shared.rank[weight] + (popc(same & lanes_before()) << (weight - 1));
    warp_sync();
    // The first lane of each weight moves on for all of them.
    if (weight > 0 && (same & lanes_before()) == 0) shared.rank[weight] += popc(same) << (weight - 1);
    warp_sync();
    if (weight == 0) continue;
    const u16 entry = static_cast<u16>(symbol | (n_bits + 1 - weight) << 8);
    for (u32 i = 0; i < 1u << (weight - 1); ++i) shared.table[at + i] = entry;
  }
  warp_sync();
}

// A stream of `n` symbols to `out`. False when it does not end where they do.
WL_DEVICE bool read_huffman_stream(const u16* table, u32 n_bits, const u8* bytes, u32 n_bytes, u8* out, u32 n) {
  BackwardBits bits;
  if (!bits.open(bytes, n_bytes)) return false;
  const auto next = [&]() {
    const u32 entry = table[bits.peek(n_bits)];
    bits.drop(entry >> 8);
    return entry & 0xff;
  };
  u32 i = 0;
  // Up to an aligned word, then words, then what is left.
  const u32 n_before = min_of(static_cast<u32>((4 - (reinterpret_cast<u64>(out) & 3)) & 3), n);
  for (; i < n_before; ++i) {
    bits.fill();
    out[i] = static_cast<u8>(next());
  }
  for (; i + 4 <= n && bits.left >= 0; i += 4) {
    bits.fill();
    u32 word = next();
    word |= next() << 8;
    bits.fill();
    word |= next() << 16;
    word |= next() << 24;
    *reinterpret_cast<u32*>(out + i) = word;
  }
  for (; i < n && bits.left >= 0; ++i) {
    bits.fill();
    out[i] = static_cast<u8>(next());
  }
  return bits.left == 0;
}

WL_DEVICE void read_literals(const ZstdBlock& block, LiteralsShared& shared, u64* first_fault) {
  if (block.literals_kind == ZSTD_LITERALS_RLE) {
    const u8 byte = block.source[block.literals_at];
    for (u32 i = lane_index(); i < block.n_literals; i += WARP_LANES) block.literals[i] = byte;
    return;
  }
  if (lane_index() == 0) read_weights(shared, block);
  warp_sync();
  bool is_good = shared.n_bits > 0;
  if (is_good) {
    make_huffman_table(shared);
    const u32 n_each = block.n_streams == 1 ? block.n_literals : (block.n_literals + 3) / 4;
    for (u32 stream = lane_index(); stream < block.n_streams; stream += WARP_LANES) {
      const u32 at = block.stream_at[stream], n_bytes = block.stream_at[stream + 1] - at;
      const u32 first = stream * n_each, n = min_of(n_each, block.n_literals - first);
      is_good &= read_huffman_stream(shared.table, shared.n_bits, block.source + at, n_bytes, block.literals + first, n);
    }
  }
  if (!all_lanes(is_good) && lane_index() == 0) page_fault(first_fault, block.number, PAGE_FAULT_ZSTD_LITERALS);
}

// A block of one warp takes a zstd block.
WL_DEVICE void read_all_literals(const UnpackPass& p) {
  WL_SHARED LiteralsShared shared;
  for (u64 number = block_index(); number < p.n; number += grid_blocks()) {
    const ZstdBlock& block = p.blocks[number];
    if (block.kind != ZSTD_COMPRESSED || block.literals_kind == ZSTD_LITERALS_STORED) continue;
    read_literals(block, shared, p.first_fault);
    warp_sync();
  }
}
