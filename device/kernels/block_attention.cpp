#include "device/kernels/block_attention.hpp"

#include <ATen/ops/empty.h>

#include <cmath>

#include "config/error.hpp"
#include "device/kernels/attention_pack.hpp"
#include "device/kernels/attention_rows.hpp"
#include "device/kernels/gpu_attention.hpp"
#include "device/kernels/parallel.hpp"

namespace dflash::kernel {
namespace {

using namespace detail;

// Forward of one block and kv head.
template <class T>
class forward_task {
public:
  forward_task(const attention_layout& l, const attention_input& in, attention_output& out)
      : l_(l),
        s_(l),
        in_(in),
        out_(out),
        q_(static_cast<size_t>(s_.rows * s_.width_k)),
        p_(static_cast<size_t>(s_.rows * std::max(key_tile, s_.block_n))),
        block_k_(static_cast<size_t>(s_.width_k * s_.block_n)),
        block_v_(static_cast<size_t>(s_.block_n * s_.width_n)),
        scores_(static_cast<size_t>(s_.rows * std::max(key_tile, s_.block_n))),
        sum_out_(static_cast<size_t>(s_.rows * s_.width_n)),
        top_(static_cast<size_t>(s_.rows)),
        sum_(static_cast<size_t>(s_.rows)) {}

  // keys: [width_k / pair][columns][pair], values: [columns / pair][width_n][pair] of kv head h.
  void run(int64_t a, int64_t h, const T* keys, const T* values, int64_t columns) {
    gather_queries(l_, s_, in_.q, a, h, q_.data());
    std::fill(top_.begin(), top_.end(), -1e30f);
    std::fill(sum_.begin(), sum_.end(), 0.0f);
    std::fill(sum_out_.begin(), sum_out_.end(), 0.0f);
    constexpr int64_t p = pair_of<T>;
    const key_range all = visible_keys(l_, a, 0, columns);
    for (int64_t first = all.first; first < all.last; first += key_tile) {
      const int64_t n = std::min(key_tile, all.last - first);
      scores(keys + first * p, n, columns);
      mask_context(l_, a, s_.group, first, n, scores_.data(), n);
      add_values(values + first * s_.width_n, n);
    }
    const int64_t b = l_.block_size;
    pack_transposed(block_k_.data(), block_rows(in_.block_k, a, h), 0, b, l_.head_dim, s_.block_n);
    pack_rows(block_v_.data(), block_rows(in_.block_v, a, h), 0, b, l_.head_dim, s_.width_n);
    scores(block_k_.data(), s_.block_n, s_.block_n);
    mask_block(l_, s_.group, scores_.data(), s_.block_n);
    add_values(block_v_.data(), s_.block_n);
    write(a, h);
  }

private:
  head_rows<T> block_rows(const at::Tensor& x, int64_t a, int64_t h) const {
    head_rows<T> rows = rows_of<T>(x, h);
    rows.p += a * l_.block_size * rows.stride;
    return rows;
  }
  void scores(const T* keys, int64_t n, int64_t columns) {
    tile_gemm({.m = s_.rows, .n = n, .k = s_.width_k, .lda = s_.width_k, .ldb = columns, .ldc = n},
              q_.data(),
              keys,
              scores_.data());
  }
  void add_values(const T* values, int64_t n) {
    softmax_rows({.m = s_.rows,
                  .n = n,
                  .scores = scores_.data(),
                  .ld = n,
                  .scale = 1.0f / std::sqrt(static_cast<float>(l_.head_dim)),
                  .top = top_.data(),
                  .sum = sum_.data(),
                  .p = p_.data(),
                  .ldp = n,
                  .out = sum_out_.data(),
                  .ldo = s_.width_n});
    tile_gemm({.m = s_.rows,
               .n = s_.width_n,
               .k = n,
               .lda = n,
               .ldb = s_.width_n,
               .ldc = s_.width_n,
               .add = true},
              p_.data(),
              values,
              sum_out_.data());
  }
  void write(int64_t a, int64_t h) {
    for (int64_t r = 0; r < s_.rows; ++r) {
      const int64_t row = a * l_.queries() + r % l_.queries();
      const int64_t head = h * s_.group + r / l_.queries();
      const size_t i = static_cast<size_t>(r);
      T* to = out_.out.template data_ptr<T>() + (row * l_.heads + head) * l_.head_dim;
      const float f = 1.0f / sum_[i];
      for (int64_t j = 0; j < l_.head_dim; ++j)
        to[j] = static_cast<T>(sum_out_[static_cast<size_t>(r * s_.width_n + j)] * f);
      out_.lse.template data_ptr<float>()[row * l_.heads + head] = top_[i] + std::log(sum_[i]);
    }
  }

