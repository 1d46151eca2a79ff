// Body of the target's attention, written once over `Ops` (16 fp32 lanes and a dot step) and
// compiled for several instruction sets: include it after defining DFLASH_ATTENTION_NAMESPACE. Not
// a header of its own.
//
// Work item: a tile of query rows (tokens × query heads of one key head) against all its keys, in
// segments of 256 keys aligned to position 0, with a running maximum (online softmax). Every row's
// order of operations is fixed by its own position, so tiles may be cut in any way.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "device/kernels/target_attention.hpp"

namespace dflash::kernel::DFLASH_ATTENTION_NAMESPACE {

using detail::max_head_dim;
using detail::tile_rows;
inline constexpr int64_t segment = 256;  // keys

// Scores of RR rows against KB blocks of 16 keys.
template <class Ops, int RR, int KB>
DFLASH_ATTENTION_INLINE void score_block(const typename Ops::element* q,
                                         const typename Ops::element* keys,
                                         int64_t head_dim,
                                         float scale,
                                         float* scores) {
  typename Ops::vec acc[RR][KB];
  for (int r = 0; r < RR; ++r)
    for (int b = 0; b < KB; ++b) acc[r][b] = Ops::zero();
  const int64_t depth = head_dim / Ops::step;
  for (int64_t d = 0; d < depth; ++d) {
    typename Ops::pair k[KB];
    for (int b = 0; b < KB; ++b)
      k[b] = Ops::load_pair(keys + (b * depth + d) * block_tokens * Ops::step);
    for (int r = 0; r < RR; ++r) {
      const auto word = Ops::spread(q + r * head_dim + d * Ops::step);
      for (int b = 0; b < KB; ++b) acc[r][b] = Ops::dot(acc[r][b], k[b], word);
    }
  }
  const auto factor = Ops::set(scale);
  for (int r = 0; r < RR; ++r)
    for (int b = 0; b < KB; ++b)
      Ops::store(scores + r * segment + b * block_tokens, Ops::mul(acc[r][b], factor));
}

template <class Ops, int RR, int KB>
DFLASH_ATTENTION_INLINE void score_rows(const typename Ops::element* q,
                                        const typename Ops::element* keys,
                                        int64_t head_dim,
                                        float scale,
                                        int64_t blocks,
                                        float* scores) {
  for (int64_t b = 0; b < blocks; b += KB)
    score_block<Ops, RR, KB>(
        q, keys + b * key_block_elements(head_dim), head_dim, scale, scores + b * block_tokens);
}

// blocks: a multiple of 4.
template <class Ops>
DFLASH_ATTENTION_FUNCTION void scores_of(const typename Ops::element* q,
                                         const typename Ops::element* keys,
                                         int64_t head_dim,
                                         float scale,
                                         int64_t rows,
                                         int64_t blocks,
                                         float* scores) {
  for (int64_t r = 0; r < rows;) {
    const auto* qr = q + r * head_dim;
    float* sr = scores + r * segment;
    const int64_t left = rows - r;
    if (left >= 8) {
      score_rows<Ops, 8, 2>(qr, keys, head_dim, scale, blocks, sr);
      r += 8;
    } else if (left >= 5) {
      score_rows<Ops, 5, 4>(qr, keys, head_dim, scale, blocks, sr);
      r += 5;
    } else if (left >= 3) {
      score_rows<Ops, 3, 4>(qr, keys, head_dim, scale, blocks, sr);
      r += 3;
    } else {
      score_rows<Ops, 1, 4>(qr, keys, head_dim, scale, blocks, sr);
      r += 1;
    }
  }
}

// out rows += probabilities · values for RR rows and DC chunks of 16 dimensions.
template <class Ops, int RR, int DC>
DFLASH_ATTENTION_INLINE void value_chunk(const typename Ops::element* p,
                                         const typename Ops::element* values,
                                         int64_t width,
                                         int64_t steps,
                                         const float* rescale,
                                         float* out) {
  typename Ops::vec acc[RR][DC];
  for (int r = 0; r < RR; ++r) {
    const auto factor = Ops::set(rescale[r]);
    for (int c = 0; c < DC; ++c) acc[r][c] = Ops::mul(Ops::load(out + r * width + c * 16), factor);
  }
  for (int64_t t = 0; t < steps; ++t) {
    typename Ops::pair v[DC];
    for (int c = 0; c < DC; ++c) v[c] = Ops::load_pair(values + (t * width + c * 16) * Ops::step);
    for (int r = 0; r < RR; ++r) {
      const auto word = Ops::spread(p + r * segment + t * Ops::step);
      for (int c = 0; c < DC; ++c) acc[r][c] = Ops::dot(acc[r][c], v[c], word);
    }
  }
  for (int r = 0; r < RR; ++r)
    for (int c = 0; c < DC; ++c) Ops::store(out + r * width + c * 16, acc[r][c]);
}

template <class Ops, int RR>
DFLASH_ATTENTION_INLINE void value_rows(const typename Ops::element* p,
                                        const typename Ops::element* values,
                                        int64_t width,
                                        int64_t steps,
                                        const float* rescale,
                                        float* out) {
  int64_t d = 0;
  for (; d + 64 <= width; d += 64)
    value_chunk<Ops, RR, 4>(p, values + d * Ops::step, width, steps, rescale, out + d);
  for (; d < width; d += 16)
    value_chunk<Ops, RR, 1>(p, values + d * Ops::step, width, steps, rescale, out + d);
}

template <class Ops>
DFLASH_ATTENTION_FUNCTION void values_of(const typename Ops::element* p,
                                         const typename Ops::element* values,
                                         int64_t width,
                                         int64_t steps,
                                         int64_t rows,
                                         const float* rescale,
                                         float* out) {
  for (int64_t r = 0; r < rows;) {
    const int64_t left = rows - r;
    if (left >= 5) {
      value_rows<Ops, 5>(p + r * segment, values, width, steps, rescale + r, out + r * width);
      r += 5;
    } else if (left >= 3) {
      value_rows<Ops, 3>(p + r * segment, values, width, steps, rescale + r, out + r * width);
      r += 3;
    } else {
      value_rows<Ops, 1>(p + r * segment, values, width, steps, rescale + r, out + r * width);
      r += 1;
    }
  }
}

// Probabilities of one row within a segment, up to a factor: p = exp(score - maximum) for the keys
// from `hidden` to `visible`, 0 for the others. Returns the rescaling of what was summed before.
template <class Ops>
DFLASH_ATTENTION_INLINE float soften(float* scores,
                                     typename Ops::element* p,
                                     int64_t hidden,
                                     int64_t visible,
                                     int64_t keys,
                                     float& maximum,
                                     float& sum) {
  const int64_t full = (visible + 15) / 16 * 16;
  for (int64_t i = visible; i < full; ++i) scores[i] = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < hidden; ++i) scores[i] = -std::numeric_limits<float>::infinity();
  auto top = Ops::set(maximum);
  for (int64_t i = 0; i < full; i += 16) top = Ops::max(top, Ops::load(scores + i));
  const float now = Ops::reduce_max(top);
  const auto shift = Ops::set(now);
  auto total = Ops::zero();
  for (int64_t i = 0; i < full; i += 16) {
    const auto e = Ops::exp(Ops::sub(Ops::load(scores + i), shift));
    total = Ops::add(total, e);
    Ops::store_element(p + i, e);
  }
  if (full < keys) std::memset(p + full, 0, sizeof(*p) * (keys - full));
  const float rescale = std::exp(maximum - now);  // exp(-inf) = 0 in the first segment
  sum = sum * rescale + Ops::reduce_add(total);
  maximum = now;
  return rescale;
}

