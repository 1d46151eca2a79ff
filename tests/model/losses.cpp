// Loss terms, mixtures, D-PACE and variable prefixes: against speculators 0.9
// (tests/data/make_loss_reference.py), and over the optimizer step however it is split. Bound
// against speculators: both compute in fp32, each value a sum over 40 columns (2e-6 of the
// largest).
#include "model/loss.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "data/safetensors.hpp"
#include "exactness.hpp"
#include "model/drafter_step.hpp"
#include "step_fixture.hpp"

using namespace dflash;
using namespace dflash::test;
using kernel::loss_term;

namespace {

constexpr int64_t blocks = 6, block_size = 4;

class loss_reference {
public:
  loss_reference() : file_(safetensors_file::open(DFLASH_TEST_DATA "/loss_reference.safetensors")) {
    const at::Tensor u = (*this)["u"];
    for (int64_t i = 0; i < u.size(0); ++i)  // speculators' labels
      labels.push_back(static_cast<int32_t>(u[i].argmax().item().toLong()));
    const at::Tensor mask = (*this)["mask"];
    for (int64_t i = 0; i < mask.size(0); ++i) {
      const bool counts = mask[i].item().toFloat() != 0;
      count += counts;
      const double k = static_cast<double>(i % block_size);
      weights.push_back(counts ? static_cast<float>(std::exp(-(k - 1) / 4.0)) : 0.0f);
    }
  }
  at::Tensor operator[](const std::string& name) const {
    const st_tensor& t = file_.at(name);
    const auto bytes = file_.bytes(t);
    return at::from_blob(const_cast<std::byte*>(bytes.data()), t.shape, at::kFloat).clone();
  }
  // speculators divides by the number of supervised slots + 1e-5.
  double normaliser() const { return count + 1e-5; }

  std::vector<int32_t> labels;
  std::vector<float> weights;
  double count = 0;

private:
  safetensors_file file_;
};

double weighted(const kernel::loss_row_results& r,
                const kernel::loss_factors& f,
                const std::vector<float>& weights) {
  double sum = 0;
  for (size_t t = 0; t < kernel::loss_term_count; ++t)
    for (size_t i = 0; i < weights.size(); ++i)
      sum += static_cast<double>(weights[i]) * f.factor[t] * static_cast<double>(r.term[t][i]);
  return sum;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / (b.abs().max() + 1e-30)).item().toDouble();
}

}  // namespace

TEST_CASE("each loss term and their mixture equal speculators', gradients included", "[exact]") {
  const loss_reference ref;
  const std::pair<const char*, loss_term> names[] = {{"ce", loss_term::ce},
                                                     {"kl_div", loss_term::kl},
                                                     {"rkl", loss_term::rkl},
                                                     {"jsd", loss_term::jsd},
                                                     {"tv", loss_term::tv},
                                                     {"nla", loss_term::nla},
                                                     {"lk_hybrid", loss_term::lk_hybrid}};
  std::vector<std::pair<std::string, kernel::loss_factors>> cases;
  for (const auto& [name, term] : names) {
    kernel::loss_factors f{.factor = {}};
    f.of(term) = 1;
    cases.emplace_back(name, f);
  }
  cases.push_back({"mix", {.factor = {0.5, 0.25, 0.125, 0.75, 0.5, 0.375, 1.0}}});
  constexpr double tolerance = 2e-6;
  for (const auto& [name, f] : cases) {
    CAPTURE(name);
    at::Tensor g = ref["z"];
    const auto r = kernel::loss_rows(g, ref["u"], ref.labels, ref.weights, f, true);
    const double want = ref["loss." + name].item().toDouble();
    const double found = weighted(r, f, ref.weights) / ref.normaliser();
    const double loss_error = std::abs(found / want - 1);
    const double gradient_error = difference(g / ref.normaliser(), ref["grad." + name]);
    CHECK(loss_error < tolerance);
    CHECK(gradient_error < tolerance);
    exactness_row("loss " + name + " and its gradient",
                  "speculators 0.9",
                  std::max(loss_error, gradient_error),
                  tolerance);
  }
}

TEST_CASE("uniform weights equal speculators' decay where nothing decays", "[exact]") {
  const loss_reference ref;
  std::vector<float> uniform(ref.weights.size());
  for (size_t i = 0; i < uniform.size(); ++i) uniform[i] = ref.weights[i] != 0 ? 1.0f : 0.0f;
  const kernel::loss_factors mix{.factor = {0.5, 0.25, 0.125, 0.75, 0.5, 0.375, 1.0}};
  at::Tensor g = ref["z"];
  const auto r = kernel::loss_rows(g, ref["u"], ref.labels, uniform, mix, true);
  constexpr double tolerance = 2e-6;
  const double want = ref["loss.uniform"].item().toDouble();
  const double loss = std::abs(weighted(r, mix, uniform) / ref.normaliser() / want - 1);
  const double gradient = difference(g / ref.normaliser(), ref["grad.uniform"]);
  CHECK(loss < tolerance);
  CHECK(gradient < tolerance);
  exactness_row("loss mix under uniform weights, and its gradient",
                "speculators 0.9",
                std::max(loss, gradient),
                tolerance);
}

