// Arithmetic of one row: exact in the register the generator chose, then checked
// against the bounds of the SQL type where the ranges do not prove that it fits.
#pragma once

// Keep in step with kernels::Fault.
enum FaultCode : u32 {
  FAULT_INTEGER_OVERFLOW = 1,
  FAULT_DIVISION_BY_ZERO = 2,
  FAULT_DECIMAL_OVERFLOW = 3,
  FAULT_CAST_OVERFLOW = 4,
  FAULT_NOT_ASCII = 6,
  FAULT_NEGATIVE_LENGTH = 7,
};

// What one thread carries besides its row: the first fault it met. Faults are
// ordered by row, so that the report names the same row on every run.
struct Thread {
  u64 row;
  u64 first_fault;
};

WL_DEVICE void raise(Thread& thread, u32 code) {
  const u64 fault = (thread.row << 8) | code;
  if (fault < thread.first_fault) thread.first_fault = fault;
}

template <class T>
struct OptTraits {
  static constexpr bool optional = false;
};
template <class T>
struct OptTraits<Opt<T>> {
  static constexpr bool optional = true;
};

// Applies `f` to plain values; null in, null out.
template <class A, class F>
WL_DEVICE auto lift(const A& a, F f) {
  using R = decltype(f(value_of(a)));
  if constexpr (OptTraits<A>::optional) {
    return is_valid(a) ? Opt<R>{f(value_of(a)), true} : null<R>();
  } else {
    return f(a);
  }
}
template <class A, class B, class F>
WL_DEVICE auto lift(const A& a, const B& b, F f) {
  using R = decltype(f(value_of(a), value_of(b)));
  if constexpr (OptTraits<A>::optional || OptTraits<B>::optional) {
    return is_valid(a) && is_valid(b) ? Opt<R>{f(value_of(a), value_of(b)), true} : null<R>();
  } else {
    return f(a, b);
  }
}

// Exact: the generator proved that the result fits R.
template <class R, class A, class B>
WL_DEVICE auto add(const A& a, const B& b) {
  return lift(a, b, [](auto x, auto y) { return static_cast<R>(static_cast<R>(x) + static_cast<R>(y)); });
}
template <class R, class A, class B>
WL_DEVICE auto subtract(const A& a, const B& b) {
  return lift(a, b, [](auto x, auto y) { return static_cast<R>(static_cast<R>(x) - static_cast<R>(y)); });
}
template <class R, class A, class B>
WL_DEVICE auto multiply(const A& a, const B& b) {
  return lift(a, b, [](auto x, auto y) { return static_cast<R>(static_cast<R>(x) * static_cast<R>(y)); });
}
template <class R, class A>
WL_DEVICE auto negate(const A& a) {
  return lift(a, [](auto x) { return static_cast<R>(-static_cast<R>(x)); });
}
template <class R, class A>
WL_DEVICE auto convert(const A& a) {
  return lift(a, [](auto x) { return static_cast<R>(x); });
}

template <class R, class A, class B>
WL_DEVICE auto divide_float(const A& a, const B& b) {
  return lift(a, b, [](auto x, auto y) { return static_cast<R>(x) / static_cast<R>(y); });
}

// A decimal as a float: divided by its power of ten in binary64.
template <class R, class A>
WL_DEVICE auto unscaled(const A& a, f64 power) {
  return lift(a, [&](auto x) { return static_cast<R>(static_cast<f64>(x) / power); });
}

// A float as an integer between these bounds; what lies outside, NaN too, is a fault.
template <class R>
WL_DEVICE R integer_of(Thread& thread, f64 whole, i128 min, i128 max, u32 code) {
  // 2^127 is the first value that 128 bits do not hold.
  if (!(whole > -1.7014118346046923e38 && whole < 1.7014118346046923e38)) {
    raise(thread, code);
    return R{0};
  }
  const i128 value = static_cast<i128>(whole);
  if (value < min || value > max) {
    raise(thread, code);
    return R{0};
  }
  return static_cast<R>(value);
}

// Times a power of ten and then half away from zero, as a cast to a decimal.
template <class R, class A>
WL_DEVICE auto rounded(Thread& thread, const A& a, f64 power, i128 min, i128 max, u32 code) {
  return lift(a, [&](auto x) {
    return integer_of<R>(thread, round_half_away(static_cast<f64>(x) * power), min, max, code);
  });
}

// Towards zero, as a cast to an integer.
template <class R, class A>
WL_DEVICE auto truncated(Thread& thread, const A& a, f64, i128 min, i128 max, u32 code) {
  return lift(a, [&](auto x) { return integer_of<R>(thread, static_cast<f64>(x), min, max, code); });
}

