// Every loss term, alone and mixed, against autograd on its dense definition in fp64. Bounds: the
// ATen form in fp64 to rounding; the kernel to fp32 rounding of exponentials (1e-7 each) summed
// over up to 1003 columns; bf16 gradients within one rounding (2^-8).
#include "device/kernels/loss_rows.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "config/run_config.hpp"

using namespace dflash;
using kernel::index_of;
using kernel::loss_factors;
using kernel::loss_term;

namespace {

constexpr int64_t rows = 9;

at::Tensor noise(std::vector<int64_t> shape, uint64_t seed) {
  auto g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, g, at::TensorOptions().dtype(at::kDouble));
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  return ((x - y).abs().max() / (y.abs().max() + 1e-30)).item().toDouble();
}

std::string name_of(size_t term) {
  return term < loss_term_names.size() ? std::string(loss_term_names[term]) : "cap";
}

struct problem {
  explicit problem(int64_t vocab, at::ScalarType type, double scale = 3.0)
      : z((noise({rows, vocab}, 1) * scale).to(type)),
        u((noise({rows, vocab}, 1) * scale + noise({rows, vocab}, 2) * 2.0).to(type)) {
    for (int i = 0; i < rows; ++i) {
      // Every other row is right, so that cap has rows of both kinds.
      const auto best = z[i].to(at::kDouble).argmax().item().toLong();
      labels.push_back(static_cast<int32_t>(i % 2 == 0 ? best : (i * 131) % vocab));
      weights.push_back(i == 4 ? 0.0f : 1.0f / static_cast<float>(i + 1));
    }
  }
  at::Tensor z, u;
  std::vector<int32_t> labels;
  std::vector<float> weights;
};

// The definition of a term, [rows], as one would write it without regard to overflow or memory.
at::Tensor dense_term(loss_term t, const at::Tensor& z, const problem& p, double theta) {
  const at::Tensor u = p.u.to(at::kDouble);
  const at::Tensor P = at::softmax(u, 1), Q = at::softmax(z, 1);
  const at::Tensor logP = at::log_softmax(u, 1), logQ = at::log_softmax(z, 1);
  const at::Tensor y =
      at::from_blob(const_cast<int32_t*>(p.labels.data()), {rows}, at::kInt).to(at::kLong);
  const at::Tensor overlap = at::minimum(P, Q).sum(1), tv = (P - Q).abs().sum(1) * 0.5;
  const at::Tensor kl = (P * (logP - logQ)).sum(1);
  const at::Tensor M = (P + Q) * 0.5;
  const at::Tensor blend = (overlap.detach() * -3.0).exp();
  switch (t) {
    case loss_term::ce:
      return -logQ.gather(1, y.unsqueeze(1)).squeeze(1);
    case loss_term::kl: {
      const at::Tensor soft = at::softmax(u / theta, 1);
      const at::Tensor gap = at::log_softmax(u / theta, 1) - at::log_softmax(z / theta, 1);
      return (soft * gap).sum(1) * (theta * theta);
    }
    case loss_term::rkl:
      return (Q * (logQ - logP)).sum(1);
    case loss_term::jsd:
      return ((P * (logP - M.log())).sum(1) + (Q * (logQ - M.log())).sum(1)) * 0.5;
    case loss_term::tv:
      return tv;
    case loss_term::nla:
      return -overlap.clamp_min(1e-5).log();
    case loss_term::lk_hybrid:
      return blend * kl + (1 - blend) * tv;
    case loss_term::cap:
      return -(Q * logQ).sum(1) * z.argmax(1).eq(y).to(at::kDouble);
  }
  return {};
}

struct dense_result {
  std::array<at::Tensor, kernel::loss_term_count> term;
  at::Tensor gradient;
};

