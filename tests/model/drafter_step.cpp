// The training step: finite differences, invalid anchors, accumulation, overfitting, repeatability,
// bf16.
#include "model/drafter_step.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include <catch2/catch.hpp>

#include <cmath>

#include "step_fixture.hpp"

using namespace dflash;
using namespace dflash::test;

TEST_CASE("gradients of every tensor equal finite differences along random directions") {
  problem p;
  drafter_trainer t = p.trainer();
  t.accumulate(p.input());
  const at::Tensor gradient = t.gradient().clone();
  const drafter_weights views = view_drafter_weights(p.shape, gradient);
  // fp32 forward passes: a step of 2e-3 of each tensor's size leaves about three digits of the
  // difference.
  uint64_t seed = 1000;
  size_t i = 0;
  for (const auto& [name, g] : named_tensors(views)) {
    CAPTURE(name);
    at::Tensor& w = *named_tensors(p.masters)[i++].second;
    const at::Tensor kept = w.clone();
    const double size = kept.norm().item().toDouble();
    // half along the gradient itself, so that the difference is well above rounding
    at::Tensor direction = noise(w.sizes().vec(), seed++);
    direction = direction / direction.norm() + *g / (g->norm() + 1e-30);
    const double step = 2e-3 * size;
    const auto loss_at = [&](double s) {
      w.copy_(kept + direction * s);
      return p.trainer().evaluate(p.input()).loss;
    };
    const double slope =
        (8 * (loss_at(step) - loss_at(-step)) - (loss_at(2 * step) - loss_at(-2 * step))) /
        (12 * step);
    w.copy_(kept);
    const double want = (*g * direction).sum().item().toDouble();
    CHECK(slope == Approx(want).epsilon(5e-3).margin(1e-4));
  }
}

TEST_CASE("an invalid anchor adds nothing, whatever stands there, and gives no NaN") {
  problem p;
  drafter_trainer with = p.trainer();
  const step_sums a = with.accumulate(p.input());
  const at::Tensor gradient = with.gradient().clone();
  p.tokens.anchors.pop_back();
  p.tokens.anchor_valid.pop_back();
  drafter_trainer without = p.trainer();
  const step_sums b = without.accumulate(p.input());
  CHECK(a.loss == Approx(b.loss));
  CHECK(a.supervised == b.supervised);
  CHECK(a.blocks == b.blocks);
  CHECK(at::allclose(gradient, without.gradient(), 1e-4, 1e-5));
  CHECK(std::isfinite(gradient.abs().max().item().toDouble()));
}

TEST_CASE("a batch without supervision adds zero to sums and gradient, and its step is skipped") {
  problem p;
  std::fill(p.tokens.loss_mask.begin(), p.tokens.loss_mask.end(), uint8_t{0});
  drafter_trainer t = p.trainer();
  const step_sums s = t.accumulate(p.input());
  CHECK(s.weight_sum == 0);
  CHECK(s.supervised == 0);
  CHECK(t.gradient().abs().max().item().toFloat() == 0.0f);
  const at::Tensor before = t.flat_masters().clone();
  const update_report r = t.apply(t.gradient(), 0.0, 0);
  CHECK(r.skipped);
  CHECK(t.flat_masters().equal(before));
  CHECK(t.state().updates() == 0);
}

TEST_CASE("a gradient that is not finite skips the update: weights and moments stay") {
  problem p;
  drafter_trainer t = p.trainer();
  const step_sums s = t.accumulate(p.input());
  at::Tensor bad = t.gradient().clone();
  bad[5].fill_(std::nan(""));
  const at::Tensor before = t.flat_masters().clone();
  CHECK(t.apply(bad, s.weight_sum, 0).skipped);
  CHECK(t.flat_masters().equal(before));
  for (const auto& [name, moment] : t.state().state())
    CHECK(moment.abs().max().item().toFloat() == 0);
}

