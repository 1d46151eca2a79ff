// All loss terms over rows of logits on the device, the rank of the label, and the gradient written
// over the logits; one block of threads a row. CPU twin: device/kernels/loss_rows.hpp.
//
// A row is read once for its log-sum-exps and rank, and once more for its gradient. Terms whose
// gradient needs sums over the row (all but ce and kl) read it a third time, in between; without a
// gradient the last walk is left out. So with V logits of s bytes a row moves 3 V s bytes for ce
// (two reads, one write), 5 V s for kl, 7 V s for the others, the teacher's row included. Nothing
// else is kept of a row but what fits in shared memory.
#pragma once

#include <c10/util/BFloat16.h>

#include <cmath>
#include <cstdint>

#include "device/cuda/launch.hpp"
#include "device/kernels/loss_row.hpp"

namespace dflash::cuda {

// Threads of a block; at most 64 registers each, so that two blocks fit a multiprocessor.
inline constexpr uint32_t loss_threads = 512;

// `width` neighbours are read and written at once, 16 bytes where rows are aligned to that.
template <class T>
constexpr int loss_width() {
  return static_cast<int>(16 / sizeof(T));
}
template <class T>
DFLASH_HOST_DEVICE inline bool wide_rows(const T* z, const T* u, int64_t n) {
  const auto apart = reinterpret_cast<uintptr_t>(z) | reinterpret_cast<uintptr_t>(u);
  return n % loss_width<T>() == 0 && apart % 16 == 0;
}

template <class T, int width>
struct alignas(sizeof(T) * width) neighbours {
  T v[width];
};

// Calls f(i, z[i], u[i]) for the elements of `thread`; u null: 0. Where `write`, its result becomes
// z[i].
template <int width, bool write, class T, class F>
DFLASH_HOST_DEVICE inline void walk_row(
    T* z, const T* u, int64_t n, uint32_t thread, uint32_t threads, const F& f) {
  using group = neighbours<T, width>;
  for (int64_t first = int64_t{thread} * width; first < n; first += int64_t{threads} * width) {
    group a = *reinterpret_cast<const group*>(z + first), b{};
    if (u != nullptr) b = *reinterpret_cast<const group*>(u + first);
    for (int j = 0; j < width; ++j) {
      const float value = f(first + j, static_cast<float>(a.v[j]), static_cast<float>(b.v[j]));
      if (write) a.v[j] = static_cast<T>(value);
    }
    if (write) *reinterpret_cast<group*>(z + first) = a;
  }
}

// Log-sum-exps at temperature 1 and at that of kl, as they grow (arXiv 1805.02867, algorithm 3).
struct running_sum {
  float top = -INFINITY;
  float sum = 0;   // of exp(x - top)
  float soft = 0;  // of exp((x - top) / temperature), where it is not 1
};
DFLASH_HOST_DEVICE inline void grow(running_sum& s, float x, float scale) {
  const bool soft = scale != 1.0f;
  if (x > s.top) {  // the first: exp(-inf) = 0
    const float gap = s.top - x;
    s.sum = s.sum * std::exp(gap) + 1.0f;
    if (soft) s.soft = s.soft * std::exp(gap * scale) + 1.0f;
    s.top = x;
  } else if (x > -INFINITY) {
    s.sum += std::exp(x - s.top);
    if (soft) s.soft += std::exp((x - s.top) * scale);
  }
}
DFLASH_HOST_DEVICE inline running_sum join(const running_sum& a,
                                           const running_sum& b,
                                           float scale) {
  if (!(b.top > -INFINITY)) return a;
  if (!(a.top > -INFINITY)) return b;
  const running_sum& high = a.top >= b.top ? a : b;
  const running_sum& low = a.top >= b.top ? b : a;
  const float gap = low.top - high.top;
  return {high.top,
          high.sum + low.sum * std::exp(gap),
          scale == 1.0f ? 0.0f : high.soft + low.soft * std::exp(gap * scale)};
}
DFLASH_HOST_DEVICE inline float log_sum_exp(const running_sum& s) {
  return s.top + std::log(s.sum);
}
// Of x / temperature.
DFLASH_HOST_DEVICE inline float soft_log_sum_exp(const running_sum& s, float scale) {
  return s.top * scale + std::log(s.soft);
}

// What one thread, or one row, knows after the first walk.
struct row_part {
  running_sum z, u;
  int32_t beats = 0;  // logits that beat the label's (ties: lower ids beat it)
};
DFLASH_HOST_DEVICE inline row_part join(const row_part& a, const row_part& b, float scale) {
  return {join(a.z, b.z, scale), join(a.u, b.u, scale), a.beats + b.beats};
}

// First walk.
template <int width, class T>
DFLASH_HOST_DEVICE inline row_part scan_row(const T* z,
                                            const T* u,
                                            int64_t n,
                                            int64_t label,
                                            float scale,
                                            uint32_t thread,
                                            uint32_t threads) {
  const float level = static_cast<float>(z[label]);
  row_part part;
  walk_row<width, false>(
      const_cast<T*>(z), u, n, thread, threads, [&](int64_t i, float zi, float ui) {
        part.beats += zi > level || (zi == level && i < label);
        grow(part.z, zi, scale);
        if (u != nullptr) grow(part.u, ui, scale);
        return 0.0f;
      });
  return part;
}

// What the later walks know of their row.
struct row_task {
  kernel::row_mix mix;
  int64_t label = 0;
  float weight = 0;
  bool cap = false;  // the entropy counts
  float scale = 1;   // 1 / temperature
  float z_lse = 0, u_lse = 0, z_soft = 0, u_soft = 0;

