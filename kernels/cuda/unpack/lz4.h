// LZ4 blocks, as the block format's description says: a token with two lengths, literals,
// a distance of 16 bits. A length that fills its half of the token goes on in bytes behind
// it. The last sequence has literals only.
#pragma once

struct Lz4 {
  static constexpr u32 FAULT = PAGE_FAULT_LZ4;
  static constexpr u32 ELEMENTS = 2;

  // The rest of a length. False when the page ends in it, or the length is not possible.
  WL_MEMBER static bool more_length(const TagInput& input, u32& at, u32& length) {
    for (;;) {
      if (at >= input.n || length >= PACKED_BYTES_MAX) return false;
      const u32 byte = static_cast<u32>(input.bytes(at++)) & 0xff;
      length += byte;
      if (byte != 255) return true;
    }
  }

  WL_MEMBER static bool read(const TagInput& input, u32& at, u32& upto, u32 n_out, Tile& tile, u32& n) {
    const u32 token = static_cast<u32>(input.bytes(at++)) & 0xff;
    u32 length = token >> 4;
    if (length == 15 && !more_length(input, at, length)) return false;
    if (length > input.n - at || length > n_out - upto) return false;
    if (length > 0) tile.elements[n++] = element_of(upto, ELEMENT_LITERAL, at);
    at += length;
    upto += length;
    // The last one.
    if (at == input.n) return upto == n_out;
    if (input.n - at < 2) return false;
    const u32 distance = static_cast<u32>(input.bytes(at)) & 0xffff;
    at += 2;
    length = token & 15;
    if (length == 15 && !more_length(input, at, length)) return false;
    length += 4;
    if (distance - 1 >= upto || length > n_out - upto) return false;
    tile.elements[n++] = element_of(upto, ELEMENT_COPY, distance);
    upto += length;
    return true;
  }

  // A token without anything may be the last.
  WL_MEMBER static bool is_end(const PackedPage& page, u32 at) {
    return at == page.n_source || (at + 1 == page.n_source && (page.source[at] >> 4) == 0);
  }
};

// A block takes a page.
WL_DEVICE void unpack_lz4_pages(const UnpackPass& p) {
  for (u64 number = block_index(); number < p.n; number += grid_blocks()) {
    const PackedPage page = p.pages[number];
    const u32 fault = make_tagged_page<Lz4>(page);
    if (fault != 0 && thread_index() == 0) page_fault(p.first_fault, page.number, fault);
    wl_barrier();
  }
}
