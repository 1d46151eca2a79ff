// The attention kernel against loops, its forms against each other, and its promise on bits.
#include "device/kernels/target_attention.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

namespace dflash::kernel {
namespace {

constexpr attention_shape shape{6, 2, 64};
constexpr int64_t row_width = (6 + 2 * 2) * 64;

at::Tensor random_rows(int64_t n, uint64_t seed, at::ScalarType dtype) {
  std::mt19937_64 random(seed);
  auto t = at::empty({n, row_width}, at::TensorOptions().dtype(at::kFloat));
  auto* p = t.mutable_data_ptr<float>();
  for (int64_t i = 0; i < t.numel(); ++i)
    p[i] = static_cast<float>(static_cast<double>(random() >> 11) * 0x1p-51 - 2);
  return t.to(dtype);
}

struct memory {
  at::Tensor keys, values;
  int64_t blocks;
  memory(int64_t tokens, at::ScalarType dtype) : blocks(blocks_for(tokens)) {
    const auto options = at::TensorOptions().dtype(dtype);
    keys = at::zeros({shape.kv_heads * blocks, key_block_elements(shape.head_dim)}, options);
    values = at::zeros({shape.kv_heads * blocks, value_block_elements(shape.head_dim)}, options);
  }
  attention_span span(int64_t first_row, int64_t rows, int64_t position) {
    return {keys.mutable_data_ptr(), values.mutable_data_ptr(), blocks, first_row, rows, position};
  }
};

// Without rotation: cos 1, sin 0.
std::vector<float> no_rotation(int64_t n) {
  std::vector<float> rope(n * shape.head_dim, 0.0F);
  for (int64_t i = 0; i < n; ++i)
    std::fill_n(rope.begin() + i * shape.head_dim, shape.head_dim / 2, 1.0F);
  return rope;
}

at::Tensor attended(at::Tensor qkv, const std::vector<int64_t>& cuts, int64_t window = 0) {
  auto windowed = shape;
  windowed.window = window;
  const auto dtype = qkv.scalar_type();
  const int64_t n = qkv.size(0);
  qkv = qkv.clone();
  memory m(n, dtype);
  auto out = at::empty({n, shape.heads * shape.head_dim}, qkv.options());
  const auto rope = no_rotation(n);
  int64_t first = 0;
  for (const auto rows : cuts) {
    const attention_span span = m.span(0, rows, first);
    auto part = qkv.narrow(0, first, rows);
    auto part_out = out.narrow(0, first, rows);
    store_rotated(dtype, part.mutable_data_ptr(), rope.data(), windowed, {&span, 1});
    attend(dtype, part.const_data_ptr(), part_out.mutable_data_ptr(), windowed, {&span, 1});
    first += rows;
  }
  return out;
}

double worst(const at::Tensor& qkv_any, const at::Tensor& out_any, int64_t window = 1000) {
  const auto qkv = qkv_any.to(at::kFloat), out = out_any.to(at::kFloat);
  const auto* x = qkv.const_data_ptr<float>();
  const auto* y = out.const_data_ptr<float>();
  const int64_t n = qkv.size(0), hd = shape.head_dim;
  double most = 0;
  for (int64_t t = 0; t < n; ++t)
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t kv = h / 3;
      std::vector<double> p(t + 1), sum(hd);
      double total = 0;
      const int64_t first = std::max<int64_t>(0, t - window + 1);
      for (int64_t u = first; u <= t; ++u) {
        for (int64_t d = 0; d < hd; ++d)
          p[u] += static_cast<double>(x[t * row_width + h * hd + d]) *
                  x[u * row_width + (6 + kv) * hd + d];
        p[u] = std::exp(p[u] / 8);
        total += p[u];
      }
      for (int64_t d = 0; d < hd; ++d) {
        for (int64_t u = 0; u <= t; ++u) sum[d] += p[u] * x[u * row_width + (8 + kv) * hd + d];
        most = std::max(most, std::abs(sum[d] / total - y[t * 384 + h * hd + d]));
      }
    }
  return most;
}

}  // namespace

TEST_CASE("target attention equals loops over softmax", "[kernels]") {
  const int64_t n = 301;
  const auto fp32 = random_rows(n, 1, at::kFloat), bf16 = random_rows(n, 2, at::kBFloat16);
  CHECK(worst(fp32, attended(fp32, {n})) < 5e-6);
  CHECK(worst(bf16, attended(bf16, {n})) < 2e-2);
}

TEST_CASE("a window leaves a row its last keys, at every place within a segment", "[kernels]") {
  const int64_t n = 530;  // three segments of 256 keys
  const auto fp32 = random_rows(n, 5, at::kFloat), bf16 = random_rows(n, 6, at::kBFloat16);
  for (const int64_t window : {1, 17, 256, 300}) {
    CAPTURE(window);
    const auto whole = attended(fp32, {n}, window);
    CHECK(worst(fp32, whole, window) < 5e-6);
    CHECK(worst(bf16, attended(bf16, {n}, window), window) < 2e-2);
    CHECK(at::equal(whole, attended(fp32, {3, 260, 1, 1, 265}, window)));
  }
}

TEST_CASE("a row's attention has the same bits however its sequence was cut", "[kernels]") {
  const int64_t n = 301;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto qkv = random_rows(n, 3, dtype);
    const auto whole = attended(qkv, {n});
    CHECK(at::equal(whole, attended(qkv, {100, 1, 1, 5, 7, 187})));
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    CHECK(at::equal(whole, attended(qkv, {255, 46})));
    at::set_num_threads(threads);
  }
}

TEST_CASE("the bf16 form by widening equals the native one within rounding", "[kernels]") {
  const int64_t n = 60;
  auto qkv = random_rows(n, 4, at::kBFloat16);
  const auto native = attended(qkv, {n});
  memory m(n, at::kBFloat16);
  const auto rope = no_rotation(n);
  const attention_span span = m.span(0, n, 0);
  store_rotated(at::kBFloat16, qkv.mutable_data_ptr(), rope.data(), shape, {&span, 1});
  auto out = at::empty_like(native);
  for (int64_t h = 0; h < shape.kv_heads; ++h)
    for (int64_t t = 0; t < n; ++t) {
      detail::attention_tile tile;
      tile.q = qkv.const_data_ptr<at::BFloat16>() + t * row_width + h * 3 * 64;
      tile.out = out.mutable_data_ptr<at::BFloat16>() + t * 384 + h * 3 * 64;
      tile.q_stride = row_width;
      tile.out_stride = 384;
      tile.tokens = 1;
      tile.group = 3;
      tile.position = t;
      tile.head_dim = 64;
      tile.scale = 0.125F;
      tile.keys = m.keys.select(0, h * m.blocks).const_data_ptr();
      tile.values = m.values.select(0, h * m.blocks).const_data_ptr();
      detail::portable_tile_function(at::kBFloat16)(tile);
    }
  const auto difference = (at::sub(native.to(at::kFloat), out.to(at::kFloat))).abs().max();
  CHECK(difference.item<float>() < 2e-2F);
}

TEST_CASE("a value that is not finite reaches the output of every row that sees it", "[kernels]") {
  const int64_t n = 40;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    auto qkv = random_rows(n, 5, dtype);
    qkv.narrow(0, 20, 1).narrow(1, 6 * 64, 1).fill_(std::nan(""));  // a key of head 0
    const auto out = attended(qkv, {n}).to(at::kFloat);
    for (const int64_t t : {0, 19, 20, 39})
      CHECK(std::isnan(out.const_data_ptr<float>()[t * 384]) == (t >= 20));
  }
}

}  // namespace dflash::kernel
