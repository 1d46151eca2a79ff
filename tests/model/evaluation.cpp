#include "model/evaluation.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <limits>

#include "config/error.hpp"
#include "model/checkpoint.hpp"
#include "model/drafter_decode.hpp"
#include "model/drafter_score.hpp"
#include "tests/model/decode_fixture.hpp"

using namespace dflash;
namespace fs = std::filesystem;

namespace {

evaluation figures(uint64_t step, double tau) {
  evaluation e;
  e.step = step;
  e.tau = tau;
  return e;
}

evaluation losses(uint64_t step, double loss) {
  evaluation e;
  e.step = step;
  e.loss = loss;
  e.accept_len = 1;
  return e;
}

token_documents text(int64_t documents) {
  token_documents all;
  for (int64_t d = 0; d < documents; ++d) {
    const auto ids = decode_test::tiny_prompt(13 + d % 4, 40 + d);
    all.append(ids, std::vector<uint8_t>(ids.size(), 1));
  }
  return all;
}

token_documents prompts(int64_t count) {
  token_documents all;
  for (int64_t d = 0; d < count; ++d) all.append(decode_test::tiny_prompt(6 + d % 3, 80 + d), {});
  return all;
}

struct saved_drafter {
  saved_drafter() : model(decode_test::tiny_target()), config(decode_test::tiny_drafter_config(4)) {
    optim_section optim;
    trainer = std::make_unique<drafter_trainer>(config,
                                                loss_section{},
                                                optim,
                                                decode_test::tiny_drafter(config),
                                                model,
                                                compute_dtype::fp32,
                                                100);
    trainer_snapshot copy;
    take_snapshot(*trainer, copy);
    checkpoint_state state;
    state.steps = 5;
    write_checkpoint(folder.path(), state, copy, {"", at::kFloat, {}});
  }
  evaluation_parts parts() const {
    evaluation_parts p;
    p.model = model;
    p.rows = std::make_shared<const batch_source>(token_set(text(7)), 24, 4, 3);
    p.prompts = {prompts(3), prompts(2)};
    p.max_new_tokens = 9;
    return p;
  }
  evaluation evaluate(evaluator_work& work) const {
    work.begin(5, folder.path() / "step-5");
    for (;;)
      if (const auto result = work.go_on()) return *result;
  }

  const test::scratch_folder folder;
  std::shared_ptr<const target> model;
  drafter_config config;
  std::unique_ptr<drafter_trainer> trainer;
};

}  // namespace

TEST_CASE("evaluations: the best by tau, the earlier of equal ones, and the end of patience") {
  evaluation_history history(2);
  CHECK(history.add(figures(10, 1.5)));
  CHECK_FALSE(history.add(figures(20, 1.5)));
  CHECK(history.add(figures(30, 1.6)));
  CHECK_FALSE(history.add(figures(40, std::nan(""))));
  CHECK_FALSE(history.out_of_patience());
  CHECK_FALSE(history.add(figures(50, 1.2)));
  CHECK(history.out_of_patience() == 50);
  CHECK(history.best()->step == 30);
  CHECK(history.add(figures(60, 1.7)));
  CHECK(history.out_of_patience() == 50);  // what was decided stands

  evaluation_history by_loss(0);
  CHECK(by_loss.add(losses(10, std::nan(""))));
  CHECK(by_loss.add(losses(20, 3.0)));
  CHECK_FALSE(by_loss.add(losses(30, 3.0)));
  CHECK(by_loss.add(losses(40, 2.9)));
}

