#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "config/error.hpp"
#include "device/kernels/attention_pack.hpp"
#include "device/kernels/attention_rows.hpp"
#include "device/kernels/block_attention.hpp"
#include "device/kernels/gpu_attention.hpp"
#include "device/kernels/parallel.hpp"

namespace dflash::kernel {
namespace {

using namespace detail;

// Operands of one kv head, packed once for all tiles.
template <class T>
struct packed_head {
  std::vector<T> keys_t, keys, values_t;  // context: transposed, as rows, transposed
  // Per block: queries and output gradients as rows [rows, width_k] and transposed [hd, rows_k]
  std::vector<T> q, q_t, d_out, d_out_t;
  std::vector<float> lse, delta;  // [A, rows]
};

// One tile of keys (context or a block's own) against one block's queries: scores, dp, and the
// products with their gradient.
template <class T>
class backward_tile {
public:
  backward_tile(const attention_layout& l, const attention_sizes<T>& s) : l_(l), s_(s) {
    const size_t n = static_cast<size_t>(std::max(key_tile, s.block_n));
    const size_t rows = static_cast<size_t>(s.rows), rows_k = static_cast<size_t>(s.rows_k);
    scores_.resize(rows * n);
    dp_.resize(rows * n);
    ds_rows_.resize(rows * n);
    p_pairs_.resize(rows_k * n);
    ds_pairs_.resize(rows_k * n);
  }

  struct operands {
    int64_t a;                   // block
    int64_t n;                   // columns of this tile
    const T *keys_t, *values_t;  // at the first column
    int64_t columns;             // of keys_t and values_t
    const T* keys;               // at the first row
    float* dq;                   // [rows, width_n]
    float *dk_t, *dv_t;          // [hd, ...] at the first column
    int64_t ld;                  // of dk_t and dv_t
  };
  template <class Mask>
  void run(const packed_head<T>& head, const operands& o, const Mask& mask) {
    const int64_t at_rows = o.a * s_.rows;
    const T* q = head.q.data() + at_rows * s_.width_k;
    const T* d_out = head.d_out.data() + at_rows * s_.width_k;
    const tile_shape inner{
        .m = s_.rows, .n = o.n, .k = s_.width_k, .lda = s_.width_k, .ldb = o.columns, .ldc = o.n};
    tile_gemm(inner, q, o.keys_t, scores_.data());
    mask(scores_.data());
    tile_gemm(inner, d_out, o.values_t, dp_.data());
    softmax_backward_rows({.m = s_.rows,
                           .n = o.n,
                           .scores = scores_.data(),
                           .dp = dp_.data(),
                           .ld = o.n,
                           .scale = 1.0f / std::sqrt(static_cast<float>(l_.head_dim)),
                           .lse = head.lse.data() + at_rows,
                           .delta = head.delta.data() + at_rows,
                           .ds_rows = ds_rows_.data(),
                           .p_pairs = p_pairs_.data(),
                           .ds_pairs = ds_pairs_.data()});
    tile_gemm({.m = s_.rows,
               .n = s_.width_n,
               .k = o.n,
               .lda = o.n,
               .ldb = s_.width_n,
               .ldc = s_.width_n,
               .add = true},
              ds_rows_.data(),
              o.keys,
              o.dq);
    const tile_shape outer{.m = l_.head_dim,
                           .n = o.n,
                           .k = s_.rows_k,
                           .lda = s_.rows_k,
                           .ldb = o.n,
                           .ldc = o.ld,
                           .add = true};
    const int64_t at_t = o.a * l_.head_dim * s_.rows_k;
    tile_gemm(outer, head.q_t.data() + at_t, ds_pairs_.data(), o.dk_t);
    tile_gemm(outer, head.d_out_t.data() + at_t, p_pairs_.data(), o.dv_t);
  }

private:
  const attention_layout& l_;
  const attention_sizes<T>& s_;
  std::vector<float> scores_, dp_;
  std::vector<T> ds_rows_, p_pairs_, ds_pairs_;
};

template <class T>
class backward {
public:
  backward(const attention_layout& l,
           const attention_input& in,
           const attention_output& out,
           const at::Tensor& d_out,
           attention_gradients& g)
      : l_(l), s_(l), in_(in), out_(out), d_out_(d_out), g_(g) {}

