// SSSE3, SSE4 and Ice Lake forms add compile time and no speed here.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "device/kernels/attention_rows.hpp"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/kernels/attention_rows.cpp"
#include <hwy/foreach_target.h>

#include "device/kernels/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace dflash::kernel::HWY_NAMESPACE {

using c10::BFloat16;

template <class T>
void softmax_impl(const softmax_tile<T>& t) {
  const float_tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto scale = hn::Set(d, t.scale);
  for (int64_t r = 0; r < t.m; ++r) {
    const float* s = t.scores + r * t.ld;
    T* p = t.p + r * t.ldp;
    auto most = load(d, s);
    for (int64_t i = lanes; i < t.n; i += lanes) most = hn::Max(most, load(d, s + i));
    const float before = t.top[r];
    const float tile_top = max_lanes(d, most) * t.scale;
    const float top = tile_top > before ? tile_top : before;
    const auto offset = hn::Set(d, -top);
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i < t.n; i += lanes) {
      const auto e = exp_lanes(d, hn::MulAdd(load(d, s + i), scale, offset));
      sum = hn::Add(sum, e);
      store(d, e, p + i);
    }
    const float shrink = top > before ? std::exp(before - top) : 1.0f;
    t.sum[r] = t.sum[r] * shrink + sum_lanes(d, sum);
    t.top[r] = top;
    if (shrink == 1.0f) continue;
    const auto f = hn::Set(d, shrink);
    for (int64_t i = 0; i < t.ldo; i += lanes)
      store(d, hn::Mul(f, load(d, t.out + r * t.ldo + i)), t.out + r * t.ldo + i);
  }
}

struct row_pair {
  float_vec p, ds;
};
HWY_INLINE row_pair
backward_lanes(float_tag d, const float* s, const float* dp, float scale, float lse, float delta) {
  const auto k = hn::Set(d, scale);
  const auto p = exp_lanes(d, hn::MulSub(load(d, s), k, hn::Set(d, lse)));
  const auto ds = hn::Mul(hn::Mul(p, hn::Sub(load(d, dp), hn::Set(d, delta))), k);
  return {p, ds};
}

void backward_f(const softmax_backward_tile<float>& t) {
  const float_tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < t.m; ++r)
    for (int64_t i = 0; i < t.n; i += lanes) {
      const row_pair v = backward_lanes(
          d, t.scores + r * t.ld + i, t.dp + r * t.ld + i, t.scale, t.lse[r], t.delta[r]);
      store(d, v.p, t.p_pairs + r * t.n + i);
      store(d, v.ds, t.ds_pairs + r * t.n + i);
      store(d, v.ds, t.ds_rows + r * t.n + i);
    }
}

void backward_b(const softmax_backward_tile<BFloat16>& t) {
  const float_tag d;
  const hn::RebindToUnsigned<float_tag> d32;
  const hn::Rebind<uint16_t, float_tag> d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto* p_pairs = reinterpret_cast<uint32_t*>(t.p_pairs);
  auto* ds_pairs = reinterpret_cast<uint32_t*>(t.ds_pairs);
  auto* ds_rows = reinterpret_cast<uint16_t*>(t.ds_rows);
  for (int64_t r = 0; r < t.m; r += 2) {
    const bool both = r + 1 < t.m;
    for (int64_t i = 0; i < t.n; i += lanes) {
      const row_pair a = backward_lanes(
          d, t.scores + r * t.ld + i, t.dp + r * t.ld + i, t.scale, t.lse[r], t.delta[r]);
      auto p = bf16_bits(d, a.p), ds = bf16_bits(d, a.ds);
      hn::StoreU(hn::TruncateTo(d16, ds), d16, ds_rows + r * t.n + i);
      if (both) {
        const int64_t q = r + 1;
        const row_pair b = backward_lanes(
            d, t.scores + q * t.ld + i, t.dp + q * t.ld + i, t.scale, t.lse[q], t.delta[q]);
        const auto ds_b = bf16_bits(d, b.ds);
        hn::StoreU(hn::TruncateTo(d16, ds_b), d16, ds_rows + q * t.n + i);
        p = hn::Or(p, hn::ShiftLeft<16>(bf16_bits(d, b.p)));
        ds = hn::Or(ds, hn::ShiftLeft<16>(ds_b));
      }
      hn::StoreU(p, d32, p_pairs + r / 2 * t.n + i);
      hn::StoreU(ds, d32, ds_pairs + r / 2 * t.n + i);
    }
  }
}

void softmax_f(const softmax_tile<float>& t) {
  softmax_impl(t);
}
void softmax_b(const softmax_tile<BFloat16>& t) {
  softmax_impl(t);
}

}  // namespace dflash::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::kernel {

HWY_EXPORT(softmax_f);
HWY_EXPORT(softmax_b);
HWY_EXPORT(backward_f);
HWY_EXPORT(backward_b);

void softmax_rows(const softmax_tile<float>& t) {
  HWY_DYNAMIC_DISPATCH(softmax_f)(t);
}
void softmax_rows(const softmax_tile<c10::BFloat16>& t) {
  HWY_DYNAMIC_DISPATCH(softmax_b)(t);
}
void softmax_backward_rows(const softmax_backward_tile<float>& t) {
  HWY_DYNAMIC_DISPATCH(backward_f)(t);
}
void softmax_backward_rows(const softmax_backward_tile<c10::BFloat16>& t) {
  HWY_DYNAMIC_DISPATCH(backward_b)(t);
}

}  // namespace dflash::kernel
#endif