TEST_CASE("weight decay shrinks matrices and leaves norms alone, by both optimizers") {
  problem p;
  p.optim.weight_decay = 0.1;
  for (const std::string name : {"adamw", "muon"}) {
    CAPTURE(name);
    p.optim.name = name;
    p.optim.muon_lr = 3e-3;
    drafter_trainer t = p.trainer();
    const at::Tensor still = at::zeros_like(t.flat_masters());
    CHECK_FALSE(t.apply(still, 1.0, 0).skipped);
    const auto before = named_tensors(p.masters);
    const auto after = named_tensors(t.masters());
    for (size_t i = 0; i < after.size(); ++i) {
      CAPTURE(after[i].first);
      const at::Tensor start = *before[i].second;
      if (start.dim() == 1)
        CHECK(after[i].second->equal(start));
      else
        CHECK(at::allclose(*after[i].second, start * (1.0 - 3e-4), 1e-6, 0));
    }
  }
}

TEST_CASE("the moving average follows the masters by its decay, and skipped steps leave it alone") {
  problem p;
  CHECK(p.trainer().average() == nullptr);
  p.optim.ema = 0.75;
  drafter_trainer t = p.trainer();
  at::Tensor want = t.flat_masters().clone();
  for (uint64_t step = 0; step < 3; ++step) {
    const step_sums s = t.accumulate(p.input());
    t.apply(t.gradient(), s.weight_sum, step);
    want = want * 0.75 + t.flat_masters() * 0.25;
  }
  t.apply(t.gradient(), 0.0, 3);  // skipped
  const drafter_weights expected = view_drafter_weights(p.shape, want);
  REQUIRE(t.average() != nullptr);
  CHECK(&t.exported() == t.average());
  const auto found = named_tensors(*t.average()), wanted = named_tensors(expected);
  for (size_t i = 0; i < found.size(); ++i) {
    CAPTURE(found[i].first);
    CHECK(at::allclose(*found[i].second, *wanted[i].second, 1e-6, 1e-7));
    CHECK_FALSE(found[i].second->equal(*named_tensors(t.masters())[i].second));
  }
}

TEST_CASE("four batches in one step equal their sums added by four drafters") {
  problem p;
  std::vector<batch> batches(4, p.tokens);
  batches[1].anchors = {1, 2, 10, 11, 0};
  batches[2].loss_mask.assign(batches[2].loss_mask.size(), 0);
  batches[3].anchors = {4, 5, 9, 13, 14};
  batches[3].anchor_valid = {1, 1, 1, 1, 1};
  drafter_trainer one = p.trainer();
  step_sums together, apart;
  for (const batch& b : batches) together += one.accumulate({p.taps, p.last_hidden, &b});
  at::Tensor sum = at::zeros_like(one.gradient());
  for (const batch& b : batches) {
    drafter_trainer own = p.trainer();
    apart += own.accumulate({p.taps, p.last_hidden, &b});
    sum += own.gradient();
  }
  CHECK(together.loss == Approx(apart.loss));
  CHECK(together.weight_sum == Approx(apart.weight_sum));
  CHECK(together.hits_at == apart.hits_at);
  CHECK(at::allclose(one.gradient(), sum, 1e-5, 1e-5));
  const update_report a = one.apply(one.gradient(), together.weight_sum, 0);
  drafter_trainer other = p.trainer();
  const update_report b = other.apply(sum, apart.weight_sum, 0);
  CHECK(a.grad_norm == Approx(b.grad_norm));
  CHECK(at::allclose(one.flat_masters(), other.flat_masters(), 1e-4, 1e-5));
}

TEST_CASE("what is said to be final of a gradient is, layer by layer, while the pass goes on") {
  problem p;
  drafter_trainer t = p.trainer();
  for (const int batches : {1, 2}) {  // overwritten, then added to
    step_sums told;
    std::vector<std::pair<int64_t, at::Tensor>> parts;
    accumulate_watch watch;
    watch.summed = [&](const step_sums& sums) {
      CHECK(parts.empty());
      told = sums;
    };
    watch.final_from = [&](const at::Tensor& gradient, int64_t from) {
      parts.emplace_back(from, gradient.narrow(0, from, gradient.numel() - from).clone());
    };
    const step_sums sums = t.accumulate(p.input(), true, watch);
    CAPTURE(batches);
    CHECK(told.loss == sums.loss);
    CHECK(told.hits_at == sums.hits_at);
    REQUIRE(parts.size() == static_cast<size_t>(p.shape.layers) + 1);
    const at::Tensor& whole = t.gradient();
    int64_t before = whole.numel();
    for (const auto& [from, part] : parts) {
      CAPTURE(from);
      CHECK(from < before);
      before = from;
      CHECK(at::equal(part, whole.narrow(0, from, whole.numel() - from)));
    }
    CHECK(before == 0);
  }
  std::fill(p.tokens.loss_mask.begin(), p.tokens.loss_mask.end(), uint8_t{0});
  accumulate_watch silent;
  silent.summed = [](const step_sums&) { FAIL("nothing is supervised"); };
  silent.final_from = [](const at::Tensor&, int64_t) { FAIL("nothing is supervised"); };
  t.accumulate(p.input(), true, silent);
}

