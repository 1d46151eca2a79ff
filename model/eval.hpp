#pragma once
// Held-out numbers of a drafter by walking the target's greedy answers: the same figures as
// decoding those prompts, without running the target again.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/shards.hpp"
#include "model/decode.hpp"
#include "model/proposer.hpp"
#include "model/target.hpp"

namespace dflash {

/// A prompt with the target's greedy answer and the taps of prompt + answer.
struct walk_item {
  std::vector<int32_t> tokens;  // prompt, then answer
  int64_t prompt_tokens = 0;
  int64_t limit = 0;             // new tokens that decoding allowed, answered or not
  std::vector<at::Tensor> taps;  // [tap] [tokens − 1, Ht]; empty for lookup
  stop_reason stop = stop_reason::token_limit;
};

/// Sums over prompts; means are taken by the accessors, so reports of parts can be added.
struct walk_report {
  int64_t prompts = 0;
  int64_t answer_tokens = 0;
  decode_stats walk;          // as decoding would count: passes, committed, acceptance per position
  int64_t anchors = 0;        // every position of an answer that has a next token
  int64_t anchor_length = 0;  // Σ (leading matches + 1) over them
  std::vector<int64_t> hits_at, supervised_at;  // [k − 1] over all anchors
  double tau() const { return walk.tau(); }
  double accept_len() const {
    return anchors == 0 ? 0.0 : static_cast<double>(anchor_length) / static_cast<double>(anchors);
  }
  void add(const walk_report& other);
};

/// How one answer was drafted.
struct walk_trace {
  struct pass {
    int64_t at = 0;  // answer token that is the anchor
    int64_t offered = 0, accepted = 0, committed = 0;
  };
  std::vector<pass> passes;   // of decoding
  std::vector<int64_t> lead;  // [answer tokens − 1] right drafts in a row behind token i
};

/// The target's answers (greedy, or drawn as options.sampling says) to prompts [first, last) of
/// `prompts`, in ragged batches, with the taps that `taps` names kept (nT · Ht · 2 bytes a token in
/// bf16). Greedy answers of a batch may differ from those of a single sequence by rounding ties; a
/// walk follows the answers it is given.
std::vector<walk_item> make_walk_items(const target& model,
                                       const token_documents& prompts,
                                       int64_t first,
                                       int64_t last,
                                       std::span<const int> taps,
                                       const decode_options& options);

/// Drafts at every position of every answer (all of them at once in ragged batches), which gives
/// accept_len, then follows the path that decoding would take through them, which gives tau.
/// Deterministic for given thread count. `traced` (may be empty) gets the trace of each item.
walk_report walk_answers(
    proposer& drafts,
    std::span<const walk_item> items,
    const std::function<void(const walk_item&, const walk_trace&)>& traced = {});

}  // namespace dflash
