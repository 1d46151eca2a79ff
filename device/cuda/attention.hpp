// Attention of the drafter on the device, forward and backward. CPU twin, with the rules of what is
// seen: device/kernels/block_attention.hpp.
//
// A block of threads owns one drafter block and one KV head: the queries of its slots under all
// query heads of the group are the rows of a tile, R = group x queries, in tiles of `rows`. Keys
// come in tiles: the context that the block sees, then its own slots. Nothing the size of the
// scores leaves shared memory. The gradients of context keys and values are a second kernel, whose
// blocks own a tile of context keys each and go through the drafter blocks in order: no atomics, so
// the same bits each time.
//
// Work with C visible keys a block: 4 A R nkv C hd operations forward, 14 backward (scores and
// their gradients are made twice). Memory: each block reads its keys and values once forward (2 C
// hd values a KV head), once for dQ and the context's kernel reads the queries and output gradients
// of each block that sees its tile. Products are 16 x 16 tiles of the tensor cores (wmma, bf16 in,
// fp32 sums) on the device, plain sums on the host and for fp32.
#pragma once

#include <c10/util/BFloat16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <mma.h>
#endif

#include "device/cuda/launch.hpp"

namespace dflash::cuda {

inline constexpr uint32_t attention_threads = 128;
inline constexpr int attention_warps = static_cast<int>(attention_threads) / 32;

// Rows [n, heads, hd] of T: element (r, h, i) is at data[r * row + h * head + i].
template <class T>
struct head_rows {
  T* data = nullptr;
  int64_t row = 0, head = 0;
  DFLASH_HOST_DEVICE T* at(int64_t r, int64_t h) const { return data + r * row + h * head; }
};

// As kernel::attention_layout; begin and anchor lie on the device.
struct attention_shape {
  int64_t blocks = 0, context = 0;  // A, T
  int heads = 0, kv_heads = 0, head_dim = 0;
  int block_size = 0, first_slot = 0;
  int64_t window = 0;
  bool causal = false;
  const int32_t* begin = nullptr;
  const int32_t* anchor = nullptr;
  float scale = 0;  // 1 / sqrt(hd)