TEST_CASE("the step's loss is the sum of losses over the sum of weights, not a mean of means") {
  // rows of (sum of w x loss, sum of w); the case's README gives all three numbers
  const std::pair<double, double> rows[] = {{2, 1}, {3, 2}, {60, 30}, {30, 60}};
  step_sums all;
  for (const auto& [loss, weight] : rows) {
    step_sums s;
    s.loss = loss;
    s.weight_sum = weight;
    all += s;
  }
  CHECK(all.mean_loss() == Approx(1.02150538));
}

TEST_CASE("one batch can be overfitted to a loss near zero") {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // rows this few are not worth a second thread
  problem p;
  p.loss = {};
  p.loss.gamma = 4.0;
  for (const std::string name : {"adamw", "muon"}) {
    CAPTURE(name);
    p.optim.name = name;
    p.optim.lr = 1e-2;
    p.optim.muon_lr = 2e-2;
    drafter_trainer t = p.trainer();
    step_sums s;
    for (uint64_t step = 0; step < 100; ++step) {
      s = t.accumulate(p.input());
      t.apply(t.gradient(), s.weight_sum, step);
    }
    CHECK(s.mean_loss() < 0.02);
    CHECK(s.hits == s.supervised);
    CHECK(s.accept_len() > 2.5);
  }
  at::set_num_threads(threads);
}

TEST_CASE("ten steps twice give the same bits, in both number types") {
  for (const auto dtype : {compute_dtype::fp32, compute_dtype::bf16}) {
    problem p;
    if (dtype == compute_dtype::bf16) {
      for (at::Tensor& tap : p.taps) tap = tap.to(at::kBFloat16);
      p.last_hidden = p.last_hidden.to(at::kBFloat16);
    }
    at::Tensor first;
    for (int run = 0; run < 2; ++run) {
      drafter_trainer t = p.trainer(dtype);
      for (uint64_t step = 0; step < 10; ++step) {
        const step_sums s = t.accumulate(p.input());
        t.apply(t.gradient(), s.weight_sum, step);
      }
      if (run == 0)
        first = t.flat_masters().clone();
      else
        CHECK(first.equal(t.flat_masters()));
    }
  }
}

TEST_CASE("bf16 gradients point the way of fp32's") {
  problem p;
  drafter_trainer wide = p.trainer();
  const step_sums a = wide.accumulate(p.input());
  problem q;
  for (at::Tensor& tap : q.taps) tap = tap.to(at::kBFloat16);
  q.last_hidden = q.last_hidden.to(at::kBFloat16);
  drafter_trainer narrow = q.trainer(compute_dtype::bf16);
  const step_sums b = narrow.accumulate(q.input());
  CHECK(b.loss == Approx(a.loss).epsilon(0.02));
  const at::Tensor x = wide.gradient(), y = narrow.gradient();
  const double cosine = ((x * y).sum() / (x.norm() * y.norm())).item().toDouble();
  CHECK(cosine > 0.999);
}

TEST_CASE("slots: labels at their own position, same document only, weights by gamma") {
  problem p;
  p.tokens.anchors = {7, 10};
  p.tokens.anchor_valid = {1, 1};
  p.tokens.loss_mask[12] = 0;
  const slot_plan s = plan_slots(p.tokens, 4, {.gamma = 2.0});
  CHECK(s.label[0] == p.tokens.input_ids[8]);
  CHECK(s.teacher[0] == 7);
  CHECK(s.weight == std::vector<float>{1.0f,
                                       0.0f,
                                       0.0f,  // 9 and 10 are the next document's
                                       1.0f,
                                       0.0f,
                                       static_cast<float>(std::exp(-1.0))});
  CHECK(s.valid == std::vector<uint8_t>{1, 1});
  CHECK(s.weight_sum == Approx(2.0 + std::exp(-1.0)));
}
