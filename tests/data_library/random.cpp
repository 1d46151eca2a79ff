#include "data/random.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <vector>

using namespace dflash;
using words = std::array<uint32_t, 4>;

TEST_CASE("Philox4x32-10 gives the known answers of Random123") {
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a stream's numbers depend on seed, domain, key and place, and on nothing else") {
  const random_stream base{7, random_domain::anchors, 3};
  std::set<words> seen = {base.block(5)};
  CHECK(base.block(5) == random_stream{7, random_domain::anchors, 3}.block(5));
  seen.insert(random_stream{8, random_domain::anchors, 3}.block(5));
  seen.insert(random_stream{7 + (uint64_t{1} << 32), random_domain::anchors, 3}.block(5));
  seen.insert(random_stream{7, random_domain::shuffle, 3}.block(5));
  seen.insert(random_stream{7, random_domain::noise, 3}.block(5));
  seen.insert(random_stream{7, random_domain::anchors, 4}.block(5));
  seen.insert(random_stream{7, random_domain::anchors, 3 + (uint64_t{1} << 32)}.block(5));
  seen.insert(base.block(6));
  seen.insert(base.block(5 + (uint64_t{1} << 32)));
  CHECK(seen.size() == 9);
}

TEST_CASE("words, halves and fractions are views on the same blocks") {
  const random_stream s{1, random_domain::init, 2};
  for (uint64_t i = 0; i < 16; ++i) {
    CHECK(s.u32(i) == s.block(i / 4)[i % 4]);
    CHECK(s.u64(i) == (uint64_t{s.u32(2 * i + 1)} << 32 | s.u32(2 * i)));
    CHECK(s.uniform(i) == static_cast<double>(s.u64(i) >> 11) / 9007199254740992.0);
  }
}

TEST_CASE("numbers below n cover all of them evenly") {
  const random_stream s{42, random_domain::shuffle, 0};
  std::vector<int> counts(7);
  for (uint64_t i = 0; i < 70'000; ++i) ++counts[s.below(i, 7)];
  for (const int n : counts) CHECK(std::abs(n - 10'000) < 400);  // 4.3 standard deviations
  for (uint64_t i = 0; i < 100; ++i) CHECK(s.below(i, 1) == 0);
  const uint64_t large = (uint64_t{1} << 63) + 12345;
  uint64_t highest = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    CHECK(s.below(i, large) < large);
    highest = std::max(highest, s.below(i, large));
  }
  CHECK(highest > large / 100 * 99);
}

TEST_CASE("scaling 64 bits is the high half of the exact product") {
  CHECK(random_below(~uint64_t{0}, ~uint64_t{0}) == ~uint64_t{0} - 1);
  CHECK(random_below(~uint64_t{0}, 10) == 9);
  CHECK(random_below(0, 10) == 0);
  CHECK(random_below(uint64_t{1} << 63, 10) == 5);
  CHECK(random_below(0x123456789abcdef0, 0xfedcba9876543210) == 0x121fa00ad77d7422);
}

TEST_CASE("normal numbers have mean 0 and variance 1") {
  const random_stream s{3, random_domain::noise, 9};
  const int n = 40'000;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const double x = s.normal(i);
    REQUIRE(std::isfinite(x));
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / n) < 0.02);
  CHECK(std::abs(squares / n - 1) < 0.03);
}