  DFLASH_HOST_DEVICE int queries() const { return block_size - first_slot; }
  DFLASH_HOST_DEVICE int group() const { return heads / kv_heads; }
  DFLASH_HOST_DEVICE int rows() const { return group() * queries(); }  // R
  // Of row r of a block: its slot, and its query head within the group.
  DFLASH_HOST_DEVICE int slot(int r) const { return first_slot + r % queries(); }
  DFLASH_HOST_DEVICE int head(int r) const { return r / queries(); }
  DFLASH_HOST_DEVICE int64_t query_row(int64_t a, int r) const {
    return a * queries() + r % queries();
  }
  DFLASH_HOST_DEVICE int64_t first_key(int64_t a, int k) const {
    const int64_t low = begin[a];
    if (window == 0) return low;
    const int64_t bound = int64_t{anchor[a]} + k - (window - 1);
    return bound > low ? bound : low;
  }
  DFLASH_HOST_DEVICE bool sees_context(int64_t a, int k, int64_t t) const {
    return t < anchor[a] && t >= first_key(a, k);
  }
  DFLASH_HOST_DEVICE bool sees_slot(int k, int other) const {
    if (causal && other > k) return false;
    return window == 0 || (k - other < window && other - k < window);
  }
};

// ---- tiles in shared memory ---------------------------------------------------------------------

// A matrix of `ld` elements a row; rows begin at multiples of 16 bytes.
template <class T>
struct tile {
  T* data = nullptr;
  int ld = 0;
  DFLASH_HOST_DEVICE T& at(int i, int j) const { return data[i * ld + j]; }
};

// Cuts tiles out of shared memory; without memory it only counts.
struct tile_cutter {
  char* memory = nullptr;
  int64_t bytes = 0;
  template <class T>
  DFLASH_HOST_DEVICE tile<T> cut(int rows, int columns) {
    constexpr int gap = 16 / static_cast<int>(sizeof(T));  // fewer bank conflicts, still aligned
    tile<T> t{reinterpret_cast<T*>(memory + (memory == nullptr ? 0 : bytes)), columns + gap};
    bytes += (int64_t{rows} * t.ld * static_cast<int64_t>(sizeof(T)) + 127) / 128 * 128;
    return t;
  }
};

// As product_tile, without tensor cores.
template <bool a_turned, bool b_turned, class T>
DFLASH_HOST_DEVICE inline void product_by_sums(
    float* c, int ldc, const T* a, int lda, const T* b, int ldb, int depth, bool add, int lane) {
  for (int e = lane; e < 256; e += 32) {
    const int i = e / 16, j = e % 16;
    float sum = add ? c[i * ldc + j] : 0.0f;
    for (int k = 0; k < depth; ++k)
      sum += static_cast<float>(a_turned ? a[k * lda + i] : a[i * lda + k]) *
             static_cast<float>(b_turned ? b[j * ldb + k] : b[k * ldb + j]);
    c[i * ldc + j] = sum;
  }
}

// C (+)= A B, one 16 x 16 tile of C by the 32 lanes of a warp; `depth` is a multiple of 16. A is
// [16, depth], or stored as [depth, 16] where `a_turned`; B is [depth, 16], or [16, depth] where
// `b_turned`.
template <bool a_turned, bool b_turned, class T>
DFLASH_HOST_DEVICE inline void product_tile(
    float* c, int ldc, const T* a, int lda, const T* b, int ldb, int depth, bool add, int lane) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) {
    using namespace nvcuda;
    using bf16 = __nv_bfloat16;
    using a_order = std::conditional_t<a_turned, wmma::col_major, wmma::row_major>;
    using b_order = std::conditional_t<b_turned, wmma::col_major, wmma::row_major>;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    if (add)
      wmma::load_matrix_sync(sum, c, ldc, wmma::mem_row_major);
    else
      wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < depth; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, a_order> left;
      wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, b_order> right;
      wmma::load_matrix_sync(
          left, reinterpret_cast<const bf16*>(a_turned ? a + k * lda : a + k), lda);
      wmma::load_matrix_sync(
          right, reinterpret_cast<const bf16*>(b_turned ? b + k : b + k * ldb), ldb);
      wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(c, sum, ldc, wmma::mem_row_major);
  } else {
    product_by_sums<a_turned, b_turned>(c, ldc, a, lda, b, ldb, depth, add, lane);
  }
#else
  product_by_sums<a_turned, b_turned>(c, ldc, a, lda, b, ldb, depth, add, lane);
#endif
}

// C [m, n] (+)= A B: tiles are dealt out to the warps. All sizes are multiples of 16.
template <bool a_turned, bool b_turned, class T>
DFLASH_HOST_DEVICE inline void multiply_tiles(const tile<float>& c,
                                              const tile<T>& a,
                                              const tile<T>& b,
                                              int m,
                                              int n,
                                              int depth,
                                              bool add,
                                              uint32_t thread) {
  const int warp = static_cast<int>(thread / 32), lane = static_cast<int>(thread % 32);
  const int across = n / 16;
  for (int t = warp; t < m / 16 * across; t += attention_warps) {
    const int i = t / across * 16, j = t % across * 16;
    product_tile<a_turned, b_turned>(&c.at(i, j),
                                     c.ld,
                                     a_turned ? &a.at(0, i) : &a.at(i, 0),
                                     a.ld,
                                     b_turned ? &b.at(j, 0) : &b.at(0, j),
                                     b.ld,
                                     depth,
                                     add,
                                     lane);
  }
}

// to(i, j) = from(i) [j] for `count` rows of `columns`; rows from `count` to `rows` are zeros.
template <class T, class From>
DFLASH_HOST_DEVICE inline void load_rows(
    const tile<T>& to, int rows, int count, int columns, const From& from, uint32_t thread) {
  for (int e = static_cast<int>(thread); e < rows * columns;
       e += static_cast<int>(attention_threads)) {
    const int i = e / columns, j = e % columns;
    to.at(i, j) = i < count ? from(i)[j] : T(0);
  }
}

