#pragma once
// Decoding, plain and speculative, by the same target calls (dflash.md 6.1). One loop serves one
// sequence or a ragged batch; with a proposer it verifies drafts, without one it runs one token a
// pass.
//
// Temperature > 0: drafts are the drafter's likeliest tokens, so a draft x is a fixed proposal. The
// target's token s is drawn from its distribution p for that place, and x is accepted iff s = x:
// with probability p(x), and else s is distributed as p without x, renormalised. That is
// speculative sampling (arXiv 2211.17192) for a proposal of probability 1, and keeps p exactly.
// Draws are keyed by (seed, prompt, position), so that plain and speculative decoding draw the same
// text.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/proposer.hpp"
#include "model/sampling.hpp"
#include "model/target.hpp"

namespace dflash {

struct decode_options {
  int64_t max_new_tokens = 128;
  std::vector<int64_t> eos = {};    // empty = the target's
  int64_t max_slots = 64;           // sequences in flight; a free slot takes the next prompt
  std::vector<int> keep_taps = {};  // also keep the taps of every committed row (for a walk)
  sampling_options sampling = {};   // greedy unless it has a temperature
  uint64_t first_prompt = 0;        // key of prompts[0] in draws; the others follow
  std::function<void()> between_passes = {};  // an exception of it gives all up; may be empty
};

/// Counts of verify passes; the prefill pass and the token it yields are outside. tau = committed ÷
/// passes. A pass that ends the answer counts what it really added (cut at end-of-text or limit).
struct decode_stats {
  int64_t passes = 0;
  int64_t committed = 0;
  int64_t drafted = 0;               // draft tokens offered; a skipped draft offers none
  std::vector<int64_t> offered_at;   // [k − 1] passes in which draft k was offered
  std::vector<int64_t> accepted_at;  // [k − 1] passes in which drafts 1..k were all accepted
  // Wall time of the passes (drafting included) and of the prefill that this sequence took part in;
  // with one slot that is its own time.
  double pass_seconds = 0;
  double prefill_seconds = 0;
  double tau() const {
    return passes == 0 ? 0.0 : static_cast<double>(committed) / static_cast<double>(passes);
  }
  void add(const decode_stats& other);
};

enum class stop_reason { end_of_text, token_limit, position_limit, no_room };

struct decoded {
  std::vector<int32_t> tokens;  // new tokens, end-of-text included
  stop_reason stop = stop_reason::token_limit;
  decode_stats stats;
  std::vector<at::Tensor> taps;  // [tap] [prompt + tokens − 1, Ht], on the target's device; the
                                 // last token is never run. Empty unless asked for
};

/// Answers all prompts; result [prompt]. Length rule: prompt + new tokens ≤ the target's
/// max_position_embeddings; a prompt of just that length yields no token (stop = no_room), a longer
/// or empty one throws `dflash::error` before any work. A draft that would pass a limit is cut, not
/// shifted. The dtype of the target's logits decides (bf16 logits in bf16), lowest id on ties of
/// greedy decoding, the same in plain and speculative decoding; a row with a NaN throws
/// std::runtime_error. `drafts` may be null (plain decoding). Blocks. On
/// another device than the CPU the host waits once a pass for the target's tokens, and once for the
/// drafts of up to 256 places.
std::vector<decoded> decode_prompts(const target& model,
                                    std::span<const std::span<const int32_t>> prompts,
                                    proposer* drafts,
                                    const decode_options& options);

}  // namespace dflash
