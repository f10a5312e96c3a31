// Values of any number of bytes: first where each is and how long, then their offsets in the
// column, then the bytes.
//
//   page     3 a b c 2 d e                    PLAIN: length, bytes, length, bytes
//   source      ^       ^     length 3 2      offsets 0 3 5     bytes a b c d e
//
// In DELTA_BYTE_ARRAY a value starts with some bytes of the value before it in the page;
// the rest follows from there.
#pragma once

// Where a value's own bytes are.
struct TextSource {
  const u8* at;
  u32 n;       // bytes at `at`
  u32 prefix;  // bytes of the value before it that come first
};

struct TextsPass {
  u64 n_pages;
  u64 n_shares;  // warps of a page; all shares are fewer than 2^32
  const PageRef* pages;
  const PageState* states;  // null: pages without levels
  const u32* row_of;
  TextSource* out;               // zero before the launch: what is null is empty
  const TextSource* dictionary;  // the entries of all dictionaries
  u64 value_bytes;               // of FIXED_LEN_BYTE_ARRAY; 0: values have lengths
  u64* first_fault;
};

// Bytes of a page that a warp has in shared memory: lengths that lead from one to the next
// are found there several times as fast as in memory.
struct TextWindow {
  static constexpr u32 BYTES = 2048;

  u32* words;
  u64 from;  // place of the first byte; it may lie before the page and then wraps
  u64 n;

  WL_MEMBER static TextWindow of_warp() {
    WL_SHARED u32 all[WL_BLOCK_THREADS / WARP_LANES][BYTES / 4 + 1];
    return TextWindow{all[warp_index()], 0, 0};
  }

  // Brings the bytes from `at` on, not those behind the page's last word.
  WL_MEMBER void move(const u8* bytes, u64 at, u64 end) {
    const u32 lead = static_cast<u32>(reinterpret_cast<u64>(bytes + at) & 3);
    const u32* const source = reinterpret_cast<const u32*>(bytes + at - lead);
    from = at - lead;
    n = min_of(u64(BYTES), end - from);
    const u32 n_words = static_cast<u32>(n + 3) / 4;
    // Others may still read what was there.
    warp_sync();
    static constexpr u32 AT_ONCE = 8;
    for (u32 base = lane_index(); base < n_words; base += AT_ONCE * WARP_LANES) {
      u32 word[AT_ONCE];
      WL_UNROLL
      for (u32 i = 0; i < AT_ONCE; ++i) {
        const u32 index = base + i * WARP_LANES;
        word[i] = source[index < n_words ? index : base];
      }
      WL_UNROLL
      for (u32 i = 0; i < AT_ONCE; ++i) {
        const u32 index = base + i * WARP_LANES;
        if (index < n_words) words[index] = word[i];
      }
    }
    warp_sync();
  }

  // Four bytes that lie in the page. All lanes read the same.
  WL_MEMBER u32 read(const u8* bytes, u64 at, u64 end) {
    if (at - from >= n || at - from + 4 > n) move(bytes, at, end);
    const u32 place = static_cast<u32>(at - from), shift = (place & 3) * 8;
    const u64 both = u64(words[place / 4 + 1]) << 32 | words[place / 4];
    return static_cast<u32>(both >> shift);
  }
};

template <class Take>
WL_DEVICE u32 read_plain_texts(const TextsPass& p, Cursor cursor, u64 n, Take take) {
  if (p.value_bytes != 0) {
    if (n * p.value_bytes > cursor.end - cursor.at) return PAGE_FAULT_VALUES_END;
    for (u64 i = lane_index(); i < n; i += WARP_LANES) {
      take(i, TextSource{cursor.bytes + cursor.at + i * p.value_bytes, u32(p.value_bytes), 0});
    }
    return 0;
  }
  // Where a value starts follows from all lengths before it: one chain, which every lane
  // walks; each keeps its own of every WARP_LANES values, so that they write together.
  TextWindow window = TextWindow::of_warp();
  for (u64 i = 0; i < n; i += WARP_LANES) {
    TextSource own{nullptr, 0, 0};
    const u64 n_here = min_of(u64(WARP_LANES), n - i);
    for (u64 k = 0; k < n_here; ++k) {
      if (cursor.end - cursor.at < 4) return PAGE_FAULT_VALUES_END;
      const u32 length = window.read(cursor.bytes, cursor.at, cursor.end);
      cursor.at += 4;
      if (length > cursor.end - cursor.at) return PAGE_FAULT_LENGTH;
      if (k == lane_index()) own = TextSource{cursor.bytes + cursor.at, length, 0};
      cursor.at += length;
    }
    if (lane_index() < n_here) take(i + lane_index(), own);
  }
  return 0;
}

// The bytes of values that follow one another without a gap. The lanes' values come in
// order, WARP_LANES at a time.
struct TextsInARow {
  const u8* bytes;
  u64 n_bytes;
  u64 before;  // bytes of the values so far
  bool is_inside;

  // The source of this lane's value, if it has one and it fits; a negative length is a
  // large one here.
  WL_MEMBER bool next(bool is_here, u64 value, TextSource& source) {
    const u64 length = is_here ? u64(static_cast<u32>(value)) : 0;
    const u64 upto = before + warp_scan(length);
    const bool fits = length < (u64(1) << 31) && upto <= n_bytes;
    is_inside &= fits;
    before = shuffle(upto, WARP_LANES - 1);
    source = TextSource{bytes + (upto - length), static_cast<u32>(length), 0};
    return is_here && fits;
  }
};

