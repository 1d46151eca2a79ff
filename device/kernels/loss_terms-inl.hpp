// One row of logits under any mixture of terms. Included once per instruction set by loss_rows.cpp;
// no include guard of the usual kind on purpose.
#if defined(DFLASH_LOSS_TERMS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef DFLASH_LOSS_TERMS_INL
#undef DFLASH_LOSS_TERMS_INL
#else
#define DFLASH_LOSS_TERMS_INL
#endif

#include <hwy/contrib/math/math-inl.h>

#include <cmath>

#include "device/kernels/lanes-inl.hpp"
#include "device/kernels/loss_row.hpp"

HWY_BEFORE_NAMESPACE();
namespace dflash::kernel::HWY_NAMESPACE {

// What the walk over a row needs to know before it starts: log-sum-exps at temperature 1 and, for
// kl at another one, at that.
struct row_norms {
  float z_lse = 0, u_lse = 0;
  float scale = 1, z_lse_scaled = 0, u_lse_scaled = 0;  // scale = 1 / temperature
};

// log(M / max(P, Q)) with M = (P + Q) / 2, stable for logs far apart.
HWY_INLINE float_vec log_mixture_over_larger(float_tag d, float_vec lp, float_vec lq) {
  const auto gap = hn::Neg(hn::Abs(hn::Sub(lp, lq)));
  const auto softplus = hn::Log(d, hn::Add(hn::Set(d, 1.0f), exp_lanes(d, gap)));
  return hn::Sub(softplus, hn::Set(d, 0.693147180559945f));
}

// log(M / Q).
HWY_INLINE float_vec log_mixture_over(float_tag d, float_vec lp, float_vec lq) {
  return hn::Add(hn::Sub(hn::Max(lp, lq), lq), log_mixture_over_larger(d, lp, lq));
}

template <class T>
HWY_INLINE row_sums sum_terms(const T* z, const T* u, const loss_row_task& t, const row_norms& r) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  const bool kl = t.mix.has(loss_term::kl) || t.mix.has(loss_term::lk_hybrid);
  const bool soft = t.mix.soft(), overlap = t.mix.overlaps();
  const bool rkl = t.mix.has(loss_term::rkl), jsd = t.mix.has(loss_term::jsd);
  const auto zo = hn::Set(d, r.z_lse), uo = hn::Set(d, r.u_lse);
  const auto k = hn::Set(d, r.scale), zs = hn::Set(d, -r.z_lse_scaled),
             us = hn::Set(d, -r.u_lse_scaled);
  const auto zero = hn::Zero(d);
  auto s_kl = zero, s_soft = zero, s_rkl = zero, s_mp = zero, s_mq = zero, s_min = zero,
       s_abs = zero, s_above = zero, s_below = zero, s_even = zero, s_h = zero;
  for (size_t i = 0; i < t.n; i += lanes) {
    const size_t rest = t.n - i;
    const bool whole = rest >= lanes;
    const auto zi = whole ? load(d, z + i) : load_n(d, z + i, rest, -1e30f);
    const auto lq = hn::Sub(zi, zo), q = exp_lanes(d, lq);
    if (t.entropy) s_h = hn::NegMulAdd(q, lq, s_h);
    if (u == nullptr) continue;
    const auto ui = whole ? load(d, u + i) : load_n(d, u + i, rest, -1e30f);
    const auto lp = hn::Sub(ui, uo), p = exp_lanes(d, lp);
    if (kl) s_kl = hn::MulAdd(p, hn::Sub(lp, lq), s_kl);
    if (soft) {
      const auto lps = hn::MulAdd(ui, k, us), lqs = hn::MulAdd(zi, k, zs);
      s_soft = hn::MulAdd(exp_lanes(d, lps), hn::Sub(lps, lqs), s_soft);
    }
    if (rkl) s_rkl = hn::MulAdd(q, hn::Sub(lq, lp), s_rkl);
    if (jsd) {
      const auto m = log_mixture_over_larger(d, lp, lq), larger = hn::Max(lp, lq);
      s_mq = hn::NegMulAdd(q, hn::Add(hn::Sub(larger, lq), m), s_mq);
      s_mp = hn::NegMulAdd(p, hn::Add(hn::Sub(larger, lp), m), s_mp);
    }
    if (overlap) {
      s_min = hn::Add(s_min, hn::Min(p, q));
      s_abs = hn::Add(s_abs, hn::Abs(hn::Sub(p, q)));
      s_above = hn::Add(s_above, hn::IfThenElseZero(hn::Gt(q, p), q));
      s_below = hn::Add(s_below, hn::IfThenElseZero(hn::Lt(q, p), q));
      s_even = hn::Add(s_even, hn::IfThenElseZero(hn::Eq(q, p), q));
    }
  }
  return {.kl = sum_lanes(d, s_kl),
          .kl_soft = sum_lanes(d, s_soft),
          .rkl = sum_lanes(d, s_rkl),
          .to_mixture_p = sum_lanes(d, s_mp),
          .to_mixture_q = sum_lanes(d, s_mq),
          .overlap = sum_lanes(d, s_min),
          .distance = sum_lanes(d, s_abs),
          .above = sum_lanes(d, s_above),
          .below = sum_lanes(d, s_below),
          .even = sum_lanes(d, s_even),
          .entropy = sum_lanes(d, s_h)};
}

