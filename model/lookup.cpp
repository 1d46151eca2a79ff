#include "model/lookup.hpp"

#include <algorithm>

#include "config/error.hpp"

namespace dflash {

std::vector<int32_t> lookup_draft(std::span<const int32_t> text,
                                  int64_t count,
                                  const lookup_options& options) {
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t n = std::min(options.max_ngram, size - 1); n >= options.min_ngram; --n) {
    const auto tail = text.last(static_cast<size_t>(n));
    // `after` is the index behind an occurrence; size would be the tail itself.
    for (int64_t after = size - 1; after >= n; --after) {
      const auto candidate = text.subspan(static_cast<size_t>(after - n), static_cast<size_t>(n));
      if (!std::equal(tail.begin(), tail.end(), candidate.begin())) continue;
      const auto length = std::min({count, options.max_drafts, size - after});
      const auto drafted = text.subspan(static_cast<size_t>(after), static_cast<size_t>(length));
      return {drafted.begin(), drafted.end()};
    }
  }
  return {};
}

void lookup_proposer::start(int64_t slots, int64_t capacity) {
  text_.assign(static_cast<size_t>(slots), {});
  for (auto& text : text_) text.reserve(static_cast<size_t>(capacity + 1));
}

void lookup_proposer::reset(int64_t slot) {
  text_.at(static_cast<size_t>(slot)).clear();
}

void lookup_proposer::commit(std::span<const committed_rows> rows, const std::vector<at::Tensor>&) {
  for (const auto& row : rows) {
    auto& text = text_.at(static_cast<size_t>(row.slot));
    DFLASH_CHECK(static_cast<int64_t>(text.size()) == row.start, "rows out of order", row.start);
    text.insert(text.end(), row.tokens.begin(), row.tokens.end());
  }
}

std::vector<std::vector<int32_t>> lookup_proposer::propose(
    std::span<const draft_request> requests) {
  std::vector<std::vector<int32_t>> drafts;
  drafts.reserve(requests.size());
  std::vector<int32_t> text;
  for (const auto& request : requests) {
    const auto& committed = text_.at(static_cast<size_t>(request.slot));
    DFLASH_CHECK(request.position <= static_cast<int64_t>(committed.size()), "anchor beyond text");
    text.assign(committed.begin(), committed.begin() + request.position);
    text.push_back(request.token);
    drafts.push_back(lookup_draft(text, request.count, options_));
  }
  return drafts;
}

}  // namespace dflash
