// Structured attention of the drafter against explicit masks (dflash.md 2.3). fp32: rounding of dot
// products and sums over up to 300 keys; bf16: operands of the products are rounded, p and ds once
// more.
#include "device/kernels/block_attention.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>

#include <catch2/catch.hpp>

using namespace dflash;

namespace {

at::Tensor noise(std::vector<int64_t> shape, uint64_t seed, at::ScalarType type) {
  auto g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, g, at::TensorOptions().dtype(at::kFloat)).to(type);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  return ((x - y).abs().max() / (y.abs().max() + 1e-30)).item().toDouble();
}

struct problem {
  kernel::attention_layout layout;
  kernel::attention_input input;
  at::Tensor d_out;
};

// Two documents, [0, 170) and [170, 301); anchors in both, one at a document's first token, one
// invalid.
problem make(
    int64_t heads, int64_t kv, int64_t hd, int64_t b, int64_t first_slot, at::ScalarType type) {
  problem p;
  p.layout = {.heads = heads,
              .kv_heads = kv,
              .head_dim = hd,
              .block_size = b,
              .first_slot = first_slot,
              .begin = {0, 0, 0, 170, 170, 170, 0},
              .anchor = {1, 40, 165, 170, 183, 299, 0}};
  const int64_t a = p.layout.blocks(), n = a * p.layout.queries(), t = 301;
  const at::Tensor rows = noise({t, 2 * kv * hd}, 2, type),
                   own = noise({a * b, 2 * kv * hd}, 3, type);
  const auto half = [&](const at::Tensor& x, int64_t i) {
    return x.narrow(1, i * kv * hd, kv * hd).unflatten(1, {kv, hd});
  };
  p.input = {.q = noise({n, heads, hd}, 1, type),
             .context_k = half(rows, 0),
             .context_v = half(rows, 1),
             .block_k = half(own, 0),
             .block_v = half(own, 1)};
  p.d_out = noise({n, heads, hd}, 4, type);
  return p;
}

void compare(const problem& p, double bound) {
  const auto out = kernel::block_attention(p.layout, p.input);
  const auto want = kernel::block_attention_reference(p.layout, p.input);
  CHECK(difference(out.out, want.out) < bound);
  CHECK(difference(out.lse, want.lse) < bound);
  const auto g = kernel::block_attention_backward(p.layout, p.input, out, p.d_out);
  const auto w = kernel::block_attention_backward_reference(p.layout, p.input, out, p.d_out);
  CHECK(difference(g.q, w.q) < bound);
  CHECK(difference(g.context_k, w.context_k) < bound);
  CHECK(difference(g.context_v, w.context_v) < bound);
  CHECK(difference(g.block_k, w.block_k) < bound);
  CHECK(difference(g.block_v, w.block_v) < bound);
}

}  // namespace

TEST_CASE("block attention equals explicit masks: heads, widths, slots, windows, causality") {
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const auto& [heads, kv, hd, b, first] : {std::tuple{9, 3, 64, 16, 0},
                                                  {9, 3, 64, 16, 1},
                                                  {4, 2, 32, 4, 1},
                                                  {2, 2, 6, 5, 0},
                                                  {3, 1, 80, 3, 1},
                                                  {5, 5, 16, 18, 0}})
      for (const auto& [window, causal] :
           {std::pair{0, false}, {0, true}, {6, true}, {6, false}, {50, true}, {3, false}}) {
        CAPTURE(type, heads, kv, hd, b, first, window, causal);
        problem p = make(heads, kv, hd, b, first, type);
        p.layout.window = window;
        p.layout.causal = causal;
        compare(p, type == at::kFloat ? 5e-6 : 0.012);
      }
}

TEST_CASE("the mask is the table: window from the query's own position, itself included") {
  kernel::attention_layout l{.block_size = 4, .begin = {10}, .anchor = {30}, .window = 6};
  CHECK(l.first_key(0, 0) == 25);  // t >= a + k - (W - 1)
  CHECK(l.first_key(0, 3) == 28);
  l.window = 100;
  CHECK(l.first_key(0, 0) == 10);  // never before the document
  l.causal = true;
  CHECK(l.sees_slot(2, 2));
  CHECK_FALSE(l.sees_slot(2, 3));
  l.causal = false;
  CHECK(l.sees_slot(2, 3));
  l.window = 2;
  CHECK_FALSE(l.sees_slot(0, 2));
}

TEST_CASE("block attention gives the same bits twice, and gradients for unseen tokens are zero") {
  problem p = make(9, 3, 64, 8, 0, at::kBFloat16);
  const auto out = kernel::block_attention(p.layout, p.input);
  const auto a = kernel::block_attention_backward(p.layout, p.input, out, p.d_out);
  const auto b = kernel::block_attention_backward(p.layout, p.input, out, p.d_out);
  CHECK(a.q.equal(b.q));
  CHECK(a.context_k.equal(b.context_k));
  CHECK(a.context_k.narrow(0, 165, 5).abs().max().item().toFloat() == 0.0f);
  CHECK(a.context_v.narrow(0, 299, 2).abs().max().item().toFloat() == 0.0f);
}
