// Kernels of device/kernels against their ATen forms, tails and odd sizes included. Bounds: fp32
// rounding of sums of a few hundred terms (2e-6 relative to the largest element); bf16 results
// within one rounding (2^-8).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <catch2/catch.hpp>

#include "device/kernels/adamw.hpp"
#include "device/kernels/norms.hpp"
#include "device/kernels/tile_gemm.hpp"

using namespace dflash;

namespace {

at::Tensor noise(std::vector<int64_t> shape, uint64_t seed, at::ScalarType type = at::kFloat) {
  auto g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, g, at::TensorOptions().dtype(at::kFloat)).to(type);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  return ((x - y).abs().max() / (y.abs().max() + 1e-30)).item().toDouble();
}

double bound(at::ScalarType type) {
  return type == at::kBFloat16 ? 0.0040 : 2e-6;
}

const at::ScalarType types[] = {at::kFloat, at::kBFloat16};

}  // namespace

TEST_CASE("RMSNorm and its gradient equal the ATen form") {
  for (const auto type : types)
    for (const int64_t n : {1, 7, 16, 33, 576}) {
      CAPTURE(n, type);
      const at::Tensor x = noise({19, n}, 1, type), w = noise({n}, 2), dy = noise({19, n}, 3, type);
      const at::Tensor add = noise({19, n}, 4, type);
      at::Tensor y = at::empty({19, n}, x.options());
      kernel::rms_norm(y, x, w, 1e-5);
      CHECK(difference(y, kernel::rms_norm_reference(x, w, 1e-5)) < bound(type));
      at::Tensor dx = at::empty_like(x), dw = at::zeros({n}, w.options());
      kernel::rms_norm_backward(dx, dw, dy, x, w, 1e-5, add);
      const auto want = kernel::rms_norm_backward_reference(dy, x, w, 1e-5);
      CHECK(difference(dx, want.dx + add) < bound(type));
      CHECK(difference(dw, want.d_weight) < 4e-6);
    }
}

TEST_CASE("RMSNorm of fp32 sums may be written as bf16") {
  const at::Tensor x = noise({5, 40}, 1), w = noise({40}, 2), dy = noise({5, 40}, 3, at::kBFloat16);
  at::Tensor y = at::empty({5, 40}, dy.options()), dx = at::empty_like(y);
  at::Tensor dw = at::zeros({40}, w.options());
  kernel::rms_norm(y, x, w, 1e-6);
  CHECK(difference(y, kernel::rms_norm_reference(x, w, 1e-6)) < 0.004);
  kernel::rms_norm_backward(dx, dw, dy, x, w, 1e-6);
  const auto want = kernel::rms_norm_backward_reference(dy, x, w, 1e-6);
  CHECK(difference(dx, want.dx) < 0.004);
  CHECK(difference(dw, want.d_weight) < 4e-6);
}

TEST_CASE("head norm with rotation and its gradient equal the ATen form, on strided rows") {
  for (const auto type : types)
    for (const int64_t hd : {2, 6, 32, 64, 80}) {
      CAPTURE(hd, type);
      const at::Tensor whole = noise({11, 5 * hd}, 1, type), w = noise({hd}, 2);
      const at::Tensor x = whole.narrow(1, hd, 3 * hd).unflatten(1, {3, hd});
      const auto table = kernel::make_rope_table(50, hd, 1e4);
      const at::Tensor positions = at::randint(0, 50, {11}, at::TensorOptions().dtype(at::kInt));
      at::Tensor y = at::empty({11, 3, hd}, x.options());
      kernel::head_norm_rope(y, x, w, table, positions, 1e-6);
      CHECK(difference(y, kernel::head_norm_rope_reference(x, w, table, positions, 1e-6)) <
            bound(type));
      const at::Tensor dy = noise({11, 3, hd}, 3);
      const auto want = kernel::head_norm_rope_backward_reference(dy, x, w, table, positions, 1e-6);
      at::Tensor dx = x.clone(), dw = at::zeros({hd}, w.options());
      kernel::head_norm_rope_backward(dx, dw, dy, dx, w, table, positions, 1e-6);  // in place
      // hd = 2 cancels almost to nothing, so its error counts against the size of dy
      CHECK((dx.to(at::kFloat) - want.dx).abs().max().item().toDouble() <
            bound(type) * (want.dx.abs().max().item().toDouble() + 1));
      CHECK(difference(dw, want.d_weight) < 4e-6);
    }
}

TEST_CASE("rotation is by position times theta^(-2i / hd), halves turned against each other") {
  const auto table = kernel::make_rope_table(8, 4, 100.0);
  CHECK(table.cos[3][1].item().toFloat() == Approx(std::cos(3 * 0.1)));
  CHECK(table.sin[5][0].item().toFloat() == Approx(std::sin(5.0)));
}