  // Whether gradients wait for sums over the row.
  DFLASH_HOST_DEVICE bool needs_sums() const {
    using kernel::loss_term;
    return cap || mix.has(loss_term::rkl) || mix.has(loss_term::jsd) || mix.overlaps();
  }
};

DFLASH_HOST_DEVICE inline row_task task_of(
    const kernel::row_mix& mix, const row_part& row, int64_t label, float weight, bool taught) {
  row_task t;
  t.mix = mix;
  t.label = label;
  t.weight = weight;
  t.scale = 1.0f / mix.temperature;
  t.cap = mix.has(kernel::loss_term::cap) && row.beats == 0;
  t.z_lse = log_sum_exp(row.z);
  if (taught) t.u_lse = log_sum_exp(row.u);
  if (taught && mix.soft()) {
    t.z_soft = soft_log_sum_exp(row.z, t.scale);
    t.u_soft = soft_log_sum_exp(row.u, t.scale);
  }
  return t;
}

// log(M / max(P, Q)) with M = (P + Q) / 2, stable for logs far apart.
DFLASH_HOST_DEVICE inline float log_mixture_over_larger(float lp, float lq) {
  return std::log1p(std::exp(-std::fabs(lp - lq))) - 0.693147180559945f;
}

// One element's part of the sums.
DFLASH_HOST_DEVICE inline void add_element(
    const row_task& t, kernel::row_sums& s, float z, float u, bool taught) {
  using kernel::loss_term;
  const float lq = z - t.z_lse, q = std::exp(lq);
  if (t.cap && q > 0) s.entropy -= q * lq;
  if (!taught) return;
  const float lp = u - t.u_lse, p = std::exp(lp);
  // A logit of -inf has no part in a sum, whatever stands beside it.
  if ((t.mix.has(loss_term::kl) || t.mix.has(loss_term::lk_hybrid)) && p > 0) s.kl += p * (lp - lq);
  if (t.mix.soft()) {
    const float lps = u * t.scale - t.u_soft, lqs = z * t.scale - t.z_soft, ps = std::exp(lps);
    if (ps > 0) s.kl_soft += ps * (lps - lqs);
  }
  if (t.mix.has(loss_term::rkl) && q > 0) s.rkl += q * (lq - lp);
  if (t.mix.has(loss_term::jsd)) {
    const float larger = lp > lq ? lp : lq, m = log_mixture_over_larger(lp, lq);
    if (q > 0) s.to_mixture_q -= q * (larger - lq + m);
    if (p > 0) s.to_mixture_p -= p * (larger - lp + m);
  }
  if (t.mix.overlaps()) {
    s.overlap += p < q ? p : q;
    s.distance += std::fabs(p - q);
    (q > p ? s.above : q < p ? s.below : s.even) += q;
  }
}

// One element of the gradient; its sums are those of the whole row where they are needed.
DFLASH_HOST_DEVICE inline float element_gradient(const row_task& t,
                                                 const kernel::row_sums& s,
                                                 const kernel::row_factors& f,
                                                 int64_t i,
                                                 float z,
                                                 float u,
                                                 bool taught) {
  const float lq = z - t.z_lse, q = std::exp(lq);
  float own = f.ce + f.kl, g = i == t.label ? -f.ce : 0.0f;
  if (f.entropy != 0 && q > 0) own -= f.entropy * (lq + s.entropy);
  if (taught) {
    const float lp = u - t.u_lse, p = std::exp(lp);
    if (f.rkl != 0 && q > 0) own += f.rkl * (lq - lp - s.rkl);
    if (f.jsd != 0 && q > 0) {
      const float larger = lp > lq ? lp : lq;
      own -= f.jsd * (larger - lq + log_mixture_over_larger(lp, lq) + s.to_mixture_q);
    }
    // sign - sum of Q sign, written so that nothing cancels where one sign has nearly all of Q.
    if (f.sign != 0)
      own += f.sign * (q > p   ? 2 * s.below + s.even
                       : q < p ? -2 * s.above - s.even
                               : s.below - s.above);
    g -= f.kl * p;
    if (f.kl_soft != 0)
      g += f.kl_soft * (std::exp(z * t.scale - t.z_soft) - std::exp(u * t.scale - t.u_soft));
  }
  return g + q * own;
}

DFLASH_HOST_DEVICE inline kernel::row_sums join(const kernel::row_sums& a,
                                                const kernel::row_sums& b) {
  return {a.kl + b.kl,
          a.kl_soft + b.kl_soft,
          a.rkl + b.rkl,
          a.to_mixture_p + b.to_mixture_p,
          a.to_mixture_q + b.to_mixture_q,
          a.overlap + b.overlap,
          a.distance + b.distance,
          a.above + b.above,
          a.below + b.below,
          a.even + b.even,
          a.entropy + b.entropy};
}

// Second walk, where sums are needed.
template <int width, class T>
DFLASH_HOST_DEVICE inline kernel::row_sums sum_row(
    const row_task& t, const T* z, const T* u, int64_t n, uint32_t thread, uint32_t threads) {
  kernel::row_sums s;
  walk_row<width, false>(
      const_cast<T*>(z), u, n, thread, threads, [&](int64_t, float zi, float ui) {
        add_element(t, s, zi, ui, u != nullptr);
        return 0.0f;
      });
  return s;
}

// Last walk: the gradient over z. Where no sums were needed before it, those of kl come of it.
template <int width, class T>
DFLASH_HOST_DEVICE inline kernel::row_sums write_row(const row_task& t,
                                                     const kernel::row_sums& sums,
                                                     T* z,
                                                     const T* u,
                                                     int64_t n,
                                                     uint32_t thread,
                                                     uint32_t threads) {
  const bool add = !t.needs_sums() && u != nullptr, taught = u != nullptr;
  const kernel::row_factors f = kernel::row_gradient(t.mix, sums, t.cap, t.weight);
  kernel::row_sums s;
  walk_row<width, true>(z, u, n, thread, threads, [&](int64_t i, float zi, float ui) {
    if (add) add_element(t, s, zi, ui, true);
    return element_gradient(t, sums, f, i, zi, ui, taught);
  });
  return s;
}

template <int width, class T>
DFLASH_HOST_DEVICE inline void clear_row(T* z, int64_t n, uint32_t thread, uint32_t threads) {
  walk_row<width, true>(
      z, static_cast<const T*>(nullptr), n, thread, threads, [](int64_t, float, float) {
        return 0.0f;
      });
}

// All on the device, [rows]. A term is written where its pointer is not null: 0 where the weight is
// 0.
struct loss_row_output {
  float* term[kernel::loss_term_count] = {};
  int64_t* rank = nullptr;  // logits that beat the label's; -1 where the weight is 0
};

template <class T>
struct loss_rows_input {
  T* logits = nullptr;         // [rows, n], overwritten where `gradient`
  const T* teacher = nullptr;  // [rows, n], or null where no term needs it
  const int64_t* labels = nullptr;
  const float* weights = nullptr;
  int64_t rows = 0, n = 0;
  kernel::row_mix mix;
  bool gradient = false;
};

// Does not block. Throws std::runtime_error when the launch fails.
void loss_rows(const loss_rows_input<float>& input, const loss_row_output& out, stream_handle);
void loss_rows(const loss_rows_input<c10::BFloat16>& input,
               const loss_row_output& out,
               stream_handle);

}  // namespace dflash::cuda