TEST_CASE("D-PACE weights, and ce under them, equal speculators'", "[exact]") {
  const loss_reference ref;
  at::Tensor g = ref["z"];
  std::vector<float> mask(ref.weights.size());
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = ref.weights[i] != 0 ? 1.0f : 0.0f;
  const auto r = kernel::loss_rows(g, {}, ref.labels, mask, {}, true);
  slot_plan plan;
  plan.block_size = block_size;
  std::vector<float> ce;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (i % block_size == 0) continue;  // plans have no slot 0
    plan.weight.push_back(mask[i]);
    ce.push_back(r.of(loss_term::ce)[i]);
  }
  const std::vector<float> w = dpace_weights(plan, ce, 0.5);
  const at::Tensor want = ref["dpace.weights"];
  double worst = 0, loss = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    const int64_t row =
        static_cast<int64_t>(i / (block_size - 1) * block_size + i % (block_size - 1)) + 1;
    worst = std::max(worst, std::abs(static_cast<double>(w[i]) - want[row].item().toDouble()));
    loss += static_cast<double>(w[i]) * static_cast<double>(ce[i]);
    g[row].mul_(w[i]);
  }
  constexpr double tolerance = 2e-6;
  CHECK(worst < tolerance);
  CHECK(loss / ref.normaliser() == Approx(ref["loss.dpace"].item().toDouble()).epsilon(tolerance));
  const double gradient = difference(g / ref.normaliser(), ref["grad.dpace"]);
  CHECK(gradient < tolerance);
  exactness_row(
      "D-PACE weights and gradient", "speculators 0.9", std::max(worst, gradient), tolerance);
}

TEST_CASE("D-PACE by hand: products of smoothed confidences, summed from behind") {
  slot_plan plan;
  plan.block_size = 4;
  plan.weight = {1, 1, 1, 1, 0, 1};
  const float half = std::log(2.0f);  // q = 1/2, smoothed 3/4
  const std::vector<float> ce{half, half, half, 0, 99, half};
  const auto w = dpace_weights(plan, ce, 0.5);
  CHECK(w[2] == Approx(0.421875));
  CHECK(w[1] == Approx(0.421875 + 0.5625));
  CHECK(w[0] == Approx(0.421875 + 0.5625 + 0.75));
  CHECK(w[5] == Approx(0.75));
  CHECK(w[4] == 0.0f);
  CHECK(w[3] == Approx(1.75));
}

namespace {

struct named_loss {
  std::string name;
  loss_section loss;
};

std::vector<named_loss> all_losses() {
  std::vector<named_loss> all;
  for (const auto name : loss_term_names) {
    loss_section loss;
    loss.terms = {{std::string(name), 1.0}};
    all.push_back({std::string(name), loss});
  }
  loss_section mixed;
  mixed.terms = {{"ce", 0.6}, {"kl", 0.4}, {"tv", 0.5}, {"jsd", 0.2}};
  mixed.temperature = 1.5;
  all.push_back({"mixed", mixed});
  mixed.cap_lambda = 0.5;
  all.push_back({"mixed + cap", mixed});
  loss_section ce;
  ce.cap_lambda = 2.0;
  all.push_back({"ce + cap", ce});
  ce.weighting = "dpace";
  all.push_back({"dpace + cap", ce});
  ce.cap_lambda = 0;
  all.push_back({"dpace", ce});
  ce.weighting = "uniform";
  all.push_back({"uniform", ce});
  return all;
}

}  // namespace

