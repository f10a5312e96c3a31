// Parts of a text and places in it. A part is a view of the same bytes, so none of these
// needs memory. Positions count code points from 1; 0 says that there is none.
#pragma once

// Whether `part` stands in `text` from byte `at` on.
WL_DEVICE bool stands_at(const Text& text, u32 at, const Text& part) {
  for (u32 i = 0; i < part.length; ++i) {
    if (byte_at(text, at + i) != byte_at(part, i)) return false;
  }
  return true;
}

static constexpr u32 NOWHERE = 0xffffffffU;

// The first byte from `from` on where `part` begins, or NOWHERE. Valid UTF-8 begins
// nowhere but at a code point.
WL_DEVICE u32 find_text(const Text& text, u32 from, const Text& part) {
  if (part.length > text.length) return NOWHERE;
  const u32 last = text.length - part.length;
  if (part.length == 0) return from <= last ? from : NOWHERE;
  for (u32 i = from; i <= last; ++i) {
    if (text.fold == FOLD_NONE) {
      i = find_byte(text, i, byte_at(part, 0));
      if (i > last) return NOWHERE;
    }
    if (stands_at(text, i, part)) return i;
  }
  return NOWHERE;
}

template <class A, class B>
WL_DEVICE auto text_position(const A& a, const B& part) {
  return lift(a, part, [](Text x, Text p) {
    const u32 at = find_text(x, 0, p);
    if (at == NOWHERE) return 0;
    i32 n = 1;
    for (u32 i = 0; i < at; ++i) n += is_continuation(x.bytes[i]) ? 0 : 1;
    return n;
  });
}

template <class A, class B>
WL_DEVICE auto text_contains(const A& a, const B& part) {
  return lift(a, part, [](Text x, Text p) { return find_text(x, 0, p) != NOWHERE; });
}

template <class A, class B>
WL_DEVICE auto text_starts_with(const A& a, const B& part) {
  return lift(a, part, [](Text x, Text p) { return p.length <= x.length && stands_at(x, 0, p); });
}

template <class A, class B>
WL_DEVICE auto text_ends_with(const A& a, const B& part) {
  return lift(a, part, [](Text x, Text p) {
    return p.length <= x.length && stands_at(x, x.length - p.length, p);
  });
}

WL_DEVICE Text part_of(const Text& text, u32 from, u32 to) {
  return Text{text.bytes + from, to - from, text.fold};
}

// Bytes of the first `n` code points.
WL_DEVICE u32 bytes_of_first(const Text& text, u64 n) {
  u32 at = 0;
  for (; n > 0 && at < text.length; --n) at += code_point_bytes(text, at);
  return at;
}

// Bytes of all but the last `n` code points.
WL_DEVICE u32 bytes_before_last(const Text& text, u64 n) {
  u32 at = text.length;
  for (; n > 0 && at > 0; --n) {
    do --at;
    while (at > 0 && is_continuation(text.bytes[at]));
  }
  return at;
}

// The distance of n from 0, that of the least number too.
WL_DEVICE u64 magnitude(i64 n) { return n < 0 ? 0ULL - static_cast<u64>(n) : static_cast<u64>(n); }

// The first n code points; of a negative n all but the last -n.
template <class A, class B>
WL_DEVICE auto text_left(const A& a, const B& count) {
  return lift(a, count, [](Text x, auto n) {
    const i64 wide = n;
    const u64 size = magnitude(wide);
    return part_of(x, 0, wide < 0 ? bytes_before_last(x, size) : bytes_of_first(x, size));
  });
}

// The last n code points; of a negative n all but the first -n.
template <class A, class B>
WL_DEVICE auto text_right(const A& a, const B& count) {
  return lift(a, count, [](Text x, auto n) {
    const i64 wide = n;
    const u64 size = magnitude(wide);
    return part_of(x, wide < 0 ? bytes_of_first(x, size) : bytes_before_last(x, size), x.length);
  });
}

// Whether the code point from byte `at` on, `n` bytes, is one of those in `set`.
WL_DEVICE bool is_one_of(const Text& text, u32 at, u32 n, const Text& set) {
  for (u32 i = 0; i < set.length;) {
    const u32 size = code_point_bytes(set, i);
    if (size == n && stands_at(text, at, part_of(set, i, i + size))) return true;
    i += size;
  }
  return false;
}

enum Side : u32 { SIDE_LEFT = 1, SIDE_RIGHT = 2, SIDE_BOTH = 3 };

// Without the code points in `set` that stand at its ends.
template <u32 Sides, class A, class B>
WL_DEVICE auto text_trim(const A& a, const B& set) {
  return lift(a, set, [](Text x, Text s) {
    u32 from = 0, to = x.length;
    if constexpr ((Sides & SIDE_LEFT) != 0) {
      while (from < to) {
        const u32 n = code_point_bytes(x, from);
        if (!is_one_of(x, from, n, s)) break;
        from += n;
      }
    }
    if constexpr ((Sides & SIDE_RIGHT) != 0) {
      while (to > from) {
        const u32 at = bytes_before_last(part_of(x, 0, to), 1);
        if (!is_one_of(x, at, to - at, s)) break;
        to = at;
      }
    }
    return part_of(x, from, to);
  });
}

// The last byte before `end` where `part`, which is not empty, begins and ends before
// `end`; or NOWHERE.
WL_DEVICE u32 find_text_before(const Text& text, u32 end, const Text& part) {
  if (part.length > end) return NOWHERE;
  for (u32 at = end - part.length + 1; at-- > 0;) {
    if (stands_at(text, at, part)) return at;
  }
  return NOWHERE;
}

// Field number n of the fields between separators, from 1, or from the end if negative;
// empty where there is none. An empty separator separates nothing. Zero is refused when
// the query is planned.
template <class A, class B, class C>
WL_DEVICE auto split_part(const A& a, const B& separator, const C& number) {
  struct Field {
    Text separator;
    i64 number;
  };
  const auto field = lift(separator, number, [](Text s, auto n) {
    return Field{s, static_cast<i64>(n)};
  });
  return lift(a, field, [](Text x, Field f) {
    if (f.separator.length == 0) {
      return f.number == 1 || f.number == -1 ? x : part_of(x, 0, 0);
    }
    if (f.number > 0) {
      u32 from = 0;
      for (i64 n = f.number;; --n) {
        const u32 at = find_text(x, from, f.separator);
        if (n == 1) return part_of(x, from, at == NOWHERE ? x.length : at);
        if (at == NOWHERE) return part_of(x, 0, 0);
        from = at + f.separator.length;
      }
    }
    u32 to = x.length;
    for (i64 n = f.number;; ++n) {
      const u32 at = find_text_before(x, to, f.separator);
      if (n == -1) return part_of(x, at == NOWHERE ? 0 : at + f.separator.length, to);
      if (at == NOWHERE) return part_of(x, 0, 0);
      to = at;
    }
  });
}
