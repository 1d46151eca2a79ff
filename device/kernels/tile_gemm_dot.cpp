// The AVX-512 bf16 form of tile_gemm: Highway 1.0.3 has no target with vdpbf16ps, so intrinsics it
// is.
#include "config/error.hpp"
#include "device/kernels/tile_gemm.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#endif

namespace dflash::kernel::detail {

#if defined(__x86_64__)
namespace {

#define DFLASH_DOT_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

// R rows x C vectors of 16 columns, accumulators in registers.
template <int R, int C>
DFLASH_DOT_TARGET void micro(const tile_shape& s,
                             const c10::BFloat16* a,
                             const c10::BFloat16* b,
                             float* c) {
  __m512 sum[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < C; ++v)
      sum[r][v] = s.add ? _mm512_loadu_ps(c + r * s.ldc + v * 16) : _mm512_setzero_ps();
  for (int64_t k = 0; k < s.k; k += 2) {
    __m512bh column[C];
#pragma GCC unroll 4
    for (int v = 0; v < C; ++v) column[v] = (__m512bh)_mm512_loadu_si512(b + k * s.ldb + v * 32);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, a + r * s.lda + k, sizeof(pair));
      const __m512bh row = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], row, column[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < C; ++v) _mm512_storeu_ps(c + r * s.ldc + v * 16, sum[r][v]);
}

template <int C>
void rows(const tile_shape& s, const c10::BFloat16* a, const c10::BFloat16* b, float* c) {
  int64_t r = 0;
  for (; r + 12 <= s.m; r += 12) micro<12, C>(s, a + r * s.lda, b, c + r * s.ldc);
  for (; r + 4 <= s.m; r += 4) micro<4, C>(s, a + r * s.lda, b, c + r * s.ldc);
  for (; r < s.m; ++r) micro<1, C>(s, a + r * s.lda, b, c + r * s.ldc);
}

}  // namespace

bool has_bf16_dot() {
  static const bool has = __builtin_cpu_supports("avx512bf16") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return has;
}

void tile_gemm_dot(const tile_shape& s, const c10::BFloat16* a, const c10::BFloat16* b, float* c) {
  int64_t n = 0;
  for (; n + 32 <= s.n; n += 32) rows<2>(s, a, b + n * 2, c + n);
  for (; n < s.n; n += 16) rows<1>(s, a, b + n * 2, c + n);
}
#else
bool has_bf16_dot() {
  return false;
}
void tile_gemm_dot(const tile_shape&, const c10::BFloat16*, const c10::BFloat16*, float*) {
  DFLASH_CHECK(false, "no bf16 dot product on this CPU");
}
#endif

}  // namespace dflash::kernel::detail
