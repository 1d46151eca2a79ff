#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <vector>

#include "config/error.hpp"
#include "observe/mailbox_table.hpp"
#include "observe/stage_profile.hpp"
#include "observe/table.hpp"

namespace dflash {

using namespace std::chrono_literals;

TEST_CASE("columns of a table are aligned, without blanks at the ends of lines") {
  text_table table({{"name", align::left}, {"n"}, {"what", align::left}});
  table.add_row({"a", "100", ""});
  table.add_row({"long name", "7", "x"});
  CHECK(table.text() ==
        "name         n  what\n"
        "a          100\n"
        "long name    7  x\n");
}

TEST_CASE("quantiles of a histogram are right within a sixteenth") {
  duration_histogram h;
  for (int i = 1; i <= 1000; ++i) h.add(std::chrono::microseconds(i));
  CHECK(h.count() == 1000);
  CHECK(h.total() == 500'500us);
  CHECK(h.mean() == 500'500ns);
  CHECK(static_cast<double>(h.quantile(0.5).count()) == Approx(500e3).epsilon(1.0 / 16));
  CHECK(static_cast<double>(h.quantile(0.99).count()) == Approx(990e3).epsilon(1.0 / 16));
  CHECK(h.quantile(0.0) >= 1us);
  CHECK(h.quantile(1.0) <= 1000us);
  CHECK(h.longest() == 1000us);
}

TEST_CASE("a histogram takes every duration, and one value is all its quantiles") {
  for (const auto d : {0ns, 1ns, 15ns, 16ns, 17ns, 1000ns, std::chrono::nanoseconds::max()}) {
    duration_histogram h;
    h.add(d);
    CHECK(h.quantile(0.5) == d);
    CHECK(h.quantile(0.99) == d);
  }
  duration_histogram h;
  CHECK(h.quantile(0.5) == 0ns);
  CHECK(h.mean() == 0ns);
  h.add(-5ns);
  CHECK(h.total() == 0ns);
}

TEST_CASE("merged histograms are as one") {
  duration_histogram a, b, both;
  for (int i = 0; i < 50; ++i) {
    a.add(std::chrono::microseconds(i));
    both.add(std::chrono::microseconds(i));
    b.add(std::chrono::milliseconds(i));
    both.add(std::chrono::milliseconds(i));
  }
  a.merge(b);
  CHECK(a.count() == both.count());
  CHECK(a.total() == both.total());
  for (const double q : {0.1, 0.5, 0.9, 0.99}) CHECK(a.quantile(q) == both.quantile(q));
}

TEST_CASE("a profile lists the stages with the most time first") {
  stage_profile p;
  p.add("load", 1ms);
  p.add("forward", 20ms);
  p.add("forward", 10ms);
  p.add("idle", 0ms);
  const auto stats = p.stats();
  REQUIRE(stats.size() == 3);
  CHECK(stats[0].name == "forward");
  CHECK(stats[0].count == 2);
  CHECK(stats[0].mean == 15ms);
  CHECK(stats[0].share == Approx(30.0 / 31.0));
  CHECK(stats[2].share == 0.0);
  CHECK(p.table() ==
        "stage    count    total     mean      p50      p99  share\n"
        "forward      2  30.0 ms  15.0 ms  10.2 ms  20.0 ms   97 %\n"
        "load         1  1.00 ms  1.00 ms  1.00 ms  1.00 ms    3 %\n"
        "idle         1     0 ns     0 ns     0 ns     0 ns    0 %\n");
  stage_profile other;
  other.add("load", 1ms);
  p.merge(other);
  CHECK(p.stats()[1].count == 2);
  p.clear();
  CHECK(p.empty());
}

TEST_CASE("the table of mailboxes shows bytes only where tensors travel") {
  const std::vector<mailbox_row> rows = {{.actor = "loader",
                                          .state = "runs",
                                          .depth = 1,
                                          .messages_per_second = 12.5,
                                          .wait = 1500ns,
                                          .service = 2ms,
                                          .wait_p99 = 2us,
                                          .service_p99 = 3ms},
                                         {.actor = "drafter_train 0",
                                          .state = "waits for target_forward",
                                          .depth = 3,
                                          .bytes = 3'000'000,
                                          .limit_bytes = 8'000'000,
                                          .peak_bytes = 7'000'000,
                                          .restarts = 1,
                                          .credits = 2,
                                          .held = {7, 9, 10, 11}}};
  CHECK(mailbox_table(rows) ==
        "actor            depth    bytes    limit     peak  msgs/s     wait      p99  service"
        "      p99  credits  restarts  batches  state\n"
        "loader               1        -        -        -    12.5  1.50 us  2.00 us  2.00 ms"
        "  3.00 ms        -         0  -        runs\n"
        "drafter_train 0      3  3.00 MB  8.00 MB  7.00 MB       0     0 ns     0 ns     0 ns"
        "     0 ns        2         1  7 9-11   waits for target_forward\n");
  auto refused = rows;
  refused[0].refused = 4;
  CHECK(mailbox_table(refused).find("refused") != std::string::npos);
}

TEST_CASE("a mailbox as JSON has every figure") {
  const auto json = nlohmann::json::parse(
      mailbox_json({.actor = "loader", .state = "runs", .limit_bytes = 5, .wait = 7ns}).text());
  CHECK(json["actor"] == "loader");
  CHECK(json["limit_bytes"] == 5);
  CHECK(json["wait_ns"] == 7);
  CHECK(json["credits"] == -1);
  CHECK(json["held"].empty());
  CHECK(json.size() == 17);
}

TEST_CASE("rows of mailboxes are chosen by name and sorted by any figure") {
  std::vector<mailbox_row> rows = {{.actor = "target_forward 0", .state = {}, .depth = 1},
                                   {.actor = "target_forward 10", .state = {}, .depth = 3},
                                   {.actor = "drafter_train 1", .state = {}, .depth = 2}};
  CHECK(rows_named(rows, "target_forward").size() == 2);
  CHECK(rows_named(rows, "target_forward 1").empty());
  CHECK(rows_named(rows, "drafter_train 1").size() == 1);
  sort_rows(rows, "depth");
  CHECK(rows[0].depth == 3);
  CHECK(rows[2].depth == 1);
  sort_rows(rows, "actor");
  CHECK(rows[0].actor == "drafter_train 1");
  for (const std::string& key : row_keys()) sort_rows(rows, key);
  CHECK_THROWS_AS(sort_rows(rows, "colour"), error);
}

}  // namespace dflash
