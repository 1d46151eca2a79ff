// The attention kernels on a device against the ATen form on the CPU. Bounds: fp32 sums in another
// order; in bf16 operands and probabilities are rounded (2^-8 each).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>

#include <vector>

#include "device/kernels/gpu_attention.hpp"
#include "tests/cuda_kernels/has_device.hpp"

#include <catch2/catch.hpp>

namespace dflash::kernel {
namespace {

at::Tensor noise(std::vector<int64_t> shape, uint64_t seed, at::ScalarType type) {
  auto g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, g, at::TensorOptions().dtype(at::kFloat)).to(type);
}

attention_input on(const attention_input& in, at::Device device) {
  return {in.q.to(device),
          in.context_k.to(device),
          in.context_v.to(device),
          in.block_k.to(device),
          in.block_v.to(device)};
}

void close(const at::Tensor& a, const at::Tensor& b, double bound) {
  const at::Tensor x = a.to(at::kCPU, at::kDouble), y = b.to(at::kDouble);
  CHECK((x - y).abs().max().item().toDouble() <= bound * y.abs().max().item().toDouble());
}

}  // namespace

TEST_CASE("attention on a device agrees with the reference") {
  if (!cuda::has_device()) return;
  const at::Device device(at::kCUDA, 0);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const int64_t hd : {64, 128, 256})
      for (const int64_t window : {0, 48})
        for (const bool causal : {false, true}) {
          CAPTURE(type, hd, window, causal);
          attention_layout l;
          l.heads = 8;
          l.kv_heads = 2;
          l.head_dim = hd;
          l.block_size = 16;
          l.first_slot = 1;
          l.window = window;
          l.causal = causal;
          l.begin = {0, 0, 0, 170, 170};
          l.anchor = {1, 165, 0, 183, 299};
          const int64_t rows = l.blocks() * l.queries(), own = l.blocks() * l.block_size;
          const attention_input here{noise({rows, 8, hd}, 1, type),
                                     noise({301, 2, hd}, 2, type),
                                     noise({301, 2, hd}, 3, type),
                                     noise({own, 2, hd}, 4, type),
                                     noise({own, 2, hd}, 5, type)};
          const at::Tensor d_out = noise({rows, 8, hd}, 6, type);
          const attention_input there = on(here, device);
          l.spans = spans_on(l, device);
          if (!gpu::attends(l, there)) continue;  // fp32 heads of 256: no shared memory for them
          const double bound = type == at::kFloat ? 1e-5 : 1.0 / 64;
          const attention_output out = gpu::block_attention(l, there),
                                 want = block_attention_reference(l, here);
          close(out.out, want.out, bound);
          close(out.lse, want.lse, bound);
          const attention_output given{want.out.to(device), want.lse.to(device)};
          const attention_gradients g =
              gpu::block_attention_backward(l, there, given, d_out.to(device));
          const attention_gradients w = block_attention_backward_reference(l, here, want, d_out);
          close(g.q, w.q, bound);
          close(g.context_k, w.context_k, bound);
          close(g.context_v, w.context_v, bound);
          close(g.block_k, w.block_k, bound);
          close(g.block_v, w.block_v, bound);
        }
}

}  // namespace dflash::kernel
