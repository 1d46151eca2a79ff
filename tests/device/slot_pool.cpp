#include "device/slot_pool.hpp"

#include <catch2/catch.hpp>
#include <optional>
#include <utility>

using namespace dflash;

TEST_CASE("a slot pool hands out each slot once and takes it back") {
  const auto pool = slot_pool::make(2, 100);
  CHECK(pool->limit_bytes() == 200);
  auto a = pool->try_acquire();
  auto b = pool->try_acquire();
  REQUIRE(a);
  REQUIRE(b);
  CHECK(a->slot() != b->slot());
  CHECK_FALSE(pool->try_acquire());
  const uint64_t generation = a->generation();
  a->release();
  a->release();  // twice is once
  CHECK(pool->in_use() == 1);
  auto c = pool->try_acquire();
  REQUIRE(c);
  CHECK(c->generation() != generation);
  CHECK(pool->peak_in_use() == 2);
}

TEST_CASE("a lease moves, and returns its slot when it dies") {
  const auto pool = slot_pool::make(1, 1);
  {
    slot_lease first = *pool->try_acquire();
    slot_lease second = std::move(first);
    CHECK_FALSE(first.held());  // NOLINT: the moved-from state is what is tested
    CHECK(second.held());
    CHECK(pool->in_use() == 1);
  }
  CHECK(pool->in_use() == 0);
}

TEST_CASE("a lease keeps its pool alive") {
  std::optional<slot_lease> lease;
  { lease = slot_pool::make(1, 1)->try_acquire(); }
  lease->release();
  CHECK_FALSE(lease->held());
}