DFLASH_HOST_DEVICE inline void clear_tile(const tile<float>& t,
                                          int rows,
                                          int columns,
                                          uint32_t thread) {
  for (int e = static_cast<int>(thread); e < rows * columns;
       e += static_cast<int>(attention_threads))
    t.at(e / columns, e % columns) = 0.0f;
}

// Keys of a drafter block in tiles: first those of its context from `first` to its anchor, then its
// own slots.
struct key_tiles {
  int64_t first = 0, end = 0;  // context keys that any slot sees
  int context_tiles = 0, own_tiles = 0;
  int width = 0;
  DFLASH_HOST_DEVICE int count() const { return context_tiles + own_tiles; }
  DFLASH_HOST_DEVICE bool is_own(int i) const { return i >= context_tiles; }
  // Position in the context, or slot, of the tile's first key.
  DFLASH_HOST_DEVICE int64_t start(int i) const {
    return is_own(i) ? int64_t{i - context_tiles} * width : first + int64_t{i} * width;
  }
  DFLASH_HOST_DEVICE int keys(int i, int block_size) const {
    const int64_t rest = (is_own(i) ? block_size : end) - start(i);
    return rest < width ? static_cast<int>(rest) : width;
  }
};
DFLASH_HOST_DEVICE inline key_tiles keys_of(const attention_shape& s, int64_t a, int width) {
  key_tiles t;
  t.width = width;
  t.first = s.first_key(a, s.first_slot);  // rises with the slot
  t.end = s.anchor[a];
  if (t.first > t.end) t.first = t.end;
  t.context_tiles = static_cast<int>((t.end - t.first + width - 1) / width);
  t.own_tiles = (s.block_size + width - 1) / width;
  return t;
}
// Whether row r of block a sees key j of a tile.
DFLASH_HOST_DEVICE inline bool row_sees(
    const attention_shape& s, const key_tiles& k, int64_t a, int r, int i, int j) {
  if (r >= s.rows() || j >= k.keys(i, s.block_size)) return false;
  const int64_t key = k.start(i) + j;
  return k.is_own(i) ? s.sees_slot(s.slot(r), static_cast<int>(key))
                     : s.sees_context(a, s.slot(r), key);
}

// ---- forward ------------------------------------------------------------------------------------

template <class T>
struct attention_tensors {
  head_rows<const T> q, context_k, context_v, block_k, block_v;
  head_rows<T> out;
  float* lse = nullptr;  // [A queries, nh]
};

template <class T>
struct forward_memory {
  static constexpr int rows = 64, keys = sizeof(T) == 2 ? 64 : 32;
  tile<T> q, kv, p;
  tile<float> s, o;
  tile<float> stat;  // [rows, 2]: halves of a row's maximum, then of its sum
  float* top = nullptr;
  float* sum = nullptr;
  float* shrink = nullptr;  // of what was summed before this tile
  int64_t bytes = 0;

  DFLASH_HOST_DEVICE static forward_memory cut(char* memory, int hd) {
    forward_memory m;
    tile_cutter c{memory, 0};
    m.q = c.cut<T>(rows, hd);
    m.kv = c.cut<T>(keys, hd);
    m.p = c.cut<T>(rows, keys);
    m.s = c.cut<float>(rows, keys);
    m.o = c.cut<float>(rows, hd);
    m.stat = c.cut<float>(rows, 2);
    m.top = c.cut<float>(1, rows).data;
    m.sum = c.cut<float>(1, rows).data;
    m.shrink = c.cut<float>(1, rows).data;
    m.bytes = c.bytes;
    return m;
  }
};