dense_result dense(const problem& p, const loss_factors& f) {
  dense_result out;
  const at::Tensor z = p.z.to(at::kDouble).clone().requires_grad_(true);
  const at::Tensor w =
      at::from_blob(const_cast<float*>(p.weights.data()), {rows}, at::kFloat).to(at::kDouble);
  at::Tensor total = at::zeros({}, z.options());
  for (size_t t = 0; t < kernel::loss_term_count; ++t) {
    if (f.factor[t] == 0 && t != 0) continue;
    const at::Tensor value = dense_term(static_cast<loss_term>(t), z, p, f.temperature);
    out.term[t] = value.detach();
    total = total + (value * w).sum() * f.factor[t];
  }
  total.backward();
  out.gradient = z.grad();
  return out;
}

// Each term alone, with ce, and everything together, at two temperatures.
std::vector<loss_factors> mixtures() {
  std::vector<loss_factors> all;
  for (size_t t = 0; t < kernel::loss_term_count; ++t)
    for (const double ce : {0.0, 0.3}) {
      loss_factors f{.factor = {ce}, .temperature = t == 1 ? 1.5 : 1.0};
      f.factor[t] += 0.7;
      all.push_back(f);
    }
  for (const double theta : {1.0, 0.5, 2.0})
    all.push_back({.factor = {0.3, 0.5, 0.2, 0.7, 0.4, 0.1, 0.6, 0.25}, .temperature = theta});
  return all;
}