  const attention_layout& l_;
  const attention_sizes<T> s_;
  const attention_input& in_;
  attention_output& out_;
  std::vector<T> q_, p_, block_k_, block_v_;
  std::vector<float> scores_, sum_out_, top_, sum_;
};

template <class T>
void forward(const attention_layout& l, const attention_input& in, attention_output& out) {
  const attention_sizes<T> s(l);
  const int64_t context = in.context_k.size(0), columns = round_up(context, 16);
  const int64_t head_size = columns * std::max(s.width_k, s.width_n);
  std::vector<T> keys(static_cast<size_t>(l.kv_heads * head_size));
  std::vector<T> values(static_cast<size_t>(l.kv_heads * head_size));
  const int64_t slices = (context + 255) / 256;
  at::parallel_for(0, l.kv_heads * slices, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t h = i / slices, t = i % slices * 256, n = std::min<int64_t>(256, context - t);
      pack_transposed(
          keys.data() + h * head_size, rows_of<T>(in.context_k, h), t, n, l.head_dim, columns);
      pack_rows(
          values.data() + h * head_size, rows_of<T>(in.context_v, h), t, n, l.head_dim, s.width_n);
    }
  });
  // Sorted anchors see more and more context: blocks are dealt out in turn, so that parts cost
  // about the same. Every (block, head) is computed on its own; bits do not depend on the parts.
  const int64_t parts = std::min<int64_t>(at::get_num_threads(), std::max<int64_t>(1, l.blocks()));
  for_parts(parts, parts, [&](int64_t part, int64_t, int64_t) {
    forward_task<T> task(l, in, out);
    for (int64_t h = 0; h < l.kv_heads; ++h)
      for (int64_t a = part; a < l.blocks(); a += parts)
        task.run(a, h, keys.data() + h * head_size, values.data() + h * head_size, columns);
  });
}

bool fits(const at::Tensor& t, at::ScalarType type) {
  return t.is_cpu() && t.scalar_type() == type && t.stride(-1) == 1;
}

}  // namespace

attention_output block_attention(const attention_layout& l, const attention_input& in) {
  DFLASH_CHECK(l.heads % l.kv_heads == 0 && l.begin.size() == l.anchor.size(), "layout");
  DFLASH_CHECK(
      in.q.size(0) == l.blocks() * l.queries() && in.block_k.size(0) == l.blocks() * l.block_size,
      "rows of the blocks",
      in.q.size(0),
      in.block_k.size(0));
  if (gpu::attends(l, in)) return gpu::block_attention(l, in);
  const auto type = in.q.scalar_type();
  if ((type != at::kFloat && type != at::kBFloat16) || !fits(in.q, type) ||
      !fits(in.context_k, type) || !fits(in.context_v, type) || !fits(in.block_k, type) ||
      !fits(in.block_v, type))
    return block_attention_reference(l, in);
  attention_output out{.out = at::empty({in.q.size(0), l.heads, l.head_dim}, in.q.options()),
                       .lse = at::empty({in.q.size(0), l.heads}, in.q.options().dtype(at::kFloat))};
  if (type == at::kFloat)
    forward<float>(l, in, out);
  else
    forward<c10::BFloat16>(l, in, out);
  return out;
}

}  // namespace dflash::kernel