TEST_CASE("SwiGLU and its gradient equal the ATen form") {
  for (const auto type : types)
    for (const int64_t n : {1, 5, 16, 47, 1536}) {
      CAPTURE(n, type);
      const at::Tensor gu = noise({6, 2 * n}, 1, type) * 4, d = noise({6, n}, 2, type);
      at::Tensor y = at::empty({6, n}, gu.options());
      kernel::swiglu(y, gu);
      CHECK(difference(y, kernel::swiglu_reference(gu)) < bound(type));
      at::Tensor g = gu.clone();
      kernel::swiglu_backward(g, d, g);
      CHECK(difference(g, kernel::swiglu_backward_reference(d, gu)) < bound(type));
    }
}

TEST_CASE("accumulate overwrites or adds, into strided rows") {
  at::Tensor whole = at::zeros({4, 50});
  at::Tensor into = whole.narrow(1, 10, 33);
  const at::Tensor a = noise({4, 33}, 1, at::kBFloat16), b = noise({4, 33}, 2);
  into.fill_(7);
  kernel::accumulate(into, a, true);
  kernel::accumulate(into, b, false);
  CHECK(difference(into, a.to(at::kFloat) + b) < 1e-7);
  CHECK(whole.narrow(1, 0, 10).abs().max().item().toFloat() == 0.0f);
  CHECK(whole.narrow(1, 43, 7).abs().max().item().toFloat() == 0.0f);
}

TEST_CASE("small products equal loops, for every row and column remainder") {
  for (const int64_t m : {1, 4, 11, 12, 13, 48})
    for (const int64_t n : {16, 32, 48, 80})
      for (const int64_t k : {2, 6, 64, 66}) {
        CAPTURE(m, n, k);
        const int64_t lda = k + 2, ldb = n + 16, ldc = n + 3;
        const at::Tensor a = noise({m, lda}, 1), b = noise({k, ldb}, 2);
        at::Tensor c = noise({m, ldc}, 3), want = c.clone();
        for (const bool add : {false, true}) {
          const kernel::tile_shape s{
              .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb, .ldc = ldc, .add = add};
          kernel::tile_gemm(s, a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>());
          kernel::tile_gemm_reference(
              s, a.data_ptr<float>(), b.data_ptr<float>(), want.data_ptr<float>());
          CHECK(difference(c, want) < 2e-6);
          const at::Tensor a16 = a.to(at::kBFloat16), b16 = b.to(at::kBFloat16);
          at::Tensor widened = c.clone(), c16 = c.clone(), want16 = c.clone();
          const auto* pa = a16.data_ptr<c10::BFloat16>();
          const auto* pb = b16.data_ptr<c10::BFloat16>();
          kernel::tile_gemm(s, pa, pb, c16.data_ptr<float>());
          kernel::detail::tile_gemm_widened(s, pa, pb, widened.data_ptr<float>());
          kernel::tile_gemm_reference(s, pa, pb, want16.data_ptr<float>());
          CHECK(difference(c16, want16) < 2e-6);
          CHECK(difference(widened, want16) < 2e-6);
        }
      }
}

TEST_CASE(
    "one AdamW pass equals the ATen form, and the sum of squares does not depend on threads") {
  for (const int64_t n : {1, 15, 16, 1000, 40000}) {
    at::Tensor p = noise({n}, 1), m = noise({n}, 2), v = noise({n}, 3).square();
    at::Tensor p2 = p.clone(), m2 = m.clone(), v2 = v.clone();
    const at::Tensor g = noise({n}, 4);
    at::Tensor copy = at::empty({n}, p.options().dtype(at::kBFloat16)), copy2 = copy.clone();
    const kernel::adamw_options o{
        .lr = 0.01, .weight_decay = 0.1, .gradient_scale = 0.5, .updates = 3};
    kernel::square_sum moved, want, squares, squares_wanted;
    kernel::adamw_update(p, m, v, g, copy, o, moved);
    kernel::adamw_update_reference(p2, m2, v2, g, copy2, o, want);
    CHECK(difference(p, p2) < 1e-6);
    CHECK(difference(m, m2) < 1e-6);
    CHECK(difference(v, v2) < 1e-6);
    CHECK(copy.equal(p.to(at::kBFloat16)));
    CHECK(moved.value() == Approx(want.value()).epsilon(1e-3));
    kernel::add_squares(g, squares);
    kernel::add_squares_reference(g, squares_wanted);
    CHECK(squares.value() == Approx(squares_wanted.value()).epsilon(1e-5));
  }
}
