#include "data/batches.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "data/random.hpp"
#include "tests/data_library/scratch.hpp"

using namespace dflash;
using namespace dflash::test;
using Catch::Matchers::Contains;

namespace {

// Documents of random lengths with random runs of supervised tokens.
token_documents random_documents(uint64_t seed, int64_t count, int64_t longest) {
  const random_stream random{seed, random_domain::init, 1};
  uint64_t next = 0;
  token_documents documents;
  for (int64_t d = 0; d < count; ++d) {
    const auto n = static_cast<int64_t>(1 + random.below(next++, longest));
    std::vector<int32_t> ids(n);
    std::vector<uint8_t> mask(n);
    uint8_t current = 0;
    for (int64_t i = 0; i < n; ++i) {
      ids[i] = static_cast<int32_t>(1 + random.below(next++, 999));
      if (random.below(next++, 5) == 0) current = static_cast<uint8_t>(1 - current);
      mask[i] = current;
    }
    documents.append(ids, mask);
  }
  return documents;
}

token_documents one_document(const std::vector<uint8_t>& mask) {
  token_documents documents;
  documents.append(std::vector<int32_t>(mask.size(), 3), mask);
  return documents;
}

int32_t document_of(const batch& b, int32_t position) {
  return static_cast<int32_t>(std::ranges::upper_bound(b.doc_offsets, position) -
                              b.doc_offsets.begin() - 1);
}

bool is_candidate(const batch& b, int32_t p) {
  const int32_t end = b.doc_offsets[document_of(b, p) + 1];
  return p + 1 < end && b.loss_mask[p] == 1 && b.loss_mask[p + 1] == 1;
}

}  // namespace

TEST_CASE(
    "prefixes are drawn from the batch number with the given ratio and leave a slot to learn") {
  constexpr int64_t block = 5;
  const auto documents = random_documents(3, 40, 60);
  const batch_source plain(documents, 128, 64, 7);
  const batch_source source(documents, 128, 64, 7, 0, {.ratio = 0.5, .block_size = block});
  std::vector<int64_t> open(block, 0);  // [l] of blocks that had all choices
  int64_t blocks = 0;
  for (uint64_t k = 0; k < 60; ++k) {
    const batch b = source.make(k);
    CHECK(plain.make(k).prefix.empty());
    CHECK(plain.make(k).anchors == b.anchors);
    CHECK(source.make(k).prefix == b.prefix);
    REQUIRE(b.prefix.size() == b.anchors.size());
    for (size_t i = 0; i < b.anchors.size(); ++i) {
      const int32_t l = b.prefix[i], a = b.anchors[i];
      REQUIRE(l >= 1);
      REQUIRE(l < block);
      if (!b.anchor_valid[i]) {
        REQUIRE(l == 1);
        continue;
      }
      const int32_t end = b.doc_offsets[document_of(b, a) + 1];
      int32_t last = 0;
      for (int32_t j = 1; j < block && a + j < end; ++j)
        if (b.loss_mask[a + j]) last = j;
      REQUIRE(l <= last);
      if (last == block - 1) {
        ++open[static_cast<size_t>(l)];
        ++blocks;
      }
    }
  }
  REQUIRE(blocks > 1000);
  // 8 : 4 : 2 : 1 of 15; four standard deviations of a share near one half
  const double slack = 4 * 0.5 / std::sqrt(static_cast<double>(blocks));
  for (size_t l = 1; l < block; ++l)
    CHECK(std::abs(static_cast<double>(open[l]) / static_cast<double>(blocks) -
                   std::pow(2.0, 4.0 - static_cast<double>(l)) / 15.0) < slack);
}

TEST_CASE("quotas follow the supervised tokens, ties go to the lower document") {
  using v = std::vector<int64_t>;
  CHECK(anchor_quotas(v{50, 30, 20}, v{50, 30, 20}, 10) == v{5, 3, 2});
  CHECK(anchor_quotas(v{10, 10, 10}, v{9, 9, 9}, 10) == v{4, 3, 3});
  CHECK(anchor_quotas(v{10, 10, 10}, v{9, 9, 9}, 11) == v{4, 4, 3});
  CHECK(anchor_quotas(v{1, 99}, v{1, 99}, 10) == v{0, 10});
  // 6 · {5, 4, 3} / 12 = {2.5, 2, 1.5}: equal remainders, the lower document has it.
  CHECK(anchor_quotas(v{5, 4, 3}, v{5, 4, 3}, 6) == v{3, 2, 1});
}