  void run() {
    context_ = in_.context_k.size(0);
    columns_ = round_up(context_, 16);
    pack();
    plan();
    const int64_t parts = static_cast<int64_t>(cuts_.size()) - 1;
    const int64_t dq_size = l_.kv_heads * l_.blocks() * s_.rows * s_.width_n;
    at::Tensor dq = at::zeros({parts, dq_size}, in_.q.options().dtype(at::kFloat));
    at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) run_part(p, dq.data_ptr<float>() + p * dq_size);
    });
    write_dq(dq, parts, dq_size);
  }

private:
  // A tile of context keys of one kv head, or (block >= 0) a block's own keys.
  struct item {
    int64_t head, tile, block;
  };

  void pack() {
    heads_.resize(static_cast<size_t>(l_.kv_heads));
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    for (packed_head<T>& h : heads_) {
      h.keys_t.resize(size(columns_ * s_.width_k));
      h.values_t.resize(size(columns_ * s_.width_k));
      h.keys.resize(size(columns_ * s_.width_n));
      h.q.resize(size(l_.blocks() * s_.rows * s_.width_k));
      h.d_out.resize(h.q.size());
      h.q_t.resize(size(l_.blocks() * l_.head_dim * s_.rows_k));
      h.d_out_t.resize(h.q_t.size());
      h.lse.resize(size(l_.blocks() * s_.rows));
      h.delta.resize(h.lse.size());
    }
    const int64_t slices = (context_ + 255) / 256, per_head = slices + l_.blocks();
    at::parallel_for(0, l_.kv_heads * per_head, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t h = i / per_head, j = i % per_head;
        if (j < slices)
          pack_context(h, j * 256, std::min<int64_t>(256, context_ - j * 256));
        else
          pack_block(h, j - slices);
      }
    });
  }
  void pack_context(int64_t h, int64_t first, int64_t n) {
    packed_head<T>& p = heads_[static_cast<size_t>(h)];
    const head_rows<T> k = rows_of<T>(in_.context_k, h), v = rows_of<T>(in_.context_v, h);
    pack_transposed(p.keys_t.data(), k, first, n, l_.head_dim, columns_);
    pack_transposed(p.values_t.data(), v, first, n, l_.head_dim, columns_);
    pack_rows(p.keys.data(), k, first, n, l_.head_dim, s_.width_n);
  }
  void pack_block(int64_t h, int64_t a) {
    packed_head<T>& p = heads_[static_cast<size_t>(h)];
    T* q = p.q.data() + a * s_.rows * s_.width_k;
    T* d = p.d_out.data() + a * s_.rows * s_.width_k;
    gather_queries(l_, s_, in_.q, a, h, q);
    gather_queries(l_, s_, d_out_, a, h, d);
    T* q_t = p.q_t.data() + a * l_.head_dim * s_.rows_k;
    T* d_t = p.d_out_t.data() + a * l_.head_dim * s_.rows_k;
    for (int64_t r = 0; r < s_.rows; ++r) {
      const int64_t row = a * l_.queries() + r % l_.queries();
      const int64_t head = h * s_.group + r / l_.queries();
      const T* o = out_.out.const_data_ptr<T>() + (row * l_.heads + head) * l_.head_dim;
      float delta = 0;
      for (int64_t j = 0; j < l_.head_dim; ++j) {
        const T qj = q[r * s_.width_k + j], dj = d[r * s_.width_k + j];
        q_t[j * s_.rows_k + r] = qj;
        d_t[j * s_.rows_k + r] = dj;
        delta += static_cast<float>(dj) * static_cast<float>(o[j]);
      }
      const size_t i = static_cast<size_t>(a * s_.rows + r);
      p.delta[i] = delta;
      p.lse[i] = out_.lse.const_data_ptr<float>()[row * l_.heads + head];
    }
  }

  // Items in a fixed order, cut into one part per thread of about equal cost. No two items write
  // the same keys; queries are written by several, hence one dq per part.
  void plan() {
    std::vector<int64_t> cost;
    for (int64_t h = 0; h < l_.kv_heads; ++h) {
      for (int64_t t = 0; t < context_; t += key_tile) {
        int64_t sum = 0;
        for (int64_t a = 0; a < l_.blocks(); ++a) {
          const key_range r = visible_keys(l_, a, t, std::min(t + key_tile, columns_));
          sum += r.last - r.first;
        }
        if (sum == 0) continue;
        items_.push_back({h, t, -1});
        cost.push_back(sum);
      }
      for (int64_t a = 0; a < l_.blocks(); ++a) {
        items_.push_back({h, 0, a});
        cost.push_back(2 * s_.block_n);
      }
    }
    int64_t total = 0;
    for (const int64_t c : cost) total += c;
    const int64_t parts = std::max<int64_t>(1, at::get_num_threads());
    cuts_.assign(1, 0);
    int64_t sum = 0;
    for (size_t i = 0; i < cost.size(); ++i) {
      sum += cost[i];
      const int64_t cut = static_cast<int64_t>(cuts_.size());
      if (cut < parts && sum * parts >= total * cut) cuts_.push_back(i + 1);
    }
    cuts_.push_back(items_.size());
  }

  void run_part(int64_t part, float* dq) {
    backward_tile<T> tile(l_, s_);
    const int64_t ld = std::max(key_tile, s_.block_n);
    std::vector<float> dk(static_cast<size_t>(l_.head_dim * ld)), dv(dk.size());
    std::vector<T> keys_t(static_cast<size_t>(s_.width_k * s_.block_n)), values_t(keys_t.size());
    std::vector<T> keys(static_cast<size_t>(s_.block_n * s_.width_n));
    for (size_t i = cuts_[static_cast<size_t>(part)]; i < cuts_[static_cast<size_t>(part) + 1];
         ++i) {
      const item& it = items_[i];
      std::fill(dk.begin(), dk.end(), 0.0f);
      std::fill(dv.begin(), dv.end(), 0.0f);
      const packed_head<T>& head = heads_[static_cast<size_t>(it.head)];
      if (it.block >= 0) {
        own_block(tile,
                  head,
                  it,
                  dq,
                  dk.data(),
                  dv.data(),
                  ld,
                  keys_t.data(),
                  values_t.data(),
                  keys.data());
        continue;
      }
      const int64_t end = std::min(it.tile + key_tile, columns_);
      for (int64_t a = 0; a < l_.blocks(); ++a) {
        const key_range r = visible_keys(l_, a, it.tile, end);
        if (r.empty()) continue;
        const int64_t n = r.last - r.first;
        constexpr int64_t p = pair_of<T>;
        tile.run(head,
                 {.a = a,
                  .n = n,
                  .keys_t = head.keys_t.data() + r.first * p,
                  .values_t = head.values_t.data() + r.first * p,
                  .columns = columns_,
                  .keys = head.keys.data() + r.first * s_.width_n,
                  .dq = dq + (it.head * l_.blocks() + a) * s_.rows * s_.width_n,
                  .dk_t = dk.data() + (r.first - it.tile),
                  .dv_t = dv.data() + (r.first - it.tile),
                  .ld = ld},
                 [&](float* scores) { mask_context(l_, a, s_.group, r.first, n, scores, n); });
      }
      const int64_t n = std::min(it.tile + key_tile, context_) - it.tile;
      write_keys(g_.context_k, it.tile, n, it.head, dk.data(), ld);
      write_keys(g_.context_v, it.tile, n, it.head, dv.data(), ld);
    }
  }

  void own_block(backward_tile<T>& tile,
                 const packed_head<T>& head,
                 const item& it,
                 float* dq,
                 float* dk,
                 float* dv,
                 int64_t ld,
                 T* keys_t,
                 T* values_t,
                 T* keys) {
    const int64_t b = l_.block_size;
    head_rows<T> k = rows_of<T>(in_.block_k, it.head), v = rows_of<T>(in_.block_v, it.head);
    k.p += it.block * b * k.stride;
    v.p += it.block * b * v.stride;
    pack_transposed(keys_t, k, 0, b, l_.head_dim, s_.block_n);
    pack_transposed(values_t, v, 0, b, l_.head_dim, s_.block_n);
    pack_rows(keys, k, 0, b, l_.head_dim, s_.width_n);
    tile.run(head,
             {.a = it.block,
              .n = s_.block_n,
              .keys_t = keys_t,
              .values_t = values_t,
              .columns = s_.block_n,
              .keys = keys,
              .dq = dq + (it.head * l_.blocks() + it.block) * s_.rows * s_.width_n,
              .dk_t = dk,
              .dv_t = dv,
              .ld = ld},
             [&](float* scores) { mask_block(l_, s_.group, scores, s_.block_n); });
    write_keys(g_.block_k, it.block * b, b, it.head, dk, ld);
    write_keys(g_.block_v, it.block * b, b, it.head, dv, ld);
  }

  // Transposed sums [hd, ld] to rows [first, first + n) of one head.
  void write_keys(
      at::Tensor& to, int64_t first, int64_t n, int64_t h, const float* from, int64_t ld) {
    for (int64_t i = 0; i < n; ++i) {
      float* row = to.data_ptr<float>() + ((first + i) * l_.kv_heads + h) * l_.head_dim;
      for (int64_t j = 0; j < l_.head_dim; ++j) row[j] = from[j * ld + i];
    }
  }

  void write_dq(const at::Tensor& dq, int64_t parts, int64_t dq_size) {
    const float* from = dq.const_data_ptr<float>();
    at::parallel_for(0, l_.kv_heads * l_.blocks(), 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t h = i / l_.blocks(), a = i % l_.blocks();
        for (int64_t r = 0; r < s_.rows; ++r) {
          const int64_t row = a * l_.queries() + r % l_.queries();
          float* to = g_.q.data_ptr<float>() +
                      (row * l_.heads + h * s_.group + r / l_.queries()) * l_.head_dim;
          const float* at = from + (i * s_.rows + r) * s_.width_n;
          for (int64_t j = 0; j < l_.head_dim; ++j) {
            float sum = at[j];
            for (int64_t p = 1; p < parts; ++p) sum += at[p * dq_size + j];
            to[j] = sum;
          }
        }
      }
    });
  }

  const attention_layout& l_;
  const attention_sizes<T> s_;
  const attention_input& in_;
  const attention_output& out_;
  const at::Tensor& d_out_;
  attention_gradients& g_;
  int64_t context_ = 0, columns_ = 0;
  std::vector<packed_head<T>> heads_;  // [kv head]
  std::vector<item> items_;
  std::vector<size_t> cuts_;  // [parts + 1] into items_
};

}  // namespace

