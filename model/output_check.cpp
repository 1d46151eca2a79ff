#include "model/output_check.hpp"

#include <algorithm>
#include <cmath>

#include "config/error.hpp"
#include "model/kv_cache.hpp"

namespace dflash {

namespace {

// The target's logits behind the last of `prefix + answer` when the answer is run in chunks of
// `rows` tokens, the first one shorter so that the last token is the last row of a whole chunk;
// `ahead` more tokens of the answer follow it in its chunk.
at::Tensor replayed_logits(const target& model,
                           std::span<const int32_t> prompt,
                           std::span<const int32_t> answer,
                           int64_t rows,
                           std::span<const int32_t> ahead) {
  const auto answered = static_cast<int64_t>(answer.size());
  const auto total = static_cast<int64_t>(prompt.size() + answer.size() + ahead.size());
  kv_cache cache{model.config(), model.dtype(), 1, total, 0, model.device()};
  const auto run = [&](std::span<const int32_t> tokens) {
    const target::chunk chunk{.slot = 0, .tokens = tokens};
    return model.forward(cache, {&chunk, 1}).hidden;
  };
  at::Tensor hidden = run(prompt);
  std::vector<int32_t> block;
  const int64_t last_chunk = std::max<int64_t>(1, rows - static_cast<int64_t>(ahead.size()));
  int64_t done = 0;
  const int64_t before = std::max<int64_t>(0, answered - last_chunk);
  while (done < answered) {
    // Up to `before` in chunks of `rows` (a short one first), then the chunk of interest.
    int64_t size = answered - before;
    if (done < before) size = (before - done) % rows == 0 ? rows : (before - done) % rows;
    const auto part = answer.subspan(static_cast<size_t>(done), static_cast<size_t>(size));
    block.assign(part.begin(), part.end());
    done += size;
    if (done == answered) block.insert(block.end(), ahead.begin(), ahead.end());
    hidden = run(block).narrow(0, 0, size);
  }
  return model.logits(hidden.narrow(0, hidden.size(0) - 1, 1))
      .to(at::kCPU, at::kFloat)
      .reshape({model.config().vocab});
}

}  // namespace

double unit_in_last_place(double x, compute_dtype dtype) {
  const int mantissa = dtype == compute_dtype::bf16 ? 7 : 23;
  if (x == 0 || !std::isfinite(x)) return 0;
  return std::ldexp(1.0, std::ilogb(x) - mantissa);
}

tie_verdict judge_tie(const at::Tensor& one_row,
                      const at::Tensor& many_row,
                      int32_t first_token,
                      int32_t second_token,
                      compute_dtype dtype) {
  const auto one = one_row.to(at::kDouble).contiguous();
  const double* logits = one.const_data_ptr<double>();
  const double best = one.max().item<double>();
  tie_verdict verdict;
  verdict.gap = best - std::min(logits[first_token], logits[second_token]);
  verdict.measured = one.sub(many_row.to(at::kDouble)).abs().max().item<double>();
  verdict.tolerance = std::max(4 * verdict.measured, unit_in_last_place(best, dtype));
  return verdict;
}

std::optional<output_difference> compare_outputs(const target& model,
                                                 std::span<const int32_t> prompt,
                                                 std::span<const int32_t> plain,
                                                 std::span<const int32_t> speculative,
                                                 int64_t rows) {
  const auto [left, right] =
      std::mismatch(plain.begin(), plain.end(), speculative.begin(), speculative.end());
  if (left == plain.end() && right == speculative.end()) return std::nullopt;
  output_difference difference;
  difference.position = left - plain.begin();
  if (left != plain.end()) difference.plain = *left;
  if (right != speculative.end()) difference.speculative = *right;
  // Both outputs follow one length rule, so one that is a prefix of the other is no rounding tie.
  if (difference.plain < 0 || difference.speculative < 0) {
    difference.verdict.gap = INFINITY;
    return difference;
  }
  const auto common = plain.first(static_cast<size_t>(difference.position));
  const auto one = replayed_logits(model, prompt, common, 1, {});
  // The row may have stood anywhere in its block: measured as the first and as the last one, once
  // with each of the two continuations behind it.
  for (const auto& output : {plain, speculative}) {
    const auto rest = output.subspan(static_cast<size_t>(difference.position));
    const auto ahead = rest.first(std::min(rest.size(), static_cast<size_t>(rows - 1)));
    for (const auto& many : {replayed_logits(model, prompt, common, rows, {}),
                             replayed_logits(model, prompt, common, rows, ahead)}) {
      const auto verdict =
          judge_tie(one, many, difference.plain, difference.speculative, model.dtype());
      if (verdict.tolerance >= difference.verdict.tolerance) difference.verdict = verdict;
    }
  }
  return difference;
}

void output_check::add(const std::optional<output_difference>& difference, int64_t prompt) {
  prompts += 1;
  if (!difference) {
    identical += 1;
    return;
  }
  (difference->verdict.is_tie() ? ties : different) += 1;
  differences.push_back(*difference);
  differences.back().prompt = prompt;
}

void output_check::add(const output_check& other) {
  prompts += other.prompts;
  identical += other.identical;
  ties += other.ties;
  different += other.different;
  differences.insert(differences.end(), other.differences.begin(), other.differences.end());
}

bool output_check::passed() const {
  return different == 0 && ties * 100 <= prompts;
}

}  // namespace dflash
