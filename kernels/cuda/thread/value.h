// One value that may be null, and three-valued logic over it.
//
// Code for a value that cannot be null uses the plain type; the overloads below
// make a call read the same either way, and the compiler drops what is not needed.
#pragma once

// Reads the bits of one type as another of the same size.
template <class To, class From>
WL_DEVICE void copy_bits(To& to, const From& from) {
  static_assert(sizeof(To) == sizeof(From), "the sizes differ");
  union {
    From from;
    To to;
  } bits;
  bits.from = from;
  to = bits.to;
}

template <class T>
struct Opt {
  T value;
  bool valid;
};

template <class T>
WL_DEVICE Opt<T> some(T value) {
  return Opt<T>{value, true};
}

template <class T>
WL_DEVICE Opt<T> null() {
  return Opt<T>{T{}, false};
}

template <class T>
WL_DEVICE bool is_valid(const T&) {
  return true;
}
template <class T>
WL_DEVICE bool is_valid(const Opt<T>& v) {
  return v.valid;
}

template <class T>
WL_DEVICE T value_of(const T& v) {
  return v;
}
template <class T>
WL_DEVICE T value_of(const Opt<T>& v) {
  return v.value;
}

template <class T>
WL_DEVICE Opt<T> as_opt(const T& v) {
  return some(v);
}
template <class T>
WL_DEVICE Opt<T> as_opt(const Opt<T>& v) {
  return v;
}

// A condition as WHERE and CASE read it: unknown is not true.
WL_DEVICE bool is_true(bool v) { return v; }
WL_DEVICE bool is_true(const Opt<bool>& v) { return v.valid && v.value; }
WL_DEVICE bool is_false(bool v) { return !v; }
WL_DEVICE bool is_false(const Opt<bool>& v) { return v.valid && !v.value; }

WL_DEVICE bool not3(bool v) { return !v; }
WL_DEVICE Opt<bool> not3(const Opt<bool>& v) { return Opt<bool>{!v.value, v.valid}; }

// false AND unknown is false; true OR unknown is true.
WL_DEVICE bool and3(bool a, bool b) { return a && b; }
template <class A, class B>
WL_DEVICE Opt<bool> and3(const A& a, const B& b) {
  const bool f = is_false(a) || is_false(b);
  return Opt<bool>{!f, f || (is_valid(a) && is_valid(b))};
}
WL_DEVICE bool or3(bool a, bool b) { return a || b; }
template <class A, class B>
WL_DEVICE Opt<bool> or3(const A& a, const B& b) {
  const bool t = is_true(a) || is_true(b);
  return Opt<bool>{t, t || (is_valid(a) && is_valid(b))};
}
