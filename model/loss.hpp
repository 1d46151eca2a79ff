// Losses of the drafter over chunks of logits (dflash.md 4.5-4.7): sums and counts, never means.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "config/run_config.hpp"
#include "data/batches.hpp"
#include "device/kernels/loss_rows.hpp"

namespace dflash {

// Sums over blocks of one micro-step; add them over micro-steps and drafters, then divide.
struct step_sums {
  double weight_sum = 0;  // S = sum of w
  double loss = 0;        // sum of w x (weighted sum of the terms)
  // [kernel::loss_term] sum of w x term, cap's over the slots that are right; 0 where not computed
  std::array<double, kernel::loss_term_count> terms{};
  double cap_weight = 0;       // sum of w over the slots that are right, if there is a cap term
  int64_t supervised = 0;      // slots
  int64_t hits = 0;            // slots whose argmax is the label
  int64_t blocks = 0;          // valid blocks: anchor valid and slot 1 supervised
  int64_t lead_sum = 0;        // leading hits from slot 1, over valid blocks
  int64_t top4 = 0, top8 = 0;  // slots whose label is among the 4, 8 best
  int64_t cut_blocks = 0;      // valid blocks with an unsupervised slot among 1..B-1
  int64_t full_blocks = 0;     // uncut blocks with lead B - 1
  std::vector<int64_t> hits_at, supervised_at;  // [B]
  bool finite = true;                           // loss sums are finite

  step_sums& operator+=(const step_sums& other);
  double accept_len() const;  // mean over valid blocks of lead + 1; 0 without blocks
  double mean_loss() const;   // loss / S; 0 without weight
  double of(kernel::loss_term t) const { return terms[kernel::index_of(t)]; }
};

// Supervision of the A x (B - 1) slots 1..B-1 of a batch, block by block (slot 0 is never
// supervised).
struct slot_plan {
  int64_t block_size = 0;
  std::vector<int32_t> label;    // [A (B-1)] token at a + k, or its draft row; 0: not supervised
  std::vector<float> weight;     // [A (B-1)] w_k = m exp(-(k-l) / gamma), l the block's prefix; m
                                 // alone where weights are uniform or the loss makes them
  std::vector<int32_t> teacher;  // [A (B-1)] position a + k - 1 in the row; 0 where not supervised
  std::vector<uint8_t> valid;    // [A] block counts in block metrics
  double weight_sum = 0;
};

struct slot_weights {
  enum class kind : uint8_t { decay, uniform, dpace };
  kind how = kind::decay;
  double gamma = 7;    // decay
  double alpha = 0.5;  // dpace
};
slot_weights weights_of(const loss_section& loss);

// m = 1 iff k >= l (1, or the block's prefix), the anchor is valid, a + k lies in the same document
// and loss_mask[a + k] = 1 (dflash.md 4.3).
slot_plan plan_slots(const batch& tokens, int64_t block_size, const slot_weights& weights);

// D-PACE (arXiv 2605.18810) from the slots' cross-entropies: q = (1 - alpha) exp(-ce) + alpha where
// m = 1, else 1; C_j = product of q up to j; w_j = m_j x sum over i >= j of m_i C_i. [A (B-1)]
// each.
std::vector<float> dpace_weights(const slot_plan& plan, std::span<const float> ce, double alpha);

using loss_terms = kernel::loss_factors;
// The terms of a configuration, cap_lambda among them.
loss_terms terms_of(const loss_section& loss);

}  // namespace dflash