// One block of threads: drafter block a, KV head h, rows from `row0`. `sync` is __syncthreads, and
// `each(phase)` calls phase(thread) for this thread, or on the host for all threads of the block.
template <class T, class Each>
DFLASH_HOST_DEVICE inline void attend_block(const attention_shape& s,
                                            const attention_tensors<T>& in,
                                            const forward_memory<T>& m,
                                            int64_t a,
                                            int h,
                                            int row0,
                                            const Each& each) {
  constexpr int rows = forward_memory<T>::rows, width = forward_memory<T>::keys;
  const int hd = s.head_dim, group = s.group();
  const int count = s.rows() - row0 < rows ? s.rows() - row0 : rows;
  const key_tiles keys = keys_of(s, a, width);
  each([&](uint32_t thread) {
    load_rows(
        m.q,
        rows,
        count,
        hd,
        [&](int i) { return in.q.at(s.query_row(a, row0 + i), h * group + s.head(row0 + i)); },
        thread);
    clear_tile(m.o, rows, hd, thread);
    if (thread < rows) {
      m.top[thread] = -INFINITY;
      m.sum[thread] = 0;
    }
  });
  for (int i = 0; i < keys.count(); ++i) {
    const int n = keys.keys(i, s.block_size);
    const auto row_of =
        [&](const head_rows<const T>& context, const head_rows<const T>& own, int j) {
          return keys.is_own(i) ? own.at(a * s.block_size + keys.start(i) + j, h)
                                : context.at(keys.start(i) + j, h);
        };
    each([&](uint32_t thread) {
      load_rows(
          m.kv, width, n, hd, [&](int j) { return row_of(in.context_k, in.block_k, j); }, thread);
    });
    each([&](uint32_t thread) {
      multiply_tiles<false, true>(m.s, m.q, m.kv, rows, width, hd, false, thread);
    });
    each([&](uint32_t thread) {  // two threads a row
      const int r = static_cast<int>(thread / 2), half = static_cast<int>(thread % 2);
      float top = -INFINITY;
      for (int j = half; j < width; j += 2) {
        float& score = m.s.at(r, j);
        score = row_sees(s, keys, a, row0 + r, i, j) ? score * s.scale : -INFINITY;
        top = score > top ? score : top;
      }
      m.stat.at(r, half) = top;
      load_rows(
          m.kv, width, n, hd, [&](int j) { return row_of(in.context_v, in.block_v, j); }, thread);
    });
    each([&](uint32_t thread) {
      if (thread >= rows) return;
      const float most =
          m.stat.at(static_cast<int>(thread), 0) > m.stat.at(static_cast<int>(thread), 1)
              ? m.stat.at(static_cast<int>(thread), 0)
              : m.stat.at(static_cast<int>(thread), 1);
      const float before = m.top[thread], top = most > before ? most : before;
      m.shrink[thread] = top > -INFINITY ? std::exp(before - top) : 1.0f;
      m.top[thread] = top;
    });
    each([&](uint32_t thread) {
      const int r = static_cast<int>(thread / 2), half = static_cast<int>(thread % 2);
      const float top = m.top[r], shrink = m.shrink[r];
      float sum = 0;
      for (int j = half; j < width; j += 2) {
        const float score = m.s.at(r, j);
        const float p = score > -INFINITY ? std::exp(score - top) : 0.0f;
        sum += p;
        m.p.at(r, j) = static_cast<T>(p);
      }
      m.stat.at(r, half) = sum;
      for (int j = half; j < hd; j += 2) m.o.at(r, j) *= shrink;
    });
    each([&](uint32_t thread) {
      if (thread < rows)
        m.sum[thread] = m.sum[thread] * m.shrink[thread] + m.stat.at(static_cast<int>(thread), 0) +
                        m.stat.at(static_cast<int>(thread), 1);
      multiply_tiles<false, false>(m.o, m.p, m.kv, rows, hd, width, true, thread);
    });
  }
  each([&](uint32_t thread) {
    for (int e = static_cast<int>(thread); e < count * hd;
         e += static_cast<int>(attention_threads)) {
      const int r = e / hd, j = e % hd;
      in.out.at(s.query_row(a, row0 + r), h * group + s.head(row0 + r))[j] =
          static_cast<T>(m.o.at(r, j) / m.sum[r]);
    }
    if (static_cast<int>(thread) < count) {
      const int r = static_cast<int>(thread);
      in.lse[s.query_row(a, row0 + r) * s.heads + h * group + s.head(row0 + r)] =
          m.top[r] + std::log(m.sum[r]);
    }
  });
}

