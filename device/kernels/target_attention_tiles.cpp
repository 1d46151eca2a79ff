// Attention of the target for every instruction set: Highway's run-time dispatch for fp32 and for
// bf16 by widening, and a form of its own for avx512_bf16, whose pair product Highway 1.0 lacks.
#include "device/kernels/target_attention.hpp"

#include <c10/util/BFloat16.h>

#include <bit>

#if defined(__x86_64__)
#include <immintrin.h>
// GCC 12 takes the undefined source of unmasked intrinsics for a use of an uninitialised value.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/kernels/target_attention_tiles.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#define DFLASH_ATTENTION_NAMESPACE HWY_NAMESPACE
#define DFLASH_ATTENTION_INLINE inline HWY_ATTR __attribute__((always_inline))
#define DFLASH_ATTENTION_FUNCTION HWY_ATTR
HWY_BEFORE_NAMESPACE();
#include "device/kernels/target_attention-inl.hpp"
#undef DFLASH_ATTENTION_NAMESPACE
#undef DFLASH_ATTENTION_INLINE
#undef DFLASH_ATTENTION_FUNCTION

namespace dflash::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using lane_tag = hn::CappedTag<float, 16>;
using bits_tag = hn::RebindToUnsigned<lane_tag>;
constexpr size_t lanes = hn::MaxLanes(lane_tag());
constexpr size_t parts = 16 / lanes;

// 16 lanes as one or several registers.
struct lanes16 {
  hn::Vec<lane_tag> part[parts];
};

struct lane_ops {
  using vec = lanes16;
  static HWY_INLINE HWY_ATTR vec set(float x) {
    vec out;
    for (size_t i = 0; i < parts; ++i) out.part[i] = hn::Set(lane_tag(), x);
    return out;
  }
  static HWY_INLINE HWY_ATTR vec zero() { return set(0); }
  static HWY_INLINE HWY_ATTR vec load(const float* from) {
    vec out;
    for (size_t i = 0; i < parts; ++i) out.part[i] = hn::LoadU(lane_tag(), from + i * lanes);
    return out;
  }
  static HWY_INLINE HWY_ATTR void store(float* to, const vec& x) {
    for (size_t i = 0; i < parts; ++i) hn::StoreU(x.part[i], lane_tag(), to + i * lanes);
  }
  static HWY_INLINE HWY_ATTR vec add(const vec& a, const vec& b) {
    vec out;
    for (size_t i = 0; i < parts; ++i) out.part[i] = hn::Add(a.part[i], b.part[i]);
    return out;
  }
  static HWY_INLINE HWY_ATTR vec sub(const vec& a, const vec& b) {
    vec out;
    for (size_t i = 0; i < parts; ++i) out.part[i] = hn::Sub(a.part[i], b.part[i]);
    return out;
  }
  static HWY_INLINE HWY_ATTR vec mul(const vec& a, const vec& b) {
    vec out;
    for (size_t i = 0; i < parts; ++i) out.part[i] = hn::Mul(a.part[i], b.part[i]);
    return out;
  }
  static HWY_INLINE HWY_ATTR vec max(const vec& a, const vec& b) {
    vec out;
    for (size_t i = 0; i < parts; ++i) out.part[i] = hn::Max(a.part[i], b.part[i]);
    return out;
  }
  static HWY_INLINE HWY_ATTR float reduce_max(const vec& x) {
    auto all = x.part[0];
    for (size_t i = 1; i < parts; ++i) all = hn::Max(all, x.part[i]);
    return hn::GetLane(hn::MaxOfLanes(lane_tag(), all));
  }
  static HWY_INLINE HWY_ATTR float reduce_add(const vec& x) {
    auto all = x.part[0];
    for (size_t i = 1; i < parts; ++i) all = hn::Add(all, x.part[i]);
    return hn::GetLane(hn::SumOfLanes(lane_tag(), all));
  }
  // exp of x <= 0, Cephes' polynomial; 0 below -87.3, NaN stays NaN (Max gives its second
  // argument).
  static HWY_INLINE HWY_ATTR vec exp(const vec& x) {
    vec out;
    const lane_tag d;
    const hn::RebindToSigned<lane_tag> di;
    const auto low = hn::Set(d, -87.33F);
    for (size_t i = 0; i < parts; ++i) {
      const auto dead = hn::Lt(x.part[i], low);
      const auto v = hn::Max(low, x.part[i]);
      const auto n = hn::Round(hn::Mul(v, hn::Set(d, 1.44269504088896341F)));
      auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), v);
      r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), r);
      auto p = hn::Set(d, 1.9875691500e-4F);
      p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3F));
      p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3F));
      p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2F));
      p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1F));
      p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1F));
      p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0F));
      const auto scale =
          hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127))));
      out.part[i] = hn::IfThenZeroElse(dead, hn::Mul(p, scale));
    }
    return out;
  }
};

