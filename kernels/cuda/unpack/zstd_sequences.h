// Sequences of zstd blocks (RFC 8878, 3.1.1.3.2): how many literals, then a copy of how many
// bytes from how far back. They become elements (`tile.h`) whose places count from the
// block's start.
//
// A distance may be one of the last three, which may be of the block before: that is told as
// "the k-th of those at the block's start, less d", and `zstd_pages.h` knows them.
#pragma once

static constexpr u32 SEQUENCE_TABLES = 3;  // of literal lengths, offsets, match lengths
static constexpr u32 LITERAL_LENGTHS = 0;
static constexpr u32 OFFSETS = 1;
static constexpr u32 MATCH_LENGTHS = 2;

// Distances have 27 bits; this one marks such a repeat, then 2 bits for k, 29 for d.
static constexpr u32 REPEAT_MARK = 0x80000000u;
static constexpr u32 REPEAT_SHIFT = 29;
static constexpr u32 OFFSET_BITS_MAX = 27;

WL_CONSTANT u32 LITERAL_LENGTH_BASE[36] = {0,  1,  2,  3,  4,  5,  6,  7,   8,   9,   10,   11,   12,   13,   14,    15,    16,  18,
                                           20, 22, 24, 28, 32, 40, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
WL_CONSTANT u8 LITERAL_LENGTH_BITS[36] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  1,  1,
                                          1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
WL_CONSTANT u32 MATCH_LENGTH_BASE[53] = {3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14,  15,  16,  17,   18,   19,   20,
                                         21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,  33,  34,  35,   37,   39,   41,
                                         43, 47, 51, 59, 67, 83, 99, 131, 259, 515, 1027, 2051, 4099, 8195, 16387, 32771, 65539};
WL_CONSTANT u8 MATCH_LENGTH_BITS[53] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,
                                        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  1,  1,  1,  1,
                                        2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

WL_CONSTANT i8 LITERAL_LENGTH_COUNTS[36] = {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1,  1,  1,  2,  2,
                                            2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
WL_CONSTANT i8 OFFSET_COUNTS[29] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};
WL_CONSTANT i8 MATCH_LENGTH_COUNTS[53] = {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1,  1,  1,  1,  1,  1,
                                          1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,
                                          1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};

struct SequencesShared {
  u64 literal_lengths[512];
  u64 offsets[256];
  u64 match_lengths[512];
  FseCounts counts[SEQUENCE_TABLES + 1];
  u32 log[SEQUENCE_TABLES];
  u32 bits_at;  // where the sequences' bits start
};

WL_DEVICE u32 table_log_max(u32 table) { return table == OFFSETS ? 8 : 9; }
WL_DEVICE u32 table_symbol_max(u32 table) {
  return table == LITERAL_LENGTHS ? 35 : table == OFFSETS ? 31 : 52;
}

// What a symbol stands for.
WL_DEVICE void sequence_entry(u32 table, u32 symbol, u32& base, u32& n_extra) {
  if (table == OFFSETS) {
    base = 1u << symbol;
    n_extra = symbol;
  } else if (table == LITERAL_LENGTHS) {
    base = LITERAL_LENGTH_BASE[symbol];
    n_extra = LITERAL_LENGTH_BITS[symbol];
  } else {
    base = MATCH_LENGTH_BASE[symbol];
    n_extra = MATCH_LENGTH_BITS[symbol];
  }
}

// Passes the descriptions of tables before `table`.
WL_DEVICE bool seek_table(const u8* source, u32& at, u32 end, u32 modes, u32 table, FseCounts& counts) {
  for (u32 before = 0; before < table; ++before) {
    const u32 mode = (modes >> (2 * before)) & 3;
    if (mode == ZSTD_ONE_SYMBOL) ++at;
    if (mode == ZSTD_DESCRIBED && !read_fse_counts(source, at, end, table_log_max(before), table_symbol_max(before), counts)) {
      return false;
    }
  }
  return at <= end;
}

WL_DEVICE bool make_sequence_table(const ZstdBlock& block, SequencesShared& shared, u32 number) {
  FseCounts& counts = shared.counts[number];
  if (number == SEQUENCE_TABLES) {
    u32 at = block.sequences_at;
    const bool is_good = seek_table(block.source, at, block.sequences_end, block.modes, SEQUENCE_TABLES, counts);
    shared.bits_at = at;
    return is_good;
  }
  u64* const table = number == LITERAL_LENGTHS ? shared.literal_lengths : number == OFFSETS ? shared.offsets : shared.match_lengths;
  u32 at = block.table_at[number];
  const u32 end = block.table_end[number], modes = block.table_modes[number];
  const u32 mode = (modes >> (2 * number)) & 3;
  if (mode != ZSTD_PREDEFINED && !seek_table(block.source, at, end, modes, number, counts)) return false;
  if (mode == ZSTD_ONE_SYMBOL) {
    if (at >= end) return false;
    const u32 symbol = block.source[at];
    if (symbol > table_symbol_max(number)) return false;
    u32 base, n_extra;
    sequence_entry(number, symbol, base, n_extra);
    table[0] = fse_entry(base, n_extra, 0, 0);
    shared.log[number] = 0;
    return true;
  }
  if (mode == ZSTD_PREDEFINED) {
    counts.log = number == OFFSETS ? 5 : 6;
    counts.n_symbols = number == LITERAL_LENGTHS ? 36 : number == OFFSETS ? 29 : 53;
    for (u32 symbol = 0; symbol < counts.n_symbols; ++symbol) {
      counts.n[symbol] = number == LITERAL_LENGTHS ? LITERAL_LENGTH_COUNTS[symbol]
                         : number == OFFSETS       ? OFFSET_COUNTS[symbol]
                                                   : MATCH_LENGTH_COUNTS[symbol];
    }
  } else if (!read_fse_counts(block.source, at, end, table_log_max(number), table_symbol_max(number), counts)) {
    return false;
  }
  shared.log[number] = counts.log;
  make_fse_table(table, counts, [=](u32 symbol, u32& base, u32& n_extra) { sequence_entry(number, symbol, base, n_extra); });
  return true;
}

// The last three distances (RFC 8878, 3.1.1.5).
struct Repeats {
  u32 first;
  u32 second;
  u32 third;

  // False when it is not possible.
  WL_MEMBER bool distance_of(u32 value, bool has_literals, u32& distance) {
    if (value > 3) {
      distance = value - 3;
      third = second;
      second = first;
      first = distance;
      return true;
    }
    const u32 which = value - (has_literals ? 1 : 0);
    if (which == 0) {
      distance = first;
      return true;
    }
    if (which == 1) {
      distance = second;
    } else {
      distance = which == 2 ? third : 0;
      if (which == 3) {
        // One less: of a distance that is not known yet, one more to take off.
        if (first == 1) return false;
        distance = (first & REPEAT_MARK) != 0 ? first + 1 : first - 1;
      }
      third = second;
    }
    second = first;
    first = distance;
    return true;
  }
};

// One lane reads all sequences. False when they are not well-formed.
WL_DEVICE bool read_sequences(const ZstdBlock& block, const SequencesShared& shared, ZstdState& state) {
  u64* elements = block.elements;
  // Read once: elements are written meanwhile, which for all the compiler knows change them.
  const u32 n_all = block.n_literals, block_max = block.block_max;
  u32 at = 0, n_literals = 0;
  Repeats repeats{REPEAT_MARK, REPEAT_MARK | 1u << REPEAT_SHIFT, REPEAT_MARK | 2u << REPEAT_SHIFT};
  if (block.n_sequences > 0) {
    BackwardBits bits;
    if (!bits.open(block.source + shared.bits_at, block.sequences_end - shared.bits_at)) return false;
    u32 literal_state = bits.take(shared.log[LITERAL_LENGTHS]);
    u32 offset_state = bits.take(shared.log[OFFSETS]);
    u32 match_state = bits.take(shared.log[MATCH_LENGTHS]);
    for (u32 left = block.n_sequences;;) {
      bits.fill();
      const u64 offset_entry = shared.offsets[offset_state];
      const u64 match_entry = shared.match_lengths[match_state];
      const u64 literal_entry = shared.literal_lengths[literal_state];
      const u32 offset_bits = fse_extra(offset_entry);
      if (offset_bits > OFFSET_BITS_MAX) return false;
      const u32 offset = fse_base(offset_entry) + bits.take(offset_bits);
      bits.fill();
      const u32 n_match = fse_base(match_entry) + bits.take(fse_extra(match_entry));
      const u32 n_own = fse_base(literal_entry) + bits.take(fse_extra(literal_entry));
      --left;
      if (left > 0) {
        bits.fill();
        literal_state = fse_next(literal_entry) + bits.take(fse_bits(literal_entry));
        match_state = fse_next(match_entry) + bits.take(fse_bits(match_entry));
        offset_state = fse_next(offset_entry) + bits.take(fse_bits(offset_entry));
      }
      u32 distance;
      // The longest of all is 131,074 bytes: sums do not wrap.
      if (bits.left < 0 || n_own > n_all - n_literals || n_own + n_match > block_max - at ||
          !repeats.distance_of(offset, n_own > 0, distance)) {
        return false;
      }
      if (n_own > 0) *elements++ = element_of(at, ELEMENT_LITERAL, n_literals);
      n_literals += n_own;
      at += n_own;
      const bool is_repeat = (distance & REPEAT_MARK) != 0;
      *elements++ = element_of(at, is_repeat ? ELEMENT_REPEAT : ELEMENT_COPY, distance & ~REPEAT_MARK);
      at += n_match;
      if (left == 0) break;
    }
    if (bits.left != 0) return false;
  }
  const u32 n_last = n_all - n_literals;
  if (n_last > block_max - at) return false;
  if (n_last > 0) *elements++ = element_of(at, ELEMENT_LITERAL, n_literals);
  state.n_elements = static_cast<u32>(elements - block.elements);
  state.n_out = at + n_last;
  state.repeats[0] = repeats.first;
  state.repeats[1] = repeats.second;
  state.repeats[2] = repeats.third;
  return true;
}

// A block of one warp takes a zstd block.
WL_DEVICE void read_all_sequences(const UnpackPass& p) {
  WL_SHARED SequencesShared shared;
  for (u64 number = block_index(); number < p.n; number += grid_blocks()) {
    const ZstdBlock& block = p.blocks[number];
    if (block.kind != ZSTD_COMPRESSED) continue;
    bool is_good = true;
    if (block.n_sequences > 0) {
      for (u32 table = lane_index(); table <= SEQUENCE_TABLES; table += WARP_LANES) {
        is_good &= make_sequence_table(block, shared, table);
      }
      is_good = all_lanes(is_good);
    }
    warp_sync();
    if (lane_index() == 0) {
      ZstdState state{};
      state.is_good = is_good && read_sequences(block, shared, state);
      if (state.is_good == 0) page_fault(p.first_fault, block.number, PAGE_FAULT_ZSTD_SEQUENCES);
      p.states[number] = state;
    }
    warp_sync();
  }
}
