// The CUDA kernel of the loss rows, its three walks run on the CPU for every thread of a block,
// against the ATen form in fp64. Bounds: fp32 rounding of exponentials summed over up to 1003
// columns; bf16 gradients within one rounding (2^-8).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "device/cuda/loss_rows.hpp"
#include "device/kernels/loss_rows.hpp"

namespace dflash::cuda {
namespace {

using kernel::index_of;
using kernel::loss_factors;
using kernel::loss_term;
using kernel::loss_term_count;

constexpr int64_t rows = 7;

at::Tensor noise(int64_t n, uint64_t seed) {
  auto g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn({rows, n}, g, at::TensorOptions().dtype(at::kDouble));
}

// As a block does it: halves of the threads join until one is left.
template <class Part, class Join>
Part over_block(std::vector<Part> parts, const Join& join_two) {
  for (size_t half = parts.size() / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) parts[i] = join_two(parts[i], parts[i + half]);
  return parts[0];
}

struct found_row {
  float term[loss_term_count] = {};
  int64_t rank = -1;
};

// The kernel, line by line, with loops over the threads.
template <int width, class T>
found_row block(T* z,
                const T* u,
                int64_t n,
                int64_t label,
                float weight,
                const kernel::row_mix& mix,
                bool gradient,
                uint32_t threads) {
  found_row out;
  if (weight == 0.0f) {
    for (uint32_t t = 0; gradient && t < threads; ++t) clear_row<width>(z, n, t, threads);
    return out;
  }
  const float scale = 1.0f / mix.temperature, own = static_cast<float>(z[label]);
  std::vector<row_part> parts;
  for (uint32_t t = 0; t < threads; ++t)
    parts.push_back(scan_row<width>(z, u, n, label, scale, t, threads));
  const row_part part =
      over_block(parts, [&](const row_part& a, const row_part& b) { return join(a, b, scale); });
  const row_task task = task_of(mix, part, label, weight, u != nullptr);
  using kernel::row_sums;
  const auto add = [](const row_sums& a, const row_sums& b) { return join(a, b); };
  std::vector<row_sums> sums;
  row_sums s;
  const bool early = task.needs_sums() || (!gradient && u != nullptr);
  for (uint32_t t = 0; early && t < threads; ++t)
    sums.push_back(sum_row<width>(task, z, u, n, t, threads));
  if (early) s = over_block(sums, add);
  if (gradient) {
    std::vector<row_sums> late;
    for (uint32_t t = 0; t < threads; ++t)
      late.push_back(write_row<width>(task, s, z, u, n, t, threads));
    if (!early && u != nullptr) s = over_block(late, add);
  }
  out.rank = part.beats;
  kernel::row_values(mix, s, task.cap, out.term);
  out.term[0] = task.z_lse - own;
  return out;
}

template <int width, class T>
void compare(const at::Tensor& logits,
             const at::Tensor& teacher,
             const loss_factors& factors,
             bool gradient,
             double bound,
             double gradient_bound,
             uint32_t threads = 64) {
  const int64_t n = logits.size(1);
  at::Tensor z = logits.clone();
  std::vector<int32_t> labels;
  std::vector<float> weights;
  for (int64_t r = 0; r < rows; ++r) {  // every other row is right, so that cap has both kinds
    const int64_t best = logits[r].to(at::kDouble).argmax().item().toLong();
    labels.push_back(static_cast<int32_t>(r % 2 == 0 ? best : (r * 131) % n));
    weights.push_back(r == 4 ? 0.0f : 1.0f / static_cast<float>(r + 1));
  }
  at::Tensor expected_gradient;
  const kernel::loss_row_results expected =
      kernel::loss_rows_reference(logits.to(at::kDouble),
                                  factors.teacher() ? teacher.to(at::kDouble) : at::Tensor(),
                                  labels,
                                  weights,
                                  factors,
                                  &expected_gradient);
  for (int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<size_t>(r);
    const found_row found =
        block<width>(z.mutable_data_ptr<T>() + r * n,
                     factors.teacher() ? teacher.const_data_ptr<T>() + r * n : nullptr,
                     n,
                     labels[i],
                     weights[i],
                     kernel::mix_of(factors),
                     gradient,
                     threads);
    CAPTURE(r);
    CHECK(found.rank == expected.rank[i]);
    for (size_t t = 0; t < loss_term_count; ++t) {
      CAPTURE(t);
      CHECK(found.term[t] == Approx(expected.term[t][i]).epsilon(bound).margin(bound));
    }
  }
  if (!gradient) {
    CHECK(at::equal(z, logits));
    return;
  }
  const at::Tensor gap = (z.to(at::kDouble) - expected_gradient).abs();
  CHECK(gap.max().item().toDouble() <=
        gradient_bound * expected_gradient.abs().max().item().toDouble());
}

// Each term alone, with ce, and all together.
std::vector<loss_factors> mixtures() {
  std::vector<loss_factors> all;
  for (const double theta : {1.0, 2.5}) {
    for (size_t t = 0; t < loss_term_count; ++t) {
      loss_factors f;
      f.temperature = theta;
      f.factor = {};
      f.factor[t] = 0.7;
      all.push_back(f);
      f.factor[0] = 1.0;
      all.push_back(f);
    }
    loss_factors f;
    f.temperature = theta;
    f.factor.fill(0.3);
    all.push_back(f);
  }
  return all;
}

}  // namespace

TEST_CASE("threads of the loss kernel find all terms, ranks and gradients of the reference") {
  for (const int64_t n : {int64_t{1003}, int64_t{1000}, int64_t{24}, int64_t{1}}) {
    const at::Tensor z = (noise(n, 1) * 3.0).to(at::kFloat),
                     u = (z.to(at::kDouble) + noise(n, 2) * 2.0).to(at::kFloat);
    for (const loss_factors& f : mixtures())
      for (const bool gradient : {true, false}) {
        CAPTURE(n, f.factor, f.temperature, gradient);
        compare<1, float>(z, u, f, gradient, 3e-6, 3e-6);
        if (n % 4 == 0) compare<4, float>(z, u, f, gradient, 3e-6, 3e-6);
      }
  }
}

TEST_CASE("threads of the loss kernel on bf16 rows") {
  const at::Tensor z = (noise(1000, 1) * 3.0).to(at::kBFloat16),
                   u = (z.to(at::kDouble) + noise(1000, 2) * 2.0).to(at::kBFloat16);
  for (const loss_factors& f : mixtures()) {
    CAPTURE(f.factor, f.temperature);
    compare<1, c10::BFloat16>(z, u, f, true, 3e-6, 1.0 / 256);
    compare<8, c10::BFloat16>(z, u, f, true, 3e-6, 1.0 / 256);
  }
}

TEST_CASE("the loss kernel takes logits far apart, huge ones and those of -inf") {
  loss_factors all;
  all.factor.fill(0.5);
  at::Tensor z = (noise(96, 3) * 60.0).to(at::kFloat), u = (noise(96, 4) * 60.0).to(at::kFloat);
  // Logits near 200 and their differences are rounded to 1.5e-5, which exponents pass on.
  compare<4, float>(z, u, all, true, 1e-4, 1e-4, 32);
  // Masked by both: nothing of them is in any sum.
  for (const at::Tensor& t : {z, u}) t.narrow(1, 90, 6).fill_(-INFINITY);
  z.mul_(100);
  std::vector<float> row(z.const_data_ptr<float>(), z.const_data_ptr<float>() + 96);
  const found_row found =
      block<1>(row.data(), u.const_data_ptr<float>(), 96, 3, 1.0f, kernel::mix_of(all), true, 32);
  for (const float value : found.term) CHECK(std::isfinite(value));
  for (const float value : row) CHECK(std::isfinite(value));
  CHECK(row[95] == 0);
}

TEST_CASE("ties count for the lower ids, and every element belongs to one thread") {
  std::vector<float> z = {1, 5, 5, 5};
  const kernel::row_mix ce = kernel::mix_of({});
  for (const int64_t label : {1, 2, 3}) {
    std::vector<float> row = z;
    const found_row found = block<1, float>(row.data(), nullptr, 4, label, 0.5f, ce, true, 8);
    CHECK(found.rank == label - 1);
  }
  for (const uint32_t threads : {1U, 2U, 32U}) {
    std::vector<float> seen(48, 0);
    for (uint32_t t = 0; t < threads; ++t)
      walk_row<4, true>(seen.data(),
                        static_cast<const float*>(nullptr),
                        48,
                        t,
                        threads,
                        [](int64_t, float was, float) { return was + 1; });
    CHECK(seen == std::vector<float>(48, 1));
  }
  alignas(16) float there[8];
  CHECK(wide_rows<float>(there, nullptr, 8));
  CHECK_FALSE(wide_rows<float>(there, nullptr, 7));
  CHECK_FALSE(wide_rows<float>(there + 1, nullptr, 8));
  CHECK_FALSE(wide_rows<float>(there, there + 2, 8));
}

}  // namespace dflash::cuda