template <class Ops>
DFLASH_ATTENTION_FUNCTION void attend_tile(const detail::attention_tile& work) {
  using element = typename Ops::element;
  const int64_t rows = work.tokens * work.group;
  const int64_t hd = work.head_dim;
  const int64_t width = padded_head_dim(hd);
  alignas(64) element q[tile_rows * max_head_dim];
  alignas(64) element p[tile_rows * segment];
  alignas(64) float scores[tile_rows * segment];
  alignas(64) float out[tile_rows * max_head_dim];
  float maximum[tile_rows], sum[tile_rows], rescale[tile_rows];
  for (int64_t t = 0; t < work.tokens; ++t)
    std::memcpy(q + t * work.group * hd,
                static_cast<const element*>(work.q) + t * work.q_stride,
                sizeof(element) * work.group * hd);
  std::memset(out, 0, sizeof(float) * rows * width);
  for (int64_t r = 0; r < rows; ++r) {
    maximum[r] = -std::numeric_limits<float>::infinity();
    sum[r] = 0;
  }
  const float scale = work.scale;
  const int64_t length = work.position + work.tokens;  // keys that the last row sees
  // The first key that a row at `position` sees.
  const auto lowest = [&](int64_t position) {
    return work.window > 0 ? std::max<int64_t>(0, position - work.window + 1) : 0;
  };
  for (int64_t first = lowest(work.position) / segment * segment; first < length;
       first += segment) {
    const int64_t here = std::min(segment, length - first);
    const int64_t blocks = (here + 63) / 64 * 4;
    const int64_t keys = blocks * block_tokens;
    const auto* k =
        static_cast<const element*>(work.keys) + first / block_tokens * key_block_elements(hd);
    const auto* v =
        static_cast<const element*>(work.values) + first / block_tokens * value_block_elements(hd);
    scores_of<Ops>(q, k, hd, scale, rows, blocks, scores);
    for (int64_t t = 0; t < work.tokens; ++t) {
      const int64_t visible = std::min(here, work.position + t + 1 - first);
      const int64_t hidden = std::max<int64_t>(0, lowest(work.position + t) - first);
      for (int64_t r = t * work.group; r < (t + 1) * work.group; ++r) {
        if (visible > hidden) {
          rescale[r] = soften<Ops>(
              scores + r * segment, p + r * segment, hidden, visible, keys, maximum[r], sum[r]);
        } else {
          std::memset(p + r * segment, 0, sizeof(element) * keys);
          rescale[r] = 1;
        }
      }
    }
    values_of<Ops>(p, v, width, keys / Ops::step, rows, rescale, out);
  }
  for (int64_t r = 0; r < rows; ++r) {
    auto* to =
        static_cast<element*>(work.out) + r / work.group * work.out_stride + r % work.group * hd;
    const float inverse = 1.0F / sum[r];
    for (int64_t d = 0; d < hd; ++d) to[d] = Ops::to_element(out[r * width + d] * inverse);
  }
}

}  // namespace dflash::kernel::DFLASH_ATTENTION_NAMESPACE
