// The gated delta rule and its convolution against loops in double, and the promises on cuts and
// states.
#include "device/kernels/delta_rule.hpp"

#include <c10/util/BFloat16.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

namespace dflash::kernel {
namespace {

constexpr delta_shape shape{2, 4, 12, 20};

std::vector<float> random_values(size_t n, uint64_t seed, double low, double high) {
  std::mt19937_64 random(seed);
  std::vector<float> out(n);
  for (auto& x : out)
    x = static_cast<float>(low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53);
  return out;
}

struct inputs {
  int64_t rows;
  std::vector<float> qkv, gates;
  explicit inputs(int64_t n)
      : rows(n), qkv(random_values(static_cast<size_t>(n * shape.channels()), 1, -1, 1)) {
    for (int64_t t = 0; t < n; ++t)
      for (const auto& [low, high] : {std::pair{-1.0, 0.0}, {0.0, 1.0}}) {
        const auto part = random_values(4, static_cast<uint64_t>(2 * t) + (low < 0), low, high);
        gates.insert(gates.end(), part.begin(), part.end());
      }
  }
};

// Outputs [n, hv · dv].
std::vector<double> naive(const inputs& in) {
  std::vector<double> out;
  std::vector<std::vector<double>> states(4, std::vector<double>(12 * 20, 0));
  for (int64_t t = 0; t < in.rows; ++t)
    for (int64_t h = 0; h < 4; ++h) {
      const float* row = in.qkv.data() + t * shape.channels();
      const float *q = row + h / 2 * 12, *k = row + 24 + h / 2 * 12, *v = row + 48 + h * 20;
      double qq = 1e-6, kk = 1e-6;
      for (int i = 0; i < 12; ++i) qq += q[i] * q[i], kk += k[i] * k[i];
      const double keep = std::exp(in.gates[t * 8 + h]), beta = in.gates[t * 8 + 4 + h];
      auto& s = states[h];
      for (auto& x : s) x *= keep;
      for (int j = 0; j < 20; ++j) {
        double known = 0, read = 0;
        for (int i = 0; i < 12; ++i) known += s[i * 20 + j] * k[i] / std::sqrt(kk);
        for (int i = 0; i < 12; ++i) {
          s[i * 20 + j] += k[i] / std::sqrt(kk) * beta * (v[j] - known);
          read += s[i * 20 + j] * q[i] / std::sqrt(qq) / std::sqrt(12.0);
        }
        out.push_back(read);
      }
    }
  return out;
}

// In chunks of the given sizes through one state.
std::vector<float> by_chunks(const inputs& in, const std::vector<int64_t>& cuts) {
  std::vector<float> out(static_cast<size_t>(in.rows * 80)), state(4 * 12 * 20, 0);
  int64_t first = 0;
  for (const auto rows : cuts) {
    delta_span span;
    span.qkv = in.qkv.data() + first * shape.channels();
    span.gates = in.gates.data() + first * 8;
    span.state = state.data();
    span.rows = span.settled = rows;
    span.out = out.data() + first * 80;
    delta_rule(c10::ScalarType::Float, shape, {&span, 1});
    first += rows;
  }
  return out;
}

}  // namespace

TEST_CASE("the delta rule equals loops, in one go without a state", "[kernels]") {
  const inputs in(50);
  std::vector<float> out(50 * 80);
  delta_span span;
  span.qkv = in.qkv.data();
  span.gates = in.gates.data();
  span.rows = span.settled = 50;
  span.out = out.data();
  delta_rule(c10::ScalarType::Float, shape, {&span, 1});
  const auto expected = naive(in);
  double most = 0;
  for (size_t i = 0; i < out.size(); ++i) most = std::max(most, std::abs(out[i] - expected[i]));
  CHECK(most < 1e-6);
  CHECK(out == by_chunks(in, {50}));
  CHECK(out == by_chunks(in, {1, 30, 2, 17}));
}

TEST_CASE("rows that are not settled leave no trace, silent ones no output", "[kernels]") {
  const inputs in(20);
  const auto whole = by_chunks(in, {20});
  std::vector<float> state(4 * 12 * 20, 0), out(20 * 80);
  delta_span span;
  span.qkv = in.qkv.data();
  span.gates = in.gates.data();
  span.state = state.data();
  span.rows = 12;
  span.settled = 8;
  span.out = out.data();
  delta_rule(c10::ScalarType::Float, shape, {&span, 1});
  CHECK(std::equal(out.begin(), out.begin() + 12 * 80, whole.begin()));
  // From row 8 on: two rows again in silence, then the rest.
  span.qkv = in.qkv.data() + 8 * shape.channels();
  span.gates = in.gates.data() + 8 * 8;
  span.rows = span.settled = 12;
  span.silent = 2;
  delta_rule(c10::ScalarType::Float, shape, {&span, 1});
  CHECK(std::equal(out.begin(), out.begin() + 10 * 80, whole.begin() + 10 * 80));
}

TEST_CASE("bf16 inputs of the delta rule are read exactly, its outputs rounded once", "[kernels]") {
  inputs in(9);
  std::vector<c10::BFloat16> rounded;
  for (auto& x : in.qkv) {
    rounded.emplace_back(x);
    x = static_cast<float>(rounded.back());
  }
  const auto wide = by_chunks(in, {9});
  std::vector<c10::BFloat16> out(9 * 80);
  delta_span span;
  span.qkv = rounded.data();
  span.gates = in.gates.data();
  span.rows = span.settled = 9;
  span.out = out.data();
  delta_rule(c10::ScalarType::BFloat16, shape, {&span, 1});
  for (size_t i = 0; i < out.size(); ++i) CHECK(out[i] == c10::BFloat16(wide[i]));
}

TEST_CASE("the causal convolution equals loops for any number of channels", "[kernels]") {
  for (const int64_t channels : {3, 16, 37}) {
    const int64_t n = 7, taps = 4;
    const auto x = random_values(static_cast<size_t>((n + taps - 1) * channels), 3, -2, 2);
    const auto w = random_values(static_cast<size_t>(taps * channels), 4, -1, 1);
    std::vector<float> out(static_cast<size_t>(n * channels));
    causal_conv_silu(c10::ScalarType::Float, x.data(), w.data(), n, channels, taps, out.data());
    for (int64_t t = 0; t < n; ++t)
      for (int64_t c = 0; c < channels; ++c) {
        double sum = 0;
        for (int64_t j = 0; j < taps; ++j)
          sum += static_cast<double>(w[j * channels + c]) * x[(t + j) * channels + c];
        CHECK(out[t * channels + c] == Approx(sum / (1 + std::exp(-sum))).margin(1e-6));
      }
  }
}

}  // namespace dflash::kernel
