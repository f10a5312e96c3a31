// Blocks of zstd pages to output, one after another, a tile at a time.
#pragma once

struct ZstdPageShared {
  Tile tile;
  u32 hash;
};

// Brings the elements of a block from `first` on, as many as a tile may have, to places in
// the page. Whether copies are as the format allows.
WL_DEVICE bool bring_elements(Tile& tile, const ZstdBlock& block, const ZstdState& state, u32 first, u32 n, u32 block_at,
                              u32 frame_at, const u32* repeats) {
  bool is_good = true;
  for (u32 i = thread_index(); i <= n; i += block_threads()) {
    if (first + i == state.n_elements) {
      tile.elements[i] = element_of(block_at + state.n_out, ELEMENT_LITERAL, 0);
      continue;
    }
    const u64 element = block.elements[first + i];
    const u32 start = block_at + element_start(element);
    u32 kind = element_kind(element), value = element_value(element);
    if (kind == ELEMENT_REPEAT) {
      const u32 known = value >> REPEAT_SHIFT == 0 ? repeats[0] : value >> REPEAT_SHIFT == 1 ? repeats[1] : repeats[2];
      const u32 less = value & ((1u << REPEAT_SHIFT) - 1);
      // 0 is not possible and is found below.
      value = less < known ? known - less : 0;
      kind = ELEMENT_COPY;
    }
    if (kind == ELEMENT_COPY) is_good &= value - 1 < min_of(start - frame_at, block.window);
    tile.elements[i] = element_of(start, kind, value);
  }
  return is_good;
}

// Makes a block that starts at `block_at`; gives the fault or 0.
WL_DEVICE u32 make_zstd_block(Tile& tile, const ZstdBlock& block, const ZstdState& state, u8* out, u32 block_at,
                              u32 frame_at, const u32* repeats) {
  const u32 end = block_at + state.n_out;
  u32 from = block_at;
  if (block.kind != ZSTD_COMPRESSED) {
    // A byte that is repeated is one literal and a copy of it.
    const bool is_repeated = block.kind == ZSTD_RLE && state.n_out > 1;
    if (thread_index() == 0) {
      tile.elements[0] = element_of(from, ELEMENT_LITERAL, 0);
      tile.elements[1] = is_repeated ? element_of(from + 1, ELEMENT_COPY, 1) : element_of(end, ELEMENT_LITERAL, 0);
      tile.elements[2] = element_of(end, ELEMENT_LITERAL, 0);
    }
    wl_barrier();
    while (from < end) {
      const u32 to = min_of(tile_limit(out, from), end);
      make_tile(tile, is_repeated ? 2 : 1, out, block.source + block.body_at, from, to);
      from = to;
    }
    return 0;
  }
  for (u32 first = 0; from < end;) {
    const u32 n = min_of(TILE_ELEMENTS, state.n_elements - first);
    const bool is_good = bring_elements(tile, block, state, first, n, block_at, frame_at, repeats);
    if (barrier_any(!is_good)) return PAGE_FAULT_DISTANCE;
    const u32 there = element_start(tile.elements[n]);
    const u32 to = min_of(tile_limit(out, from), there);
    first += to == there ? n : element_at(tile, n, to);
    make_tile(tile, n, out, block.literals, from, to);
    from = to;
  }
  return 0;
}

// Distances at a block's end, of those at its start.
WL_DEVICE u32 repeat_after(u32 told, const u32* repeats) {
  if ((told & REPEAT_MARK) == 0) return told;
  const u32 which = (told >> REPEAT_SHIFT) & 3, less = told & ((1u << REPEAT_SHIFT) - 1);
  const u32 known = which == 0 ? repeats[0] : which == 1 ? repeats[1] : repeats[2];
  // 0 is refused where it is used.
  return less < known ? known - less : 0;
}

WL_DEVICE u32 make_zstd_page(ZstdPageShared& shared, const UnpackPass& p, const PackedPage& page) {
  u32 at = 0, frame_at = 0;
  u32 repeats[3] = {1, 4, 8};
  for (u32 i = 0; i < page.n_blocks; ++i) {
    const ZstdBlock& block = p.blocks[page.first_block + i];
    if ((block.frame & ZSTD_FRAME_FIRST) != 0) {
      frame_at = at;
      repeats[0] = 1;
      repeats[1] = 4;
      repeats[2] = 8;
    }
    ZstdState state{0, block.n_out, {0, 0, 0}, 1};
    if (block.kind == ZSTD_COMPRESSED) state = p.states[page.first_block + i];
    // Its own fault was told already.
    if (state.is_good == 0) return PAGE_FAULT_ZSTD_SEQUENCES;
    if (state.n_out > page.n_out - at) return PAGE_FAULT_SIZE;
    const u32 fault = make_zstd_block(shared.tile, block, state, page.out, at, frame_at, repeats);
    if (fault != 0) return fault;
    at += state.n_out;
    if (block.kind == ZSTD_COMPRESSED) {
      const u32 first = repeat_after(state.repeats[0], repeats), second = repeat_after(state.repeats[1], repeats);
      repeats[2] = repeat_after(state.repeats[2], repeats);
      repeats[0] = first;
      repeats[1] = second;
    }
    if ((block.frame & ZSTD_FRAME_LAST) == 0) continue;
    if ((block.frame & ZSTD_HAS_CONTENT_SIZE) != 0 && at - frame_at != block.content_size) return PAGE_FAULT_SIZE;
    if ((block.frame & ZSTD_HAS_CHECKSUM) != 0) {
      if (thread_index() == 0) shared.hash = static_cast<u32>(xxh64(page.out + frame_at, at - frame_at));
      wl_barrier();
      const u32 hash = shared.hash;
      wl_barrier();
      if (hash != read_u32(block.source + block.checksum_at)) return PAGE_FAULT_CHECKSUM;
    }
  }
  return at == page.n_out ? 0 : PAGE_FAULT_SIZE;
}

// A block takes a page.
WL_DEVICE void make_all_zstd_pages(const UnpackPass& p) {
  WL_SHARED ZstdPageShared shared;
  for (u64 number = block_index(); number < p.n; number += grid_blocks()) {
    const PackedPage page = p.pages[number];
    const u32 fault = make_zstd_page(shared, p, page);
    if (fault != 0 && thread_index() == 0) page_fault(p.first_fault, page.number, fault);
    wl_barrier();
  }
}
