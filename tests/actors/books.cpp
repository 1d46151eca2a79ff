// The decisions of the actors without threads and messages.
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "actors/dispatch_book.hpp"
#include "actors/runtime/credit_ledger.hpp"
#include "actors/runtime/limits.hpp"
#include "actors/training_order.hpp"
#include "config/error.hpp"
#include "data/batches.hpp"

using namespace dflash;

namespace {

constexpr uint64_t bytes = 100;

std::shared_ptr<const batch> tokens(uint64_t k) {
  auto b = std::make_shared<batch>();
  b->k = k;
  return b;
}

dispatch_book book_of(uint32_t targets, uint32_t drafters, uint64_t end_k = 100) {
  dispatch_options o;
  o.end_k = end_k;
  o.targets = targets;
  o.drafters = drafters;
  o.batch_bytes = bytes;
  o.max_drops_in_a_row = 2;
  return dispatch_book(o);
}

void open(dispatch_book& book, uint32_t consumer, uint32_t batches, uint32_t epoch = 1) {
  book.granted({consumer, epoch - 1, epoch, nullptr, batches * bytes, batches, 0, {}});
}

void load(dispatch_book& book, uint64_t from, uint64_t to, bool kept = false) {
  for (uint64_t k = from; k < to; ++k) book.loaded({tokens(k), kept});
}

std::vector<uint64_t> ks(const std::vector<capture_job>& jobs) {
  std::vector<uint64_t> numbers;
  for (const auto& job : jobs) numbers.push_back(job.tokens->k);
  return numbers;
}

hidden_batch arrival(uint64_t k) {
  return {tokens(k), {}, 1};
}

}  // namespace

TEST_CASE("credit: reserved never passes what was granted") {
  credit_ledger ledger(2);
  CHECK_FALSE(ledger.has_room(0, 1));  // not open yet
  ledger.grant(0, 1, 250, 10);
  CHECK(ledger.reserve(0, 5, 100) == 1);
  ledger.reserve(0, 6, 100);
  CHECK_FALSE(ledger.has_room(0, 100));
  CHECK(ledger.has_room(0, 50));
  CHECK_FALSE(ledger.has_room(1, 1));
  CHECK(ledger.give_back(0, 1, 5));
  CHECK_FALSE(ledger.give_back(0, 1, 5));  // once only
  CHECK(ledger.reserved_bytes(0) == 100);
}

TEST_CASE("credit: a new epoch voids old grants") {
  credit_ledger ledger(1);
  ledger.grant(0, 1, 300, 3);
  ledger.reserve(0, 1, 100);
  ledger.grant(0, 2, 300, 3);
  CHECK(ledger.reserved_bytes(0) == 0);
  CHECK_FALSE(ledger.give_back(0, 1, 1));
  ledger.grant(0, 1, 9000, 90);  // overtaken
  CHECK(ledger.epoch(0) == 2);
  CHECK_FALSE(ledger.has_room(0, 400));
  ledger.reserve(0, 8, 100);
  CHECK(ledger.revoke(0) == std::vector<uint64_t>{8});
  CHECK_FALSE(ledger.is_open(0));
}

TEST_CASE("limits follow from the layout") {
  const auto l = derive_limits(5, 0, 3, 1000, 0);
  CHECK(l.drafter_batches == 4);  // ceil(5 / 3) + 2
  CHECK(l.capture_slots == 2);
  CHECK(l.total_bytes() == (3 * 4 + 5 * 2) * 1000);
  CHECK(l.cost.empty());
  CHECK(derive_limits(1, 1, 1, 1000, 0).total_bytes() == (3 + 2 * 2) * 1000);
}

TEST_CASE("limits: a budget lowers them to one each, and no further") {
  const auto lowered = derive_limits(5, 0, 3, 1000, 20000);
  CHECK(lowered.total_bytes() <= 20000);
  CHECK_FALSE(lowered.cost.empty());
  const auto floor = derive_limits(5, 0, 3, 1000, 8000);
  CHECK(floor.drafter_batches == 1);
  CHECK(floor.capture_slots == 1);
  try {
    derive_limits(5, 0, 3, 1000, 7999);
    FAIL("below the floor");
  } catch (const error& e) {
    CHECK(e.where == "layout.max_in_flight");
    CHECK(e.hint.find("8000") != std::string::npos);
  }
}

TEST_CASE("dispatch: lane, batch and room must come together, in order of k") {
  auto book = book_of(2, 2);
  book.lane_asks(0);
  book.lane_asks(1);
  CHECK(book.take_jobs().empty());
  open(book, 0, 1);
  open(book, 1, 1);
  CHECK(book.take_jobs().empty());
  load(book, 1, 2);
  CHECK(book.take_jobs().empty());  // 0 comes first
  load(book, 0, 1);
  const auto jobs = book.take_jobs();
  CHECK(ks(jobs) == std::vector<uint64_t>{0, 1});
  CHECK(jobs[1].drafter == 1);
  CHECK(jobs[0].lane != jobs[1].lane);
}

