// The values of pages to the elements of a column, or of a dictionary.
#pragma once

struct ValuesPass {
  u64 n_pages;
  u64 n_shares;  // warps of a page; all shares are fewer than 2^32
  const PageRef* pages;
  const PageState* states;  // null: pages without levels
  const u32* row_of;
  void* out;
  const void* dictionary;
  i128* ranges;  // the least and the largest value of each share; null: not wanted
  KindOptions options;
  u64* first_fault;
};

// A share of the values of a page to `take(index, element)`; gives the fault or 0.
template <class Kind, class Take>
WL_DEVICE u32 read_values(const ValuesPass& p, const PageRef& page, const PageState& state, const Share& share,
                          Take take) {
  using Out = typename Kind::Out;
  Cursor cursor{page.bytes, state.values_at, page.n_bytes};
  const u64 n_bytes = cursor.end - cursor.at;
  const u32 n = state.n_values;
  const u8* const bytes = page.bytes + cursor.at;
  if (page.encoding == PAGE_DICTIONARY) {
    if (n == 0) return 0;
    if (n_bytes == 0) return PAGE_FAULT_VALUES_END;
    const u32 width = page.bytes[cursor.at++];
    if (width > 32) return PAGE_FAULT_BIT_WIDTH;
    const Out* const dictionary = static_cast<const Out*>(p.dictionary) + page.dictionary_first;
    bool is_inside = true;
    const bool is_whole = each_in_runs(cursor, width, share, [&](u64 index, u32 entry) {
      is_inside &= entry < page.dictionary_n;
      if (entry < page.dictionary_n) take(index, dictionary[entry]);
    });
    if (!is_whole) return PAGE_FAULT_VALUES_END;
    return all_lanes(is_inside) ? 0 : PAGE_FAULT_INDEX;
  }
  if constexpr (sizeof(Out) == 1) {
    if (page.encoding == PAGE_PLAIN) {
      if ((u64(n) + 7) / 8 > n_bytes) return PAGE_FAULT_VALUES_END;
      for (u64 i = share.from + lane_index(); i < share.to; i += WARP_LANES) take(i, Out((bytes[i >> 3] >> (i & 7)) & 1));
      return 0;
    }
    if (page.encoding == PAGE_RLE) {
      if (n == 0) return 0;
      if (n_bytes < 4) return PAGE_FAULT_VALUES_END;
      cursor.at += 4;
      const u64 end = cursor.at + read_u32(bytes);
      if (end > cursor.end) return PAGE_FAULT_LENGTH;
      cursor.end = end;
      return each_in_runs(cursor, 1, share, [&](u64 i, u32 v) { take(i, Out(v & 1)); }) ? 0 : PAGE_FAULT_VALUES_END;
    }
    return PAGE_FAULT_ENCODING;
  } else {
    const u64 value_bytes = Kind::value_bytes(p.options);
    if (page.encoding == PAGE_PLAIN || page.encoding == PAGE_BYTE_STREAM_SPLIT) {
      if (n * value_bytes > n_bytes) return PAGE_FAULT_VALUES_END;
      // Streams follow one another without a gap: their length is that of all values.
      const bool is_split = page.encoding == PAGE_BYTE_STREAM_SPLIT;
      if (is_split && n * value_bytes != n_bytes) return PAGE_FAULT_LENGTH;
      bool is_inside = true;
      for (u64 i = share.from + lane_index(); i < share.to; i += WARP_LANES) {
        Out value;
        is_inside &= is_split ? Kind::of_bytes(p.options, [=](u64 k) { return bytes[k * n + i]; }, value)
                              : Kind::of_address(p.options, bytes + i * value_bytes, value);
        take(i, value);
      }
      return all_lanes(is_inside) ? 0 : PAGE_FAULT_TIME;
    }
    if constexpr (Kind::DELTA_BITS > 0) {
      if (page.encoding == PAGE_DELTA_BINARY_PACKED) {
        if (!share.is_first) return 0;
        const bool is_whole =
            each_in_delta(cursor, Kind::DELTA_BITS, n, [&](u64 i, u64 word) { take(i, Kind::of_word(word)); });
        return is_whole ? 0 : PAGE_FAULT_DELTA_HEADER;
      }
    }
    return PAGE_FAULT_ENCODING;
  }
}

template <class Kind>
WL_DEVICE void read_all_values(const ValuesPass& p) {
  using Out = typename Kind::Out;
  Out* const out = static_cast<Out*>(p.out);
  for (u64 number = first_page(); number < p.n_pages * p.n_shares; number += page_step()) {
    const u32 n_shares = static_cast<u32>(p.n_shares);
    const u32 page_number = static_cast<u32>(number) / n_shares;
    const PageRef page = p.pages[page_number];
    PageState state{page.n_rows, 0};
    if (p.states != nullptr) state = p.states[page_number];
    const Share share = share_of(state.n_values, static_cast<u32>(number) % n_shares, n_shares);
    Out least{}, most{};
    bool any = false;
    const u32 fault = read_values<Kind>(p, page, state, share, [&](u64 index, Out value) {
      out[p.states == nullptr ? page.first + index : place_of(page, state, p.row_of, index)] = value;
      if constexpr (Kind::MEASURED) {
        least = any ? min_of(least, value) : value;
        most = any ? max_of(most, value) : value;
        any = true;
      }
    });
    if (fault != 0 && lane_index() == 0) page_fault(p.first_fault, page_number, fault);
    if constexpr (Kind::MEASURED) {
      if (p.ranges != nullptr) write_range(p.ranges, number, any, least, most);
    }
  }
}
