// SSSE3, SSE4 and Ice Lake forms add compile time and no speed here.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "device/kernels/loss_rows.hpp"

#include <array>
#include <cmath>

#include "config/error.hpp"
#include "device/kernels/loss_row.hpp"
#include "device/kernels/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/kernels/loss_rows.cpp"
#include <hwy/foreach_target.h>

#include "device/kernels/lanes-inl.hpp"

#ifndef DFLASH_LOSS_ROW_TYPES
#define DFLASH_LOSS_ROW_TYPES
namespace dflash::kernel {
struct loss_row_task {
  size_t n;  // V
  size_t label;
  float weight;
  row_mix mix;
  bool only_ce_kl;  // no factor but these two
  bool gradient;
  bool entropy;  // cap counts in this row
  float of(loss_term t) const { return mix.of(t); }
};
struct loss_row_values {
  std::array<float, loss_term_count> term;
  int32_t rank;
};
}  // namespace dflash::kernel
#endif

#include "device/kernels/loss_terms-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace dflash::kernel::HWY_NAMESPACE {

using c10::BFloat16;

// Largest element and how many of [first, last) beat `level` (ties count where `ties`).
template <bool ties, class T>
HWY_INLINE int32_t scan(const T* z, size_t first, size_t last, float level, float_vec* most) {
  const float_tag d;
  const hn::RebindToSigned<float_tag> di;
  const size_t lanes = hn::Lanes(d);
  const auto bar = hn::Set(d, level);
  auto count = hn::Zero(di);
  auto top0 = *most, top1 = *most;
  const auto beats = [&](float_vec v) {
    if constexpr (ties)
      return hn::Ge(v, bar);
    else
      return hn::Gt(v, bar);
  };
  size_t i = first;
  for (; i + 2 * lanes <= last; i += 2 * lanes) {
    const auto a = load(d, z + i), b = load(d, z + i + lanes);
    top0 = hn::Max(top0, a);
    top1 = hn::Max(top1, b);
    count = hn::Sub(count, hn::BitCast(di, hn::VecFromMask(d, beats(a))));
    count = hn::Sub(count, hn::BitCast(di, hn::VecFromMask(d, beats(b))));
  }
  int32_t rest = 0;
  float top = -INFINITY;
  for (; i < last; ++i) {
    const float v = static_cast<float>(z[i]);
    top = v > top ? v : top;
    rest += ties ? v >= level : v > level;
  }
  *most = hn::Max(hn::Max(top0, top1), hn::Set(d, top));
  return rest + hn::GetLane(hn::SumOfLanes(di, count));
}

// Sum of exp(scale z - offset).
template <class T>
HWY_INLINE float sum_exp(const T* z, size_t n, float scale, float offset) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  const auto k = hn::Set(d, scale), o = hn::Set(d, -offset);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    s0 = hn::Add(s0, exp_lanes(d, hn::MulAdd(load(d, z + i), k, o)));
    s1 = hn::Add(s1, exp_lanes(d, hn::MulAdd(load(d, z + i + lanes), k, o)));
  }
  for (; i < n; i += lanes) {
    const auto v = n - i >= lanes ? load(d, z + i) : load_n(d, z + i, n - i, -INFINITY);
    s1 = hn::Add(s1, exp_lanes(d, hn::MulAdd(v, k, o)));
  }
  return sum_lanes(d, hn::Add(s0, s1));
}

// z = factor exp(z - lse).
template <class T>
HWY_INLINE void write_softmax(T* z, size_t n, float lse, float factor) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  const auto o = hn::Set(d, lse), f = hn::Set(d, factor);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    store(d, hn::Mul(f, exp_lanes(d, hn::Sub(load(d, z + i), o))), z + i);
  if (i < n)
    store_n(d, hn::Mul(f, exp_lanes(d, hn::Sub(load_n(d, z + i, n - i), o))), z + i, n - i);
}

