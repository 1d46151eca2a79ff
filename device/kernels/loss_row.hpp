// What becomes of one row of logits once its sums are known: the values of all terms, and the
// factors of its gradient. Shared by the kernels of the CPU and of GPUs. Formulas: docs/losses.md.
#pragma once

#include <cmath>

#include "device/host_device.hpp"
#include "device/kernels/loss_terms.hpp"

namespace dflash::kernel {

// Sums over the row. P: softmax of the teacher's logits, Q: of the drafter's, M = (P + Q) / 2.
struct row_sums {
  float kl = 0;       // KL(P || Q), temperature 1
  float kl_soft = 0;  // at the temperature of kl
  float rkl = 0;
  float to_mixture_p = 0, to_mixture_q = 0;  // KL(P || M), KL(Q || M)
  float overlap = 0, distance = 0;           // sum min, sum |P - Q|
  float above = 0, below = 0, even = 0;      // sum of Q where Q > P, Q < P, Q = P
  float entropy = 0;                         // of Q
};

// What is asked of a row.
struct row_mix {
  float factor[loss_term_count] = {};  // of the terms, by index
  float temperature = 1;
  DFLASH_HOST_DEVICE float of(loss_term t) const { return factor[static_cast<int>(t)]; }
  DFLASH_HOST_DEVICE bool has(loss_term t) const { return of(t) != 0; }
  DFLASH_HOST_DEVICE bool soft() const { return has(loss_term::kl) && temperature != 1.0f; }
  DFLASH_HOST_DEVICE bool overlaps() const {
    return has(loss_term::tv) || has(loss_term::nla) || has(loss_term::lk_hybrid);
  }
};

inline row_mix mix_of(const loss_factors& factors) {
  row_mix mix;
  for (size_t i = 0; i < loss_term_count; ++i)
    mix.factor[i] = static_cast<float>(factors.factor[i]);
  mix.temperature = static_cast<float>(factors.temperature);
  return mix;
}

// Factors of the row, weight included. A gradient has the form
// Q (ce + kl + rkl (log Q/P - own) + jsd (log Q/M - own) + sign (sign(Q - P) - own)
//    - entropy (log Q + own)) - kl P + kl_soft (Q^theta - P^theta), less ce at the label.
struct row_factors {
  float ce = 0, kl = 0, kl_soft = 0, rkl = 0, jsd = 0, sign = 0, entropy = 0;
};

// Of the terms that are asked for; of the others 0. ce is not among them: it needs no sum. `cap`:
// the row's argmax is its label.
DFLASH_HOST_DEVICE inline void row_values(const row_mix& mix,
                                          const row_sums& s,
                                          bool cap,
                                          float* term /* [loss_term_count] */) {
  const auto set = [&](loss_term t, float value) {
    if (mix.has(t)) term[static_cast<int>(t)] = value;
  };
  constexpr float least = static_cast<float>(least_overlap);
  const float distance = 0.5f * s.distance;
  const float blend = std::exp(-static_cast<float>(lk_eta) * s.overlap);
  const float theta = mix.temperature;
  set(loss_term::kl, mix.soft() ? theta * theta * s.kl_soft : s.kl);
  set(loss_term::rkl, s.rkl);
  set(loss_term::jsd, 0.5f * (s.to_mixture_p + s.to_mixture_q));
  set(loss_term::tv, distance);
  set(loss_term::nla, -std::log(s.overlap > least ? s.overlap : least));
  set(loss_term::lk_hybrid, blend * s.kl + (1.0f - blend) * distance);
  if (cap) set(loss_term::cap, s.entropy);
}

DFLASH_HOST_DEVICE inline row_factors row_gradient(const row_mix& mix,
                                                   const row_sums& s,
                                                   bool cap,
                                                   float weight) {
  const float blend = std::exp(-static_cast<float>(lk_eta) * s.overlap);
  const float lk = mix.of(loss_term::lk_hybrid), kl = mix.of(loss_term::kl);
  // d -log(overlap) = d tv / overlap, nothing where the overlap is held.
  const float nla =
      s.overlap > static_cast<float>(least_overlap) ? mix.of(loss_term::nla) / s.overlap : 0.0f;
  row_factors f;
  f.ce = weight * mix.of(loss_term::ce);
  f.kl = weight * ((mix.soft() ? 0.0f : kl) + lk * blend);
  f.kl_soft = mix.soft() ? weight * kl * mix.temperature : 0.0f;
  f.rkl = weight * mix.of(loss_term::rkl);
  f.jsd = 0.5f * weight * mix.of(loss_term::jsd);
  f.sign = 0.5f * weight * (mix.of(loss_term::tv) + nla + lk * (1.0f - blend));
  f.entropy = cap ? weight * mix.of(loss_term::cap) : 0.0f;
  return f;
}

}  // namespace dflash::kernel
