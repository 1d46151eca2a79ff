// What the doctor says about a run of drafting. Its checks on files are shown by
// tests/bin/test_doctor.py, on a drafter that is broken in each way.
#include "model/doctor.hpp"

#include <catch2/catch.hpp>

#include "model/drafter_decode.hpp"
#include "tests/model/decode_fixture.hpp"

namespace dflash {
namespace {

using decode_test::tiny_prompt;

// Drafts the true text, some places ahead of where it belongs, or one token always.
class shifted_proposer final : public proposer {
public:
  shifted_proposer(int64_t drafts, int64_t shift, int32_t always = -1)
      : drafts_{drafts}, shift_{shift}, always_{always} {}
  int64_t max_drafts() const override { return drafts_; }
  std::span<const int> taps() const override { return {}; }
  void start(int64_t, int64_t) override { text_.clear(); }
  void reset(int64_t) override { text_.clear(); }
  void commit(std::span<const committed_rows> rows, const std::vector<at::Tensor>&) override {
    for (const auto& row : rows) text_.insert(text_.end(), row.tokens.begin(), row.tokens.end());
  }
  std::vector<std::vector<int32_t>> propose(std::span<const draft_request> requests) override {
    std::vector<std::vector<int32_t>> out;
    for (const auto& request : requests) {
      out.emplace_back();
      for (int64_t k = 0; k < request.count; ++k) {
        const auto at = static_cast<size_t>(request.position + 1 + k + shift_);
        out.back().push_back(always_ >= 0 ? always_ : at < text_.size() ? text_[at] : 0);
      }
    }
    return out;
  }

private:
  int64_t drafts_, shift_;
  int32_t always_;
  std::vector<int32_t> text_;
};

// Answers in which a token rarely stands where its neighbour does.
std::vector<walk_item> answers() {
  std::vector<walk_item> items;
  for (int64_t i = 0; i < 4; ++i) {
    walk_item item{.tokens = tiny_prompt(60, i), .prompt_tokens = 8, .limit = 52, .taps = {}};
    items.push_back(std::move(item));
  }
  return items;
}

draft_counts count(shifted_proposer drafts) {
  return count_drafts(drafts, answers());
}

draft_trial trial(const char* name, double accept_len) {
  return {name, 400, accept_len, 0.02};
}

}  // namespace

TEST_CASE("right drafts at every position are counted by place and by shift", "[doctor]") {
  const auto counts = count({5, 0});
  CHECK(counts.lengths.size() == 4 * 51);
  // All but those that the end of the committed text hides.
  CHECK(counts.right_share(0) > 0.95);
  CHECK(trial_of("x", counts).accept_len > 5.5);
  CHECK(counts.right_share(1) < 0.2);
  CHECK(check_labels(counts).level == health::ok);
  CHECK(check_drafts(counts, 60).level == health::ok);
}

TEST_CASE("labels that are shifted by one are named", "[doctor]") {
  for (const int shift : {1, -1}) {
    const auto found = check_labels(count({5, shift}));
    CHECK(found.level == health::fail);
    CHECK_THAT(found.what, Catch::Contains(shift > 0 ? "next" : "previous"));
    CHECK_FALSE(found.mend.empty());
  }
}

TEST_CASE("drafts of one token, or of the mask, are named", "[doctor]") {
  const auto counts = count({5, 0, 17});
  CHECK_THAT(check_drafts(counts, 60).what, Catch::Contains("token 17"));
  CHECK(check_drafts(counts, 60).level == health::fail);
  CHECK_THAT(check_drafts(counts, 17).what, Catch::Contains("mask token"));
}

TEST_CASE("places that are never right tell a block that is too long", "[doctor]") {
  auto counts = count({6, 0});
  for (size_t k = 3; k < 6; ++k) counts.right[0][k] = 0;
  const auto found = check_drafts(counts, 60);
  CHECK(found.level == health::warn);
  CHECK_THAT(found.mend, Catch::Contains("block_size to 4"));
}

TEST_CASE("shifted taps are named only if they are clearly better", "[doctor]") {
  const draft_trial given = trial("as given", 1.5);
  const std::map<int, draft_trial> better = {{-1, trial("lower", 1.1)}, {1, trial("upper", 2.5)}};
  const auto found = check_tap_shift(given, better, {1, 5});
  CHECK(found.level == health::fail);
  CHECK_THAT(found.mend, Catch::Contains("2, 6"));
  const std::map<int, draft_trial> noise = {{-1, trial("lower", 1.54)}, {1, trial("upper", 1.4)}};
  CHECK(check_tap_shift(given, noise, {1, 5}).level == health::ok);
  CHECK(check_tap_shift(given, {}, {0}).level == health::ok);
}

TEST_CASE("causality is named if the other way is clearly better", "[doctor]") {
  const auto found = check_causality(trial("as given", 1.5), trial("flipped", 2), true);
  CHECK(found.level == health::fail);
  CHECK_THAT(found.mend, Catch::Contains("false"));
  CHECK(check_causality(trial("as given", 2), trial("flipped", 1.5), true).level == health::ok);
}

TEST_CASE("acceptance is judged by tau", "[doctor]") {
  doctor_run run;
  run.trials = {trial("as given", 1)};
  const std::pair<double, health> cases[] = {
      {1.0, health::fail}, {1.02, health::fail}, {1.2, health::warn}, {2.0, health::ok}};
  for (const auto& [tau, level] : cases) {
    run.tau = tau;
    CHECK(check_acceptance(run).level == level);
  }
  run.tau = 1.0;
  CHECK_THAT(check_acceptance(run).why, Catch::Contains("exactly 1"));
  run.trials = {{"as given", 10, 1, 0}};
  CHECK(check_acceptance(run).level == health::warn);
}

TEST_CASE("a run tries the drafter as given and with the usual mistakes undone", "[doctor]") {
  const auto model = decode_test::tiny_target();
  const auto config = decode_test::tiny_drafter_config(4);
  const auto prompts = self_written_prompts(*model, 4, 10);
  CHECK(prompts.size() == 4);
  CHECK(prompts.ids(0).size() == 11);
  const auto run = try_drafting(
      model, config, decode_test::tiny_drafter(config), prompts, {.max_new_tokens = 20});
  CHECK(run.prompts == 4);
  CHECK(run.answer_tokens == 80);
  std::vector<std::string> names;
  for (const auto& t : run.trials) names.push_back(t.name);
  CHECK(names == std::vector<std::string>{"as given",
                                          "with taps shifted by -1",
                                          "with taps shifted by +1",
                                          "with causality flipped"});
  CHECK(run.trials.front().anchors == 4 * 19);
  CHECK(run.findings.size() == 5);
}

}  // namespace dflash
