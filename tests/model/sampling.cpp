#include "model/sampling.hpp"

#include <ATen/ops/empty.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "config/error.hpp"

namespace dflash {
namespace {

at::Tensor row_of(const std::vector<float>& values, at::ScalarType dtype) {
  auto row =
      at::empty({1, static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(at::kFloat));
  std::copy(values.begin(), values.end(), row.mutable_data_ptr<float>());
  return row.to(dtype);
}

std::vector<float> case_values(const nlohmann::json& list) {
  std::vector<float> values;
  for (const auto& x : list)
    values.push_back(x.is_number() ? x.get<float>()
                     : x == "nan"  ? std::nanf("")
                     : x == "-inf" ? -INFINITY
                                   : INFINITY);
  return values;
}

// Shares of each token among `draws` draws.
std::vector<double> shares(const std::vector<float>& values,
                           const sampling_options& options,
                           int draws,
                           at::ScalarType dtype = at::kFloat) {
  std::vector<double> out(values.size());
  const auto row = row_of(values, dtype);
  for (int i = 0; i < draws; ++i) {
    const sampling_key key{3, static_cast<uint64_t>(i)};
    out.at(sample_rows(row, row.size(1), options, {&key, 1})[0]) += 1.0 / draws;
  }
  return out;
}

}  // namespace

TEST_CASE("the largest logit wins, the lowest id on ties, in the logits' own dtype", "[sampling]") {
  std::ifstream file(std::string(DFLASH_TEST_DATA) + "/cases/30-greedy-ties/logits.json");
  for (const auto& item : nlohmann::json::parse(file)) {
    const std::string name = item["name"];
    INFO(name);
    const auto values = case_values(item["logits"]);
    const auto fp32 = row_of(values, at::kFloat), bf16 = row_of(values, at::kBFloat16);
    const auto vocab = name.starts_with("padded") ? 2 : fp32.size(1);
    const auto in_fp32 = argmax_rows(fp32, vocab)[0], in_bf16 = argmax_rows(bf16, vocab)[0];
    if (name.starts_with("less than one bf16 ulp")) {
      CHECK(in_fp32 == 1);
      CHECK(in_bf16 == 0);
    } else if (name == "all -inf" || name.starts_with("NaN")) {
      CHECK(in_fp32 == bad_token);
      CHECK(in_bf16 == bad_token);
    } else {
      const int32_t expected = item["expect"].is_number() ? item["expect"].get<int32_t>() : 1;
      CHECK(in_fp32 == expected);
      CHECK(in_bf16 == expected);
    }
  }
}

TEST_CASE("draws follow the softmax", "[sampling]") {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.2F), -100};
  const auto plain = shares(logits, {.temperature = 1}, 20000);
  CHECK(plain[0] == Approx(0.5).margin(0.015));
  CHECK(plain[1] == Approx(0.3).margin(0.015));
  CHECK(plain[2] == Approx(0.2).margin(0.015));
  CHECK(plain[3] == 0);
  const auto hot = shares(logits, {.temperature = 2}, 20000);
  CHECK(hot[0] ==
        Approx(std::sqrt(0.5) / (std::sqrt(0.5) + std::sqrt(0.3) + std::sqrt(0.2))).margin(0.015));
}

TEST_CASE("top-k and top-p keep the likeliest tokens", "[sampling]") {
  const std::vector<float> logits = {std::log(0.2F), std::log(0.5F), std::log(0.3F)};
  const auto two = shares(logits, {.temperature = 1, .top_k = 2}, 5000);
  CHECK(two[0] == 0);
  CHECK(two[1] == Approx(0.625).margin(0.03));
  // 0.5 is not yet 0.6 of all: the next one belongs to the set as well.
  const auto share = shares(logits, {.temperature = 1, .top_p = 0.6}, 5000, at::kFloat);
  CHECK(share[0] == 0);
  CHECK(share[2] == Approx(0.375).margin(0.03));
  CHECK(shares(logits, {.temperature = 1, .top_p = 0.01}, 100)[1] == Approx(1));
  // Equal logits: the lower ids stay.
  const auto tie = shares({1, 1, 1, 1}, {.temperature = 1, .top_k = 2}, 200);
  CHECK(tie[0] + tie[1] == Approx(1));
}

TEST_CASE("a draw depends on seed, prompt and position, not on its neighbours", "[sampling]") {
  auto rows = at::empty({3, 50}, at::TensorOptions().dtype(at::kFloat));
  for (int64_t i = 0; i < rows.numel(); ++i)
    rows.mutable_data_ptr<float>()[i] = static_cast<float>((i * 7919) % 50) / 25;
  const sampling_options options{.temperature = 1, .seed = 5};
  const std::vector<sampling_key> keys = {{0, 9}, {1, 9}, {0, 10}};
  const auto together = sample_rows(rows, 50, options, keys);
  for (int64_t i = 0; i < 3; ++i)
    CHECK(sample_rows(rows.narrow(0, i, 1), 50, options, {&keys[i], 1})[0] == together[i]);
  std::vector<int32_t> other_seed;
  for (uint64_t seed = 6; seed < 16; ++seed)
    other_seed.push_back(sample_rows(
        rows.narrow(0, 0, 1), 50, {.temperature = 1, .seed = seed}, {keys.data(), 1})[0]);
  CHECK(std::count(other_seed.begin(), other_seed.end(), together[0]) < 10);
}

TEST_CASE("sampling options out of range are refused by name", "[sampling]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(check_sampling({.temperature = -1}), Contains("temperature"));
  CHECK_THROWS_WITH(check_sampling({.temperature = 1, .top_p = 0}), Contains("top-p"));
  CHECK_THROWS_WITH(check_sampling({.temperature = 1, .top_k = -2}), Contains("top-k"));
  CHECK_THROWS_WITH(check_sampling({.top_p = 0.5}), Contains("greedy"));
  CHECK_NOTHROW(check_sampling({.temperature = 0.7, .top_p = 0.9, .top_k = 20}));
}

}  // namespace dflash
