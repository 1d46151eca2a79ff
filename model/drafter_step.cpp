#include "model/drafter_step.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "config/error.hpp"
#include "device/lane_streams.hpp"
#include "model/draft_vocab.hpp"
#include "model/drafter_pass.hpp"
#include "model/head_loss.hpp"

namespace dflash {

frozen_parts frozen_parts_of(const target& t) {
  return {.embedding = t.embedding(),
          .head = t.head(),
          .final_norm = t.final_norm(),
          .rms_eps = t.config().rms_eps,
          .logit_cap = t.config().logit_cap};
}

struct drafter_trainer::implementation {
  implementation(drafter_config shape,
                 const loss_section& loss,
                 const optim_section& optim,
                 const drafter_weights& start,
                 frozen_parts parts,
                 compute_dtype dtype,
                 uint64_t total_steps)
      : config(std::move(shape)),
        weights(weights_of(loss)),
        ema(optim.ema),
        frozen(std::move(parts)),
        rows(draft_rows(config.draft_ids, config.draft_ids.empty() ? 0 : config.vocab)),
        head_rows(config.draft_ids.empty()
                      ? frozen.head
                      : packed_linear(draft_head(frozen.head.weight(), config))),
        head(head_rows,
             frozen.final_norm,
             frozen.rms_eps,
             config.block_size,
             terms_of(loss),
             weights,
             frozen.logit_cap),
        type(scalar_type(dtype)) {
    DFLASH_CHECK(frozen.embedding.scalar_type() == type, "embedding in the compute dtype");
    const auto options = frozen.embedding.options().dtype(at::kFloat);
    flat = at::empty({drafter_parameter_count(config)}, options);
    masters = view_drafter_weights(config, flat);
    const auto from = named_tensors(start);
    const auto to = named_tensors(masters);
    DFLASH_CHECK(from.size() == to.size(), "masters of another shape");
    for (size_t i = 0; i < to.size(); ++i) to[i].second->copy_(*from[i].second);

    if (ema > 0) {
      flat_average = flat.clone();
      average = view_drafter_weights(config, flat_average);
    }

    flat_gradient = at::zeros_like(flat);
    gradient = view_drafter_weights(config, flat_gradient);
    compute = masters;
    if (type != at::kFloat) {
      flat_compute = at::zeros({flat.numel()}, options.dtype(type));
      compute = view_drafter_weights(config, flat_compute);
    }
    std::vector<optimizer::parameter> parameters;
    const auto copies = named_tensors(compute);
    for (size_t i = 0; i < to.size(); ++i) {
      at::Tensor& copy = *copies[i].second;
      if (copy.dim() == 1) copy = *to[i].second;  // norms are read in fp32
      const bool separate = copy.dim() > 1 && type != at::kFloat;
      parameters.push_back({to[i].first, *to[i].second, separate ? copy : at::Tensor()});
    }
    optim_state = std::make_unique<optimizer>(
        optim, std::move(parameters), total_steps, type == at::kBFloat16);
    optim_state->refresh_compute();
    body = std::make_unique<drafter_body>(config, compute);
    wait_for(flat.device());  // another thread is going to train
  }

  step_sums run(const drafter_input& input,
                bool with_gradient,
                bool metrics,
                const accumulate_watch& watch = {}) {
    DFLASH_CHECK(input.tokens != nullptr, "an input has tokens");
    timer.reset();
    // Empty anchor slots keep shapes fixed for a GPU; on the CPU their blocks are left out.
    const batch trimmed =
        frozen.embedding.is_cpu() ? with_valid_anchors(*input.tokens) : *input.tokens;
    timer.mark("anchors");
    slot_plan slots = plan_slots(trimmed, config.block_size, weights);
    if (!rows.empty()) relabel(slots, rows);
    if (slots.weight_sum == 0) {  // nothing supervised: adds 0 to every sum
      step_sums none;
      none.hits_at.assign(static_cast<size_t>(config.block_size), 0);
      none.supervised_at = none.hits_at;
      return none;
    }
    timer.mark("labels and weights");
    const pass_plan plan = plan_pass(config, trimmed, frozen.embedding.device());
    timer.mark("mask intervals");
    pass_state state = body->forward(plan, input.taps, frozen.embedding, timer);
    const head_loss::result result =
        head.run(state.hidden, slots, input.last_hidden, with_gradient, metrics, timer);
    if (!with_gradient) return result.sums;
    if (watch.summed) watch.summed(result.sums);
    if (fresh) zero_norms();
    std::function<void(size_t)> layer_done;
    if (watch.final_from)
      layer_done = [&](size_t i) {
        watch.final_from(
            flat_gradient,
            gradient.layers[i].input_layernorm.storage_offset() - flat_gradient.storage_offset());
      };
    body->backward(plan, input.taps, state, result.d_hidden, gradient, fresh, timer, layer_done);
    if (watch.final_from) watch.final_from(flat_gradient, 0);
    fresh = false;
    return result.sums;
  }

