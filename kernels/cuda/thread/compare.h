// Comparisons of one row. Floats compare by SQL's rules here: NaN equals NaN and
// is larger than everything else, and -0.0 equals 0.0.
#pragma once

template <class T>
WL_DEVICE bool equal_values(T a, T b) {
  return a == b;
}
template <class T>
WL_DEVICE bool less_values(T a, T b) {
  return a < b;
}
WL_DEVICE bool equal_values(f64 a, f64 b) { return a == b || (a != a && b != b); }
WL_DEVICE bool less_values(f64 a, f64 b) { return a < b || (b != b && a == a); }
WL_DEVICE bool equal_values(f32 a, f32 b) { return a == b || (a != a && b != b); }
WL_DEVICE bool less_values(f32 a, f32 b) { return a < b || (b != b && a == a); }

// R is the register that holds both sides.
template <class R, class A, class B>
WL_DEVICE auto equal(const A& a, const B& b) {
  return lift(a, b, [](auto x, auto y) { return equal_values(static_cast<R>(x), static_cast<R>(y)); });
}
template <class R, class A, class B>
WL_DEVICE auto not_equal(const A& a, const B& b) {
  return lift(a, b, [](auto x, auto y) { return !equal_values(static_cast<R>(x), static_cast<R>(y)); });
}
template <class R, class A, class B>
WL_DEVICE auto less(const A& a, const B& b) {
  return lift(a, b, [](auto x, auto y) { return less_values(static_cast<R>(x), static_cast<R>(y)); });
}
template <class R, class A, class B>
WL_DEVICE auto less_or_equal(const A& a, const B& b) {
  return lift(a, b, [](auto x, auto y) { return !less_values(static_cast<R>(y), static_cast<R>(x)); });
}

// Null-safe equality: never null.
template <class R, class A, class B>
WL_DEVICE bool not_distinct(const A& a, const B& b) {
  if (!is_valid(a) || !is_valid(b)) return is_valid(a) == is_valid(b);
  return equal_values(static_cast<R>(value_of(a)), static_cast<R>(value_of(b)));
}

// The float that stands for all that are equal to it: one zero, one NaN.
template <class R, class A>
WL_DEVICE auto float_key(const A& a) {
  return lift(a, [](auto x) {
    if constexpr (sizeof(R) == sizeof(f64)) {
      return x != x ? bit_cast<f64>(u64{0x7ff8000000000000}) : x + 0.0;
    } else {
      return x != x ? bit_cast<f32>(u32{0x7fc00000}) : x + 0.0f;
    }
  });
}
