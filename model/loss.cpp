#include "model/loss.hpp"

#include <cmath>

#include "config/error.hpp"

namespace dflash {

step_sums& step_sums::operator+=(const step_sums& o) {
  weight_sum += o.weight_sum;
  loss += o.loss;
  ce += o.ce;
  kl += o.kl;
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

slot_plan plan_slots(const batch& tokens, int64_t block_size, double gamma) {
  DFLASH_CHECK(block_size >= 2, "a block has an anchor and a mask slot", block_size);
  const size_t per_block = static_cast<size_t>(block_size - 1), blocks = tokens.anchors.size();
  slot_plan plan;
  plan.block_size = block_size;
  plan.label.assign(blocks * per_block, 0);
  plan.weight.assign(blocks * per_block, 0.0f);
  plan.teacher.assign(blocks * per_block, 0);
  plan.valid.assign(blocks, 0);
  std::vector<double> decay(per_block);
  for (size_t k = 0; k < per_block; ++k) decay[k] = std::exp(-static_cast<double>(k) / gamma);
  for (size_t a = 0; a < blocks; ++a) {
    if (!tokens.anchor_valid[a]) continue;
    const int32_t anchor = tokens.anchors[a];
    // End of the anchor's document: a block never takes labels from the next one.
    size_t doc = 0;
    while (tokens.doc_offsets[doc + 1] <= anchor) ++doc;
    const int32_t end = tokens.doc_offsets[doc + 1];
    for (size_t k = 0; k < per_block; ++k) {
      const int32_t at = anchor + 1 + static_cast<int32_t>(k);
      if (at >= end || !tokens.loss_mask[static_cast<size_t>(at)]) continue;
      const size_t i = a * per_block + k;
      plan.label[i] = tokens.input_ids[static_cast<size_t>(at)];
      plan.weight[i] = static_cast<float>(decay[k]);
      plan.teacher[i] = at - 1;
      plan.weight_sum += static_cast<double>(plan.weight[i]);
      if (k == 0) plan.valid[a] = 1;
    }
  }
  return plan;
}

loss_terms terms_of(const loss_section& loss) {
  loss_terms terms{.ce = 0, .kl = 0, .temperature = loss.temperature};
  for (const auto& [name, factor] : loss.terms) {
    if (name == "ce")
      terms.ce = factor;
    else if (name == "kl")
      terms.kl = factor;
    else
      throw error("unknown loss term \"" + name + "\"", "loss.terms", "known terms: ce, kl");
  }
  if (terms.ce == 0 && terms.kl == 0)
    throw error("no loss term has a weight", "loss.terms", "for example terms = { ce = 1.0 }");
  return terms;
}

}  // namespace dflash
