#include "model/loss.hpp"

#include <algorithm>
#include <cmath>

#include "config/error.hpp"

namespace dflash {

step_sums& step_sums::operator+=(const step_sums& o) {
  weight_sum += o.weight_sum;
  loss += o.loss;
  for (size_t i = 0; i < terms.size(); ++i) terms[i] += o.terms[i];
  cap_weight += o.cap_weight;
  supervised += o.supervised;
  hits += o.hits;
  blocks += o.blocks;
  lead_sum += o.lead_sum;
  top4 += o.top4;
  top8 += o.top8;
  cut_blocks += o.cut_blocks;
  full_blocks += o.full_blocks;
  const auto add = [](std::vector<int64_t>& to, const std::vector<int64_t>& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
  };
  add(hits_at, o.hits_at);
  add(supervised_at, o.supervised_at);
  finite = finite && o.finite;
  return *this;
}

double step_sums::accept_len() const {
  return blocks > 0 ? 1.0 + static_cast<double>(lead_sum) / static_cast<double>(blocks) : 0.0;
}

double step_sums::mean_loss() const {
  return weight_sum > 0 ? loss / weight_sum : 0.0;
}

slot_weights weights_of(const loss_section& loss) {
  using kind = slot_weights::kind;
  return {.how = loss.weighting == "dpace"     ? kind::dpace
                 : loss.weighting == "uniform" ? kind::uniform
                                               : kind::decay,
          .gamma = loss.gamma,
          .alpha = loss.dpace_alpha};
}

slot_plan plan_slots(const batch& tokens, int64_t block_size, const slot_weights& weights) {
  DFLASH_CHECK(block_size >= 2, "a block has an anchor and a mask slot", block_size);
  const size_t per_block = static_cast<size_t>(block_size - 1), blocks = tokens.anchors.size();
  slot_plan plan;
  plan.block_size = block_size;
  plan.label.assign(blocks * per_block, 0);
  plan.weight.assign(blocks * per_block, 0.0f);
  plan.teacher.assign(blocks * per_block, 0);
  plan.valid.assign(blocks, 0);
  std::vector<double> decay(per_block);
  const bool falls = weights.how == slot_weights::kind::decay;
  for (size_t k = 0; k < per_block; ++k)
    decay[k] = falls ? std::exp(-static_cast<double>(k) / weights.gamma) : 1.0;
  for (size_t a = 0; a < blocks; ++a) {
    if (!tokens.anchor_valid[a]) continue;
    const int32_t anchor = tokens.anchors[a];
    // End of the anchor's document: a block never takes labels from the next one.
    size_t doc = 0;
    while (tokens.doc_offsets[doc + 1] <= anchor) ++doc;
    const int32_t end = tokens.doc_offsets[doc + 1];
    const size_t first = tokens.prefix.empty() ? 0 : static_cast<size_t>(tokens.prefix[a]) - 1;
    for (size_t k = first; k < per_block; ++k) {
      const int32_t at = anchor + 1 + static_cast<int32_t>(k);
      if (at >= end || !tokens.loss_mask[static_cast<size_t>(at)]) continue;
      const size_t i = a * per_block + k;
      plan.label[i] = tokens.input_ids[static_cast<size_t>(at)];
      plan.weight[i] = static_cast<float>(decay[k - first]);
      plan.teacher[i] = at - 1;
      plan.weight_sum += static_cast<double>(plan.weight[i]);
      if (k == 0) plan.valid[a] = 1;
    }
  }
  return plan;
}

std::vector<float> dpace_weights(const slot_plan& plan, std::span<const float> ce, double alpha) {
  DFLASH_CHECK(ce.size() == plan.weight.size(), "one cross-entropy per slot");
  const size_t per_block = static_cast<size_t>(plan.block_size - 1);
  std::vector<float> out(ce.size(), 0.0f);
  std::vector<double> reached(per_block);
  for (size_t begin = 0; begin < ce.size(); begin += per_block) {
    double product = 1;
    for (size_t k = 0; k < per_block; ++k) {
      const bool counts = plan.weight[begin + k] != 0;
      if (counts) product *= (1 - alpha) * std::exp(-static_cast<double>(ce[begin + k])) + alpha;
      reached[k] = counts ? product : 0;
    }
    double sum = 0;
    for (size_t k = per_block; k-- > 0;) {
      sum += reached[k];
      if (plan.weight[begin + k] != 0) out[begin + k] = static_cast<float>(sum);
    }
  }
  return out;
}

loss_terms terms_of(const loss_section& loss) {
  static_assert(loss_term_names.size() + 1 == kernel::loss_term_count &&
                    kernel::index_of(kernel::loss_term::lk_hybrid) == loss_term_names.size() - 1,
                "names and terms stand in one order");
  loss_terms terms{.factor = {}, .temperature = loss.temperature};
  double sum = 0;
  for (const auto& [name, factor] : loss.terms) {
    const auto known = std::find(loss_term_names.begin(), loss_term_names.end(), name);
    DFLASH_CHECK(known != loss_term_names.end(), "a known loss term", name);
    terms.factor[static_cast<size_t>(known - loss_term_names.begin())] = factor;
    sum += factor;
  }
  DFLASH_CHECK(sum > 0, "a loss term has a weight");
  terms.of(kernel::loss_term::cap) = loss.cap_lambda;
  return terms;
}

}  // namespace dflash
