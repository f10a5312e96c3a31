// What a physical type's bytes become: one element a row.
//
// A kind tells its element (`Out`), whether the interval of the values is wanted, how many
// bytes a value has (0: not a whole number of bytes), how bytes become an element, and what
// a 64-bit number of a delta encoding becomes (`DELTA_BITS` 0: none does).
#pragma once

// What the kinds are told beside the bytes.
struct KindOptions {
  u64 value_bytes;     // of FIXED_LEN_BYTE_ARRAY
  u64 ticks_per_second;  // of INT96
};

struct KindBool {
  using Out = u8;
  static constexpr bool MEASURED = false;
  static constexpr u32 DELTA_BITS = 0;
};

// A number of the machine's own layout, held in an element that is as wide or wider.
template <class Word, class Element, bool measured>
struct KindWord {
  using Out = Element;
  static constexpr bool MEASURED = measured;
  static constexpr u32 DELTA_BITS = measured ? sizeof(Word) * 8 : 0;
  WL_MEMBER static u64 value_bytes(const KindOptions&) { return sizeof(Word); }
  WL_MEMBER static Out of_word(u64 word) { return static_cast<Out>(static_cast<Word>(word)); }
  WL_MEMBER static bool of_address(const KindOptions&, const u8* at, Out& out) {
    out = of_word(sizeof(Word) == 8 ? read_u64(at) : read_u32(at));
    return true;
  }
  template <class Byte>
  WL_MEMBER static bool of_bytes(const KindOptions&, Byte byte, Out& out) {
    u64 word = 0;
    WL_UNROLL
    for (u32 i = 0; i < sizeof(Word); ++i) word |= u64(byte(i)) << (8 * i);
    out = of_word(word);
    return true;
  }
};
using KindI32 = KindWord<i32, i32, true>;
using KindU32 = KindWord<u32, i64, true>;
using KindI64 = KindWord<i64, i64, true>;
using KindU64 = KindWord<u64, i128, true>;
// Floats are moved as they are.
using KindF32 = KindWord<u32, u32, false>;
using KindF64 = KindWord<u64, u64, false>;

// The members of a kind that is made of single bytes.
template <class Kind, class Element, bool measured>
struct KindOfBytes {
  using Out = Element;
  static constexpr bool MEASURED = measured;
  static constexpr u32 DELTA_BITS = 0;
  WL_MEMBER static Out of_word(u64) { return Out{}; }
  WL_MEMBER static bool of_address(const KindOptions& options, const u8* at, Out& out) {
    return Kind::of_bytes(options, [=](u64 i) { return at[i]; }, out);
  }
};

// A decimal: a number with the highest byte first, of at most 16 bytes.
struct KindDecimal : KindOfBytes<KindDecimal, i128, true> {
  WL_MEMBER static u64 value_bytes(const KindOptions& options) { return options.value_bytes; }
  template <class Byte>
  WL_MEMBER static bool of_bytes(const KindOptions& options, Byte byte, i128& out) {
    u128 value = (byte(0) & 0x80) != 0 ? ~u128(0) : 0;
    for (u64 i = 0; i < options.value_bytes; ++i) value = value << 8 | byte(i);
    out = static_cast<i128>(value);
    return true;
  }
};

// INT96: nanoseconds of the day, and the Julian day.
struct KindInt96 : KindOfBytes<KindInt96, i64, true> {
  WL_MEMBER static u64 value_bytes(const KindOptions&) { return 12; }
  template <class Byte>
  WL_MEMBER static bool of_bytes(const KindOptions& options, Byte byte, i64& out) {
    u64 nanos = 0;
    u32 julian = 0;
    WL_UNROLL
    for (u32 i = 0; i < 8; ++i) nanos |= u64(byte(i)) << (8 * i);
    WL_UNROLL
    for (u32 i = 0; i < 4; ++i) julian |= u32(byte(8 + i)) << (8 * i);
    const i64 day = i64(static_cast<i32>(julian)) - 2440588;  // of 1970-01-01
    const i64 ticks_per_second = static_cast<i64>(options.ticks_per_second);
    const i128 ticks = i128(day) * 86400 * ticks_per_second + i64(nanos) / (1000000000 / ticks_per_second);
    out = static_cast<i64>(ticks);
    return ticks == i128(out);
  }
};

// A half float, as a float.
struct KindF16 : KindOfBytes<KindF16, u32, false> {
  WL_MEMBER static u64 value_bytes(const KindOptions&) { return 2; }
  template <class Byte>
  WL_MEMBER static bool of_bytes(const KindOptions&, Byte byte, u32& out) {
    const u32 half = u32(byte(0)) | u32(byte(1)) << 8;
    const u32 sign = (half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 0x3ff;
    if (exponent == 31) {
      // A NaN becomes a quiet one, as in every conversion.
      out = sign | 0x7f800000 | fraction << 13 | (fraction != 0 ? 0x400000 : 0);
    } else if (exponent != 0) {
      out = sign | (exponent + 112) << 23 | fraction << 13;
    } else if (fraction == 0) {
      out = sign;
    } else {
      // Too small for a half's exponent, not for a float's.
      const u32 up = clz(fraction) - 21;
      out = sign | (113 - up) << 23 | ((fraction << up) & 0x3ff) << 13;
    }
    return true;
  }
};