TEST_CASE("what a full document cannot take goes to the others") {
  using v = std::vector<int64_t>;
  CHECK(anchor_quotas(v{90, 10}, v{2, 9}, 10) == v{2, 8});
  CHECK(anchor_quotas(v{8, 8, 8}, v{0, 7, 7}, 10) == v{0, 5, 5});
  CHECK(anchor_quotas(v{4, 4}, v{3, 3}, 10) == v{3, 3});
  CHECK(anchor_quotas(v{0, 0}, v{0, 0}, 4) == v{0, 0});
  CHECK(anchor_quotas(v{}, v{}, 4) == v{});
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const random_stream random{seed, random_domain::init, 0};
    v supervised, candidates;
    const uint64_t n = 1 + random.below(0, 12);
    int64_t room = 0;
    for (uint64_t d = 0; d < n; ++d) {
      supervised.push_back(static_cast<int64_t>(random.below(2 * d + 1, 40)));
      candidates.push_back(static_cast<int64_t>(random.below(2 * d + 2, supervised[d] + 1)));
      room += candidates[d];
    }
    const auto anchors = static_cast<int64_t>(1 + random.below(1000, 200));
    const auto quotas = anchor_quotas(supervised, candidates, anchors);
    int64_t sum = 0;
    for (uint64_t d = 0; d < n; ++d) {
      CHECK(quotas[d] >= 0);
      CHECK(quotas[d] <= candidates[d]);
      sum += quotas[d];
    }
    CHECK(sum == std::min(anchors, room));
  }
}

TEST_CASE("a batch holds one row: documents in order, padding as its own document") {
  token_documents documents;
  documents.append(std::vector<int32_t>{1, 2, 3}, std::vector<uint8_t>{0, 1, 1});
  documents.append(std::vector<int32_t>{4, 5}, std::vector<uint8_t>{1, 1});
  const batch_source source(documents, 8, 4, 1, 7);
  REQUIRE(source.rows() == 1);
  const batch b = source.make(5);
  CHECK(b.k == 5);
  CHECK(b.epoch == 5);
  CHECK(b.row == 0);
  CHECK(b.input_ids == std::vector<int32_t>{1, 2, 3, 4, 5, 7, 7, 7});
  CHECK(b.loss_mask == std::vector<uint8_t>{0, 1, 1, 1, 1, 0, 0, 0});
  CHECK(b.doc_offsets == std::vector<int32_t>{0, 3, 5, 8});
  CHECK(b.real_docs == 2);
  CHECK(b.documents == std::vector<int64_t>{0, 1});
  // One candidate per document: 2 would need token 3, which is the next document's.
  CHECK(b.anchors == std::vector<int32_t>{1, 3, 0, 0});
  CHECK(b.anchor_valid == std::vector<uint8_t>{1, 1, 0, 0});
}

TEST_CASE("a full row has no padding document") {
  const batch_source source(one_document({1, 1, 1, 1}), 4, 2, 1);
  CHECK(source.make(0).doc_offsets == std::vector<int32_t>{0, 4});
  CHECK(source.make(0).real_docs == 1);
}

TEST_CASE("a row without supervision has no valid anchor") {
  token_documents documents;
  documents.append(std::vector<int32_t>(4, 1), std::vector<uint8_t>(4, 1));
  documents.append(std::vector<int32_t>(4, 1), std::vector<uint8_t>(4, 0));
  const batch_source source(documents, 4, 3, 1);
  REQUIRE(source.rows() == 2);
  for (uint64_t k = 0; k < 2; ++k) {
    const batch b = source.make(k);
    const bool bare = b.documents[0] == 1;
    CHECK(std::ranges::count(b.anchor_valid, 1) == (bare ? 0 : 3));
    if (bare) CHECK(b.anchors == std::vector<int32_t>{0, 0, 0});
  }
}

TEST_CASE("a data set in which no anchor can stand is refused") {
  CHECK_THAT(error_of([] {
               batch_source(one_document({1, 0, 1, 0}), 4, 2, 1);
             }),
             Contains("neighbouring supervised tokens"));
  CHECK_THAT(error_of([] { batch_source(token_documents{}, 4, 2, 1); }), Contains("0 documents"));
}

TEST_CASE("anchors are candidates, sorted, unique, and as many as the quotas say") {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    const int64_t anchors = seed % 2 == 0 ? 16 : 200;
    const batch_source source(random_documents(seed, 40, 60), 128, anchors, seed);
    for (uint64_t k = 0; k < static_cast<uint64_t>(2 * source.rows()); ++k) {
      const batch b = source.make(k);
      REQUIRE(b.input_ids.size() == 128);
      REQUIRE(b.loss_mask.size() == 128);
      REQUIRE(b.anchors.size() == static_cast<size_t>(anchors));
      REQUIRE(b.anchor_valid.size() == b.anchors.size());
      CHECK(b.doc_offsets.front() == 0);
      CHECK(b.doc_offsets.back() == 128);
      CHECK(std::ranges::is_sorted(b.anchor_valid, std::greater{}));
      std::vector<int64_t> supervised(b.real_docs), candidates(b.real_docs), drawn(b.real_docs);
      for (int32_t p = 0; p < b.doc_offsets[b.real_docs]; ++p) {
        supervised[document_of(b, p)] += b.loss_mask[p];
        candidates[document_of(b, p)] += is_candidate(b, p) ? 1 : 0;
      }
      int32_t before = -1;
      for (size_t i = 0; i < b.anchors.size(); ++i) {
        if (b.anchor_valid[i] == 0) {
          CHECK(b.anchors[i] == 0);
          continue;
        }
        CHECK(b.anchors[i] > before);
        CHECK(is_candidate(b, b.anchors[i]));
        before = b.anchors[i];
        ++drawn[document_of(b, b.anchors[i])];
      }
      CHECK(drawn == anchor_quotas(supervised, candidates, anchors));
    }
  }
}

