// AdamW and Muon against torch.optim (tests/data/make_optimizer_reference.py), five steps. Bounds:
// fp32 rounding over five updates; Muon's five Newton-Schulz steps amplify it about tenfold, and in
// bf16 its rounding is part of the reference, so that only the direction of an update is
// comparable.
#include "model/optimizer.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "config/error.hpp"
#include "exactness.hpp"
#include "golden_fixture.hpp"
#include "optimizer_reference.hpp"

using namespace dflash;
using namespace dflash::test;

namespace {

optim_section constant_rate() {
  optim_section o;
  o.lr = 0.01;
  o.muon_lr = 0.02;
  o.betas = {0.9, 0.95};
  o.weight_decay = 0.1;
  o.clip = 0;
  o.schedule = "constant";
  o.warmup = {.share = 0, .steps = 0};
  return o;
}

// Five steps over the named tensors; weights as they end. The gradient is given as a sum of
// weight 4.
std::vector<at::Tensor> train(const optim_section& options,
                              const std::vector<std::string>& names,
                              bool bf16,
                              std::vector<double>* norms = nullptr) {
  const reference r;
  std::vector<at::Tensor> weights;
  std::vector<optimizer::parameter> parameters;
  for (const std::string& name : names) {
    weights.push_back(r["start." + name]);
    parameters.push_back({name, weights.back(), {}});
  }
  optimizer o(options, parameters, 5, bf16);
  for (uint64_t step = 0; step < 5; ++step) {
    std::vector<at::Tensor> gradients;
    for (const std::string& name : names)
      gradients.push_back(r["grad." + std::to_string(step) + "." + name] * 4.0);
    const update_report report = o.apply(gradients, 4.0, step);
    CHECK_FALSE(report.skipped);
    if (norms) norms->push_back(report.grad_norm);
  }
  CHECK(o.updates() == 5);
  return weights;
}

void check_weights(const std::string& what,
                   const std::string& against,
                   const std::string& key,
                   const std::vector<at::Tensor>& weights,
                   const std::vector<std::string>& names,
                   double tolerance) {
  double worst = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    CAPTURE(names[i]);
    const double found = difference(weights[i], reference()[key + "." + names[i]]);
    CHECK(found < tolerance);
    worst = std::max(worst, found);
  }
  exactness_row(what, against, worst, tolerance);
}

}  // namespace

TEST_CASE("AdamW equals torch.optim.AdamW, without decay on norms", "[exact]") {
  const std::vector<std::string> names{"wide", "tall", "norm"};
  const auto weights = train(constant_rate(), names, false);
  check_weights("AdamW, five steps", "torch.optim.AdamW", "adamw", weights, names, 2e-6);
}

TEST_CASE("clipped steps equal torch's clip_grad_norm_ and AdamW, norms included", "[exact]") {
  const std::vector<std::string> names{"wide", "tall", "norm"};
  optim_section options = constant_rate();
  options.clip = 0.5;
  std::vector<double> norms;
  const auto weights = train(options, names, false, &norms);
  check_weights("AdamW, clipped", "torch clip_grad_norm_ + AdamW", "clipped", weights, names, 2e-6);
  const at::Tensor want = reference()["clipped.norms"];
  for (size_t i = 0; i < norms.size(); ++i)
    CHECK(norms[i] == Approx(want[static_cast<int64_t>(i)].item().toDouble()).epsilon(1e-6));
}

TEST_CASE("Muon equals torch.optim.Muon by either scale; vectors stay with AdamW", "[exact]") {
  optim_section options = constant_rate();
  options.name = "muon";
  const std::vector<std::string> names{"wide", "tall", "norm"};
  const auto weights = train(options, names, false);
  const std::vector<std::string> matrices{"wide", "tall"};
  check_weights("Muon, matched RMS", "torch.optim.Muon", "muon", weights, matrices, 2e-5);
  CHECK(difference(weights[2], reference()["adamw.norm"]) < 2e-6);
  // speculators builds the same two, AdamW with torch's betas and with decay on norms (0 here).
  optim_section theirs = options;
  theirs.betas = {0.9, 0.999};
  check_weights(
      "Muon and AdamW", "speculators 0.9", "speculators", train(theirs, names, false), names, 2e-5);
  optim_section original = options;
  original.muon_adjust_lr = "original";
  check_weights("Muon, original scale",
                "torch.optim.Muon",
                "muon_original",
                train(original, matrices, false),
                matrices,
                2e-5);
  const auto rounded = train(options, names, true);
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const at::Tensor start = reference()["start." + names[i]];
    const at::Tensor mine = rounded[i] - start;
    const at::Tensor theirs = reference()["muon_bf16." + names[i]] - start;
    CHECK(((mine * theirs).sum() / (mine.norm() * theirs.norm())).item().toDouble() > 0.9995);
  }
}

TEST_CASE("Newton-Schulz brings singular values near one, whatever the shape") {
  for (const auto& [r, c] : {std::pair<int64_t, int64_t>{8, 30}, {30, 8}, {16, 16}}) {
    const at::Tensor x = newton_schulz(at::randn({r, c}), false);
    const at::Tensor gram = r < c ? at::mm(x, x.t()) : at::mm(x.t(), x);
    const double trace =
        gram.diagonal().sum().item().toDouble() / static_cast<double>(std::min(r, c));
    CHECK(trace > 0.5);
    CHECK(trace < 1.5);
  }
}

TEST_CASE("the gradient is divided by the weight sum, then clipped by its global norm") {
  optim_section options = constant_rate();
  options.clip = 1.0;
  options.weight_decay = 0;
  at::Tensor a = at::zeros({3, 2}), b = at::zeros({4});
  optimizer o(options, {{"a.weight", a, {}}, {"norm.weight", b, {}}}, 10, false);
  const std::vector<at::Tensor> gradients{at::full({3, 2}, 60.0), at::full({4}, 60.0)};
  const update_report r = o.apply(gradients, 10.0, 0);
  CHECK(r.grad_norm == Approx(6.0 * std::sqrt(10.0)));
  CHECK(r.lr == Approx(0.01));
  // exp_avg = 0.1 x clipped gradient: norm of all moments = 0.1
  double squares = 0;
  for (const auto& [name, moment] : o.state())
    if (name.rfind("exp_avg.", 0) == 0) squares += moment.square().sum().item().toDouble();
  CHECK(std::sqrt(squares) == Approx(0.1).epsilon(1e-4));
  CHECK(r.update_norm == Approx(0.01 * std::sqrt(10.0)).epsilon(1e-3));
}

TEST_CASE("moments can be taken out and put back: the next step is the same to the bit") {
  optim_section options = constant_rate();
  at::Tensor w = reference()["start.wide"], copy = w.clone();
  optimizer a(options, {{"w", w, {}}}, 5, false);
  a.apply({reference()["grad.0.wide"]}, 1.0, 0);
  at::Tensor v = w.clone();
  optimizer b(options, {{"w", v, {}}}, 5, false);
  const auto from = a.state();
  auto to = b.state();
  for (size_t i = 0; i < to.size(); ++i) {
    CHECK(to[i].first == from[i].first);
    to[i].second.copy_(from[i].second);
  }
  b.set_updates(a.updates());
  a.apply({reference()["grad.1.wide"]}, 1.0, 1);
  b.apply({reference()["grad.1.wide"]}, 1.0, 1);
  CHECK(w.equal(v));
}
