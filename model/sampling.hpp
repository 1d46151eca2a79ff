// From logits to token ids: greedy, or temperature with top-k and top-p. Random numbers are keyed
// by (seed, prompt, position), so that a token never depends on what else is in the batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace dflash {

// The largest logit's id; the lowest id on ties (-0.0 = 0.0), compared in the logits' own dtype.
// bad_token for a row that holds a NaN or nothing but -inf: such a row is counted, never a token.
inline constexpr int32_t bad_token = -1;

// logits [n, V] fp32 or bf16, contiguous; ids >= vocab (padding) never win. -> [n]. On another
// device than the CPU the same ids are found there; the host waits for them once.
std::vector<int32_t> argmax_rows(const at::Tensor& logits, int64_t vocab);

struct sampling_options {
  double temperature = 0;  // 0: greedy
  double top_p = 1;        // the smallest set of tokens with at least this probability
  int64_t top_k = 0;       // 0: all
  uint64_t seed = 0;
};
// Throws dflash::error for values out of range.
void check_sampling(const sampling_options& options);

// Where a token is drawn: which prompt, and at which position of its sequence.
struct sampling_key {
  uint64_t prompt;
  uint64_t position;
};

// One token a row, keys [n]; bad_token as above. Order as in transformers: temperature, then top-k,
// then top-p among what is left. Drawn on the host: logits of another device come over, with one
// wait, and give the tokens that the CPU's would.
std::vector<int32_t> sample_rows(const at::Tensor& logits,
                                 int64_t vocab,
                                 const sampling_options& options,
                                 std::span<const sampling_key> keys);

}  // namespace dflash