  // Matrices are overwritten by the first batch; norms are always added to.
  void zero_norms() {
    for (const auto& [name, tensor] : named_tensors(gradient))
      if (tensor->dim() == 1) tensor->zero_();
  }

  drafter_config config;
  slot_weights weights;
  double ema;
  frozen_parts frozen;
  std::vector<int32_t> rows;  // [V] row in the draft vocabulary; empty: the whole vocabulary
  packed_linear head_rows;    // [Vd, H]
  head_loss head;
  at::ScalarType type;
  at::Tensor flat, flat_gradient, flat_compute, flat_average;
  drafter_weights masters, gradient, compute, average;
  std::unique_ptr<optimizer> optim_state;
  std::unique_ptr<drafter_body> body;
  stage_timer timer;
  bool fresh = true;  // the gradient buffer holds nothing of this step
};

drafter_trainer::drafter_trainer(drafter_config config,
                                 loss_section loss,
                                 optim_section optim,
                                 const drafter_weights& masters,
                                 frozen_parts frozen,
                                 compute_dtype dtype,
                                 uint64_t total_steps)
    : impl_(std::make_unique<implementation>(
          std::move(config), loss, optim, masters, std::move(frozen), dtype, total_steps)) {}

drafter_trainer::drafter_trainer(drafter_config config,
                                 loss_section loss,
                                 optim_section optim,
                                 const drafter_weights& masters,
                                 std::shared_ptr<const target> frozen,
                                 compute_dtype dtype,
                                 uint64_t total_steps)
    : drafter_trainer(std::move(config),
                      std::move(loss),
                      std::move(optim),
                      masters,
                      frozen_parts_of(*frozen),
                      dtype,
                      total_steps) {}

drafter_trainer::~drafter_trainer() = default;

step_sums drafter_trainer::accumulate(const drafter_input& input,
                                      bool want_metrics,
                                      const accumulate_watch& watch) {
  return impl_->run(input, true, want_metrics, watch);
}

step_sums drafter_trainer::evaluate(const drafter_input& input) {
  return impl_->run(input, false, true);
}

const at::Tensor& drafter_trainer::gradient() {
  if (impl_->fresh) impl_->flat_gradient.zero_();
  return impl_->flat_gradient;
}

void drafter_trainer::clear_gradient() {
  impl_->fresh = true;
}

update_report drafter_trainer::apply(const at::Tensor& reduced_gradient,
                                     double weight_sum,
                                     uint64_t step,
                                     bool skip) {
  const drafter_weights views = view_drafter_weights(impl_->config, reduced_gradient);
  std::vector<at::Tensor> gradients;
  for (const auto& [name, tensor] : named_tensors(views)) gradients.push_back(*tensor);
  impl_->timer.reset();
  const update_report report = impl_->optim_state->apply(gradients, weight_sum, step, skip);
  impl_->timer.mark("clip and optimizer");
  if (impl_->ema > 0 && !report.skipped) {
    impl_->flat_average.lerp_(impl_->flat, 1.0 - impl_->ema);
    impl_->timer.mark("moving average");
  }
  clear_gradient();
  return report;
}

const drafter_config& drafter_trainer::config() const {
  return impl_->config;
}
const at::Tensor& drafter_trainer::head() const {
  return impl_->head_rows.weight();
}
const drafter_weights& drafter_trainer::masters() const {
  return impl_->masters;
}
const drafter_weights& drafter_trainer::compute() const {
  return impl_->compute;
}
const at::Tensor& drafter_trainer::flat_masters() const {
  return impl_->flat;
}
const drafter_weights* drafter_trainer::average() const {
  return impl_->ema > 0 ? &impl_->average : nullptr;
}
const drafter_weights& drafter_trainer::exported() const {
  return impl_->ema > 0 ? impl_->average : impl_->masters;
}
optimizer& drafter_trainer::state() {
  return *impl_->optim_state;
}
void drafter_trainer::refresh_compute() {
  impl_->optim_state->refresh_compute();
}

stage_timer& drafter_trainer::stages() {
  return impl_->timer;
}

std::map<std::string, at::Tensor> drafter_trainer::inspect(const drafter_input& input) {
  const pass_plan plan = plan_pass(impl_->config, *input.tokens, impl_->frozen.embedding.device());
  pass_state s = impl_->body->forward(plan, input.taps, impl_->frozen.embedding, impl_->timer);
  std::map<std::string, at::Tensor> out{
      {"ctx_feature", s.context}, {"hidden", s.hidden}, {"logits", impl_->head.logits(s.hidden)}};
  for (size_t i = 0; i + 1 < s.layers.size(); ++i)
    out["layer." + std::to_string(i)] = s.layers[i + 1].input;
  out["layer." + std::to_string(s.layers.size() - 1)] = s.output;
  return out;
}

}  // namespace dflash