// Lengths, then all bytes in one piece. `take` gets sources without a prefix.
template <class Take>
WL_DEVICE u32 read_delta_lengths(Cursor cursor, u64 n, Take take) {
  // Where the bytes start is known only behind all lengths, so those are read twice.
  Cursor behind = cursor;
  if (!each_in_delta(behind, 32, 0, [](u64, u64) {})) return PAGE_FAULT_DELTA_HEADER;
  if (n == 0) return 0;
  Delta delta{cursor, 0, 0, 0, 0};
  if (!read_delta_header(delta) || delta.n_values != n) return PAGE_FAULT_DELTA_HEADER;
  TextsInARow texts{cursor.bytes + behind.at, behind.end - behind.at, 0, true};
  TextSource source;
  if (texts.next(lane_index() == 0, delta.first, source)) take(u64(0), source);
  u64 last = delta.first;
  const bool is_whole = each_miniblock(delta, 32, [&](u64 done, u64 n_here, u64 at, u32 width, u64 smallest) {
    for (u64 base = 0; base < n_here; base += WARP_LANES) {
      const u64 i = base + lane_index();
      const u64 step = i < n_here ? read_wide_bits(delta.cursor.bytes + at, i * width, width) + smallest : 0;
      const u64 value = last + warp_scan(step);
      if (texts.next(i < n_here, value, source)) take(done + i, source);
      last = shuffle(value, WARP_LANES - 1);
    }
  });
  if (!is_whole) return PAGE_FAULT_DELTA_HEADER;
  return all_lanes(texts.is_inside) ? 0 : PAGE_FAULT_LENGTH;
}

// Where a page's values go.
struct TextPlace {
  const PageRef& page;
  const PageState& state;
  const u32* row_of;  // null: of a dictionary
  WL_MEMBER u64 operator()(u64 index) const {
    return row_of == nullptr ? page.first + index : place_of(page, state, row_of, index);
  }
};

WL_DEVICE u32 read_texts(const TextsPass& p, const PageRef& page, const PageState& state, const Share& share,
                         const TextPlace& place) {
  Cursor cursor{page.bytes, state.values_at, page.n_bytes};
  const u32 n = state.n_values;
  const auto take = [&](u64 index, const TextSource& source) { p.out[place(index)] = source; };
  if (page.encoding != PAGE_DICTIONARY && !share.is_first) return 0;
  switch (page.encoding) {
    case PAGE_PLAIN: return read_plain_texts(p, cursor, n, take);
    case PAGE_DICTIONARY: {
      if (n == 0) return 0;
      if (cursor.at == cursor.end) return PAGE_FAULT_VALUES_END;
      const u32 width = page.bytes[cursor.at++];
      if (width > 32) return PAGE_FAULT_BIT_WIDTH;
      bool is_inside = true;
      const bool is_whole = each_in_runs(cursor, width, share, [&](u64 index, u32 entry) {
        is_inside &= entry < page.dictionary_n;
        if (entry < page.dictionary_n) take(index, p.dictionary[page.dictionary_first + entry]);
      });
      if (!is_whole) return PAGE_FAULT_VALUES_END;
      return all_lanes(is_inside) ? 0 : PAGE_FAULT_INDEX;
    }
    case PAGE_DELTA_LENGTH_BYTE_ARRAY: return read_delta_lengths(cursor, n, take);
    case PAGE_DELTA_BYTE_ARRAY: {
      bool is_inside = true;
      const bool is_whole = each_in_delta(cursor, 32, n, [&](u64 index, u64 length) {
        is_inside &= static_cast<u32>(length) < (1u << 31);
        p.out[place(index)].prefix = static_cast<u32>(length);
      });
      if (!is_whole) return PAGE_FAULT_DELTA_HEADER;
      if (!all_lanes(is_inside)) return PAGE_FAULT_PREFIX;
      // Lanes read what others wrote.
      warp_sync();
      const u32 fault = read_delta_lengths(cursor, n, [&](u64 index, const TextSource& source) {
        TextSource& own = p.out[place(index)];
        own.at = source.at;
        own.n = source.n;
      });
      if (fault != 0) return fault;
      warp_sync();
      for (u64 i = lane_index(); i < n; i += WARP_LANES) {
        u64 length_before = 0;
        if (i > 0) {
          const TextSource before = p.out[place(i - 1)];
          length_before = u64(before.prefix) + before.n;
        }
        is_inside &= p.out[place(i)].prefix <= length_before;
      }
      return all_lanes(is_inside) ? 0 : PAGE_FAULT_PREFIX;
    }
    default: return PAGE_FAULT_ENCODING;
  }
}

WL_DEVICE void read_all_texts(const TextsPass& p) {
  for (u64 number = first_page(); number < p.n_pages * p.n_shares; number += page_step()) {
    const u32 n_shares = static_cast<u32>(p.n_shares);
    const u32 page_number = static_cast<u32>(number) / n_shares;
    const PageRef page = p.pages[page_number];
    PageState state{page.n_rows, 0};
    if (p.states != nullptr) state = p.states[page_number];
    const TextPlace place{page, state, p.states == nullptr ? nullptr : p.row_of};
    const Share share = share_of(state.n_values, static_cast<u32>(number) % n_shares, n_shares);
    const u32 fault = read_texts(p, page, state, share, place);
    if (fault != 0 && lane_index() == 0) page_fault(p.first_fault, page_number, fault);
  }
}
