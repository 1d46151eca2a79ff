// The terms of the loss, without tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dflash::kernel {

// P: softmax of the teacher's logits u, Q: of the drafter's z. Formulas: docs/losses.md.
enum class loss_term : uint8_t { ce, kl, rkl, jsd, tv, nla, lk_hybrid, cap };
inline constexpr size_t loss_term_count = 8;
inline constexpr size_t index_of(loss_term t) {
  return static_cast<size_t>(t);
}
// Whether the term reads the teacher's logits.
inline constexpr bool needs_teacher(loss_term t) {
  return t != loss_term::ce && t != loss_term::cap;
}

// Least overlap of P and Q in nla: -log(max(overlap, this)), flat below.
inline constexpr double least_overlap = 1e-5;
// lk_hybrid = l kl + (1 - l) tv, l = exp(-this x overlap) held constant (arXiv 2602.23881).
inline constexpr double lk_eta = 3.0;

struct loss_factors {
  // gradient = weight x sum of factor x d term. Terms of factor 0 are not computed, ce always is.
  std::array<double, loss_term_count> factor = {1};
  double temperature = 1;  // theta of kl: theta^2 KL(P^theta || Q^theta)

  double of(loss_term t) const { return factor[index_of(t)]; }
  double& of(loss_term t) { return factor[index_of(t)]; }
  bool teacher() const {
    for (size_t i = 0; i < loss_term_count; ++i)
      if (factor[i] != 0 && needs_teacher(static_cast<loss_term>(i))) return true;
    return false;
  }
};

}  // namespace dflash::kernel