// ---- backward -----------------------------------------------------------------------------------

template <class T>
struct attention_backward_tensors {
  head_rows<const T> q, context_k, context_v, block_k, block_v, out, d_out;
  const float* lse = nullptr;  // [A queries, nh]
  head_rows<float> d_q, d_context_k, d_context_v, d_block_k, d_block_v;
};

template <class T>
struct backward_memory {
  static constexpr int keys = 32;
  int rows = 0;  // 64, or 32 for wide heads
  tile<T> q, d_out, k, v, p, ds;
  tile<float> s, dp;
  tile<float> d_q;       // of the block's kernel
  tile<float> d_k, d_v;  // of the keys that are owned: [keys, hd]
  float* lse = nullptr;
  float* delta = nullptr;  // sum of d_out x out over a row
  int64_t bytes = 0;

  DFLASH_HOST_DEVICE static int rows_of(int hd) { return hd > 128 ? 32 : 64; }
  DFLASH_HOST_DEVICE static backward_memory cut(char* memory, int hd, int own_keys, bool queries) {
    backward_memory m;
    m.rows = rows_of(hd);
    tile_cutter c{memory, 0};
    m.q = c.cut<T>(m.rows, hd);
    m.d_out = c.cut<T>(m.rows, hd);
    m.k = c.cut<T>(keys, hd);
    m.v = c.cut<T>(keys, hd);
    m.p = c.cut<T>(m.rows, keys);
    m.ds = c.cut<T>(m.rows, keys);
    m.s = c.cut<float>(m.rows, keys);
    m.dp = c.cut<float>(m.rows, keys);
    if (queries) m.d_q = c.cut<float>(m.rows, hd);
    m.d_k = c.cut<float>(own_keys, hd);
    m.d_v = c.cut<float>(own_keys, hd);
    m.lse = c.cut<float>(1, m.rows).data;
    m.delta = c.cut<float>(1, m.rows).data;
    m.bytes = c.bytes;
    return m;
  }
  // Own slots in whole tiles of keys.
  DFLASH_HOST_DEVICE static int own_keys(int block_size) {
    return (block_size + keys - 1) / keys * keys;
  }
};

// Queries, output gradients, log-sum-exps and deltas of `count` rows from row0.
template <class T>
DFLASH_HOST_DEVICE inline void load_queries(const attention_shape& s,
                                            const attention_backward_tensors<T>& in,
                                            const backward_memory<T>& m,
                                            int64_t a,
                                            int h,
                                            int row0,
                                            int count,
                                            uint32_t thread) {
  const auto head = [&](int i) { return h * s.group() + s.head(row0 + i); };
  const auto row = [&](int i) { return s.query_row(a, row0 + i); };
  load_rows(
      m.q, m.rows, count, s.head_dim, [&](int i) { return in.q.at(row(i), head(i)); }, thread);
  load_rows(
      m.d_out,
      m.rows,
      count,
      s.head_dim,
      [&](int i) { return in.d_out.at(row(i), head(i)); },
      thread);
  const int r = static_cast<int>(thread);
  if (r >= m.rows) return;
  m.lse[r] = r < count ? in.lse[row(r) * s.heads + head(r)] : 0.0f;
  float delta = 0;
  if (r < count) {
    const T* const d = in.d_out.at(row(r), head(r));
    const T* const o = in.out.at(row(r), head(r));
    for (int j = 0; j < s.head_dim; ++j)
      delta += static_cast<float>(d[j]) * static_cast<float>(o[j]);
  }
  m.delta[r] = delta;
}

