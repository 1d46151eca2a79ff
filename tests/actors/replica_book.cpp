// How drafters that died come back. Without actors.
#include "actors/replica_book.hpp"

#include <ATen/core/Tensor.h>

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "actors/step_exchange.hpp"
#include "model/replica_state.hpp"

using namespace dflash;

namespace {

using ranks = std::vector<uint32_t>;

std::shared_ptr<const replica_state> state_of_rank(uint64_t rank) {
  replica_state state;
  state.updates = rank;
  return std::make_shared<const replica_state>(std::move(state));
}

void hold(replica_book& book, uint32_t rank, uint32_t attempt) {
  book.held({0, rank, attempt, state_of_rank(rank)});
}

}  // namespace

TEST_CASE("replicas: one comes back with the state of another one", "[guarantees]") {
  replica_book book(3);
  CHECK(book.lost(1).empty());
  CHECK_FALSE(book.wants_round());  // its back-off is not over
  book.ready(1);
  REQUIRE(book.wants_round());
  CHECK(book.begin_round(4) == ranks{0, 2});
  CHECK_FALSE(book.wants_round());
  hold(book, 2, 4);
  CHECK_FALSE(book.join());  // 0 may still read the dead one's gradient
  hold(book, 0, 3);          // of an older round
  CHECK_FALSE(book.join());
  hold(book, 0, 4);
  const auto joining = book.join();
  REQUIRE(joining);
  CHECK(joining->ranks == ranks{1});
  CHECK(joining->state->updates == 0);
  CHECK_FALSE(book.all_train());
  CHECK_FALSE(book.trains(1));
  CHECK(book.joined(1));
  CHECK(book.all_train());
}

TEST_CASE("replicas: a death during a round", "[guarantees]") {
  replica_book book(3);
  book.lost(2);
  book.ready(2);
  book.begin_round(1);
  SECTION("of one that has held: the other one is the donor") {
    hold(book, 0, 1);
    CHECK(book.lost(0).empty());
    hold(book, 1, 1);
    const auto joining = book.join();
    REQUIRE(joining);
    CHECK(joining->state->updates == 1);
    CHECK(joining->ranks == ranks{2});
    book.ready(0);
    CHECK_FALSE(book.wants_round());  // one at a time
    CHECK(book.joined(2));
    CHECK(book.begin_round(2) == ranks{1, 2});
  }
  SECTION("of the donor while it is copied: the copy is void") {
    hold(book, 0, 1);
    hold(book, 1, 1);
    REQUIRE(book.join());
    CHECK(book.lost(0) == ranks{2});
    CHECK_FALSE(book.joined(2));
    CHECK_FALSE(book.wants_round());
    CHECK(book.lost(2).empty());
    book.ready(2);
    CHECK(book.begin_round(2) == ranks{1});
  }
  SECTION("of another one while it is copied") {
    hold(book, 0, 1);
    hold(book, 1, 1);
    REQUIRE(book.join());
    CHECK(book.lost(1).empty());
    CHECK(book.joined(2));
  }
  SECTION("of all: one goes back to a checkpoint, the others join it") {
    book.lost(0);
    CHECK_FALSE(book.nobody_left());
    book.lost(1);
    CHECK(book.nobody_left());
    CHECK_FALSE(book.join());
    CHECK(book.restore() == 2U);
    CHECK_FALSE(book.nobody_left());
    CHECK_FALSE(book.restore());
    book.ready(1);
    CHECK_FALSE(book.wants_round());
    CHECK(book.joined(2));
    CHECK(book.begin_round(5) == ranks{2});
  }
}

TEST_CASE("exchange: parts of an older attempt are void", "[guarantees]") {
  step_exchange exchange(2, 0);
  const auto part = [](uint64_t step, uint32_t rank, uint32_t attempt) {
    step_part p;
    p.step = step;
    p.rank = rank;
    p.attempt = attempt;
    return p;
  };
  exchange.arrived(part(0, 1, 0));
  exchange.arrived(part(1, 1, 0));  // of the next step, early
  CHECK(exchange.complete(0).empty());
  exchange.arrived(part(0, 0, 0));
  CHECK(exchange.complete(0).size() == 2);
  exchange.done(0);
  CHECK(exchange.complete(0).empty());
  exchange.begin(3);
  exchange.arrived(part(1, 0, 3));
  exchange.arrived(part(1, 1, 0));  // sent before the sender died
  CHECK(exchange.complete(1).empty());
  exchange.arrived(part(1, 1, 3));
  CHECK(exchange.complete(1).size() == 2);
}
