// UTF-8 text of one row: a view of bytes that stand elsewhere. Order is by bytes, which
// is the order of code points. Positions and lengths count code points.
#pragma once

enum Fold : u32 { FOLD_NONE = 0, FOLD_LOWER = 1, FOLD_UPPER = 2 };

// `fold` changes ASCII letters as they are read, so that upper(x) needs no memory.
struct Text {
  const u8* bytes;
  u32 length;  // in bytes
  u32 fold;
};

// A constant of the query.
struct TextConstant {
  const u8* bytes;
  u64 length;
};

// A column: row `r` has the bytes from offsets[r] to offsets[r + 1]. Offsets are i32, or
// i64 for a column of more bytes than that counts.
struct TextColumnRef {
  const u8* bytes;
  const u8* validity;
  const void* offsets;
  const void* unused;
};

WL_DEVICE Text text_of(const TextConstant& constant) {
  return Text{constant.bytes, static_cast<u32>(constant.length), FOLD_NONE};
}

template <class Offset>
WL_DEVICE Text load_text(const TextColumnRef& column, u64 row) {
  const Offset* const offsets = static_cast<const Offset*>(column.offsets);
  const Offset from = offsets[row];
  return Text{column.bytes + from, static_cast<u32>(offsets[row + 1] - from), FOLD_NONE};
}

template <class Offset>
WL_DEVICE Opt<Text> load_text_optional(const TextColumnRef& column, u64 row) {
  if (column.validity != nullptr && ((column.validity[row >> 3] >> (row & 7)) & 1) == 0) {
    return null<Text>();
  }
  return some(load_text<Offset>(column, row));
}

WL_DEVICE u8 byte_at(const Text& text, u32 i) {
  const u8 byte = text.bytes[i];
  if (text.fold == FOLD_LOWER && byte >= 'A' && byte <= 'Z') return byte + 32;
  if (text.fold == FOLD_UPPER && byte >= 'a' && byte <= 'z') return byte - 32;
  return byte;
}

WL_DEVICE bool is_continuation(u8 byte) { return (byte & 0xc0) == 0x80; }

// Bytes of the code point that starts at `i`.
WL_DEVICE u32 code_point_bytes(const Text& text, u32 i) {
  u32 n = 1;
  while (i + n < text.length && is_continuation(text.bytes[i + n])) ++n;
  return n;
}

WL_DEVICE bool equal_values(const Text& a, const Text& b) {
  if (a.length != b.length) return false;
  for (u32 i = 0; i < a.length; ++i) {
    if (byte_at(a, i) != byte_at(b, i)) return false;
  }
  return true;
}

WL_DEVICE bool less_values(const Text& a, const Text& b) {
  const u32 n = a.length < b.length ? a.length : b.length;
  for (u32 i = 0; i < n; ++i) {
    const u8 x = byte_at(a, i), y = byte_at(b, i);
    if (x != y) return x < y;
  }
  return a.length < b.length;
}

// Where `byte` stands first from position `from` on, or the length. Words of eight bytes
// are read whole: the memory of a column goes on behind its last byte.
WL_DEVICE u32 find_byte(const Text& text, u32 from, u8 byte) {
  static constexpr u64 ones = 0x0101010101010101ULL;
  const u64 address = reinterpret_cast<u64>(text.bytes + from);
  const u64* word = reinterpret_cast<const u64*>(address & ~7ULL);
  // A byte that is looked for is 0 here; those before `from` are not.
  u64 differs = (*word ^ ones * byte) | ((1ULL << (address & 7) * 8) - 1);
  u64 position = from - (address & 7);
  for (;;) {
    const u64 zeros = (differs - ones) & ~differs & ones << 7;
    if (zeros != 0) {
      position += (ffs(zeros) - 1) / 8;
      return position < text.length ? static_cast<u32>(position) : text.length;
    }
    position += 8;
    if (static_cast<i64>(position) >= static_cast<i64>(text.length)) return text.length;
    differs = *++word ^ ones * byte;
  }
}