// p and ds of one tile, from the products in s and dp: P = exp(scale s - lse), dS = scale P (dP -
// delta); zeros where nothing is seen.
template <class T, class Sees>
DFLASH_HOST_DEVICE inline void score_gradients(const attention_shape& s,
                                               const backward_memory<T>& m,
                                               const Sees& sees,
                                               uint32_t thread) {
  constexpr int width = backward_memory<T>::keys;
  for (int e = static_cast<int>(thread); e < m.rows * width;
       e += static_cast<int>(attention_threads)) {
    const int r = e / width, j = e % width;
    const float p = sees(r, j) ? std::exp(m.s.at(r, j) * s.scale - m.lse[r]) : 0.0f;
    m.p.at(r, j) = static_cast<T>(p);
    m.ds.at(r, j) = static_cast<T>(p == 0.0f ? 0.0f : p * (m.dp.at(r, j) - m.delta[r]) * s.scale);
  }
}

// One block of threads: drafter block a, KV head h: gradients of its queries, and of its own keys
// and values.
template <class T, class Each>
DFLASH_HOST_DEVICE inline void query_gradients(const attention_shape& s,
                                               const attention_backward_tensors<T>& in,
                                               const backward_memory<T>& m,
                                               int64_t a,
                                               int h,
                                               const Each& each) {
  constexpr int width = backward_memory<T>::keys;
  const int hd = s.head_dim, group = s.group(), own = backward_memory<T>::own_keys(s.block_size);
  const key_tiles keys = keys_of(s, a, width);
  each([&](uint32_t thread) {
    clear_tile(m.d_k, own, hd, thread);
    clear_tile(m.d_v, own, hd, thread);
  });
  for (int row0 = 0; row0 < s.rows(); row0 += m.rows) {
    const int count = s.rows() - row0 < m.rows ? s.rows() - row0 : m.rows;
    each([&](uint32_t thread) {
      load_queries(s, in, m, a, h, row0, count, thread);
      clear_tile(m.d_q, m.rows, hd, thread);
    });
    for (int i = 0; i < keys.count(); ++i) {
      const int n = keys.keys(i, s.block_size);
      const bool is_own = keys.is_own(i);
      each([&](uint32_t thread) {
        const auto load = [&](const tile<T>& to,
                              const head_rows<const T>& context,
                              const head_rows<const T>& slots) {
          load_rows(
              to,
              width,
              n,
              hd,
              [&](int j) {
                return is_own ? slots.at(a * s.block_size + keys.start(i) + j, h)
                              : context.at(keys.start(i) + j, h);
              },
              thread);
        };
        load(m.k, in.context_k, in.block_k);
        load(m.v, in.context_v, in.block_v);
      });
      each([&](uint32_t thread) {
        multiply_tiles<false, true>(m.s, m.q, m.k, m.rows, width, hd, false, thread);
        multiply_tiles<false, true>(m.dp, m.d_out, m.v, m.rows, width, hd, false, thread);
      });
      each([&](uint32_t thread) {
        score_gradients(
            s,
            m,
            [&](int r, int j) { return r < count && row_sees(s, keys, a, row0 + r, i, j); },
            thread);
      });
      each([&](uint32_t thread) {
        multiply_tiles<false, false>(m.d_q, m.ds, m.k, m.rows, hd, width, true, thread);
        if (!is_own) return;
        const int first = static_cast<int>(keys.start(i));
        const tile<float> d_k{&m.d_k.at(first, 0), m.d_k.ld}, d_v{&m.d_v.at(first, 0), m.d_v.ld};
        multiply_tiles<true, false>(d_k, m.ds, m.q, width, hd, m.rows, true, thread);
        multiply_tiles<true, false>(d_v, m.p, m.d_out, width, hd, m.rows, true, thread);
      });
    }
    each([&](uint32_t thread) {
      for (int e = static_cast<int>(thread); e < count * hd;
           e += static_cast<int>(attention_threads)) {
        const int r = e / hd, j = e % hd;
        in.d_q.at(s.query_row(a, row0 + r), h * group + s.head(row0 + r))[j] = m.d_q.at(r, j);
      }
    });
  }
  each([&](uint32_t thread) {
    for (int e = static_cast<int>(thread); e < s.block_size * hd;
         e += static_cast<int>(attention_threads)) {
      const int k = e / hd, j = e % hd;
      in.d_block_k.at(a * s.block_size + k, h)[j] = m.d_k.at(k, j);
      in.d_block_v.at(a * s.block_size + k, h)[j] = m.d_v.at(k, j);
    }
  });
}