struct float_ops : lane_ops {
  using element = float;
  using pair = vec;
  static constexpr int64_t step = 1;
  static HWY_INLINE HWY_ATTR pair load_pair(const float* from) { return load(from); }
  static HWY_INLINE HWY_ATTR vec spread(const float* from) { return set(*from); }
  static HWY_INLINE HWY_ATTR vec dot(const vec& acc, const pair& a, const vec& b) {
    vec out;
    for (size_t i = 0; i < parts; ++i) out.part[i] = hn::MulAdd(a.part[i], b.part[i], acc.part[i]);
    return out;
  }
  static HWY_INLINE HWY_ATTR void store_element(float* to, const vec& x) { store(to, x); }
  static float to_element(float x) { return x; }
};

// Pairs of bf16 widened to fp32: right everywhere, meant for CPUs without avx512_bf16.
struct bf16_ops : lane_ops {
  using element = uint16_t;
  static constexpr int64_t step = 2;
  struct pair {
    vec low, high;
  };
  static HWY_INLINE HWY_ATTR pair load_pair(const uint16_t* from) {
    pair out;
    for (size_t i = 0; i < parts; ++i) {
      const auto bits =
          hn::LoadU(bits_tag(), reinterpret_cast<const uint32_t*>(from + 2 * i * lanes));
      out.low.part[i] = hn::BitCast(lane_tag(), hn::ShiftLeft<16>(bits));
      out.high.part[i] = hn::BitCast(lane_tag(), hn::And(bits, hn::Set(bits_tag(), 0xFFFF0000U)));
    }
    return out;
  }
  static HWY_INLINE HWY_ATTR pair spread(const uint16_t* from) {
    return {set(std::bit_cast<float>(uint32_t{from[0]} << 16)),
            set(std::bit_cast<float>(uint32_t{from[1]} << 16))};
  }
  static HWY_INLINE HWY_ATTR vec dot(const vec& acc, const pair& a, const pair& b) {
    vec out;
    for (size_t i = 0; i < parts; ++i)
      out.part[i] = hn::MulAdd(
          a.high.part[i], b.high.part[i], hn::MulAdd(a.low.part[i], b.low.part[i], acc.part[i]));
    return out;
  }
  static HWY_INLINE HWY_ATTR void store_element(uint16_t* to, const vec& x) {
    alignas(64) float wide[16];
    store(wide, x);
    for (int i = 0; i < 16; ++i) to[i] = to_element(wide[i]);
  }
  static uint16_t to_element(float x) { return c10::BFloat16(x).x; }
};

HWY_ATTR void attend_float(const detail::attention_tile& work) {
  attend_tile<float_ops>(work);
}
HWY_ATTR void attend_bf16(const detail::attention_tile& work) {
  attend_tile<bf16_ops>(work);
}

}  // namespace dflash::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#if defined(__x86_64__)
#define DFLASH_ATTENTION_NAMESPACE native_bf16
#define DFLASH_NATIVE_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define DFLASH_ATTENTION_INLINE inline DFLASH_NATIVE_TARGET __attribute__((always_inline))
#define DFLASH_ATTENTION_FUNCTION DFLASH_NATIVE_TARGET
#include "device/kernels/target_attention-inl.hpp"