double value_error(const kernel::loss_row_results& found,
                   const dense_result& want,
                   const problem& p) {
  double worst = 0;
  for (size_t t = 0; t < kernel::loss_term_count; ++t) {
    if (!want.term[t].defined()) continue;
    for (size_t i = 0; i < rows; ++i) {
      const double v =
          p.weights[i] == 0 ? 0.0 : want.term[t][static_cast<int64_t>(i)].item().toDouble();
      // One in the denominator: terms near 0 are differences of probabilities.
      worst =
          std::max(worst, std::abs(static_cast<double>(found.term[t][i]) - v) / (1 + std::abs(v)));
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("the ATen form of every term equals autograd on its definition, in fp64") {
  for (const int64_t v : {2, 17, 1003})
    for (const loss_factors& f : mixtures()) {
      const problem p(v, at::kDouble);
      const dense_result want = dense(p, f);
      at::Tensor g;
      const auto found = kernel::loss_rows_reference(p.z, p.u, p.labels, p.weights, f, &g);
      CAPTURE(v, f.factor, f.temperature);
      CHECK(difference(g, want.gradient) < 1e-12);
      CHECK(value_error(found, want, p) < 1e-6);  // values are handed out as floats
    }
}

TEST_CASE("the kernel of every term equals autograd on its definition in fp64") {
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const int64_t v : {2, 17, 64, 1003})
      for (const loss_factors& f : mixtures()) {
        const problem p(v, type);
        const dense_result want = dense(p, f);
        at::Tensor g = p.z.clone();
        const auto found = kernel::loss_rows(g, p.u, p.labels, p.weights, f, true);
        CAPTURE(type, v, f.factor, f.temperature);
        CHECK(difference(g, want.gradient) < (type == at::kFloat ? 4e-6 : 0.0040));
        CHECK(value_error(found, want, p) < 2e-6);
        CHECK(g[4].abs().max().item().toFloat() == 0.0f);
        at::Tensor kept = p.z.clone();
        const auto again = kernel::loss_rows(kept, p.u, p.labels, p.weights, f, false);
        CHECK(kept.equal(p.z));
        CHECK(again.term == found.term);
      }
}

TEST_CASE("ce has the same bits with and without a teacher that no term reads") {
  const problem p(1003, at::kFloat);
  at::Tensor a = p.z.clone(), b = p.z.clone();
  const auto alone = kernel::loss_rows(a, {}, p.labels, p.weights, {}, true);
  const auto beside = kernel::loss_rows(b, p.u, p.labels, p.weights, {}, true);
  CHECK(alone.of(loss_term::ce) == beside.of(loss_term::ce));
  CHECK(alone.rank == beside.rank);
}

TEST_CASE("cap is the entropy of right rows, without a teacher, and leaves wrong rows to ce") {
  const problem p(64, at::kFloat);
  loss_factors f{.factor = {1.0}};
  at::Tensor plain = p.z.clone(), capped = p.z.clone();
  kernel::loss_rows(plain, {}, p.labels, p.weights, f, true);
  f.of(loss_term::cap) = 0.5;
  const auto found = kernel::loss_rows(capped, {}, p.labels, p.weights, f, true);
  for (int64_t i = 0; i < rows; ++i) {
    CAPTURE(i);
    const bool right = found.rank[static_cast<size_t>(i)] == 0;
    CHECK(right == (found.of(loss_term::cap)[static_cast<size_t>(i)] > 0));
    CHECK(right != capped[i].equal(plain[i]));
    if (i == 4) break;
  }
}

TEST_CASE("distributions that do not overlap: finite terms, bounded gradients, nla held") {
  at::Tensor z = at::zeros({1, 100}), u = at::zeros({1, 100});
  z.narrow(1, 5, 1).fill_(3000.0);
  u.narrow(1, 7, 1).fill_(3000.0);
  const std::vector<int32_t> label{7};
  const std::vector<float> weight{1.0f};
  for (size_t t = 0; t < kernel::loss_term_count; ++t) {
    CAPTURE(name_of(t));
    loss_factors f{.factor = {}};
    f.factor[t] = 1;
    at::Tensor g = z.clone();
    const auto r = kernel::loss_rows(g, u, label, weight, f, true);
    CHECK(std::isfinite(r.term[t][0]));
    CHECK(g.abs().max().item().toFloat() <= 3000.0f);
    if (t == index_of(loss_term::ce)) {
      CHECK(r.term[t][0] == Approx(3000.0f));
      CHECK(g[0][5].item().toFloat() == Approx(1.0f));
      CHECK(g[0][7].item().toFloat() == Approx(-1.0f));
    }
    if (t == index_of(loss_term::jsd)) CHECK(r.term[t][0] == Approx(std::log(2.0)));
    if (t == index_of(loss_term::tv)) CHECK(r.term[t][0] == Approx(1.0));
    if (t == index_of(loss_term::nla)) {
      CHECK(r.term[t][0] == Approx(-std::log(1e-5)));
      CHECK(g.abs().max().item().toFloat() == 0.0f);
    }
  }
}

TEST_CASE("nla equals ce for a teacher that is sure") {
  problem p(40, at::kFloat, 2.0);
  p.u.zero_();
  for (int64_t i = 0; i < rows; ++i) p.u[i][p.labels[static_cast<size_t>(i)]] = 200.0;
  at::Tensor hard = p.z.clone(), soft = p.z.clone();
  loss_factors f{.factor = {}};
  f.of(loss_term::nla) = 1;
  kernel::loss_rows(hard, {}, p.labels, p.weights, {}, true);
  const auto r = kernel::loss_rows(soft, p.u, p.labels, p.weights, f, true);
  CHECK(difference(soft, hard) < 2e-6);
  for (size_t i = 0; i < rows; ++i)
    CHECK(r.of(loss_term::nla)[i] == Approx(r.of(loss_term::ce)[i]).margin(1e-6));
}

TEST_CASE("equal logits: the lowest id wins, as argmax does") {
  at::Tensor z = at::zeros({2, 40});
  z.narrow(1, 3, 2).fill_(1.0);
  z.narrow(1, 30, 1).fill_(1.0);
  const std::vector<int32_t> labels{3, 30};
  const std::vector<float> weights{1.0f, 1.0f};
  const auto r = kernel::loss_rows(z, {}, labels, weights, {}, false);
  CHECK(r.rank == std::vector<int32_t>{0, 2});
}
