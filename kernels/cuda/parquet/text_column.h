// A column of text, or of decimals, from where its values' bytes are.
#pragma once

static constexpr u32 TEXT_ROUNDS = 8;
static constexpr u64 TEXT_TILE_ROWS = u64(TEXT_ROUNDS) * WL_BLOCK_THREADS;

struct TextOffsetsPass {
  u64 n_rows;
  TilesRef tiles;
  const TextSource* sources;
  i64* offsets;  // one more than rows
};

WL_DEVICE void text_offsets(const TextOffsetsPass& p) {
  WL_SHARED TileScratch scratch;
  for (;;) {
    const u64 tile = take_tile(p.tiles, scratch);
    if (tile * TEXT_TILE_ROWS >= p.n_rows) break;
    const u64 first = tile * TEXT_TILE_ROWS + u64(warp_index()) * (TEXT_ROUNDS * WARP_LANES) + lane_index();
    u64 before[TEXT_ROUNDS];
    u64 sum = 0;
    WL_UNROLL
    for (u32 r = 0; r < TEXT_ROUNDS; ++r) {
      const u64 row = first + r * WARP_LANES;
      u64 length = 0;
      if (row < p.n_rows) length = u64(p.sources[row].prefix) + p.sources[row].n;
      const u64 upto = warp_scan(length);
      before[r] = sum + upto - length;
      sum += shuffle(upto, WARP_LANES - 1);
    }
    const BlockTotals totals = warps_before(sum, scratch);
    const u64 start = total_before_tile(p.tiles, tile, totals.all, scratch) + totals.before;
    WL_UNROLL
    for (u32 r = 0; r < TEXT_ROUNDS; ++r) {
      const u64 row = first + r * WARP_LANES;
      if (row < p.n_rows) p.offsets[row] = static_cast<i64>(start + before[r]);
    }
    if ((tile + 1) * TEXT_TILE_ROWS >= p.n_rows && warp_index() == block_warps() - 1 && lane_index() == 0) {
      p.offsets[p.n_rows] = static_cast<i64>(start + sum);
    }
  }
}

struct TextCopyPass {
  u64 n_rows;
  u64 n_pages;
  const PageRef* pages;
  const PageState* states;
  const u32* row_of;
  const TextSource* sources;
  const i64* offsets;
  u8* bytes;
  u32* is_not_ascii;
};

// A warp takes a row: its own bytes, behind its prefix.
WL_DEVICE void copy_texts(const TextCopyPass& p) {
  bool is_ascii = true;
  for (u64 row = first_page(); row < p.n_rows; row += page_step()) {
    const TextSource source = p.sources[row];
    u8* const to = p.bytes + p.offsets[row] + source.prefix;
    for (u32 i = lane_index(); i < source.n; i += WARP_LANES) {
      const u8 byte = source.at[i];
      is_ascii &= byte < 0x80;
      to[i] = byte;
    }
  }
  if (any_lane(!is_ascii) && lane_index() == 0) atomic_or_u32(p.is_not_ascii, 1);
}

// A warp takes a page, value after value: each prefix is of the value before.
WL_DEVICE void copy_prefixes(const TextCopyPass& p) {
  for (u64 number = first_page(); number < p.n_pages; number += page_step()) {
    const PageRef page = p.pages[number];
    if (page.encoding != PAGE_DELTA_BYTE_ARRAY) continue;
    const PageState state = p.states[number];
    const u8* before = p.bytes;
    for (u64 i = 0; i < state.n_values; ++i) {
      const u64 row = place_of(page, state, p.row_of, i);
      u8* const to = p.bytes + p.offsets[row];
      const u32 n = p.sources[row].prefix;
      for (u32 k = lane_index(); k < n; k += WARP_LANES) to[k] = before[k];
      warp_sync();
      before = to;
    }
  }
}

WL_DEVICE bool is_utf8(const u8* at, u64 n) {
  for (u64 i = 0; i < n;) {
    const u8 lead = at[i++];
    if (lead < 0x80) continue;
    if (lead < 0xc2 || lead > 0xf4) return false;
    // The second byte's bounds shut out what is too long, surrogates, and what Unicode has not.
    const u8 least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const u8 most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    const u32 more = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    if (more > n - i || at[i] < least || at[i] > most) return false;
    for (u32 k = 1; k < more; ++k) {
      if ((at[i + k] & 0xc0) != 0x80) return false;
    }
    i += more;
  }
  return true;
}

struct TextCheckPass {
  u64 n_rows;
  const i64* offsets;
  const u8* bytes;
  u64* first_fault;  // of rows
};

WL_DEVICE void check_utf8(const TextCheckPass& p) {
  for (u64 row = global_thread_index(); row < p.n_rows; row += grid_threads()) {
    const i64 from = p.offsets[row];
    if (!is_utf8(p.bytes + from, static_cast<u64>(p.offsets[row + 1] - from))) {
      page_fault(p.first_fault, row, PAGE_FAULT_UTF8);
    }
  }
}

struct TextDecimalsPass {
  i128 type_least;  // what the column's type holds
  i128 type_most;
  u64 n_rows;
  u64 value_bytes;      // of FIXED_LEN_BYTE_ARRAY; 0: as many as each needs
  const u32* validity;  // null: no row is null
  const i64* offsets;
  const u8* bytes;
  i128* out;
  i128* ranges;      // of each warp
  u64* first_fault;  // of rows
};

// Numbers with the highest byte first.
WL_DEVICE void decimals_of_texts(const TextDecimalsPass& p) {
  i128 least = 0, most = 0;
  bool any = false;
  for (u64 row = global_thread_index(); row < p.n_rows; row += grid_threads()) {
    const i64 from = p.offsets[row];
    const u64 n = static_cast<u64>(p.offsets[row + 1] - from);
    const bool valid = p.validity == nullptr || ((p.validity[row >> 5] >> (row & 31)) & 1) != 0;
    i128 value = 0;
    if (valid && (n == 0 || n > 16 || (p.value_bytes != 0 && n != p.value_bytes))) {
      page_fault(p.first_fault, row, PAGE_FAULT_DECIMAL);
    } else if (valid) {
      const KindOptions options{n, 0};
      KindDecimal::of_address(options, p.bytes + from, value);
      if (value < p.type_least || value > p.type_most) page_fault(p.first_fault, row, PAGE_FAULT_TYPE);
      least = any ? min_of(least, value) : value;
      most = any ? max_of(most, value) : value;
      any = true;
    }
    p.out[row] = value;
  }
  write_range(p.ranges, first_page(), any, least, most);
}
