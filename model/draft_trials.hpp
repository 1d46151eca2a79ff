// Drafting at every position of some stored answers, with a drafter as it is or as it might have
// been meant: what the doctor compares.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/drafter_config.hpp"
#include "model/eval.hpp"
#include "model/proposer.hpp"

namespace dflash {

/// What drafts at every position of the answers were worth.
struct draft_counts {
  std::vector<double> lengths;                // per anchor: leading right drafts + 1
  std::map<int, std::vector<int64_t>> right;  // by shift of the label: [k - 1]
  std::map<int, std::vector<int64_t>> compared;
  std::map<int32_t, int64_t> proposed;  // how often each token was drafted
  int64_t drafts = 0;

  /// Right share of all drafts, were the labels shifted by so many places (-1, 0, 1).
  double right_share(int shift) const;
};

/// The items bring the taps that the proposer reads. Each has at least two answer tokens.
draft_counts count_drafts(proposer& drafts, std::span<const walk_item> items);

struct draft_trial {
  std::string name;  // "as given", "with taps shifted by -1", ...
  int64_t anchors = 0;
  double accept_len = 0;      // mean of leading right drafts + 1
  double standard_error = 0;  // of accept_len
};
draft_trial trial_of(std::string name, const draft_counts& counts);

/// A tenth more beyond the one token that every pass gives, and more than noise explains.
bool clearly_better(const draft_trial& other, const draft_trial& given);

/// The taps of a drafter and the layers beside them, rising.
std::vector<int> taps_with_neighbours(const std::vector<int>& taps, int64_t layers);

/// The items with some of the taps that they hold: `kept` says which these are.
std::vector<walk_item> with_taps(std::span<const walk_item> items,
                                 const std::vector<int>& kept,
                                 const std::vector<int>& taps);

}  // namespace dflash
