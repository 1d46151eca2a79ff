// Packings of attention operands for tile_gemm, shared by the forward and backward kernels of
// block_attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "device/kernels/block_attention.hpp"
#include "device/kernels/tile_gemm.hpp"

namespace dflash::kernel::detail {

inline int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

// Sizes that both kernels derive from a layout.
template <class T>
struct attention_sizes {
  explicit attention_sizes(const attention_layout& l)
      : group(l.heads / l.kv_heads),
        rows(group * l.queries()),
        rows_k(round_up(rows, pair_of<T>)),
        width_k(round_up(l.head_dim, pair_of<T>)),
        width_n(round_up(l.head_dim, 16)),
        block_n(round_up(l.block_size, 16)) {}
  int64_t group;    // query heads per kv head
  int64_t rows;     // query rows of one block and kv head: (head of the group, slot)
  int64_t rows_k;   // rows as an inner dimension
  int64_t width_k;  // hd as an inner dimension
  int64_t width_n;  // hd as columns
  int64_t block_n;  // B as columns
};

// Rows [first, first + n) of x, one head: element (i, j) at p[i * stride + j].
template <class T>
struct head_rows {
  const T* p;
  int64_t stride;
};
template <class T>
head_rows<T> rows_of(const at::Tensor& x, int64_t head) {
  return {x.const_data_ptr<T>() + head * x.stride(1), x.stride(0)};
}

// Rows become columns: [width_k / pair][columns][pair], for products with x transposed. Fills
// columns [first, first + n) of `columns`; the caller zeroes the rest.
template <class T>
void pack_transposed(
    T* out, head_rows<T> x, int64_t first, int64_t n, int64_t hd, int64_t columns) {
  constexpr int64_t p = pair_of<T>;
  for (int64_t i = 0; i < n; ++i) {
    const T* row = x.p + (first + i) * x.stride;
    T* at = out + (first + i) * p;
    int64_t j = 0;
    for (; j + p <= hd; j += p) std::memcpy(at + j * columns, row + j, sizeof(T) * p);
    for (; j < hd; ++j) at[j / p * p * columns + j % p] = row[j];
  }
}

// Rows stay rows: [n / pair][width_n][pair], for products with x. Rows [first, first + n), first
// even.
template <class T>
void pack_rows(T* out, head_rows<T> x, int64_t first, int64_t n, int64_t hd, int64_t width_n) {
  constexpr int64_t p = pair_of<T>;
  for (int64_t i = first; i < first + n; ++i) {
    const T* row = x.p + i * x.stride;
    T* at = out + i / p * p * width_n + i % p;
    for (int64_t j = 0; j < hd; ++j) at[j * p] = row[j];
  }
}

// -inf over the columns of one block's tile that a row may not see. scores: [rows, n] (row stride
// ld), column j is context token first + j.
inline void mask_context(const attention_layout& l,
                         int64_t a,
                         int64_t group,
                         int64_t first,
                         int64_t n,
                         float* scores,
                         int64_t ld) {
  constexpr float none = -std::numeric_limits<float>::infinity();
  const int64_t end = l.anchor[static_cast<size_t>(a)];
  const int64_t last_low = l.first_key(a, l.block_size - 1);
  if (first >= last_low && first + n <= end) return;  // every row sees all
  for (int64_t r = 0; r < group * l.queries(); ++r) {
    const int64_t low = l.first_key(a, l.first_slot + r % l.queries());
    float* row = scores + r * ld;
    const int64_t head = std::clamp<int64_t>(low - first, 0, n);
    const int64_t tail = std::clamp<int64_t>(end - first, 0, n);
    std::fill(row, row + head, none);
    std::fill(row + tail, row + n, none);
  }
}

inline void mask_block(const attention_layout& l, int64_t group, float* scores, int64_t n) {
  constexpr float none = -std::numeric_limits<float>::infinity();
  for (int64_t r = 0; r < group * l.queries(); ++r)
    for (int64_t j = 0; j < n; ++j)
      if (j >= l.block_size || !l.sees_slot(l.first_slot + r % l.queries(), j))
        scores[r * n + j] = none;
}

// The part of context tokens [first, last) that block a sees at all, widened to whole vectors.
struct key_range {
  int64_t first, last;
  bool empty() const { return first >= last; }
};
inline key_range visible_keys(const attention_layout& l, int64_t a, int64_t first, int64_t last) {
  const int64_t low = std::max(first, l.first_key(a, l.first_slot));
  const int64_t end = std::min<int64_t>(last, l.anchor[static_cast<size_t>(a)]);
  if (low >= end) return {0, 0};
  return {low / 16 * 16, round_up(end, 16)};
}

// Query rows of block a and kv head h: [rows, width_k], zero-padded.
template <class T>
void gather_queries(const attention_layout& l,
                    const attention_sizes<T>& s,
                    const at::Tensor& q,
                    int64_t a,
                    int64_t h,
                    T* out) {
  for (int64_t r = 0; r < s.rows; ++r) {
    const int64_t row = a * l.queries() + r % l.queries();
    const T* from =
        q.const_data_ptr<T>() + row * q.stride(0) + (h * s.group + r / l.queries()) * q.stride(1);
    std::memcpy(out + r * s.width_k, from, sizeof(T) * static_cast<size_t>(l.head_dim));
    std::fill(out + r * s.width_k + l.head_dim, out + (r + 1) * s.width_k, T(0));
  }
}

constexpr int64_t key_tile = 128;

}  // namespace dflash::kernel::detail
