// How often tokens are supervised, and the most frequent ones: the draft vocabulary of a drafter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/shards.hpp"

namespace dflash {

/// [vocab]: supervised occurrences of each token. Reads all tokens.
std::vector<int64_t> supervised_counts(const token_set& documents, int64_t vocab);

/// The `count` tokens with the highest counts (ties: the lower id), rising; where fewer occur at
/// all, the lowest ids fill up, as speculators does. 0 < count <= counts.size().
std::vector<int32_t> most_frequent_tokens(std::span<const int64_t> counts, int64_t count);

}  // namespace dflash
