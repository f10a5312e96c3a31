// Snappy, as its format description says: the length of all, then tags. A tag's lowest two
// bits tell a literal from copies with a distance of 11, 16 or 32 bits.
#pragma once

struct Snappy {
  static constexpr u32 FAULT = PAGE_FAULT_SNAPPY;
  static constexpr u32 ELEMENTS = 1;

  WL_MEMBER static bool read(const TagInput& input, u32& at, u32& upto, u32 n_out, Tile& tile, u32& n) {
    const u64 bytes = input.bytes(at);
    const u32 tag = static_cast<u32>(bytes) & 0xff, rest = static_cast<u32>(bytes >> 8);
    u32 length = (tag >> 2) + 1;
    if ((tag & 3) == 0) {
      u32 n_header = 1;
      if (length > 60) {
        const u32 n_length = length - 60;
        n_header += n_length;
        length = rest & (0xffffffffu >> (32 - 8 * n_length));
        if (length >= PACKED_BYTES_MAX) return false;
        ++length;
      }
      if (n_header > input.n - at || length > input.n - at - n_header || length > n_out - upto) return false;
      tile.elements[n++] = element_of(upto, ELEMENT_LITERAL, at + n_header);
      at += n_header + length;
    } else {
      u32 distance, n_header;
      if ((tag & 3) == 1) {
        length = ((tag >> 2) & 7) + 4;
        distance = (tag >> 5) << 8 | (rest & 0xff);
        n_header = 2;
      } else if ((tag & 3) == 2) {
        distance = rest & 0xffff;
        n_header = 3;
      } else {
        distance = rest;
        n_header = 5;
      }
      if (n_header > input.n - at || distance - 1 >= upto || length > n_out - upto) return false;
      tile.elements[n++] = element_of(upto, ELEMENT_COPY, distance);
      at += n_header;
    }
    upto += length;
    return true;
  }

  WL_MEMBER static bool is_end(const PackedPage& page, u32 at) { return at == page.n_source; }
};

// A block takes a page. The host read the length in front, and the page starts behind it.
WL_DEVICE void unpack_snappy_pages(const UnpackPass& p) {
  for (u64 number = block_index(); number < p.n; number += grid_blocks()) {
    const PackedPage page = p.pages[number];
    const u32 fault = make_tagged_page<Snappy>(page);
    if (fault != 0 && thread_index() == 0) page_fault(p.first_fault, page.number, fault);
    wl_barrier();
  }
}
