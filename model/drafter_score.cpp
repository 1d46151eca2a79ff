#include "model/drafter_score.hpp"

#include <ATen/ops/empty.h>

#include <utility>

#include "model/draft_vocab.hpp"

namespace dflash {

namespace {

head_loss loss_head(const drafter_config& config,
                    const loss_section& loss,
                    const frozen_parts& frozen) {
  return {config.draft_ids.empty() ? frozen.head
                                   : packed_linear(draft_head(frozen.head.weight(), config)),
          frozen.final_norm,
          frozen.rms_eps,
          config.block_size,
          terms_of(loss),
          weights_of(loss),
          frozen.logit_cap};
}

// Views of one new flat buffer, but norms by themselves in fp32.
drafter_weights compute_copies(const drafter_config& config,
                               const drafter_weights& from,
                               const at::TensorOptions& options) {
  drafter_weights copies =
      view_drafter_weights(config, at::empty({drafter_parameter_count(config)}, options));
  const auto sources = named_tensors(from);
  const auto into = named_tensors(copies);
  for (size_t i = 0; i < into.size(); ++i) {
    const at::Tensor& source = *sources[i].second;
    if (source.dim() == 1)
      *into[i].second = source.to(options.device(), at::kFloat).contiguous();
    else
      into[i].second->copy_(source);
  }
  return copies;
}

}  // namespace

drafter_scorer::drafter_scorer(drafter_config config,
                               const drafter_weights& weights,
                               const loss_section& loss,
                               const std::shared_ptr<const target>& of)
    : config_(std::move(config)),
      weighting_(weights_of(loss)),
      frozen_(frozen_parts_of(*of)),
      rows_(draft_rows(config_.draft_ids, config_.draft_ids.empty() ? 0 : config_.vocab)),
      head_(loss_head(config_, loss, frozen_)),
      compute_(compute_copies(config_, weights, of->embedding().options())),
      body_(config_, compute_) {}

step_sums drafter_scorer::score(const drafter_input& input) {
  const batch trimmed =
      frozen_.embedding.is_cpu() ? with_valid_anchors(*input.tokens) : *input.tokens;
  slot_plan slots = plan_slots(trimmed, config_.block_size, weighting_);
  if (!rows_.empty()) relabel(slots, rows_);
  if (slots.weight_sum == 0) {
    step_sums none;
    none.hits_at.assign(static_cast<size_t>(config_.block_size), 0);
    none.supervised_at = none.hits_at;
    return none;
  }
  const pass_plan plan = plan_pass(config_, trimmed, frozen_.embedding.device());
  const pass_state state = body_.forward(plan, input.taps, frozen_.embedding, timer_);
  return head_.run(state.hidden, slots, input.last_hidden, false, true, timer_).sums;
}

}  // namespace dflash
