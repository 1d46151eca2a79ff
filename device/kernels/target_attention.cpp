#include "device/kernels/target_attention.hpp"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "config/error.hpp"

namespace dflash::kernel {
namespace {

// Below this much work (some 20 µs) waking the other threads costs more than they save.
constexpr int64_t parallel_products = 1 << 20;

// Rotates the start of a head (half-split layout): x[i], x[i + half] by the angle i.
template <class T>
void rotate(T* x, const float* angles, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float c = angles[i], s = angles[half + i];
    const auto a = static_cast<float>(x[i]), b = static_cast<float>(x[half + i]);
    x[i] = static_cast<T>(a * c - b * s);
    x[half + i] = static_cast<T>(b * c + a * s);
  }
}

template <class T, int64_t step>
void store_row(T* row,
               const float* angles,
               attention_shape shape,
               const attention_span& span,
               int64_t position) {
  const int64_t hd = shape.head_dim, width = padded_head_dim(hd), half = shape.rotary() / 2;
  for (int64_t h = 0; h < shape.heads + shape.kv_heads; ++h) rotate(row + h * hd, angles, half);
  const int64_t block = position / block_tokens, inside = position % block_tokens;
  for (int64_t h = 0; h < shape.kv_heads; ++h) {
    const T* k = row + (shape.heads + h) * hd;
    T* to = static_cast<T*>(span.keys) + (h * span.blocks + block) * key_block_elements(hd) +
            inside * step;
    for (int64_t d = 0; d < hd; d += step)
      for (int64_t j = 0; j < step; ++j) to[d * block_tokens + j] = k[d + j];
    const T* v = row + (shape.heads + shape.kv_heads + h) * hd;
    to = static_cast<T*>(span.values) + (h * span.blocks + block) * value_block_elements(hd) +
         inside / step * step * width + inside % step;
    for (int64_t d = 0; d < hd; ++d) to[d * step] = v[d];
  }
}

template <class T, int64_t step>
void store_spans(T* qkv,
                 const float* rope,
                 attention_shape shape,
                 std::span<const attention_span> spans) {
  const int64_t stride = shape.stride();
  std::vector<std::pair<const attention_span*, int64_t>> rows;  // span, token within it
  for (const auto& span : spans)
    for (int64_t i = 0; i < span.rows; ++i) rows.emplace_back(&span, i);
  at::parallel_for(0, static_cast<int64_t>(rows.size()), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [span, token] = rows[i];
      const int64_t row = span->first_row + token;
      store_row<T, step>(
          qkv + row * stride, rope + row * shape.rotary(), shape, *span, span->position + token);
    }
  });
}

void check_shape(c10::ScalarType dtype, attention_shape shape) {
  DFLASH_CHECK(dtype == c10::ScalarType::Float || dtype == c10::ScalarType::BFloat16,
               "attention takes fp32 or bf16");
  DFLASH_CHECK(shape.head_dim % 2 == 0 && shape.head_dim <= detail::max_head_dim &&
                   shape.heads % shape.kv_heads == 0 && shape.rotary() % 2 == 0 &&
                   shape.rotary() <= shape.head_dim && shape.window >= 0,
               "attention shape",
               shape.head_dim,
               shape.heads,
               shape.kv_heads);
}

}  // namespace

void store_rotated(c10::ScalarType dtype,
                   void* qkv,
                   const float* rope,
                   attention_shape shape,
                   std::span<const attention_span> spans) {
  check_shape(dtype, shape);
  if (dtype == c10::ScalarType::Float)
    store_spans<float, 1>(static_cast<float*>(qkv), rope, shape, spans);
  else
    store_spans<c10::BFloat16, 2>(static_cast<c10::BFloat16*>(qkv), rope, shape, spans);
}

void attend(c10::ScalarType dtype,
            const void* qkv,
            void* out,
            attention_shape shape,
            std::span<const attention_span> spans) {
  check_shape(dtype, shape);
  const int64_t hd = shape.head_dim, group = shape.heads / shape.kv_heads;
  const int64_t q_stride = shape.stride(), out_stride = shape.heads * hd;
  const float scale =
      shape.scale != 0 ? shape.scale : 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  const int64_t size = dtype == c10::ScalarType::Float ? 4 : 2;
  const int64_t tile_tokens = std::max<int64_t>(1, detail::tile_rows / group);
  DFLASH_CHECK(group <= detail::tile_rows, "too many query heads a key head", group);
  std::vector<detail::attention_tile> tiles;
  for (const auto& span : spans)
    for (int64_t h = 0; h < shape.kv_heads; ++h)
      // The longest first: what is left at the end is short, so the threads end together.
      for (int64_t end = span.rows; end > 0; end -= std::min(end, tile_tokens)) {
        const int64_t token = end - std::min(end, tile_tokens);
        const int64_t row = span.first_row + token;
        detail::attention_tile tile;
        tile.q = static_cast<const char*>(qkv) + (row * q_stride + h * group * hd) * size;
        tile.out = static_cast<char*>(out) + (row * out_stride + h * group * hd) * size;
        tile.q_stride = q_stride;
        tile.out_stride = out_stride;
        tile.tokens = end - token;
        tile.group = group;
        tile.position = span.position + token;
        tile.head_dim = hd;
        tile.window = shape.window;
        tile.scale = scale;
        tile.keys =
            static_cast<const char*>(span.keys) + h * span.blocks * key_block_elements(hd) * size;
        tile.values = static_cast<const char*>(span.values) +
                      h * span.blocks * value_block_elements(hd) * size;
        tiles.push_back(tile);
      }
  const auto function = detail::tile_function_for(dtype);
  const auto count = static_cast<int64_t>(tiles.size());
  int64_t products = 0;
  for (const auto& span : spans)
    products += span.rows * (span.position + span.rows) * shape.heads * hd;
  if (products < parallel_products) {
    for (const auto& tile : tiles) function(tile);
    return;
  }
  std::atomic<int64_t> next{0};
  // Threads take tiles as they come; a tile's result does not depend on who computes it.
  at::parallel_for(0, std::min<int64_t>(at::get_num_threads(), count), 1, [&](int64_t, int64_t) {
    for (int64_t i; (i = next.fetch_add(1)) < count;) function(tiles[i]);
  });
}

}  // namespace dflash::kernel
