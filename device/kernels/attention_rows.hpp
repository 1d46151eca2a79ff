// Row operations between the products of block_attention: softmax of a tile and its backward.
// Single-threaded.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace dflash::kernel {

// Online softmax over one tile of scores [m, n] (row stride ld; -inf where masked; n: multiple of
// 16). top [m]: largest scaled score so far, sum [m]: of exponentials relative to it; both updated,
// and out [m, ldo] (the accumulated output) is scaled to the new top. p [m, ldp] = exp(scale x
// score - top).
template <class T>
struct softmax_tile {
  int64_t m, n;
  const float* scores;
  int64_t ld;
  float scale;
  float* top;
  float* sum;
  T* p;
  int64_t ldp;
  float* out;
  int64_t ldo;
};
void softmax_rows(const softmax_tile<float>& t);
void softmax_rows(const softmax_tile<c10::BFloat16>& t);

// From scores and dp [m, n] (row stride ld): p = exp(scale x score - lse), ds = p (dp - delta)
// scale. ds_rows [m, n] (row stride n); p_pairs, ds_pairs packed along m as tile_gemm's B: [m /
// pair][n][pair], an odd last row paired with zeros.
template <class T>
struct softmax_backward_tile {
  int64_t m, n;
  const float* scores;
  const float* dp;
  int64_t ld;
  float scale;
  const float* lse;    // [m]
  const float* delta;  // [m] sum of out x d_out
  T* ds_rows;
  T* p_pairs;
  T* ds_pairs;
};
void softmax_backward_rows(const softmax_backward_tile<float>& t);
void softmax_backward_rows(const softmax_backward_tile<c10::BFloat16>& t);

}  // namespace dflash::kernel
