// Forward, loss, all gradients and ten training steps against the published modules' values
// (tests/data/make_drafter_reference.py): full and sliding layers, causal and not, one to six taps,
// grouped heads, blocks of 4, 8 and 16, several documents a row, invalid anchors. Bounds: fp32 sums
// in another order, through up to three layers.
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "drafter_case.hpp"
#include "exactness.hpp"

using namespace dflash;
using namespace dflash::test;

namespace {

const case_file& reference_values() {
  static const case_file file(DFLASH_TEST_DATA "/drafter_reference.safetensors");
  return file;
}

double error_of(const at::Tensor& found, const at::Tensor& want) {
  REQUIRE(found.sizes() == want.sizes());
  return ((found - want).abs().max() / want.abs().max()).item().toDouble();
}

}  // namespace

TEST_CASE("drafters of every kind: hidden states, loss and all gradients equal z-lab's module",
          "[exact]") {
  const case_file& file = reference_values();
  constexpr double forward_bound = 5e-6, gradient_bound = 2e-5;
  double forward = 0, gradient = 0;
  int cases = 0, with_speculators = 0;
  for (; file.has("case." + std::to_string(cases) + ".shape"); ++cases) {
    const std::string prefix = "case." + std::to_string(cases);
    CAPTURE(prefix);
    const drafter_case c(file, prefix);
    with_speculators += file.ints(prefix + ".both").at(0);
    drafter_trainer t = c.trainer();
    const double hidden = error_of(c.valid_slots(t.inspect(c.input()).at("hidden"), false),
                                   c.valid_slots(file[prefix + ".hidden"], true));
    CHECK(hidden < forward_bound);
    const step_sums sums = t.accumulate(c.input());
    CHECK(sums.loss == Approx(file[prefix + ".loss"].item().toDouble()).epsilon(1e-6));
    CHECK(sums.weight_sum == Approx(file[prefix + ".weight_sum"].item().toDouble()).epsilon(1e-6));
    forward = std::max(forward, hidden);
    const drafter_weights views = view_drafter_weights(c.shape, t.gradient());
    for (const auto& [name, tensor] : named_tensors(views)) {
      CAPTURE(name);
      const double found = error_of(*tensor, file[prefix + ".grad." + name]);
      CHECK(found < gradient_bound);
      gradient = std::max(gradient, found);
    }
  }
  CHECK(cases == 8);
  CHECK(with_speculators == 4);
  const std::string against = "z-lab dflash 0.1.0 (and speculators 0.9 where its windows agree)";
  exactness_row("drafter hidden states, 8 kinds", against, forward, forward_bound);
  exactness_row("drafter gradients, 8 kinds", against, gradient, gradient_bound);
}

TEST_CASE("ten training steps have the losses, norms and weights of z-lab's module under AdamW",
          "[exact]") {
  const case_file& file = reference_values();
  optim_section optim;
  optim.lr = 2e-3;
  optim.betas = {0.9, 0.95};
  optim.weight_decay = 0.01;
  optim.clip = 1.0;
  optim.schedule = "constant";
  optim.warmup = {.share = 0, .steps = 0};
  const drafter_case start(file, "batch.0");
  drafter_trainer t = start.trainer(optim);
  const at::Tensor losses = file["steps.loss"], norms = file["steps.grad_norm"];
  constexpr double loss_bound = 2e-6, weight_bound = 1e-5;
  double loss_error = 0, weight_error = 0;
  for (int64_t step = 0; step < 10; ++step) {
    CAPTURE(step);
    step_sums sums;
    for (int64_t i = 2 * step; i < 2 * step + 2; ++i) {
      const drafter_case c(file, "batch." + std::to_string(i));
      sums += t.accumulate(c.input());
    }
    const update_report report =
        t.apply(t.gradient(), sums.weight_sum, static_cast<uint64_t>(step));
    const double want = losses[step].item().toDouble();
    const double found = std::abs(sums.mean_loss() / want - 1);
    CHECK(found < loss_bound);
    CHECK(report.grad_norm == Approx(norms[step].item().toDouble()).epsilon(1e-4));
    loss_error = std::max(loss_error, found);
  }
  // Adam divides by the size of the gradient, which magnifies rounding where that is near 0.
  int compared = 0;
  for (const auto& [name, tensor] : named_tensors(t.masters())) {
    if (!file.has("steps.after." + name)) continue;
    CAPTURE(name);
    const double found = error_of(*tensor, file["steps.after." + name]);
    CHECK(found < weight_bound);
    weight_error = std::max(weight_error, found);
    ++compared;
  }
  CHECK(compared == 5);
  const std::string against = "z-lab dflash 0.1.0 + torch.optim.AdamW";
  exactness_row("losses of ten training steps", against, loss_error, loss_bound);
  exactness_row("weights after ten training steps", against, weight_error, weight_bound);
}