attention_gradients block_attention_backward(const attention_layout& l,
                                             const attention_input& in,
                                             const attention_output& output,
                                             const at::Tensor& d_out) {
  if (gpu::attends(l, in)) return gpu::block_attention_backward(l, in, output, d_out);
  const auto type = in.q.scalar_type();
  if (!in.q.is_cpu() || (type != at::kFloat && type != at::kBFloat16))
    return block_attention_backward_reference(l, in, output, d_out);
  DFLASH_CHECK(d_out.scalar_type() == type && d_out.stride(-1) == 1 && output.out.is_contiguous(),
               "gradient like the output");
  const auto wide = in.q.options().dtype(at::kFloat);
  const int64_t rows = in.block_k.size(0), context = in.context_k.size(0);
  attention_gradients g{
      .q = at::empty({in.q.size(0), l.heads, l.head_dim}, wide),
      .context_k = at::zeros({context, l.kv_heads, l.head_dim}, wide),  // tokens that no block sees
      .context_v = at::zeros({context, l.kv_heads, l.head_dim}, wide),
      .block_k = at::empty({rows, l.kv_heads, l.head_dim}, wide),
      .block_v = at::empty({rows, l.kv_heads, l.head_dim}, wide)};
  if (type == at::kFloat)
    backward<float>(l, in, output, d_out, g).run();
  else
    backward<c10::BFloat16>(l, in, output, d_out, g).run();
  return g;
}

}  // namespace dflash::kernel
