// Codecs whose elements stand in one row of tags: one thread reads tags for a tile, then all
// threads of the block make the tile.
#pragma once

static constexpr u32 STAGED_BYTES = 4096;

// What the threads of a block share.
struct TagState {
  u64 last[2];  // elements that reach into the next tile: at most those of one tag
  u32 n_last;
  u32 at;       // what of the page was read
  u32 upto;     // of the output, the end of the last element
  u32 n;        // elements of this tile
  u32 fault;    // not 0: the page is not well-formed
};

struct TagShared {
  Tile tile;
  TagState state;
  alignas(16) u32 staged[STAGED_BYTES / 4 + 4];
};

// A page's compressed bytes; those that come next are in shared memory.
struct TagInput {
  const u8* source;
  u32 n;
  const u32* staged;
  u32 staged_at;  // place of its first byte; it may lie before the page and then wraps
  u32 n_staged;

  // Brings the bytes from `at` on. All threads come here; a barrier follows.
  WL_MEMBER void stage(u32* to, u32 at) {
    const u64 address = reinterpret_cast<u64>(source + at);
    const u32 lead = static_cast<u32>(address & 3);
    const u32* const words = reinterpret_cast<const u32*>(address - lead);
    n_staged = min_of(STAGED_BYTES, n - at + lead);
    staged_at = at - lead;
    staged = to;
    for (u32 i = thread_index(); i < (n_staged + 3) / 4; i += block_threads()) to[i] = words[i];
  }

  // Five bytes or more from `at` on, the first in the lowest bits. What is behind the page
  // has no meaning.
  WL_MEMBER u64 bytes(u32 at) const {
    const u32 place = at - staged_at;
    if (place >= n_staged || place + 8 > n_staged) return read_u64(source + at);
    const u32 shift = (place & 3) * 8;
    return (u64(staged[place / 4 + 1]) << 32 | staged[place / 4]) >> shift;
  }
};

// Makes a page of a codec. `Codec::read(input, at, upto, n_out, tile, n)` reads one tag: it
// adds its elements, moves `at` and `upto`, and is false when the page is not well-formed.
// It keeps `at` in the page, `upto` in the output and copies behind the output's start.
template <class Codec>
WL_DEVICE u32 make_tagged_page(const PackedPage& page) {
  WL_SHARED TagShared shared;
  TagState& state = shared.state;
  if (thread_index() == 0) state = TagState{{0, 0}, 0, 0, 0, 0, 0};
  TagInput input{page.source, page.n_source, shared.staged, 0, 0};
  wl_barrier();
  for (u32 from = 0; from < page.n_out;) {
    const u32 limit = min_of(tile_limit(page.out, from), page.n_out);
    const u32 at = state.at;
    // A long element may cover all of the tile.
    if (state.upto < limit) input.stage(shared.staged, min_of(at, page.n_source));
    wl_barrier();
    if (thread_index() == 0) {
      u32 n = 0, upto = state.upto, own_at = at;
      for (; n < state.n_last; ++n) shared.tile.elements[n] = state.last[n];
      bool is_good = true;
      while (is_good && upto < limit && n + Codec::ELEMENTS <= TILE_ELEMENTS) {
        is_good = own_at < page.n_source && Codec::read(input, own_at, upto, page.n_out, shared.tile, n);
      }
      shared.tile.elements[n] = element_of(upto, ELEMENT_LITERAL, 0);
      state.n_last = 0;
      if (is_good && upto > limit) {
        // The one that the tile ends in, and one behind it.
        const u32 first = element_start(shared.tile.elements[n - 1]) > limit ? n - 2 : n - 1;
        for (u32 i = first; i < n; ++i) state.last[state.n_last++] = shared.tile.elements[i];
      }
      state.at = own_at;
      state.upto = upto;
      state.n = n;
      // A tile that does not grow would never end.
      state.fault = is_good && upto > from ? 0 : Codec::FAULT;
    }
    wl_barrier();
    if (state.fault != 0) return state.fault;
    const u32 to = min_of(state.upto, limit);
    make_tile(shared.tile, state.n, page.out, page.source, from, to);
    from = to;
  }
  const u32 end = state.at;
  // The next page starts only when all threads have read this one's end.
  wl_barrier();
  return Codec::is_end(page, end) ? 0 : Codec::FAULT;
}
