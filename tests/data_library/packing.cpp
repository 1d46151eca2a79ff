#include "data/packing.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "data/random.hpp"
#include "tests/data_library/scratch.hpp"

using namespace dflash;
using namespace dflash::test;
using Catch::Matchers::Contains;

namespace {

token_documents of_lengths(const std::vector<int64_t>& lengths) {
  token_documents documents;
  for (const int64_t n : lengths)
    documents.append(std::vector<int32_t>(n, 1), std::vector<uint8_t>(n, 1));
  return documents;
}

}  // namespace

TEST_CASE("documents go into the fullest row with room, longest first") {
  const auto packed = pack_documents(of_lengths({3, 7, 4, 6, 10}), 10);
  CHECK(packed.rows == std::vector<std::vector<int64_t>>{{4}, {0, 1}, {2, 3}});
  CHECK(packed.padding_share(of_lengths({3, 7, 4, 6, 10})) == 0.0);
  const auto half = pack_documents(of_lengths({5}), 10);
  CHECK(half.padding_share(of_lengths({5})) == Approx(0.5));
}

TEST_CASE("documents as long as a row have one each, in order") {
  const auto packed = pack_documents(of_lengths({8, 8, 8}), 8);
  CHECK(packed.rows == std::vector<std::vector<int64_t>>{{0}, {1}, {2}});
}

TEST_CASE("a document longer than a row is refused by name") {
  const auto text = error_of([] { pack_documents(of_lengths({3, 11}), 10); });
  CHECK_THAT(text,
             Contains("11 tokens") && Contains("document 1") && Contains("data.row_tokens") &&
                 Contains("--max-tokens"));
}

TEST_CASE("every document stands in exactly one row, within its length, with little waste") {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const random_stream random{seed, random_domain::init, 0};
    std::vector<int64_t> lengths(1 + random.below(0, 400));
    for (size_t i = 0; i < lengths.size(); ++i)
      lengths[i] = static_cast<int64_t>(1 + random.below(i + 1, 200));
    const token_set documents = of_lengths(lengths);
    const auto packed = pack_documents(documents, 256);
    std::vector<int> seen(lengths.size());
    for (const auto& row : packed.rows) {
      CHECK_FALSE(row.empty());
      CHECK(std::ranges::is_sorted(row));
      int64_t used = 0;
      for (const int64_t d : row) {
        ++seen[d];
        used += lengths[d];
      }
      CHECK(used <= 256);
    }
    CHECK(std::ranges::all_of(seen, [](int n) { return n == 1; }));
    CHECK(packed.rows == pack_documents(documents, 256).rows);
    // No packing can do with fewer rows than the tokens fill, or than there are long documents.
    const auto total = (documents.tokens() + 255) / 256;
    const auto large = std::ranges::count_if(lengths, [](int64_t n) { return n > 128; });
    CHECK(static_cast<double>(packed.rows.size()) <= 1.05 * std::max(total, large) + 1);
  }
}