template <class T>
HWY_INLINE float log_sum_exp(const T* x, size_t n, float scale, float top) {
  return top * scale + std::log(sum_exp(x, n, scale, top * scale));
}

template <class T>
HWY_INLINE loss_row_values loss_row(T* z, const T* u, loss_row_task t) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  const float zy = static_cast<float>(z[t.label]);
  auto most = hn::Set(d, -INFINITY);
  loss_row_values out{};
  out.rank = scan<true>(z, 0, t.label, zy, &most);
  out.rank += scan<false>(z, t.label, t.n, zy, &most);
  const float top = max_lanes(d, most);
  const float lse = top + std::log(sum_exp(z, t.n, 1.0f, top));
  out.term[index_of(loss_term::ce)] = lse - zy;
  t.entropy = t.of(loss_term::cap) != 0 && out.rank == 0;
  if (u == nullptr && !t.entropy) {
    if (t.gradient) {
      const float f = t.weight * t.of(loss_term::ce);
      write_softmax(z, t.n, lse, f);
      z[t.label] = static_cast<T>(f * (std::exp(zy - lse) - 1.0f));
    }
    return out;
  }
  const float k = 1.0f / t.mix.temperature;
  if (u == nullptr) {
    row_of_terms(z, u, t, {.z_lse = lse}, out);
    return out;
  }
  auto u_most = hn::Set(d, -INFINITY);
  (void)scan<false>(u, 0, t.n, INFINITY, &u_most);
  if (!t.only_ce_kl) {
    const float most_u = max_lanes(d, u_most);
    row_norms norms{.z_lse = lse, .u_lse = log_sum_exp(u, t.n, 1.0f, most_u), .scale = k};
    if (k != 1.0f && t.of(loss_term::kl) != 0) {
      norms.z_lse_scaled = log_sum_exp(z, t.n, k, top);
      norms.u_lse_scaled = log_sum_exp(u, t.n, k, most_u);
    }
    row_of_terms(z, u, t, norms, out);
    return out;
  }
  const float u_top = max_lanes(d, u_most) * k;
  const float u_lse = u_top + std::log(sum_exp(u, t.n, k, u_top));
  const float z_lse = k == 1.0f ? lse : top * k + std::log(sum_exp(z, t.n, k, top * k));
  const float f_ce = t.weight * t.of(loss_term::ce);
  const float f_kl = t.weight * t.of(loss_term::kl) * t.mix.temperature;
  const auto kv = hn::Set(d, k), uo = hn::Set(d, -u_lse), zo = hn::Set(d, -z_lse);
  const auto lo = hn::Set(d, lse), fc = hn::Set(d, f_ce), fk = hn::Set(d, f_kl);
  auto cross = hn::Zero(d);
  for (size_t i = 0; i < t.n; i += lanes) {
    const size_t rest = t.n - i;
    const bool whole = rest >= lanes;
    const auto zi = whole ? load(d, z + i) : load_n(d, z + i, rest, -1e30f);
    const auto ui = whole ? load(d, u + i) : load_n(d, u + i, rest, -1e30f);
    const auto lp = hn::MulAdd(ui, kv, uo), lq = hn::MulAdd(zi, kv, zo);
    const auto p = exp_lanes(d, lp);
    cross = hn::MulAdd(p, hn::Sub(lp, lq), cross);
    if (!t.gradient) continue;
    auto g = hn::Mul(fk, hn::Sub(exp_lanes(d, lq), p));
    if (f_ce != 0.0f) g = hn::MulAdd(fc, exp_lanes(d, hn::Sub(zi, lo)), g);
    if (whole)
      store(d, g, z + i);
    else
      store_n(d, g, z + i, rest);
  }
  out.term[index_of(loss_term::kl)] = sum_lanes(d, cross) * t.mix.temperature * t.mix.temperature;
  if (t.gradient && f_ce != 0.0f) {
    const float zl = zy * k - z_lse, ul = static_cast<float>(u[t.label]) * k - u_lse;
    z[t.label] =
        static_cast<T>(f_kl * (std::exp(zl) - std::exp(ul)) + f_ce * (std::exp(zy - lse) - 1.0f));
  }
  return out;
}