TEST_CASE("dispatch: a full drafter holds later batches back, training makes room") {
  auto book = book_of(1, 2);
  open(book, 0, 1);
  open(book, 1, 5);
  load(book, 0, 4);
  book.lane_asks(0);
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{0});
  book.lane_asks(0);
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{1});
  book.lane_asks(0);
  CHECK(book.take_jobs().empty());  // 2 needs drafter 0; 3 may not overtake it
  book.delivered_to_drafter({0, 1});
  CHECK(book.trained({0, 1, 0}));
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{2});
  CHECK_FALSE(book.trained({0, 1, 0}));
}

TEST_CASE("dispatch: the loader reads ahead within its credit") {
  auto book = book_of(1, 1, 8);
  CHECK(book.take_load_credit().batches == 4);
  CHECK(book.take_load_credit().batches == 0);
  open(book, 0, 9);
  load(book, 0, 4);
  book.lane_asks(0);
  book.take_jobs();
  CHECK(book.take_load_credit().batches == 0);  // three at once
  book.lane_asks(0);
  book.take_jobs();
  CHECK(book.take_load_credit().batches == 0);
  book.lane_asks(0);
  book.take_jobs();
  CHECK(book.take_load_credit().batches == 3);
  load(book, 4, 7);
  book.lane_asks(0);
  book.take_jobs();
  CHECK(book.take_load_credit().batches == 1);  // the run has eight batches
  book.lane_asks(0);
  book.take_jobs();
  CHECK(book.take_load_credit().batches == 0);
}

TEST_CASE("dispatch: kept states go to the reader and occupy no target") {
  auto book = book_of(1, 1);
  open(book, 0, 9);
  load(book, 0, 1, true);
  load(book, 1, 2);
  book.lane_asks(0);
  CHECK(book.take_jobs().empty());  // the reader is busy, order is kept
  book.lane_asks(1);
  const auto jobs = book.take_jobs();
  CHECK(ks(jobs) == std::vector<uint64_t>{0, 1});
  CHECK(jobs[0].kept);
  CHECK(jobs[0].lane == 1);
  CHECK(jobs[1].lane == 0);

  SECTION("a record that is gone is made by a target, in the room it has") {
    book.kept_is_missing(jobs[0]);
    CHECK(book.take_jobs().empty());
    book.lane_asks(0);
    const auto again = book.take_jobs();
    CHECK(ks(again) == std::vector<uint64_t>{0});
    CHECK_FALSE(again[0].kept);
    CHECK(book.ledger().reserved_batches(0) == 2);
  }
}

TEST_CASE("dispatch: a lost lane's batches go back to the pool and keep their room") {
  auto book = book_of(2, 1);
  open(book, 0, 9);
  load(book, 0, 5);
  book.lane_asks(0);
  book.lane_asks(1);
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{0, 1});
  book.lane_asks(0);
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{2});
  book.lane_asks(0);
  book.delivered_to_drafter({0, 1});
  book.stop_at(3);
  book.lane_lost(0);  // it has delivered 0, had 2, and asked for more
  CHECK(book.take_jobs().empty());
  CHECK(book.ledger().reserved_batches(0) == 3);
  book.lane_asks(1);
  const auto jobs = book.take_jobs();
  CHECK(ks(jobs) == std::vector<uint64_t>{2});
  CHECK(jobs[0].lane == 1);
  CHECK(jobs[0].attempt == 0);
  book.lane_lost(0);
  book.lane_asks(1);
  CHECK(book.take_jobs().empty());  // 2 is the other lane's now
  CHECK(book.ledger().reserved_batches(0) == 3);
}

TEST_CASE("dispatch: a new loader goes on where the old one was") {
  auto book = book_of(1, 1, 6);
  CHECK(book.open_load_credit().batches == 0);
  book.take_load_credit();
  load(book, 0, 3);
  CHECK(book.open_load_credit().first_k == 3);
  CHECK(book.open_load_credit().batches == 1);
  open(book, 0, 9);
  book.lane_asks(0);
  book.take_jobs();
  book.lane_asks(0);
  book.take_jobs();
  const load_credit more = book.take_load_credit();
  CHECK(more.first_k == 4);
  CHECK(more.batches == 2);
  CHECK(book.open_load_credit().batches == 3);
}