TEST_CASE("each epoch visits every row once, in an order and with anchors of its own") {
  const batch_source source(random_documents(3, 200, 60), 128, 16, 11);
  const auto rows = static_cast<uint64_t>(source.rows());
  REQUIRE(rows > 10);
  std::vector<std::vector<int64_t>> orders;
  epoch_order kept;
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order;
    for (uint64_t i = 0; i < rows; ++i) {
      const batch b = source.make(epoch * rows + i);
      CHECK(b.epoch == epoch);
      CHECK(b.row == source.row_of(epoch * rows + i, kept));
      order.push_back(b.row);
    }
    orders.push_back(order);
    std::ranges::sort(order);
    for (uint64_t i = 0; i < rows; ++i) CHECK(order[i] == static_cast<int64_t>(i));
  }
  CHECK(source.row_of(2, kept) == orders[0][2]);  // a batch of an epoch before, made again
  CHECK(source.row_of(rows + 2, kept) == orders[1][2]);
  CHECK(orders[0] != orders[1]);
  CHECK(orders[1] != orders[2]);
}

TEST_CASE("a batch is a pure function of its number") {
  const auto documents = random_documents(5, 60, 60);
  const batch_source one(documents, 128, 16, 9), two(documents, 128, 16, 9);
  for (const uint64_t k : {uint64_t{7}, uint64_t{0}, uint64_t{1000}, uint64_t{7}}) {
    const batch a = one.make(k), b = two.make(k);
    CHECK(a.row == b.row);
    CHECK(a.input_ids == b.input_ids);
    CHECK(a.anchors == b.anchors);
    CHECK(a.anchor_valid == b.anchor_valid);
  }
  const batch_source other(documents, 128, 16, 10);
  bool differs = false;
  for (uint64_t k = 0; k < 4; ++k) differs |= other.make(k).anchors != one.make(k).anchors;
  CHECK(differs);
}

TEST_CASE("one row keeps its place in every epoch and changes its anchors") {
  const auto documents = read_token_shards({DFLASH_TEST_DATA "/shards/docs_1.safetensors"}, 32);
  const batch_source source(documents, 32, 8, 1);
  CHECK(source.rows() == 1);
  std::set<std::vector<int32_t>> seen;
  for (uint64_t k = 0; k < 50; ++k) {
    CHECK(source.make(k).row == 0);
    seen.insert(source.make(k).anchors);
  }
  CHECK(seen.size() > 45);
}

TEST_CASE("every candidate is drawn in the long run, equally often") {
  const batch_source source(one_document(std::vector<uint8_t>(21, 1)), 21, 5, 2);
  std::vector<int> counts(21);
  for (uint64_t k = 0; k < 4000; ++k)
    for (const int32_t a : source.make(k).anchors) ++counts[a];
  for (int p = 0; p < 20; ++p) CHECK(std::abs(counts[p] - 1000) < 120);  // 4.4 standard deviations
  CHECK(counts[20] == 0);
}

TEST_CASE("visible context and teacher rows agree with their definitions") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const batch_source source(random_documents(seed, 30, 50), 96, 6, seed);
    for (uint64_t k = 0; k < static_cast<uint64_t>(source.rows()); ++k) {
      const batch b = source.make(k);
      for (const int64_t window : {0, 1, 4, 20, 1000}) {
        for (const int64_t block : {1, 2, 8}) {
          std::set<int32_t> context, teacher;
          for (size_t i = 0; i < b.anchors.size(); ++i) {
            if (b.anchor_valid[i] == 0) continue;
            const int32_t a = b.anchors[i], d = document_of(b, a);
            for (int32_t s = 0; s < block; ++s) {
              for (int32_t t = b.doc_offsets[d]; t < a; ++t)
                if (window == 0 || t >= a + s - (window - 1)) context.insert(t);
              if (s >= 1 && a + s < b.doc_offsets[d + 1] && b.loss_mask[a + s] == 1)
                teacher.insert(a + s - 1);
            }
          }
          CHECK(visible_context(b, window) == std::vector<int32_t>(context.begin(), context.end()));
          CHECK(teacher_rows(b, block) == std::vector<int32_t>(teacher.begin(), teacher.end()));
        }
      }
    }
  }
}
