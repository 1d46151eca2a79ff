// Small matrix products with fp32 accumulation, for tiles that stay in cache (attention).
// Single-threaded. B is packed so that a product step reads whole vectors: fp32 [K][N], bf16 [K /
// 2][N][2] (pairs along K, what the bf16 dot product instructions read). Chosen at run time:
// AVX-512 bf16 dot products, else Highway.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace dflash::kernel {

// Elements of K that one product step takes: K must be a multiple of it.
template <class T>
inline constexpr int64_t pair_of = sizeof(T) == 2 ? 2 : 1;

// c [m, n] (row stride ldc) = or += (add) a [m, k] (row stride lda) x b [k, n]. ldb: columns of b's
// packed rows. n: multiple of 16.
struct tile_shape {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool add = false;
};
void tile_gemm(const tile_shape& s, const float* a, const float* b, float* c);
void tile_gemm(const tile_shape& s, const c10::BFloat16* a, const c10::BFloat16* b, float* c);
// The same by loops, for tests.
void tile_gemm_reference(const tile_shape& s, const float* a, const float* b, float* c);
void tile_gemm_reference(const tile_shape& s,
                         const c10::BFloat16* a,
                         const c10::BFloat16* b,
                         float* c);

namespace detail {
bool has_bf16_dot();
// Only where has_bf16_dot().
void tile_gemm_dot(const tile_shape& s, const c10::BFloat16* a, const c10::BFloat16* b, float* c);
// Any CPU: pairs widened to fp32.
void tile_gemm_widened(const tile_shape& s,
                       const c10::BFloat16* a,
                       const c10::BFloat16* b,
                       float* c);
}  // namespace detail

}  // namespace dflash::kernel
