#include "model/lookup.hpp"

#include <catch2/catch.hpp>

namespace dflash {
namespace {

using ids = std::vector<int32_t>;

TEST_CASE("lookup drafts what followed the longest repeated tail", "[lookup]") {
  // The tail 2 3 was followed by 9; the tail 3 alone, more recently, by 8.
  CHECK(lookup_draft(ids{1, 2, 3, 9, 3, 8, 2, 3}, 1) == ids{9});
  // Of two occurrences of the same length the most recent one counts.
  CHECK(lookup_draft(ids{5, 7, 5, 8, 5}, 3) == ids{8, 5});
}

TEST_CASE("lookup drafts end with the text and with the count asked for", "[lookup]") {
  CHECK(lookup_draft(ids{4, 1, 2, 4}, 8) == ids{1, 2, 4});
  CHECK(lookup_draft(ids{4, 1, 2, 4}, 2) == ids{1, 2});
  const ids repeated(30, 6);
  // Overlapping occurrences count: the most recent one leaves a single token.
  CHECK(lookup_draft(repeated, 8) == ids{6});
}

TEST_CASE("lookup without a repetition, or in a single token, drafts nothing", "[lookup]") {
  CHECK(lookup_draft(ids{1, 2, 3}, 8).empty());
  CHECK(lookup_draft(ids{1}, 8).empty());
  CHECK(lookup_draft(ids{}, 8).empty());
  CHECK(lookup_draft(ids{1, 2, 1}, 8, {.max_ngram = 6, .min_ngram = 2, .max_drafts = 8}).empty());
}

TEST_CASE("the lookup proposer sees only what stands before the anchor", "[lookup]") {
  lookup_proposer lookup;
  lookup.start(2, 16);
  const ids text{1, 2, 3, 1, 2, 4};
  const committed_rows rows{.slot = 1, .start = 0, .tokens = text};
  lookup.commit({&rows, 1}, {});
  const std::vector<draft_request> requests{{.slot = 1, .position = 3, .token = 1, .count = 8},
                                            {.slot = 1, .position = 6, .token = 1, .count = 2},
                                            {.slot = 0, .position = 0, .token = 1, .count = 8}};
  const auto drafts = lookup.propose(requests);
  CHECK(drafts[0] == ids{2, 3, 1});
  CHECK(drafts[1] == ids{2, 4});
  CHECK(drafts[2].empty());
  lookup.reset(1);
  CHECK(
      lookup.propose(std::vector<draft_request>{{.slot = 1, .position = 0, .token = 1, .count = 1}})
          .front()
          .empty());
}

}  // namespace
}  // namespace dflash
