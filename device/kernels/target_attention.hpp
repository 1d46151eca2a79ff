// Causal attention of the target on the CPU over blocked keys and values: ragged batches of
// decoding, verification and prefill by one kernel. A row's bits depend on its own sequence only,
// never on the other rows of the call, on how its sequence was cut into chunks, or on the number of
// threads. No autograd. bf16 or fp32 storage, fp32 softmax and sums; bf16 products on avx512_bf16.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

namespace dflash::kernel {

struct attention_shape {
  int64_t heads = 0;
  int64_t kv_heads = 0;      // divides heads
  int64_t head_dim = 0;      // hd, even
  int64_t rotary_dims = 0;   // of a head, from its start, that are rotated; 0: all
  int64_t row_elements = 0;  // of a row of qkv; 0: (heads + 2 kv_heads) · hd
  int64_t window = 0;        // row at p sees the keys above p - window; 0: all
  float scale = 0;           // of the scores; 0: hd^-1/2

  int64_t rotary() const { return rotary_dims ? rotary_dims : head_dim; }
  int64_t stride() const { return row_elements ? row_elements : (heads + 2 * kv_heads) * head_dim; }
};

// Keys and values of one sequence in one layer, blocked for the products, s = 2 for bf16 (pairs lie
// side by side), 1 for fp32:
//   keys    [kv_heads, blocks, hd / s, 16, s]       16 tokens a block
//   values  [kv_heads, blocks, 16 / s, padded hd, s]
// `blocks` is a multiple of 4. All memory must hold finite numbers (zeros at first): what lies
// beyond the length is multiplied by zero.
inline constexpr int64_t block_tokens = 16;
inline constexpr int64_t blocks_multiple = 4;

inline int64_t padded_head_dim(int64_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}
inline int64_t key_block_elements(int64_t head_dim) {
  return head_dim * block_tokens;
}
inline int64_t value_block_elements(int64_t head_dim) {
  return padded_head_dim(head_dim) * block_tokens;
}
// Blocks that hold `tokens` tokens.
inline int64_t blocks_for(int64_t tokens) {
  const int64_t multiple = block_tokens * blocks_multiple;
  return (tokens + multiple - 1) / multiple * blocks_multiple;
}

// Consecutive rows that belong to one sequence.
struct attention_span {
  void* keys = nullptr;
  void* values = nullptr;
  int64_t blocks = 0;  // a head, see above
  int64_t first_row = 0;
  int64_t rows = 0;      // tokens
  int64_t position = 0;  // of the first row; row i sees the keys up to position + i
};

// qkv [n, row_elements], rows of query, key and value heads (what follows them is not touched);
// rope [n, rotary dims]: for each row the cos of its angles, then the sin. Rotates the queries in
// place (half-split layout) and writes rotated keys and the values to the spans' blocks.
void store_rotated(c10::ScalarType dtype,
                   void* qkv,
                   const float* rope,
                   attention_shape shape,
                   std::span<const attention_span> spans);

// out [n, heads · hd] = softmax(scale · q kᵀ) v of the rotated queries in qkv.
void attend(c10::ScalarType dtype,
            const void* qkv,
            void* out,
            attention_shape shape,
            std::span<const attention_span> spans);

namespace detail {

inline constexpr int64_t tile_rows = 32;
inline constexpr int64_t max_head_dim = 256;

// One unit of work: some tokens of a sequence against all its keys, for one key head.
struct attention_tile {
  const void* q = nullptr;  // first token, first query head of the key head, within qkv
  void* out = nullptr;      // likewise within out
  int64_t q_stride = 0;     // elements between tokens
  int64_t out_stride = 0;
  int64_t tokens = 0;
  int64_t group = 0;     // query heads of the key head; tokens · group <= tile_rows
  int64_t position = 0;  // of the first token
  int64_t head_dim = 0;
  int64_t window = 0;
  float scale = 0;
  const void* keys = nullptr;  // of the key head
  const void* values = nullptr;
};
using tile_function = void (*)(const attention_tile&);

// The fastest form that this CPU runs.
tile_function tile_function_for(c10::ScalarType dtype);
// The forms by widening instead of bf16 pair products, for tests on CPUs that have both.
tile_function portable_tile_function(c10::ScalarType dtype);

}  // namespace detail
}  // namespace dflash::kernel
