#pragma once
// Prompt lookup: drafts copied from earlier text of the same sequence. The free alternative that a
// trained drafter is compared with.

#include <cstdint>
#include <span>
#include <vector>

#include "model/proposer.hpp"

namespace dflash {

struct lookup_options {
  int64_t max_ngram = 6;
  int64_t min_ngram = 1;
  int64_t max_drafts = 8;
};

/// The rule: let n run from max_ngram down to min_ngram; if the last n tokens of `text` (the anchor
/// included) occur earlier, take the most recent earlier occurrence (it may overlap the tail, but
/// must end before it) and draft the tokens that followed it, at most `count`, ending where the
/// text ends. The first n that matches decides. No match: no draft.
std::vector<int32_t> lookup_draft(std::span<const int32_t> text,
                                  int64_t count,
                                  const lookup_options& options = {});

class lookup_proposer final : public proposer {
public:
  explicit lookup_proposer(lookup_options options = {}) : options_{options} {}

  int64_t max_drafts() const override { return options_.max_drafts; }
  std::span<const int> taps() const override { return {}; }
  void start(int64_t slots, int64_t capacity) override;
  void reset(int64_t slot) override;
  void commit(std::span<const committed_rows> rows, const std::vector<at::Tensor>& taps) override;
  std::vector<std::vector<int32_t>> propose(std::span<const draft_request> requests) override;

private:
  lookup_options options_;
  std::vector<std::vector<int32_t>> text_;  // [slot] committed tokens
};

}  // namespace dflash