namespace dflash::kernel::native_bf16 {

struct ops {
  using element = uint16_t;
  using vec = __m512;
  using pair = __m512bh;
  static constexpr int64_t step = 2;
#define DFLASH_OP static DFLASH_ATTENTION_INLINE
  DFLASH_OP vec zero() {
    return _mm512_setzero_ps();
  }
  DFLASH_OP vec set(float x) {
    return _mm512_set1_ps(x);
  }
  DFLASH_OP vec load(const float* from) {
    return _mm512_loadu_ps(from);
  }
  DFLASH_OP void store(float* to, vec x) {
    _mm512_storeu_ps(to, x);
  }
  DFLASH_OP vec add(vec a, vec b) {
    return _mm512_add_ps(a, b);
  }
  DFLASH_OP vec sub(vec a, vec b) {
    return _mm512_sub_ps(a, b);
  }
  DFLASH_OP vec mul(vec a, vec b) {
    return _mm512_mul_ps(a, b);
  }
  DFLASH_OP vec max(vec a, vec b) {
    return _mm512_max_ps(a, b);
  }
  DFLASH_OP float reduce_max(vec x) {
    return _mm512_reduce_max_ps(x);
  }
  DFLASH_OP float reduce_add(vec x) {
    return _mm512_reduce_add_ps(x);
  }
  DFLASH_OP pair load_pair(const uint16_t* from) {
    return reinterpret_cast<pair>(_mm512_loadu_si512(from));
  }
  DFLASH_OP pair spread(const uint16_t* from) {
    uint32_t word;
    std::memcpy(&word, from, sizeof word);
    return reinterpret_cast<pair>(_mm512_set1_epi32(static_cast<int>(word)));
  }
  DFLASH_OP vec dot(vec acc, pair a, pair b) {
    return _mm512_dpbf16_ps(acc, a, b);
  }
  DFLASH_OP void store_element(uint16_t* to, vec x) {
    const auto narrow = _mm512_cvtneps_pbh(x);
    std::memcpy(to, &narrow, sizeof narrow);
  }
  // As lane_ops::exp; below -104 scalef underflows to 0, NaN stays NaN.
  DFLASH_OP vec exp(vec x) {
    const vec v = _mm512_max_ps(_mm512_set1_ps(-110.0F), x);
    const vec n = _mm512_roundscale_ps(_mm512_mul_ps(v, _mm512_set1_ps(1.44269504088896341F)), 0);
    vec r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F), v);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4F), r);
    vec p = _mm512_set1_ps(1.9875691500e-4F);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3F));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3F));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2F));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1F));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1F));
    p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0F));
    return _mm512_scalef_ps(p, n);
  }
#undef DFLASH_OP
  static uint16_t to_element(float x) {
    return c10::BFloat16(x).x;
  }
};

DFLASH_NATIVE_TARGET void attend_native(const detail::attention_tile& work) {
  attend_tile<ops>(work);
}

}  // namespace dflash::kernel::native_bf16
#endif

namespace dflash::kernel::detail {

HWY_EXPORT(attend_float);
HWY_EXPORT(attend_bf16);

namespace {
void dispatch_float(const attention_tile& work) {
  HWY_DYNAMIC_DISPATCH(attend_float)(work);
}
void dispatch_bf16(const attention_tile& work) {
  HWY_DYNAMIC_DISPATCH(attend_bf16)(work);
}
}  // namespace

tile_function portable_tile_function(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Float ? dispatch_float : dispatch_bf16;
}

tile_function tile_function_for(c10::ScalarType dtype) {
#if defined(__x86_64__)
  static const bool native = __builtin_cpu_supports("avx512bf16") != 0;
  if (native && dtype == c10::ScalarType::BFloat16) return native_bf16::attend_native;
#endif
  return portable_tile_function(dtype);
}

}  // namespace dflash::kernel::detail
#endif  // HWY_ONCE