TEST_CASE("every loss: one drafter with four batches equals four drafters with one, in value") {
  for (const auto& [name, loss] : all_losses()) {
    CAPTURE(name);
    problem p;
    p.loss = loss;
    std::vector<batch> batches(4, p.tokens);
    batches[1].anchors = {1, 2, 10, 11, 0};
    batches[1].prefix = {2, 1, 1, 2, 1};
    batches[2].loss_mask.assign(batches[2].loss_mask.size(), 0);
    batches[3].anchors = {4, 5, 9, 13, 14};
    batches[3].anchor_valid = {1, 1, 1, 1, 1};
    // Something to be right about.
    drafter_trainer learnt = p.trainer();
    for (uint64_t step = 0; step < 12; ++step) {
      const step_sums s = learnt.accumulate({p.taps, p.last_hidden, &batches[step % 2]});
      learnt.apply(learnt.gradient(), s.weight_sum, step);
    }
    for (const auto& [tensor, value] : named_tensors(p.masters))
      for (const auto& [other, from] : named_tensors(learnt.masters()))
        if (tensor == other) value->copy_(*from);

    drafter_trainer one = p.trainer();
    step_sums together, apart;
    for (const batch& b : batches) together += one.accumulate({p.taps, p.last_hidden, &b});
    at::Tensor sum = at::zeros_like(one.gradient());
    for (const batch& b : batches) {
      drafter_trainer own = p.trainer();
      apart += own.accumulate({p.taps, p.last_hidden, &b});
      sum += own.gradient();
    }
    CHECK(together.weight_sum == Approx(apart.weight_sum).epsilon(1e-12));
    CHECK(together.mean_loss() == Approx(apart.mean_loss()).epsilon(1e-12));
    for (size_t t = 0; t < kernel::loss_term_count; ++t)
      CHECK(together.terms[t] == Approx(apart.terms[t]).epsilon(1e-12));
    CHECK(together.cap_weight == Approx(apart.cap_weight).epsilon(1e-12));
    if (loss.cap_lambda > 0) {
      CHECK(together.cap_weight > 0);
      CHECK(together.cap_weight < together.weight_sum);
    }
    CHECK(together.hits_at == apart.hits_at);
    // Sums of four in another order: fp32 rounding.
    CHECK(difference(one.gradient(), sum) < 1e-6);
    // One division for the whole step: not the mean of the batches' means.
    const update_report a = one.apply(one.gradient(), together.weight_sum, 0);
    drafter_trainer other = p.trainer();
    const update_report b = other.apply(sum, apart.weight_sum, 0);
    CHECK(a.grad_norm == Approx(b.grad_norm).epsilon(1e-5));
    CHECK(at::allclose(one.flat_masters(), other.flat_masters(), 1e-4, 1e-5));
  }
}

TEST_CASE("every loss: gradients of the whole step equal finite differences") {
  for (const auto& [name, loss] : all_losses()) {
    // Parts of these are held constant, so that their gradient is not the slope of their value; tv
    // and nla have a kink at each P = Q, which a step of this size crosses.
    if (loss.weighting == "dpace" || loss.cap_lambda > 0 || loss.terms.contains("lk_hybrid") ||
        loss.terms.contains("tv") || loss.terms.contains("nla"))
      continue;
    CAPTURE(name);
    problem p;
    p.loss = loss;
    drafter_trainer t = p.trainer();
    t.accumulate(p.input());
    const at::Tensor gradient = t.gradient().clone();
    const drafter_weights views = view_drafter_weights(p.shape, gradient);
    const auto tensors = named_tensors(views);
    for (const size_t i : {size_t{0}, size_t{2}, size_t{4}, size_t{12}}) {
      CAPTURE(tensors[i].first);
      at::Tensor& w = *named_tensors(p.masters)[i].second;
      const at::Tensor kept = w.clone(), g = *tensors[i].second;
      const at::Tensor direction = g / (g.norm() + 1e-30);
      const double step = 2e-3 * kept.norm().item().toDouble();
      const auto at = [&](double s) {
        w.copy_(kept + direction * s);
        return p.trainer().evaluate(p.input()).loss;
      };
      const double slope =
          (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
      w.copy_(kept);
      CHECK(slope == Approx(g.norm().item().toDouble()).epsilon(5e-3).margin(1e-4));
    }
  }
}

TEST_CASE("a prefix shows true tokens, takes their supervision and moves the decay") {
  problem p;
  p.tokens.anchors = {3, 10};
  p.tokens.anchor_valid = {1, 1};
  p.tokens.prefix = {2, 1};
  const slot_plan s = plan_slots(p.tokens, 4, {.gamma = 2.0});
  const auto fall = [](double k) { return static_cast<float>(std::exp(-k / 2.0)); };
  CHECK(s.weight == std::vector<float>{0, 1, fall(1), 1, fall(1), fall(2)});
  CHECK(s.valid == std::vector<uint8_t>{0, 1});
  const pass_plan plan = plan_pass(p.shape, p.tokens, at::kCPU);  // blocks of 3
  const at::Tensor ids = plan.block_ids;
  const auto id = [&](int64_t i) { return ids[i].item().toInt(); };
  CHECK(id(0) == p.tokens.input_ids[3]);
  CHECK(id(1) == p.tokens.input_ids[4]);
  CHECK(id(2) == p.shape.mask_token_id);
  CHECK(id(4) == p.shape.mask_token_id);
}