TEST_CASE("dispatch: a restarted one learns from the drafters what they have") {
  dispatch_options o;
  o.first_k = 4;  // the open step is [4, 10)
  o.end_k = 20;
  o.drafters = 2;
  o.batch_bytes = bytes;
  dispatch_book book(o);
  for (int i = 0; i < 3; ++i) book.lane_asks(0);
  load(book, 4, 12);
  CHECK(book.take_jobs().empty());                         // nobody has reported
  book.granted({0, 0, 2, nullptr, 3 * bytes, 3, 7, {8}});  // has trained 4 and 6, holds 8
  CHECK(book.ledger().reserved_batches(0) == 1);
  CHECK(book.take_jobs().empty());
  book.granted({1, 0, 2, nullptr, 3 * bytes, 3, 5, {5, 9}});
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{7});
  book.lane_asks(0);
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{10});
  CHECK_FALSE(book.trained({1, 1, 5}));  // an old grant
  for (const uint64_t k : {5, 7, 9}) CHECK(book.trained({1, 2, k}));
  CHECK(book.trained({0, 2, 8}));
  book.committed(10);
  CHECK(book.in_flight() == 1);

  SECTION("a commit that it hears of first") {
    dispatch_book late(o);
    late.committed(10);
    load(late, 4, 12);
    late.lane_asks(0);
    late.granted({0, 0, 2, nullptr, 3 * bytes, 3, 10, {}});
    CHECK(ks(late.take_jobs()) == std::vector<uint64_t>{10});
  }
}

TEST_CASE("dispatch: non-finite states are made again once, then dropped for good") {
  using verdict = dispatch_book::verdict;
  auto book = book_of(1, 1);
  open(book, 0, 9);
  load(book, 0, 5);
  book.lane_asks(0);
  auto job = book.take_jobs().at(0);
  CHECK(book.not_finite(job) == verdict::made_again);
  book.lane_asks(0);
  job = book.take_jobs().at(0);
  CHECK(job.tokens->k == 0);
  CHECK(job.attempt == 1);
  CHECK(book.not_finite(job) == verdict::dropped);
  CHECK(book.take_jobs().empty());
  CHECK(ks(book.take_dropped()) == std::vector<uint64_t>{0});
  CHECK(book.take_dropped().empty());
  CHECK(book.trained({0, 1, 0}));  // the drafter has passed it
  CHECK(book.faults() == 2);
  // Two more in a row are one too many.
  for (int i = 0; i < 2; ++i) {
    book.lane_asks(0);
    job = book.take_jobs().at(0);
    book.not_finite(job);
    book.lane_asks(0);
    job = book.take_jobs().at(0);
    if (i == 0)
      CHECK(book.not_finite(job) == verdict::dropped);
    else
      CHECK_THROWS_WITH(book.not_finite(job), Catch::Contains("in a row"));
  }
}

TEST_CASE("dispatch: a lost drafter's batches come back in order, before any later one") {
  // Drafter 1 of 2 has room for one batch: 1 is trained, 3 was captured for it.
  auto book = book_of(1, 2);
  open(book, 0, 9);
  open(book, 1, 1);
  load(book, 0, 8);
  for (const uint64_t k : {0, 1, 2}) {
    book.lane_asks(0);
    CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{k});
    book.delivered_to_drafter({k, 1});
    CHECK(book.trained({static_cast<uint32_t>(k % 2), 1, k}));
  }
  book.lane_asks(0);
  const auto old = book.take_jobs();
  REQUIRE(ks(old) == std::vector<uint64_t>{3});
  book.drafter_lost(1);
  CHECK(book.ledger().reserved_batches(1) == 0);
  // What is still on its way to the dead one changes nothing.
  book.delivered_to_drafter({3, 1});
  CHECK(book.not_finite(old[0]) == dispatch_book::verdict::nobody_wants_it);
  CHECK_FALSE(book.trained({1, 1, 3}));
  book.lane_asks(0);
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{4});  // of the one that lives
  book.lane_asks(0);
  CHECK(book.take_jobs().empty());  // 6 may not overtake 5
  open(book, 1, 1, 5);
  auto jobs = book.take_jobs();
  CHECK(ks(jobs) == std::vector<uint64_t>{1});
  CHECK(jobs[0].epoch == 5);
  CHECK(jobs[0].life == 4);
  book.lane_asks(0);
  CHECK(book.take_jobs().empty());  // its one place is taken: 3 waits, and so does 5
  book.delivered_to_drafter({1, 5});
  CHECK(book.trained({1, 5, 1}));
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{3});
  book.delivered_to_drafter({3, 5});
  book.lane_asks(0);
  CHECK(book.take_jobs().empty());
  CHECK(book.trained({1, 5, 3}));
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{5});

  SECTION("committed ones do not come back") {
    book.committed(4);
    book.drafter_lost(1);
    open(book, 1, 9, 7);
    book.lane_asks(0);
    CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{5});
  }
}