// 128-bit operations whose result may leave 128 bits.
WL_DEVICE bool overflows_add(i128 x, i128 y, i128& sum) {
  sum = static_cast<i128>(static_cast<u128>(x) + static_cast<u128>(y));
  return ((x ^ sum) & (y ^ sum)) < 0;
}
WL_DEVICE bool overflows_multiply(i128 x, i128 y, i128& product) {
  const bool negative = (x < 0) != (y < 0);
  const u128 a = x < 0 ? -static_cast<u128>(x) : static_cast<u128>(x);
  const u128 b = y < 0 ? -static_cast<u128>(y) : static_cast<u128>(y);
  const u64 a_high = static_cast<u64>(a >> 64), b_high = static_cast<u64>(b >> 64);
  const u64 a_low = static_cast<u64>(a), b_low = static_cast<u64>(b);
  if (a_high != 0 && b_high != 0) return true;
  const u128 cross = static_cast<u128>(a_high) * b_low + static_cast<u128>(a_low) * b_high;
  if ((cross >> 64) != 0) return true;
  const u128 low = static_cast<u128>(a_low) * b_low;
  const u128 magnitude = low + (cross << 64);
  if (magnitude < low) return true;
  const u128 limit = (static_cast<u128>(1) << 127) - (negative ? 0 : 1);
  product = static_cast<i128>(negative ? -magnitude : magnitude);
  return magnitude > limit;
}

template <class A, class B>
WL_DEVICE auto add_checked(Thread& thread, const A& a, const B& b, u32 code) {
  return lift(a, b, [&](auto x, auto y) {
    i128 r;
    if (overflows_add(x, y, r)) raise(thread, code);
    return r;
  });
}
template <class A, class B>
WL_DEVICE auto subtract_checked(Thread& thread, const A& a, const B& b, u32 code) {
  return lift(a, b, [&](auto x, auto y) {
    const i128 wide = x, other = y;
    const i128 r = static_cast<i128>(static_cast<u128>(wide) - static_cast<u128>(other));
    if (((wide ^ other) & (wide ^ r)) < 0) raise(thread, code);
    return r;
  });
}
template <class A, class B>
WL_DEVICE auto multiply_checked(Thread& thread, const A& a, const B& b, u32 code) {
  return lift(a, b, [&](auto x, auto y) {
    i128 r = 0;
    if (overflows_multiply(x, y, r)) raise(thread, code);
    return r;
  });
}

// Narrows to R after a check against the bounds of the SQL type.
template <class R, class A>
WL_DEVICE auto narrow(Thread& thread, const A& a, i128 min, i128 max, u32 code) {
  return lift(a, [&](auto x) {
    if (static_cast<i128>(x) < min || static_cast<i128>(x) > max) raise(thread, code);
    return static_cast<R>(x);
  });
}

// As narrow, but null where the bounds are left: TRY_CAST.
template <class R, class A>
WL_DEVICE Opt<R> narrow_or_null(const A& a, i128 min, i128 max) {
  if (!is_valid(a)) return null<R>();
  const i128 x = static_cast<i128>(value_of(a));
  return x < min || x > max ? null<R>() : some(static_cast<R>(x));
}

// Division rounds towards zero, as SQL does; the quotient of R's smallest value
// and -1 does not fit and is checked by the caller's range.
template <class R, class A, class B>
WL_DEVICE auto divide(Thread& thread, const A& a, const B& b) {
  return lift(a, b, [&](auto x, auto y) {
    if (y == 0) {
      raise(thread, FAULT_DIVISION_BY_ZERO);
      return R{0};
    }
    return static_cast<R>(static_cast<R>(x) / static_cast<R>(y));
  });
}
template <class R, class A, class B>
WL_DEVICE auto modulo(Thread& thread, const A& a, const B& b) {
  return lift(a, b, [&](auto x, auto y) {
    if (y == 0) {
      raise(thread, FAULT_DIVISION_BY_ZERO);
      return R{0};
    }
    // The remainder by -1 is 0; computing it would overflow for the smallest value.
    if (static_cast<R>(y) == R(-1)) return R{0};
    return static_cast<R>(static_cast<R>(x) % static_cast<R>(y));
  });
}

// Division by a positive power of ten that rounds half away from zero: what
// casting a decimal to fewer digits after the point means.
template <class R, class A>
WL_DEVICE auto divide_half_up(const A& a, i128 power) {
  return lift(a, [&](auto x) {
    const i128 wide = x;
    const i128 half = power / 2;
    return static_cast<R>((wide >= 0 ? wide + half : wide - half) / power);
  });
}
