// Packs documents into rows of a fixed number of tokens, once per data set.
#pragma once

#include <cstdint>
#include <vector>

#include "data/shards.hpp"

namespace dflash {

struct packed_rows {
  int64_t row_tokens = 0;                  // T
  std::vector<std::vector<int64_t>> rows;  // [row] document ids, rising within a row
  /// Share of the rows' tokens that no document fills.
  double padding_share(const token_set& documents) const;
};

/// Best-fit decreasing: documents by falling length (ties: lower id first), each into the fullest
/// row that still has room (ties: lower row), else into a new one. Every document stands in exactly
/// one row; a pure function of the lengths. O(documents · log T).
/// Throws error naming file, document and length if a document is longer than row_tokens.
packed_rows pack_documents(const token_set& documents, int64_t row_tokens);

}  // namespace dflash
