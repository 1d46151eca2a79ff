#include "observe/run_view.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace dflash {

namespace {

run_view sample() {
  run_view v;
  v.run = "runs/<b>x</b>";
  v.node = "host:1";
  v.step = 7;
  v.total_steps = 20;
  v.latest = {{"loss", 2.5}, {"acc_at/1", 0.5}, {"acc_at/2", 0.25}, {"time/tokens_per_s", 1000}};
  v.curve = {{1, 3.5, std::nullopt}, {2, 3.0, 1.5}};
  v.warnings = {{10.5, "warning", "a \"quoted\" line"}};
  v.sinks = {{"tensorboard", 7, 2}};
  actor_view a;
  a.kind = "drafter_train";
  a.index = 1;
  a.row = {.actor = "drafter_train 1",
           .state = "waiting for its next batch 2 s",
           .depth = 3,
           .bytes = 40,
           .limit_bytes = 100,
           .peak_bytes = 60,
           .restarts = 2,
           .credits = 1,
           .held = {5, 6}};
  a.handled = 12;
  a.spent_s = {{"computing", 4.0}, {"waiting for its next batch", 1.0}};
  a.wait.up_to = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  a.wait.count = 12;
  a.wait.sum_s = 30;
  v.actors.push_back(a);
  v.stages = {{"drafter_train", 1, 0.8}};
  v.slowest = find_bottleneck(v.stages);
  return v;
}

}  // namespace

TEST_CASE(
    "Prometheus' text names actors by kind and index, with histograms as CAF will have them") {
  const std::string text = prometheus_text(sample());
  using Catch::Contains;
  CHECK_THAT(text, Contains("caf_actor_mailbox_size{name=\"drafter_train\",index=\"1\"} 3\n"));
  CHECK_THAT(text, Contains("# TYPE caf_actor_mailbox_time_seconds histogram\n"));
  CHECK_THAT(text,
             Contains("caf_actor_mailbox_time_seconds_bucket{name=\"drafter_train\",index=\"1\","
                      "le=\"0.01\"} 5\n"));
  CHECK_THAT(text, Contains("le=\"+Inf\"} 12\n"));
  CHECK_THAT(
      text,
      Contains("caf_actor_mailbox_time_seconds_sum{name=\"drafter_train\",index=\"1\"} 30\n"));
  CHECK_THAT(text, Contains("dflash_mailbox_bytes{name=\"drafter_train\",index=\"1\"} 40\n"));
  CHECK_THAT(text, Contains("# TYPE dflash_actor_restarts_total counter\n"));
  CHECK_THAT(text, Contains("caf_system_processed_messages_total 12\n"));
  CHECK_THAT(text, Contains("activity=\"waiting for its next batch\"} 1\n"));
  CHECK_THAT(text, Contains("dflash_loss 2.5\n"));
  CHECK_THAT(text, Contains("dflash_acc_at{place=\"2\"} 0.25\n"));
  CHECK_THAT(text, Contains("dflash_tokens_per_s 1000\n"));
  CHECK_THAT(text, Contains("dflash_sink_dropped_total{name=\"tensorboard\"} 2\n"));
  CHECK_THAT(text, Contains("dflash_stage_busy_ratio{name=\"drafter_train\"} 0.8\n"));
  // One HELP and TYPE a family, however many series it has.
  CHECK(text.find("# TYPE dflash_acc_at gauge") == text.rfind("# TYPE dflash_acc_at gauge"));
}

TEST_CASE("the page's status is JSON whatever the names hold") {
  const auto json = nlohmann::json::parse(status_json(sample()));
  CHECK(json["run"] == "runs/<b>x</b>");
  CHECK(json["bottleneck"]["name"] == "drafter_train");
  CHECK(json["actors"][0]["actor"] == "drafter_train 1");
  CHECK(json["actors"][0]["held"] == nlohmann::json({5, 6}));
  CHECK(json["actors"][0]["spent_s"]["computing"] == 4.0);
  CHECK(json["latest"]["acc_at/2"] == 0.25);
  CHECK(json["curve"]["loss"].size() == 2);
  CHECK(json["curve"]["accept_step"] == nlohmann::json({2}));
  CHECK(json["warnings"][0]["text"] == "a \"quoted\" line");
  CHECK(json["sinks"][0]["dropped"] == 2);
  CHECK(nlohmann::json::parse(status_json({}))["actors"].empty());
}

}  // namespace dflash
