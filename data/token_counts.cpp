#include "data/token_counts.hpp"

#include <algorithm>
#include <numeric>

#include "config/error.hpp"

namespace dflash {

std::vector<int64_t> supervised_counts(const token_set& documents, int64_t vocab) {
  std::vector<int64_t> counts(static_cast<size_t>(vocab), 0);
  for (int64_t d = 0; d < documents.size(); ++d) {
    const auto ids = documents.ids(d);
    const auto mask = documents.mask(d);
    for (size_t i = 0; i < mask.size(); ++i)
      if (mask[i]) ++counts.at(static_cast<size_t>(ids[i]));
  }
  return counts;
}

std::vector<int32_t> most_frequent_tokens(std::span<const int64_t> counts, int64_t count) {
  DFLASH_CHECK(count > 0 && count <= static_cast<int64_t>(counts.size()), "tokens to keep", count);
  std::vector<int32_t> ids(counts.size());
  std::iota(ids.begin(), ids.end(), 0);
  // Tokens that never occur all tie at 0: the lowest of them fill up.
  const auto more = [&](int32_t a, int32_t b) {
    const int64_t x = counts[static_cast<size_t>(a)], y = counts[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto end = ids.begin() + count;
  std::nth_element(ids.begin(), end - 1, ids.end(), more);
  ids.erase(end, ids.end());
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace dflash
