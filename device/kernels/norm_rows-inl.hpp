// Row functions of norms.cpp, compiled once per instruction set.
#if defined(DFLASH_NORM_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef DFLASH_NORM_ROWS_INL
#undef DFLASH_NORM_ROWS_INL
#else
#define DFLASH_NORM_ROWS_INL
#endif

#include <cmath>

#include "device/kernels/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace dflash::kernel::HWY_NAMESPACE {

template <class T>
HWY_INLINE float sum_of_squares(const T* x, size_t n) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = load(d, x + i), b = load(d, x + i + lanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  for (; i + lanes <= n; i += lanes) {
    const auto a = load(d, x + i);
    sum0 = hn::MulAdd(a, a, sum0);
  }
  if (i < n) {
    const auto a = load_n(d, x + i, n - i);
    sum1 = hn::MulAdd(a, a, sum1);
  }
  return sum_lanes(d, hn::Add(sum0, sum1));
}

template <class X, class Y>
HWY_INLINE void norm_row(Y* y, const X* x, const float* w, size_t n, float eps) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  const auto r = hn::Set(d, 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps));
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    store(d, hn::Mul(hn::Mul(load(d, x + i), r), load(d, w + i)), y + i);
  if (i < n)
    store_n(d, hn::Mul(hn::Mul(load_n(d, x + i, n - i), r), load_n(d, w + i, n - i)), y + i, n - i);
}

// dx = add + r (dy w - x r^2 mean(dy w x)), dw += dy x r; dx or add may be null.
template <class X, class G>
HWY_INLINE void norm_backward_row(
    G* dx, float* dw, const G* dy, const X* x, const float* w, const G* add, size_t n, float eps) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  auto squares = hn::Zero(d), dots = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto xi = load(d, x + i);
    squares = hn::MulAdd(xi, xi, squares);
    dots = hn::MulAdd(hn::Mul(load(d, dy + i), load(d, w + i)), xi, dots);
  }
  if (i < n) {
    const auto xi = load_n(d, x + i, n - i);
    squares = hn::MulAdd(xi, xi, squares);
    dots = hn::MulAdd(hn::Mul(load_n(d, dy + i, n - i), load_n(d, w + i, n - i)), xi, dots);
  }
  const float count = static_cast<float>(n);
  const float scale = 1.0f / std::sqrt(sum_lanes(d, squares) / count + eps);
  const auto r = hn::Set(d, scale);
  const auto pull = hn::Set(d, sum_lanes(d, dots) / count * scale * scale);
  for (i = 0; i + lanes <= n; i += lanes) {
    const auto xi = load(d, x + i), gi = load(d, dy + i);
    store(d, hn::MulAdd(hn::Mul(gi, xi), r, load(d, dw + i)), dw + i);
    if (dx == nullptr) continue;
    const auto inner = hn::NegMulAdd(xi, pull, hn::Mul(gi, load(d, w + i)));
    store(d, hn::MulAdd(inner, r, add ? load(d, add + i) : hn::Zero(d)), dx + i);
  }
  if (i < n) {
    const size_t rest = n - i;
    const auto xi = load_n(d, x + i, rest), gi = load_n(d, dy + i, rest);
    store_n(d, hn::MulAdd(hn::Mul(gi, xi), r, load_n(d, dw + i, rest)), dw + i, rest);
    if (dx == nullptr) return;
    const auto inner = hn::NegMulAdd(xi, pull, hn::Mul(gi, load_n(d, w + i, rest)));
    store_n(d, hn::MulAdd(inner, r, add ? load_n(d, add + i, rest) : hn::Zero(d)), dx + i, rest);
  }
}

// (y1, y2) = (x1 cos - s x2 sin, x2 cos + s x1 sin), s = 1 forward, -1 back; halves of length n.
template <class X, class Y>
HWY_INLINE void rotate_row(Y* y, const X* x, const float* c, const float* s, size_t n, float sign) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  const auto turn = hn::Set(d, sign);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto a = load(d, x + i), b = load(d, x + n + i);
    const auto ci = load(d, c + i), si = hn::Mul(load(d, s + i), turn);
    store(d, hn::NegMulAdd(b, si, hn::Mul(a, ci)), y + i);
    store(d, hn::MulAdd(a, si, hn::Mul(b, ci)), y + n + i);
  }
  if (i < n) {
    const size_t rest = n - i;
    const auto a = load_n(d, x + i, rest), b = load_n(d, x + n + i, rest);
    const auto ci = load_n(d, c + i, rest), si = hn::Mul(load_n(d, s + i, rest), turn);
    store_n(d, hn::NegMulAdd(b, si, hn::Mul(a, ci)), y + i, rest);
    store_n(d, hn::MulAdd(a, si, hn::Mul(b, ci)), y + n + i, rest);
  }
}

template <class V>
HWY_INLINE float_vec sigmoid(float_tag d, V x) {
  // exp of a non-positive number on both sides of 0, so that nothing overflows
  const auto e = exp_lanes(d, hn::Neg(hn::Abs(x)));
  const auto denominator = hn::Add(hn::Set(d, 1.0f), e);
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, hn::Set(d, 1.0f)), denominator);
}

template <class T>
HWY_INLINE void swiglu_row(T* y, const T* gate, const T* up, size_t n) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto g = load(d, gate + i);
    store(d, hn::Mul(hn::Mul(g, sigmoid(d, g)), load(d, up + i)), y + i);
  }
  if (i < n) {
    const auto g = load_n(d, gate + i, n - i);
    store_n(d, hn::Mul(hn::Mul(g, sigmoid(d, g)), load_n(d, up + i, n - i)), y + i, n - i);
  }
}

template <class T>
HWY_INLINE void swiglu_backward_row(
    T* d_gate, T* d_up, const T* dy, const T* gate, const T* up, size_t n) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  const auto one = hn::Set(d, 1.0f);
  for (size_t i = 0; i < n; i += lanes) {
    const size_t rest = n - i;
    const bool whole = rest >= lanes;
    const auto g = whole ? load(d, gate + i) : load_n(d, gate + i, rest);
    const auto u = whole ? load(d, up + i) : load_n(d, up + i, rest);
    const auto dyi = whole ? load(d, dy + i) : load_n(d, dy + i, rest);
    const auto s = sigmoid(d, g);
    const auto dg = hn::Mul(hn::Mul(dyi, u), hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one)));
    const auto du = hn::Mul(dyi, hn::Mul(g, s));
    if (whole) {
      store(d, dg, d_gate + i);
      store(d, du, d_up + i);
    } else {
      store_n(d, dg, d_gate + i, rest);
      store_n(d, du, d_up + i, rest);
    }
  }
}

template <class T>
HWY_INLINE void accumulate_row(float* into, const T* from, size_t n, bool overwrite) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = load(d, from + i);
    store(d, overwrite ? v : hn::Add(v, load(d, into + i)), into + i);
  }
  for (; i < n; ++i) {
    const float v = static_cast<float>(from[i]);
    into[i] = overwrite ? v : into[i] + v;
  }
}

}  // namespace dflash::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