// One block of threads: the context keys from `first` on, KV head h.
template <class T, class Each>
DFLASH_HOST_DEVICE inline void context_gradients(const attention_shape& s,
                                                 const attention_backward_tensors<T>& in,
                                                 const backward_memory<T>& m,
                                                 int64_t first,
                                                 int h,
                                                 const Each& each) {
  constexpr int width = backward_memory<T>::keys;
  const int hd = s.head_dim;
  const int n = s.context - first < width ? static_cast<int>(s.context - first) : width;
  each([&](uint32_t thread) {
    load_rows(
        m.k, width, n, hd, [&](int j) { return in.context_k.at(first + j, h); }, thread);
    load_rows(
        m.v, width, n, hd, [&](int j) { return in.context_v.at(first + j, h); }, thread);
    clear_tile(m.d_k, width, hd, thread);
    clear_tile(m.d_v, width, hd, thread);
  });
  for (int64_t a = 0; a < s.blocks; ++a) {
    if (s.anchor[a] <= first || s.first_key(a, s.first_slot) >= first + n) continue;
    for (int row0 = 0; row0 < s.rows(); row0 += m.rows) {
      const int count = s.rows() - row0 < m.rows ? s.rows() - row0 : m.rows;
      each([&](uint32_t thread) { load_queries(s, in, m, a, h, row0, count, thread); });
      each([&](uint32_t thread) {
        multiply_tiles<false, true>(m.s, m.q, m.k, m.rows, width, hd, false, thread);
        multiply_tiles<false, true>(m.dp, m.d_out, m.v, m.rows, width, hd, false, thread);
      });
      each([&](uint32_t thread) {
        score_gradients(
            s,
            m,
            [&](int r, int j) {
              return r < count && j < n && s.sees_context(a, s.slot(row0 + r), first + j);
            },
            thread);
      });
      each([&](uint32_t thread) {
        multiply_tiles<true, false>(m.d_k, m.ds, m.q, width, hd, m.rows, true, thread);
        multiply_tiles<true, false>(m.d_v, m.p, m.d_out, width, hd, m.rows, true, thread);
      });
    }
  }
  each([&](uint32_t thread) {
    for (int e = static_cast<int>(thread); e < n * hd; e += static_cast<int>(attention_threads)) {
      const int k = e / hd, j = e % hd;
      in.d_context_k.at(first + k, h)[j] = m.d_k.at(k, j);
      in.d_context_v.at(first + k, h)[j] = m.d_v.at(k, j);
    }
  });
}

// Shared memory of the hungriest kernel, in bytes: devices have 163 KB (compute capability 8.0) or
// 227 KB (9.0, 10.0) for a block. Heads must be whole tiles: hd a multiple of 16.
template <class T>
inline int64_t attention_memory(int head_dim, int block_size) {
  using room = backward_memory<T>;
  const int64_t forward = forward_memory<T>::cut(nullptr, head_dim).bytes;
  const int64_t backward = room::cut(nullptr, head_dim, room::own_keys(block_size), true).bytes;
  return forward > backward ? forward : backward;
}

// Do not block; throw std::runtime_error when a launch fails.
void attention_forward(const attention_shape&, const attention_tensors<float>&, stream_handle);
void attention_forward(const attention_shape&,
                       const attention_tensors<c10::BFloat16>&,
                       stream_handle);
void attention_backward(const attention_shape&,
                        const attention_backward_tensors<float>&,
                        stream_handle);
void attention_backward(const attention_shape&,
                        const attention_backward_tensors<c10::BFloat16>&,
                        stream_handle);

}  // namespace dflash::cuda
