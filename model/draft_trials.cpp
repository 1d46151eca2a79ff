#include "model/draft_trials.hpp"

#include <algorithm>
#include <cmath>

namespace dflash {

namespace {

// A variant is clearly better if it accepts a tenth more, and more than noise explains.
constexpr double better_by = 1.1;
constexpr double standard_errors = 3;

void count_at(std::vector<int64_t>& counts, size_t k, bool hit) {
  if (counts.size() <= k) counts.resize(k + 1, 0);
  counts[k] += hit ? 1 : 0;
}

// drafts [request] behind each answer token but the last.
void count_answer(draft_counts& counts,
                  const walk_item& item,
                  std::span<const std::vector<int32_t>> drafts) {
  const auto answer = std::span{item.tokens}.subspan(static_cast<size_t>(item.prompt_tokens));
  for (size_t i = 0; i < drafts.size(); ++i) {
    size_t lead = 0;
    while (lead < drafts[i].size() && i + 1 + lead < answer.size() &&
           drafts[i][lead] == answer[i + 1 + lead])
      ++lead;
    counts.lengths.push_back(static_cast<double>(lead) + 1);
    for (size_t k = 0; k < drafts[i].size(); ++k) {
      ++counts.proposed[drafts[i][k]];
      ++counts.drafts;
      for (const int shift : {-1, 0, 1}) {
        const auto at = static_cast<int64_t>(i + 1 + k) + shift;
        if (at < 0 || at >= static_cast<int64_t>(answer.size())) continue;
        count_at(counts.compared[shift], k, true);
        count_at(counts.right[shift], k, drafts[i][k] == answer[static_cast<size_t>(at)]);
      }
    }
  }
}

}  // namespace

double draft_counts::right_share(int shift) const {
  const auto hits = right.find(shift), all = compared.find(shift);
  if (hits == right.end() || all == compared.end()) return 0;
  int64_t good = 0, of_all = 0;
  for (const int64_t n : hits->second) good += n;
  for (const int64_t n : all->second) of_all += n;
  return static_cast<double>(good) / static_cast<double>(std::max<int64_t>(1, of_all));
}

draft_counts count_drafts(proposer& drafts, std::span<const walk_item> items) {
  draft_counts counts;
  for (const walk_item& item : items) {
    const auto total = static_cast<int64_t>(item.tokens.size());
    drafts.start(1, std::max<int64_t>(total, 1));
    const committed_rows rows{
        .slot = 0, .start = 0, .tokens = std::span{item.tokens}.first(item.tokens.size() - 1)};
    drafts.commit({&rows, 1}, item.taps);
    std::vector<draft_request> requests;
    for (int64_t position = item.prompt_tokens; position + 1 < total; ++position)
      requests.push_back({.slot = 0,
                          .position = position,
                          .token = item.tokens[static_cast<size_t>(position)],
                          .count = drafts.max_drafts()});
    if (!requests.empty()) count_answer(counts, item, drafts.propose(requests));
  }
  return counts;
}

draft_trial trial_of(std::string name, const draft_counts& counts) {
  draft_trial t;
  t.name = std::move(name);
  t.anchors = static_cast<int64_t>(counts.lengths.size());
  if (t.anchors == 0) return t;
  const auto n = static_cast<double>(t.anchors);
  double sum = 0;
  for (const double length : counts.lengths) sum += length;
  t.accept_len = sum / n;
  double squares = 0;
  for (const double length : counts.lengths)
    squares += (length - t.accept_len) * (length - t.accept_len);
  t.standard_error = std::sqrt(squares / n / n);
  return t;
}

// Compared by what is accepted beyond the one token that every pass gives.
bool clearly_better(const draft_trial& other, const draft_trial& given) {
  const double noise = std::hypot(other.standard_error, given.standard_error);
  return other.accept_len - 1 > better_by * (given.accept_len - 1) &&
         other.accept_len - given.accept_len > standard_errors * noise;
}

std::vector<int> taps_with_neighbours(const std::vector<int>& taps, int64_t layers) {
  std::vector<int> all;
  for (const int tap : taps)
    for (const int by : {-1, 0, 1})
      if (tap + by >= 0 && tap + by < layers) all.push_back(tap + by);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::vector<walk_item> with_taps(std::span<const walk_item> items,
                                 const std::vector<int>& kept,
                                 const std::vector<int>& taps) {
  std::vector<walk_item> out;
  for (const walk_item& item : items) {
    out.push_back(item);
    out.back().taps.clear();
    for (const int tap : taps) {
      const auto at = std::find(kept.begin(), kept.end(), tap) - kept.begin();
      out.back().taps.push_back(item.taps.at(static_cast<size_t>(at)));
    }
  }
  return out;
}

}  // namespace dflash
