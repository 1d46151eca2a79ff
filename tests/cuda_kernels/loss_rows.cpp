// The loss kernel on a device against the ATen form on the CPU in fp64. Bounds: sums of 49152
// exponentials in fp32, added in another order; bf16 gradients within one rounding (2^-8).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>

#include <catch2/catch.hpp>
#include <vector>

#include "device/kernels/loss_rows.hpp"
#include "device/upload.hpp"
#include "tests/cuda_kernels/has_device.hpp"

namespace dflash::kernel {
namespace {

at::Tensor noise(int64_t rows, int64_t n, uint64_t seed) {
  auto g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn({rows, n}, g, at::TensorOptions().dtype(at::kDouble));
}

}  // namespace

TEST_CASE("loss rows on a device agree with the reference") {
  if (!cuda::has_device()) return;
  const at::Device device(at::kCUDA, 0);
  const std::vector<int32_t> labels = {0, 7, 99, 1000, 5};
  const std::vector<float> weights = {1, 0.5f, 0.25f, 0, 2};
  for (const int64_t n : {int64_t{49152}, int64_t{49153}})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (size_t t = 0; t < loss_term_count; ++t) {
        CAPTURE(n, type, t);
        loss_factors factors;
        factors.factor[t] += 0.5;
        factors.temperature = t == index_of(loss_term::kl) ? 2 : 1;
        const at::Tensor here = (noise(5, n, 1) * 3).to(type);
        const at::Tensor taught = (here.to(at::kDouble) + noise(5, n, 2)).to(type);
        at::Tensor there = here.to(device), gradient;
        const loss_row_tensors found = loss_rows_on_device(there,
                                                           taught.to(device),
                                                           upload(labels, device).to(at::kLong),
                                                           upload(weights, device),
                                                           factors,
                                                           true);
        const loss_row_results expected = loss_rows_reference(
            here.to(at::kDouble), taught.to(at::kDouble), labels, weights, factors, &gradient);
        const at::Tensor rank = found.rank.to(at::kCPU), term = found.term[t].to(at::kCPU);
        for (size_t r = 0; r < labels.size(); ++r) {
          CHECK(rank.const_data_ptr<int64_t>()[r] == expected.rank[r]);
          CHECK(term.const_data_ptr<float>()[r] == Approx(expected.term[t][r]).epsilon(1e-5));
        }
        const at::Tensor gap = (there.to(at::kCPU, at::kDouble) - gradient).abs();
        CHECK(gap.max().item().toDouble() <=
              (type == at::kFloat ? 1e-5 : 1.0 / 256) * gradient.abs().max().item().toDouble());
      }
}

}  // namespace dflash::kernel
