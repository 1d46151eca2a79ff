#pragma once
// Whether speculative and plain decoding gave the same text, and whether a difference is a rounding
// tie.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/target.hpp"

namespace dflash {

/// Unit in the last place of `x` in the compute dtype: 0.125 for 20 in bf16.
double unit_in_last_place(double x, compute_dtype dtype);

/// The rule for one difference: with l the one-row logits at the first differing position, both
/// chosen tokens must lie within `tolerance` = max(4 × measured, one unit in the last place of the
/// best logit) of the best logit, where `measured` is max|one-row − many-row| over the vocabulary
/// at that position.
struct tie_verdict {
  double gap = 0;  // best logit − the lower of the two chosen tokens' logits
  double measured = 0;
  double tolerance = 0;
  bool is_tie() const { return gap <= tolerance; }
};
tie_verdict judge_tie(const at::Tensor& one_row,   // [V]
                      const at::Tensor& many_row,  // [V]
                      int32_t first_token,
                      int32_t second_token,
                      compute_dtype dtype);

struct output_difference {
  int64_t prompt = 0;    // index in its set
  int64_t position = 0;  // first differing new token
  int32_t plain = -1;    // −1: this output ended before
  int32_t speculative = -1;
  tie_verdict verdict;
};

/// First difference of two outputs of one prompt; nullopt = the same text. Replays the common
/// prefix through the target one token a pass and in chunks of `rows` tokens to measure what
/// rounding does.
std::optional<output_difference> compare_outputs(const target& model,
                                                 std::span<const int32_t> prompt,
                                                 std::span<const int32_t> plain,
                                                 std::span<const int32_t> speculative,
                                                 int64_t rows);

struct output_check {
  int64_t prompts = 0;
  int64_t identical = 0;
  int64_t ties = 0;
  int64_t different = 0;
  std::vector<output_difference> differences;
  /// Counts one prompt: `difference` as compare_outputs gave it.
  void add(const std::optional<output_difference>& difference, int64_t prompt);
  void add(const output_check& other);
  /// Identical texts but for ties on at most 1 % of the prompts.
  bool passed() const;
};

}  // namespace dflash
