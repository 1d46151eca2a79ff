#include "model/output_check.hpp"

#include <ATen/ops/tensor.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/decode.hpp"
#include "model/sampling.hpp"
#include "tests/model/decode_fixture.hpp"

namespace dflash {
namespace {

TEST_CASE("case 30: which token wins", "[output_check]") {
  std::ifstream file{std::string{DFLASH_TEST_DATA} + "/cases/30-greedy-ties/logits.json"};
  int checked = 0;
  for (const auto& row : nlohmann::json::parse(file)) {
    INFO(row["name"]);
    std::vector<float> logits;
    for (const auto& value : row["logits"]) {
      if (value == "-inf")
        logits.push_back(-std::numeric_limits<float>::infinity());
      else if (value == "nan")
        logits.push_back(std::numeric_limits<float>::quiet_NaN());
      else
        logits.push_back(value);
    }
    const auto tensor = at::tensor(logits).reshape({1, static_cast<int64_t>(logits.size())});
    const auto vocab = static_cast<int64_t>(logits.size());
    const std::string name = row["name"];
    if (name.starts_with("less than one bf16 ulp")) {
      // The dtype of the logits decides.
      CHECK(argmax_rows(tensor, vocab).front() == 1);
      CHECK(argmax_rows(tensor.to(at::kBFloat16), vocab).front() == 0);
    } else if (name.starts_with("all -inf") || name.starts_with("NaN")) {
      CHECK(argmax_rows(tensor, vocab).front() == bad_token);
    } else if (name.starts_with("padded")) {
      CHECK(argmax_rows(tensor, 2).front() == 1);
    } else {
      CHECK(argmax_rows(tensor, vocab).front() == row["expect"].get<int32_t>());
      CHECK(argmax_rows(tensor.to(at::kBFloat16), vocab).front() == row["expect"].get<int32_t>());
    }
    ++checked;
  }
  CHECK(checked == 9);
}

TEST_CASE("units in the last place", "[output_check]") {
  CHECK(unit_in_last_place(7, compute_dtype::bf16) == 0.03125);
  CHECK(unit_in_last_place(20, compute_dtype::bf16) == 0.125);
  CHECK(unit_in_last_place(-20, compute_dtype::bf16) == 0.125);
  CHECK(unit_in_last_place(1, compute_dtype::fp32) == std::ldexp(1.0, -23));
  CHECK(unit_in_last_place(0, compute_dtype::fp32) == 0);
}

TEST_CASE("a difference is a tie up to four times what rounding does", "[output_check]") {
  const auto one = at::tensor({1.0F, 7.0F, 6.75F, 3.0F});
  const auto noisy = [&](float noise) { return at::tensor({1.0F, 7.0F, 6.75F, 3.0F + noise}); };
  const auto fp32 = compute_dtype::fp32;
  CHECK(judge_tie(one, noisy(0.0625F), 1, 2, fp32).is_tie());        // 0.25 ≤ 4 × 0.0625
  CHECK_FALSE(judge_tie(one, noisy(0.06F), 1, 2, fp32).is_tie());    // 0.25 > 0.24
  CHECK_FALSE(judge_tie(one, noisy(0.0625F), 1, 3, fp32).is_tie());  // 3 is far from the best
  const auto verdict = judge_tie(one, noisy(0.0625F), 2, 1, fp32);
  CHECK(verdict.gap == 0.25);
  CHECK(verdict.measured == 0.0625);
  // Without any measured difference, one unit in the last place of the compute dtype.
  const auto close = at::tensor({20.0F, 19.875F});
  CHECK(judge_tie(close, close, 0, 1, compute_dtype::bf16).is_tie());
  CHECK_FALSE(judge_tie(close, close, 0, 1, fp32).is_tie());
}

TEST_CASE("outputs are compared up to their first difference", "[output_check]") {
  const auto model = decode_test::tiny_target();
  const auto prompt = decode_test::tiny_prompt(8);
  const std::vector<int32_t> plain{1, 2, 3, 4, 5, 6};
  CHECK_FALSE(compare_outputs(*model, prompt, plain, plain, 4).has_value());
  auto other = plain;
  other[4] = 9;
  const auto found = compare_outputs(*model, prompt, plain, other, 4);
  REQUIRE(found.has_value());
  CHECK(found->position == 4);
  CHECK(found->plain == 5);
  CHECK(found->speculative == 9);
  CHECK(found->verdict.measured < 1e-4);
  // A random token is no near tie of the best one.
  CHECK_FALSE(found->verdict.is_tie());
  // One output ends early: never a tie.
  const auto shorter = compare_outputs(*model, prompt, plain, std::span{plain}.first(3), 4);
  REQUIRE(shorter.has_value());
  CHECK(shorter->speculative == -1);
  CHECK_FALSE(shorter->verdict.is_tie());
}

TEST_CASE("ties pass on at most one prompt in a hundred", "[output_check]") {
  output_check check;
  for (int i = 0; i < 99; ++i) check.add(std::nullopt, i);
  CHECK(check.passed());
  output_difference tie{.prompt = 0, .position = 3, .plain = 1, .speculative = 2, .verdict = {}};
  check.add(tie, 99);
  CHECK(check.ties == 1);
  CHECK(check.differences.front().prompt == 99);
  CHECK(check.passed());
  check.add(tie, 100);
  CHECK_FALSE(check.passed());
  output_check wrong;
  tie.verdict.gap = 1;
  for (int i = 0; i < 999; ++i) wrong.add(std::nullopt, i);
  wrong.add(tie, 999);
  CHECK(wrong.different == 1);
  CHECK_FALSE(wrong.passed());
}

}  // namespace
}  // namespace dflash