loss_row_values loss_row_f(float* z, const float* u, const loss_row_task& t) {
  return loss_row(z, u, t);
}
loss_row_values loss_row_b(BFloat16* z, const BFloat16* u, const loss_row_task& t) {
  return loss_row(z, u, t);
}

}  // namespace dflash::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::kernel {
namespace {

using c10::BFloat16;
HWY_EXPORT(loss_row_f);
HWY_EXPORT(loss_row_b);

template <class T, class Kernel>
void run(Kernel kernel,
         at::Tensor& logits,
         const at::Tensor& teacher,
         std::span<const int32_t> labels,
         std::span<const float> weights,
         const loss_factors& factors,
         bool gradient,
         loss_row_results& out) {
  const int64_t rows = logits.size(0), n = logits.size(1);
  loss_row_task common{.n = static_cast<size_t>(n),
                       .label = 0,
                       .weight = 0,
                       .mix = mix_of(factors),
                       .only_ce_kl = true,
                       .gradient = gradient,
                       .entropy = false};
  for (size_t i = 2; i < loss_term_count; ++i)
    common.only_ce_kl = common.only_ce_kl && factors.factor[i] == 0;
  T* z = logits.data_ptr<T>();
  const T* u = teacher.defined() ? teacher.const_data_ptr<T>() : nullptr;
  // Grain of one row: rows without weight cost nothing, so large parts would be uneven.
  at::parallel_for(0, rows, 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const size_t i = static_cast<size_t>(r);
      if (weights[i] == 0.0f) {
        if (gradient) std::fill_n(z + r * n, n, T(0));
        continue;
      }
      loss_row_task task = common;
      task.label = static_cast<size_t>(labels[i]);
      task.weight = weights[i];
      const loss_row_values v = kernel(z + r * n, u ? u + r * n : nullptr, task);
      for (size_t j = 0; j < loss_term_count; ++j) out.term[j][i] = v.term[j];
      out.rank[i] = v.rank;
    }
  });
}

}  // namespace

loss_row_results loss_rows(at::Tensor& logits,
                           const at::Tensor& teacher,
                           std::span<const int32_t> labels,
                           std::span<const float> weights,
                           const loss_factors& factors,
                           bool gradient) {
  const size_t rows = static_cast<size_t>(logits.size(0));
  DFLASH_CHECK(labels.size() == rows && weights.size() == rows, "one label and weight per row");
  DFLASH_CHECK(teacher.defined() || !factors.teacher(), "a term needs the teacher's logits");
  const auto type = logits.scalar_type();
  const bool fits =
      logits.is_cpu() && logits.is_contiguous() && (type == at::kFloat || type == at::kBFloat16) &&
      (!teacher.defined() || (teacher.is_contiguous() && teacher.scalar_type() == type));
  if (!fits) {
    at::Tensor g;
    loss_row_results out =
        loss_rows_reference(logits, teacher, labels, weights, factors, gradient ? &g : nullptr);
    if (gradient) logits.copy_(g);
    return out;
  }
  loss_row_results out;
  for (std::vector<float>& values : out.term) values.assign(rows, 0.0f);
  out.rank.assign(rows, -1);
  if (type == at::kBFloat16)
    run<BFloat16>(
        HWY_DYNAMIC_DISPATCH(loss_row_b), logits, teacher, labels, weights, factors, gradient, out);
  else
    run<float>(
        HWY_DYNAMIC_DISPATCH(loss_row_f), logits, teacher, labels, weights, factors, gradient, out);
  return out;
}

}  // namespace dflash::kernel
#endif