TEST_CASE("dispatch: room goes to the lowest batch, whatever lane is free") {
  auto book = book_of(1, 1);
  open(book, 0, 2);
  load(book, 0, 1, true);
  load(book, 1, 3);
  book.lane_asks(0);
  book.lane_asks(1);
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{0, 1});
  book.drafter_lost(0);
  open(book, 0, 1, 4);
  book.lane_asks(0);
  CHECK(book.take_jobs().empty());  // 0 waits for the reader, and 1 must not take its room
  book.lane_asks(1);
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{0});
}

TEST_CASE("dispatch: what was dropped stays dropped, in the next life of drafter and dispatcher") {
  auto book = book_of(1, 1);
  open(book, 0, 1);
  load(book, 0, 2);
  for (int i = 0; i < 2; ++i) {
    book.lane_asks(0);
    book.not_finite(book.take_jobs().at(0));
  }
  book.take_jobs();
  CHECK(ks(book.take_dropped()) == std::vector<uint64_t>{0});
  book.drafter_lost(0);
  open(book, 0, 1, 4);
  book.lane_asks(0);
  CHECK(book.take_jobs().empty());
  CHECK(ks(book.take_dropped()) == std::vector<uint64_t>{0});

  dispatch_options o;
  o.end_k = 5;
  o.batch_bytes = bytes;
  o.dropped = {1};
  dispatch_book next(o);
  open(next, 0, 9);
  load(next, 0, 3);
  next.lane_asks(0);
  CHECK(ks(next.take_jobs()) == std::vector<uint64_t>{0});
  CHECK(ks(next.take_dropped()) == std::vector<uint64_t>{1});
  next.lane_asks(0);
  CHECK(ks(next.take_jobs()) == std::vector<uint64_t>{2});
}

TEST_CASE("dispatch: a drafter that is lost after the dispatcher was") {
  dispatch_options o;
  o.first_k = 4;
  o.end_k = 20;
  o.drafters = 2;
  o.batch_bytes = bytes;
  dispatch_book book(o);
  book.granted({0, 0, 2, nullptr, 3 * bytes, 3, 7, {8}});
  book.granted({1, 0, 2, nullptr, 3 * bytes, 3, 4, {}});
  load(book, 4, 6);
  book.lane_asks(0);
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{5});
  book.drafter_lost(0);  // 4 is below what was handed out; 6 and 8 are not
  open(book, 0, 3, 9);
  book.lane_asks(0);
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{4});
  load(book, 6, 9);
  for (const uint64_t k : {6, 7, 8}) {
    book.lane_asks(0);
    CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{k});
  }
}

TEST_CASE("dispatch: nothing is handed out beyond the stop, only commits forget") {
  auto book = book_of(1, 1);
  open(book, 0, 9);
  load(book, 0, 3);
  book.stop_at(1);
  book.lane_asks(0);
  CHECK(ks(book.take_jobs()) == std::vector<uint64_t>{0});
  book.lane_asks(0);
  CHECK(book.take_jobs().empty());
  book.trained({0, 1, 0});
  CHECK(book.tokens_of(0));
  book.committed(1);
  CHECK_FALSE(book.tokens_of(0));
}

TEST_CASE("order: own batches by rising k, and none of a later step") {
  // 10 rows, 2 drafters, accumulation 2: steps [0,4) [4,8) [8,10) per epoch.
  training_order order(step_plan(10, 2, 2, 2, 0), 1, 2, 0);
  CHECK(order.arrived(arrival(5)));
  CHECK(order.arrived(arrival(3)));
  CHECK(order.next() == nullptr);
  CHECK(order.arrived(arrival(1)));
  CHECK_FALSE(order.arrived(arrival(1)));  // twice
  CHECK(order.next()->tokens->k == 1);
  order.trained();
  CHECK_FALSE(order.arrived(arrival(1)));  // trained already
  CHECK(order.next()->tokens->k == 3);
  order.trained();
  CHECK(order.own_part_is_done());
  CHECK(order.next() == nullptr);  // 5 is here, its step is not open
  order.committed();
  CHECK(order.next()->tokens->k == 5);
}

TEST_CASE("order: a short last step may have nothing for a rank") {
  // 4 rows, 3 drafters: steps [0,3) [3,4) then [4,7) [7,8) in the second epoch.
  const step_plan plan(4, 2, 3, 1, 0);
  training_order order(plan, 1, 3, 0);
  order.arrived(arrival(1));
  order.trained();
  order.committed();
  CHECK(order.own_part_is_done());  // [3, 4) belongs to rank 0
  order.committed();
  order.arrived(arrival(4));
  CHECK(order.next()->tokens->k == 4);
  order.trained();
  order.committed();
  CHECK(order.open_step() == 3);
  order.arrived(arrival(7));
  order.trained();
  order.committed();
  CHECK(order.finished());
}
