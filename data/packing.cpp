#include "data/packing.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "config/error.hpp"

namespace dflash {

double packed_rows::padding_share(const token_set& documents) const {
  if (rows.empty()) return 0.0;
  const auto room = static_cast<double>(rows.size()) * static_cast<double>(row_tokens);
  return 1.0 - static_cast<double>(documents.tokens()) / room;
}

packed_rows pack_documents(const token_set& documents, int64_t row_tokens) {
  DFLASH_CHECK(row_tokens > 0, "a row has tokens", row_tokens);
  const auto length = [&](int64_t d) { return static_cast<int64_t>(documents.ids(d).size()); };
  std::vector<int64_t> order(documents.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  for (const int64_t d : order) {
    if (length(d) <= row_tokens) continue;
    throw error("the document has " + std::to_string(length(d)) + " tokens, a row only " +
                    std::to_string(row_tokens),
                documents.where(d),
                "raise data.row_tokens, or cut the documents when the shard is made "
                "(--max-tokens of tools.tokenize_chat)");
  }
  std::ranges::stable_sort(order, std::greater{}, length);
  packed_rows packed{row_tokens, {}};
  // Rows by the room they have left; rows without room are not in it.
  std::map<int64_t, std::set<int64_t>> by_room;
  for (const int64_t d : order) {
    const auto fit = by_room.lower_bound(length(d));
    int64_t row = narrow<int64_t>(packed.rows.size());
    int64_t room = row_tokens;
    if (fit != by_room.end()) {
      room = fit->first;
      row = *fit->second.begin();
      fit->second.erase(fit->second.begin());
      if (fit->second.empty()) by_room.erase(fit);
    } else {
      packed.rows.emplace_back();
    }
    packed.rows[row].push_back(d);
    if (room > length(d)) by_room[room - length(d)].insert(row);
  }
  for (auto& row : packed.rows) std::ranges::sort(row);
  return packed;
}

}  // namespace dflash