// LIKE: % is any text, _ one code point, backslash takes the next as it is. After a
// mismatch only the last % can take more, so the work is at most pattern times text.
WL_DEVICE bool matches(const Text& text, const Text& pattern) {
  u32 i = 0, j = 0;
  bool has_star = false;
  u32 star_i = 0, star_j = 0;
  while (i < text.length) {
    if (j < pattern.length) {
      const u8 p = pattern.bytes[j];
      if (p == '%') {
        has_star = true;
        star_i = i;
        star_j = ++j;
        if (j == pattern.length) return true;
        continue;
      }
      if (has_star && j == star_j && p != '_' && p != '\\' && text.fold == FOLD_NONE) {
        // Nothing but this byte can go on after the last %.
        i = find_byte(text, i, p);
        star_i = i;
        if (i == text.length) return false;
      }
      if (p == '_') {
        i += code_point_bytes(text, i);
        ++j;
        continue;
      }
      const bool escaped = p == '\\' && j + 1 < pattern.length;
      if (byte_at(text, i) == (escaped ? pattern.bytes[j + 1] : p)) {
        ++i;
        j += escaped ? 2 : 1;
        continue;
      }
    }
    if (!has_star) return false;
    star_i += code_point_bytes(text, star_i);
    i = star_i;
    j = star_j;
  }
  while (j < pattern.length && pattern.bytes[j] == '%') ++j;
  return j == pattern.length;
}

template <class A, class B>
WL_DEVICE auto like(const A& a, const B& pattern) {
  return lift(a, pattern, [](Text x, Text p) { return matches(x, p); });
}

template <class A>
WL_DEVICE auto character_length(const A& a) {
  return lift(a, [](Text x) {
    i32 n = 0;
    for (u32 i = 0; i < x.length; ++i) n += is_continuation(x.bytes[i]) ? 0 : 1;
    return n;
  });
}

template <class A>
WL_DEVICE auto byte_length(const A& a) {
  return lift(a, [](Text x) { return static_cast<i32>(x.length); });
}

// Text that is not ASCII has case rules of its own: the thread says so, and the
// pipeline runs on the CPU instead.
template <u32 To, class A>
WL_DEVICE auto fold_case(Thread& thread, const A& a) {
  return lift(a, [&](Text x) {
    for (u32 i = 0; i < x.length; ++i) {
      if (x.bytes[i] >= 0x80) raise(thread, FAULT_NOT_ASCII);
    }
    return Text{x.bytes, x.length, To};
  });
}

// The code points from number `start` (from 1) on, `length` of them. What lies before
// the first counts and is empty, as in SQL: substring('abc', 0, 2) is 'a'.
WL_DEVICE Text slice(const Text& x, i64 start, i64 end) {
  u32 from = x.length, to = x.length;
  i64 number = 1;
  for (u32 i = 0; i < x.length; i += code_point_bytes(x, i), ++number) {
    if (number == start || (number == 1 && start < 1)) from = i;
    if (number >= end) {
      to = i;
      break;
    }
  }
  if (from > to) from = to;
  return Text{x.bytes + from, to - from, x.fold};
}

template <class A, class B>
WL_DEVICE auto substring(const A& a, const B& start) {
  return lift(a, start, [](Text x, auto s) { return slice(x, s, 0x7fffffffffffffffLL); });
}

template <class A, class B, class C>
WL_DEVICE auto substring(Thread& thread, const A& a, const B& start, const C& length) {
  struct Bounds {
    i64 start, end;
  };
  const auto bounds = lift(start, length, [&](auto s, auto n) {
    if (n < 0) raise(thread, FAULT_NEGATIVE_LENGTH);
    const i64 from = s, end = from + static_cast<i64>(n);
    return Bounds{from, end};
  });
  return lift(a, bounds, [](Text x, Bounds b) { return slice(x, b.start, b.end); });
}