template <class T>
HWY_INLINE void write_terms(T* z,
                            const T* u,
                            const loss_row_task& t,
                            const row_norms& r,
                            const row_sums& s,
                            const row_factors& f) {
  const float_tag d;
  const hn::RebindToSigned<float_tag> di;
  const size_t lanes = hn::Lanes(d);
  const auto zo = hn::Set(d, r.z_lse), uo = hn::Set(d, r.u_lse);
  const auto k = hn::Set(d, r.scale), zs = hn::Set(d, -r.z_lse_scaled),
             us = hn::Set(d, -r.u_lse_scaled);
  const auto f_kl = hn::Set(d, f.kl), f_soft = hn::Set(d, f.kl_soft), f_rkl = hn::Set(d, f.rkl);
  const auto f_jsd = hn::Set(d, f.jsd), f_sign = hn::Set(d, f.sign), f_h = hn::Set(d, f.entropy);
  // sign - sum of Q sign, written so that nothing cancels where one sign has nearly all of Q.
  const auto when_above = hn::Set(d, 2 * s.below + s.even);
  const auto when_below = hn::Set(d, -2 * s.above - s.even);
  const auto when_even = hn::Set(d, s.below - s.above);
  const auto own_h = hn::Set(d, s.entropy);
  const auto own_rkl = hn::Set(d, s.rkl), own_jsd = hn::Set(d, s.to_mixture_q);
  const auto plain = hn::Set(d, f.ce + f.kl);
  for (size_t i = 0; i < t.n; i += lanes) {
    const size_t rest = t.n - i;
    const bool whole = rest >= lanes;
    const auto zi = whole ? load(d, z + i) : load_n(d, z + i, rest, -1e30f);
    const auto lq = hn::Sub(zi, zo), q = exp_lanes(d, lq);
    auto a = plain, g = hn::Zero(d);
    if (f.entropy != 0) a = hn::NegMulAdd(f_h, hn::Add(lq, own_h), a);
    if (u != nullptr) {
      const auto ui = whole ? load(d, u + i) : load_n(d, u + i, rest, -1e30f);
      const auto lp = hn::Sub(ui, uo), p = exp_lanes(d, lp);
      if (f.rkl != 0) a = hn::MulAdd(f_rkl, hn::Sub(hn::Sub(lq, lp), own_rkl), a);
      if (f.jsd != 0) a = hn::NegMulAdd(f_jsd, hn::Add(log_mixture_over(d, lp, lq), own_jsd), a);
      if (f.sign != 0)
        a = hn::MulAdd(
            f_sign,
            hn::IfThenElse(
                hn::Gt(q, p), when_above, hn::IfThenElse(hn::Lt(q, p), when_below, when_even)),
            a);
      g = hn::NegMulAdd(f_kl, p, g);
      if (f.kl_soft != 0) {
        const auto ps = exp_lanes(d, hn::MulAdd(ui, k, us));
        const auto qs = exp_lanes(d, hn::MulAdd(zi, k, zs));
        g = hn::MulAdd(f_soft, hn::Sub(qs, ps), g);
      }
    }
    g = hn::MulAdd(q, a, g);
    if (i <= t.label && t.label < i + lanes) {
      const auto here = hn::Eq(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(t.label - i)));
      g = hn::Sub(g, hn::IfThenElseZero(hn::RebindMask(d, here), hn::Set(d, f.ce)));
    }
    if (whole)
      store(d, g, z + i);
    else
      store_n(d, g, z + i, rest);
  }
}

// Fills all terms but ce, and the gradient over z.
template <class T>
HWY_INLINE void row_of_terms(
    T* z, const T* u, const loss_row_task& t, const row_norms& r, loss_row_values& out) {
  const row_sums s = sum_terms(z, u, t, r);
  row_values(t.mix, s, t.entropy, out.term.data());
  if (t.gradient) write_terms(z, u, t, r, s, row_gradient(t.mix, s, t.entropy, t.weight));
}

}  // namespace dflash::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