TEST_CASE("evaluations come back from their file to the bit; others' do not count") {
  const test::scratch_folder folder;
  const fs::path file = folder.path() / "evaluations.json";
  CHECK(read_evaluations(file, "a", 99).all.empty());
  evaluation e = losses(10, 1.0 / 3);
  e.tau = 1.1;
  e.passes = 10;
  e.committed = 11;
  write_evaluations(file, "a", {e, figures(20, std::numeric_limits<double>::infinity())});
  const auto all = read_evaluations(file, "a", 99);
  CHECK(all.note.empty());
  REQUIRE(all.all.size() == 2);
  CHECK(*all.all[0].loss == 1.0 / 3);
  CHECK(*all.all[0].tau == 1.1);
  CHECK(all.all[0].committed == 11);
  CHECK(std::isnan(*all.all[1].tau));
  CHECK_FALSE(all.all[1].loss);
  CHECK(read_evaluations(file, "a", 19).all.size() == 1);
  const auto other = read_evaluations(file, "b", 99);
  CHECK(other.all.empty());
  CHECK_FALSE(other.note.empty());
  std::ofstream(file) << "{\"format\": 1, \"settings\": \"a\", \"evaluations\": [{\"step\": 3}]}";
  CHECK(read_evaluations(file, "a", 99).all.empty());
  CHECK_FALSE(read_evaluations(file, "a", 99).note.empty());
}

TEST_CASE("a scored batch has the bits of the trainer's own evaluation") {
  saved_drafter s;
  const auto parts = s.parts();
  drafter_config config;
  const auto weights = load_drafter(s.folder.path() / "step-5", *s.model, config);
  drafter_scorer scorer(config, weights, loss_section{}, s.model);
  const batch b = parts.rows->make(1);
  const auto c = s.model->capture(b.input_ids, b.doc_offsets, s.config.taps, false);
  drafter_input input;
  input.taps = c.taps;
  input.tokens = &b;
  const step_sums own = scorer.score(input), trained = s.trainer->evaluate(input);
  CHECK(own.loss == trained.loss);
  CHECK(own.weight_sum == trained.weight_sum);
  CHECK(own.lead_sum == trained.lead_sum);
  CHECK(own.supervised > 0);
}

TEST_CASE("an evaluation has the figures of `eval`, whether hidden states are kept or made again") {
  saved_drafter s;
  auto parts = s.parts();
  evaluator_work keeping(parts);
  const evaluation first = s.evaluate(keeping);
  CHECK(keeping.kept_bytes() > 0);
  const evaluation again = s.evaluate(keeping);
  parts.budget_bytes = 0;
  evaluator_work making(parts);
  s.evaluate(making);
  const evaluation made = s.evaluate(making);
  CHECK(making.kept_bytes() == 0);
  for (const evaluation& other : {again, made}) {
    CHECK(*first.loss == *other.loss);
    CHECK(*first.accept_len == *other.accept_len);
    CHECK(*first.tau == *other.tau);
  }
  CHECK(first.step == 5);
  CHECK(first.prompts == 5);
  CHECK(first.rows == parts.rows->rows());

  walk_report walk;
  drafter_config config;
  const auto weights = load_drafter(s.folder.path() / "step-5", *s.model, config);
  drafter_proposer proposer(std::make_shared<const draft_model>(config, weights, s.model));
  for (const auto& set : parts.prompts) {
    const auto items =
        make_walk_items(*s.model, set, 0, set.size(), proposer.taps(), {.max_new_tokens = 9});
    walk.add(walk_answers(proposer, items));
  }
  CHECK(*first.tau == walk.tau());
  CHECK(first.passes == walk.walk.passes);
}

TEST_CASE("an evaluation is given up between passes, and refuses a damaged checkpoint") {
  saved_drafter s;
  auto parts = s.parts();
  parts.rows = nullptr;
  int passes = 0;
  parts.give_up = [&] { return ++passes > 2; };
  evaluator_work work(parts);
  work.begin(5, s.folder.path() / "step-5");
  CHECK_THROWS_WITH(work.go_on(), Catch::Contains("given up"));
  CHECK(passes == 3);
  fs::resize_file(s.folder.path() / "step-5/model.safetensors", 10);
  CHECK_THROWS_AS(work.begin(5, s.folder.path() / "step-5"), error);
}
