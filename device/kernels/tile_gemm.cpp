// SSSE3, SSE4 and Ice Lake forms add compile time and no speed here.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "device/kernels/tile_gemm.hpp"

#include <cstring>

#include "config/error.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/kernels/tile_gemm.cpp"
#include <hwy/foreach_target.h>

#include "device/kernels/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace dflash::kernel::HWY_NAMESPACE {

using c10::BFloat16;

// R rows x 2 vectors, accumulators in registers.
template <int R>
HWY_INLINE void micro(const tile_shape& s, const float* a, const float* b, float* c) {
  const float_tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float_vec sum[R][2];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v)
      sum[r][v] = s.add ? load(d, c + r * s.ldc + v * lanes) : hn::Zero(d);
  for (int64_t k = 0; k < s.k; ++k) {
    const auto b0 = load(d, b + k * s.ldb), b1 = load(d, b + k * s.ldb + lanes);
    for (int r = 0; r < R; ++r) {
      const auto row = hn::Set(d, a[r * s.lda + k]);
      sum[r][0] = hn::MulAdd(row, b0, sum[r][0]);
      sum[r][1] = hn::MulAdd(row, b1, sum[r][1]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v) store(d, sum[r][v], c + r * s.ldc + v * lanes);
}

template <int R>
HWY_INLINE void micro(const tile_shape& s, const BFloat16* a, const BFloat16* b, float* c) {
  const float_tag d;
  const hn::RebindToUnsigned<float_tag> d32;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float_vec sum[R][2];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v)
      sum[r][v] = s.add ? load(d, c + r * s.ldc + v * lanes) : hn::Zero(d);
  const auto high = hn::Set(d32, 0xFFFF0000u);
  const auto* pairs = reinterpret_cast<const uint32_t*>(b);
  for (int64_t k = 0; k < s.k; k += 2) {
    const auto p0 = hn::LoadU(d32, pairs + k / 2 * s.ldb);
    const auto p1 = hn::LoadU(d32, pairs + k / 2 * s.ldb + lanes);
    const auto even0 = hn::BitCast(d, hn::ShiftLeft<16>(p0)),
               odd0 = hn::BitCast(d, hn::And(p0, high));
    const auto even1 = hn::BitCast(d, hn::ShiftLeft<16>(p1)),
               odd1 = hn::BitCast(d, hn::And(p1, high));
    for (int r = 0; r < R; ++r) {
      const auto first = hn::Set(d, static_cast<float>(a[r * s.lda + k]));
      const auto second = hn::Set(d, static_cast<float>(a[r * s.lda + k + 1]));
      sum[r][0] = hn::MulAdd(second, odd0, hn::MulAdd(first, even0, sum[r][0]));
      sum[r][1] = hn::MulAdd(second, odd1, hn::MulAdd(first, even1, sum[r][1]));
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v) store(d, sum[r][v], c + r * s.ldc + v * lanes);
}

// Two vectors are at most 32 columns; N is a multiple of 16, so a last half pass of 16 columns
// copies through a small buffer where vectors have 16 lanes.
template <class T>
void columns(const tile_shape& s, const T* a, const T* b, float* c) {
  constexpr int64_t per_column = pair_of<T>;
  constexpr int group = HWY_TARGET <= HWY_AVX3 ? 12 : 4;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(float_tag()));
  const int64_t width = 2 * lanes;
  const auto rows = [&](const tile_shape& t, const T* bn, float* cn) {
    int64_t r = 0;
    for (; r + group <= t.m; r += group) micro<group>(t, a + r * t.lda, bn, cn + r * t.ldc);
    for (; r < t.m; ++r) micro<1>(t, a + r * t.lda, bn, cn + r * t.ldc);
  };
  int64_t n = 0;
  for (; n + width <= s.n; n += width) rows(s, b + n * per_column, c + n);
  if (n == s.n) return;
  const int64_t rest = s.n - n, steps = s.k / per_column;
  constexpr int64_t most_steps = 512, most_rows = 64;
  // Slices of K and M keep the buffers on the stack.
  HWY_ALIGN T packed[most_steps * 2 * HWY_MAX_BYTES / sizeof(float) * per_column];
  HWY_ALIGN float out[most_rows * 2 * HWY_MAX_BYTES / sizeof(float)];
  for (int64_t k0 = 0; k0 < steps; k0 += most_steps) {
    const int64_t ks = steps - k0 < most_steps ? steps - k0 : most_steps;
    std::memset(packed, 0, static_cast<size_t>(ks * width * per_column) * sizeof(T));
    for (int64_t k = 0; k < ks; ++k)
      std::memcpy(packed + k * width * per_column,
                  b + ((k0 + k) * s.ldb + n) * per_column,
                  static_cast<size_t>(rest * per_column) * sizeof(T));
    for (int64_t r0 = 0; r0 < s.m; r0 += most_rows) {
      const int64_t rs = s.m - r0 < most_rows ? s.m - r0 : most_rows;
      const tile_shape t{.m = rs,
                         .n = width,
                         .k = ks * per_column,
                         .lda = s.lda,
                         .ldb = width,
                         .ldc = width,
                         .add = false};
      int64_t r = 0;
      const T* at = a + r0 * s.lda + k0 * per_column;
      for (; r + group <= rs; r += group) micro<group>(t, at + r * s.lda, packed, out + r * width);
      for (; r < rs; ++r) micro<1>(t, at + r * s.lda, packed, out + r * width);
      for (r = 0; r < rs; ++r)
        for (int64_t j = 0; j < rest; ++j) {
          float& cell = c[(r0 + r) * s.ldc + n + j];
          cell = (s.add || k0 > 0 ? cell : 0.0f) + out[r * width + j];
        }
    }
  }
}

void gemm_f(const tile_shape& s, const float* a, const float* b, float* c) {
  columns(s, a, b, c);
}
void gemm_b(const tile_shape& s, const BFloat16* a, const BFloat16* b, float* c) {
  columns(s, a, b, c);
}

}  // namespace dflash::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::kernel {

using c10::BFloat16;
HWY_EXPORT(gemm_f);
HWY_EXPORT(gemm_b);

namespace detail {
void tile_gemm_widened(const tile_shape& s, const BFloat16* a, const BFloat16* b, float* c) {
  HWY_DYNAMIC_DISPATCH(gemm_b)(s, a, b, c);
}
}  // namespace detail

void tile_gemm(const tile_shape& s, const float* a, const float* b, float* c) {
  HWY_DYNAMIC_DISPATCH(gemm_f)(s, a, b, c);
}

void tile_gemm(const tile_shape& s, const BFloat16* a, const BFloat16* b, float* c) {
  if (detail::has_bf16_dot())
    detail::tile_gemm_dot(s, a, b, c);
  else
    detail::tile_gemm_widened(s, a, b, c);
}

namespace {
template <class T>
void reference(const tile_shape& s, const T* a, const T* b, float* c) {
  constexpr int64_t p = pair_of<T>;
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = s.add ? c[i * s.ldc + j] : 0.0;
      for (int64_t k = 0; k < s.k; ++k)
        sum += static_cast<double>(a[i * s.lda + k]) *
               static_cast<double>(b[((k / p) * s.ldb + j) * p + k % p]);
      c[i * s.ldc + j] = static_cast<float>(sum);
    }
}
}  // namespace

void tile_gemm_reference(const tile_shape& s, const float* a, const float* b, float* c) {
  reference(s, a, b, c);
}
void tile_gemm_reference(const tile_shape& s, const BFloat16* a, const BFloat16* b, float* c) {
  reference(s, a, b, c);
}

}  // namespace dflash::kernel
#endif
