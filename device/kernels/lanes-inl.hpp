// Vector loads and stores of float and bf16 as float lanes, and exp, for the kernels of this
// folder. Included once per instruction set by Highway's foreach_target; no include guard of the
// usual kind on purpose.
#if defined(DFLASH_LANES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef DFLASH_LANES_INL
#undef DFLASH_LANES_INL
#else
#define DFLASH_LANES_INL
#endif

#include <c10/util/BFloat16.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace dflash::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using float_tag = hn::ScalableTag<float>;
using float_vec = hn::Vec<float_tag>;

HWY_INLINE float_vec load(float_tag d, const float* p) {
  return hn::LoadU(d, p);
}

HWY_INLINE float_vec load(float_tag d, const c10::BFloat16* p) {
  const hn::Rebind<uint16_t, float_tag> d16;
  const hn::RebindToUnsigned<float_tag> d32;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

// bf16 bits of each lane in the low half, rounded to nearest even; NaN stays NaN.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<float_tag>> bf16_bits(float_tag d, float_vec v) {
  const hn::RebindToUnsigned<float_tag> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d32, 0x7FFF)), odd));
  const auto nan = hn::RebindMask(d32, hn::Ne(v, v));
  (void)d;
  return hn::IfThenElse(nan, hn::Set(d32, 0x7FC0), rounded);
}

HWY_INLINE void store(float_tag d, float_vec v, float* p) {
  hn::StoreU(v, d, p);
}

HWY_INLINE void store(float_tag d, float_vec v, c10::BFloat16* p) {
  const hn::Rebind<uint16_t, float_tag> d16;
  hn::StoreU(hn::TruncateTo(d16, bf16_bits(d, v)), d16, reinterpret_cast<uint16_t*>(p));
}

// The first n < Lanes(d) elements; the other lanes are `fill`.
template <class T>
HWY_INLINE float_vec load_n(float_tag d, const T* p, size_t n, float fill = 0.0f) {
  HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)];
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < lanes; ++i) buffer[i] = i < n ? static_cast<float>(p[i]) : fill;
  return hn::Load(d, buffer);
}

template <class T>
HWY_INLINE void store_n(float_tag d, float_vec v, T* p, size_t n) {
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(float)];
  store(d, v, buffer);
  for (size_t i = 0; i < n; ++i) p[i] = buffer[i];
}

HWY_INLINE float sum_lanes(float_tag d, float_vec v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}
HWY_INLINE float max_lanes(float_tag d, float_vec v) {
  return hn::GetLane(hn::MaxOfLanes(d, v));
}

// exp for x <= 88; below -87.3 the result is 0. Cephes' expf, relative error about 1e-7.
HWY_INLINE float_vec exp_lanes(float_tag d, float_vec x) {
  const hn::RebindToSigned<float_tag> di;
  const auto low = hn::Set(d, -87.33f);
  const auto dead = hn::Lt(x, low);
  x = hn::Max(x, low);
  const auto n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  auto p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto scale =
      hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127))));
  return hn::IfThenZeroElse(dead, hn::Mul(p, scale));
}

}  // namespace dflash::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
