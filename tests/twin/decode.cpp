// Cached forward, generation, speculative decoding, evaluation and capture on another device than
// the CPU: the CPU's tokens, its values within rounding, and how often the host waits.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "data/files.hpp"
#include "device/upload.hpp"
#include "model/capture_run.hpp"
#include "model/decode.hpp"
#include "model/drafter_decode.hpp"
#include "model/drafter_score.hpp"
#include "model/eval.hpp"
#include "model/generate.hpp"
#include "model/output_check.hpp"
#include "tests/model/decode_fixture.hpp"
#include "tests/twin/twin_device.hpp"

using namespace dflash;
using namespace dflash::test;
using namespace dflash::decode_test;

namespace {

const std::vector<std::string> family_names = {"llama3",
                                               "llama_linear_biased",
                                               "mistral",
                                               "qwen2",
                                               "qwen3",
                                               "qwen3_moe",
                                               "gemma3",
                                               "qwen3_5",
                                               "qwen3_5_moe"};

std::shared_ptr<const target> family_model(const std::string& name, at::Device device) {
  at::set_num_threads(1);
  return target::load(
      std::filesystem::path(DFLASH_TEST_DATA) / "families" / name, compute_dtype::fp32, device);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  const auto x = a.to(at::kCPU, at::kDouble), y = b.to(at::kCPU, at::kDouble);
  return ((x - y).abs().max() / y.abs().max()).item<double>();
}

void no_faults() {
  for (const std::string& fault : twins().faults) FAIL_CHECK(fault);
}

using prompt_list = std::vector<std::vector<int32_t>>;

std::vector<decoded> answers(const target& model,
                             const prompt_list& prompts,
                             proposer* drafts,
                             decode_options options) {
  const std::vector<std::span<const int32_t>> views{prompts.begin(), prompts.end()};
  return decode_prompts(model, views, drafts, options);
}

const prompt_list prompts = {tiny_prompt(9), tiny_prompt(1, 3), tiny_prompt(30, 5), tiny_prompt(4)};

// Four slots' worth of prompts through two slots: refilled, and prefilled beside each other.
decode_options two_slots(int64_t tokens = 20) {
  decode_options options;
  options.max_new_tokens = tokens;
  options.max_slots = 2;
  return options;
}

}  // namespace

// fp32: the CPU's kernels add up in another order. The norm behind the delta rule of hybrid targets
// divides by what may be small (tests/model/families.cpp).
TEST_CASE("chunks through a device's cache, with tokens taken back, give the CPU's states",
          "[twin][decode]") {
  for (const auto& name : family_names) {
    CAPTURE(name);
    const auto here = family_model(name, at::kCPU), there = family_model(name, twin(1));
    const auto vocab = static_cast<int32_t>(std::min<int64_t>(here->config().vocab, 59));
    // Sequences a, b, c in slots 3, 0, 2; {tokens of each, tokens of a and b that are taken back}.
    const int64_t steps[][4] = {{3, 70, 0, 0},
                                {1, 1, 2, 5},
                                {2, 2, 2, 3},
                                {1, 1, 1, 5},
                                {30, 0, 1, 0},
                                {1, 1, 1, 4},
                                {66, 3, 1, 5},
                                {1, 1, 1, 0}};
    const std::vector<int> taps = {0, 1};
    kv_cache cache_here(here->config(), here->dtype(), 4, 120, 5);
    kv_cache cache_there(there->config(), there->dtype(), 4, 120, 5, there->device());
    const auto token = [&](int64_t i, int64_t salt) {
      return static_cast<int32_t>((i * i * 7 + i * 13 + salt * 5 + 3) % vocab);
    };
    const int64_t slots[] = {3, 0, 2};
    const double bound = here->config().is_hybrid() ? 1e-4 : 2e-5;
    reset_twins();
    const auto step = [&](const std::array<int64_t, 3>& counts, int64_t wrong) {
      std::vector<std::vector<int32_t>> rows(3);
      std::vector<target::chunk> chunks;
      for (size_t s = 0; s < 3; ++s) {
        const int64_t at = cache_here.length(slots[s]);
        for (int64_t i = 0; i < counts[s]; ++i) rows[s].push_back(token(at + i, slots[s]));
        for (int64_t i = 0; s < 2 && counts[s] > 0 && i < wrong; ++i)
          rows[s].push_back(token(i, 17));
        chunks.push_back({slots[s], rows[s]});
      }
      const auto a = here->forward(cache_here, chunks, taps);
      const uint64_t before = twins().host_waits;
      const auto b = there->forward(cache_there, chunks, taps);
      // Experts are chosen on the host.
      if (here->config().experts.count == 0) CHECK(twins().host_waits == before);
      CHECK(difference(b.hidden, a.hidden) < bound);
      for (size_t t = 0; t < taps.size(); ++t) CHECK(difference(b.taps[t], a.taps[t]) < bound);
      for (size_t s = 0; s < 2; ++s) {
        if (counts[s] == 0) continue;
        const int64_t length = cache_here.length(slots[s]) - wrong;
        cache_here.crop(slots[s], length);
        cache_there.crop(slots[s], length);
      }
      for (const int64_t slot : slots) CHECK(cache_there.length(slot) == cache_here.length(slot));
    };
    for (const auto& [a, b, c, wrong] : steps) step({a, b, c}, wrong);
    // A slot that begins again remembers nothing.
    cache_here.clear(0);
    cache_there.clear(0);
    step({1, 20, 1}, 0);
    step({0, 1, 0}, 0);
    CHECK(cache_there.bytes() > 0);
    no_faults();
  }
}

TEST_CASE("the largest logit is found on a device by the CPU's rule", "[twin][decode]") {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const std::vector<float> rows = {1,    3,    3,    9,  // ids from 3 on are padding
                                   -0.F, 0,    -1,   9,  // zeros tie
                                   1,    nan,  2,    9,  // bad
                                   -inf, -inf, -inf, 9,  // bad
                                   -inf, -5,   -inf, 9,  //
                                   2,    inf,  inf,  -9};
  const auto here = upload(std::span<const float>(rows), at::kCPU).view({6, 4});
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto logits = here.to(type);
    CHECK(argmax_rows(logits, 3) == std::vector<int32_t>{1, 0, bad_token, bad_token, 1, 1});
    const auto there = logits.to(twin(0));
    reset_twins();
    CHECK(argmax_rows(there, 3) == argmax_rows(logits, 3));
    CHECK(twins().host_waits == 1);
    const std::vector<sampling_key> keys(6, {7, 11});
    const sampling_options drawn{.temperature = 0.7, .top_p = 0.9, .seed = 5};
    reset_twins();
    CHECK(sample_rows(there, 3, drawn, keys) == sample_rows(logits, 3, drawn, keys));
    CHECK(twins().host_waits == 1);
  }
  no_faults();
}

TEST_CASE("greedy and drawn answers on a device are the CPU's, with one wait a pass",
          "[twin][decode]") {
  const auto here = tiny_target(),
             there = tiny_target(compute_dtype::fp32, -1, tiny_vocab, twin(2));
  for (const double temperature : {0.0, 0.8}) {
    CAPTURE(temperature);
    auto options = two_slots();
    options.sampling = {.temperature = temperature, .seed = 4};
    options.keep_taps = {1, 2};
    const auto a = answers(*here, prompts, nullptr, options);
    reset_twins();
    uint64_t passes = 0;
    options.between_passes = [&] { passes += 1; };
    const auto b = answers(*there, prompts, nullptr, options);
    // A turn of the loop prefills, where a slot is free, and verifies.
    CHECK(twins().host_waits >= passes - 1);
    CHECK(twins().host_waits <= passes + prompts.size());
    CHECK(twins().downloads == twins().host_waits);
    CHECK(twins().uploads == 0);
    no_faults();
    for (size_t i = 0; i < prompts.size(); ++i) {
      CHECK(b[i].tokens == a[i].tokens);
      for (size_t t = 0; t < 2; ++t) {
        CHECK(b[i].taps[t].device() == twin(2));
        CHECK(difference(b[i].taps[t], a[i].taps[t]) < 2e-5);
      }
    }
  }
}

TEST_CASE("speculative decoding on a device gives plain decoding's and the CPU's tokens",
          "[twin][decode]") {
  const auto here = tiny_target(),
             there = tiny_target(compute_dtype::fp32, -1, tiny_vocab, twin(1));
  for (const bool sliding : {false, true}) {
    auto config = tiny_drafter_config(6, sliding);
    if (sliding) config.draft_ids = {1, 2, 3, 5, 8, 13, 21, 34, 40, 41, 50, 55};
    const auto weights = tiny_drafter(config);
    drafter_proposer drafts_here{std::make_shared<const draft_model>(config, weights, here)};
    drafter_proposer drafts_there{std::make_shared<const draft_model>(config, weights, there)};
    const auto a = answers(*here, prompts, &drafts_here, two_slots());
    const auto plain = answers(*there, prompts, nullptr, two_slots());
    reset_twins();
    uint64_t turns = 0;
    auto options = two_slots();
    options.between_passes = [&] { turns += 1; };
    const auto b = answers(*there, prompts, &drafts_there, options);
    // A turn: the drafts, the target's tokens, and after a prefill the first ones. Besides, the
    // tables of positions go over once.
    CHECK(twins().downloads <= 2 * turns + prompts.size());
    CHECK(twins().uploads <= 2);
    CHECK(twins().host_waits == twins().downloads + twins().uploads);
    no_faults();
    for (size_t i = 0; i < prompts.size(); ++i) {
      CHECK(b[i].tokens == a[i].tokens);
      CHECK(b[i].tokens == plain[i].tokens);
      CHECK(b[i].stats.passes == a[i].stats.passes);
      CHECK(b[i].stats.drafted == a[i].stats.drafted);
      CHECK(b[i].stats.accepted_at == a[i].stats.accepted_at);
      CHECK_FALSE(compare_outputs(*there, prompts[i], plain[i].tokens, b[i].tokens, 6));
    }
    // Where the texts differ, the logits of both are looked at: on the device too.
    auto other = plain[0].tokens;
    other[5] = (other[5] + 1) % 59;
    const auto why = compare_outputs(*there, prompts[0], plain[0].tokens, other, 6);
    const auto why_here = compare_outputs(*here, prompts[0], plain[0].tokens, other, 6);
    REQUIRE(why);
    CHECK(why->position == 5);
    CHECK(why->verdict.gap == Approx(why_here->verdict.gap).epsilon(1e-4));
    no_faults();
  }
}

TEST_CASE("right and wrong drafts are settled on a device in each family", "[twin][decode]") {
  for (const auto& name : family_names) {
    CAPTURE(name);
    const auto here = family_model(name, at::kCPU), there = family_model(name, twin(3));
    const prompt_list asked = {tiny_prompt(9), tiny_prompt(1), tiny_prompt(20)};
    const auto a = answers(*here, asked, nullptr, two_slots(16));
    prompt_list texts = asked;
    for (size_t i = 0; i < asked.size(); ++i)
      texts[i].insert(texts[i].end(), a[i].tokens.begin(), a[i].tokens.end());
    for (const int64_t spoil : {0, 3}) {
      scripted_proposer drafts{texts, 6, spoil};
      reset_twins();
      const auto b = answers(*there, asked, &drafts, two_slots(16));
      no_faults();
      for (size_t i = 0; i < asked.size(); ++i) CHECK(b[i].tokens == a[i].tokens);
      if (spoil == 0) CHECK(b[0].stats.passes < static_cast<int64_t>(a[0].tokens.size()) - 1);
    }
  }
}

TEST_CASE("a drafter on a device drafts and is scored as on the CPU", "[twin][decode]") {
  const auto here = tiny_target(),
             there = tiny_target(compute_dtype::fp32, -1, tiny_vocab, twin(0));
  const auto config = tiny_drafter_config(6, true);
  const auto weights = tiny_drafter(config);
  token_documents documents;
  for (const auto& p : prompts) documents.append(p, {});
  const auto walked = [&](const std::shared_ptr<const target>& model) {
    drafter_proposer drafts{std::make_shared<const draft_model>(config, weights, model)};
    const auto items =
        make_walk_items(*model, documents, 0, documents.size(), config.taps, two_slots());
    return walk_answers(drafts, items);
  };
  reset_twins();
  const auto a = walked(here), b = walked(there);
  CHECK(b.walk.passes == a.walk.passes);
  CHECK(b.walk.committed == a.walk.committed);
  CHECK(b.anchor_length == a.anchor_length);
  CHECK(b.hits_at == a.hits_at);
  const auto scored = [&](const std::shared_ptr<const target>& model) {
    batch row;
    row.input_ids = tiny_prompt(40);
    row.doc_offsets = {0, 40};
    row.real_docs = 1;
    row.loss_mask.assign(40, 1);
    row.anchors = {1, 9, 11, 30, 37};
    row.anchor_valid.assign(5, 1);
    row.documents = {0};
    drafter_scorer scorer(config, weights, {}, model);
    drafter_input input;
    input.taps = model->capture(row.input_ids, row.doc_offsets, config.taps, false).taps;
    input.tokens = &row;
    return scorer.score(input);
  };
  const auto sa = scored(here), sb = scored(there);
  CHECK(sb.loss == Approx(sa.loss).epsilon(1e-5));
  CHECK(sb.hits_at == sa.hits_at);
  no_faults();
}

TEST_CASE("groups of prompts are answered on a device by workers with streams of their own",
          "[twin][decode]") {
  const auto here = tiny_target(),
             there = tiny_target(compute_dtype::fp32, -1, tiny_vocab, twin(1));
  const scratch_folder scratch;
  token_documents documents;
  for (int64_t i = 0; i < 7; ++i) documents.append(tiny_prompt(3 + 5 * i % 17, i), {});
  generate_options options;
  options.max_new_tokens = 12;
  options.group = 2;
  options.slots = 2;
  for (const double temperature : {0.0, 0.7}) {
    options.sampling = {.temperature = temperature, .seed = 9};
    options.workers = 1;
    const auto path = [&](const char* name) { return scratch.path() / name; };
    generate(*here, documents, path("here.safetensors"), options, {});
    for (const int64_t workers : {1, 3}) {
      options.workers = workers;
      reset_twins();
      CHECK(generate(*there, documents, path("there.safetensors"), options, {}).complete);
      no_faults();
      CHECK(read_file(path("there.safetensors")) == read_file(path("here.safetensors")));
      std::filesystem::remove(path("there.safetensors"));
    }
    std::filesystem::remove(path("here.safetensors"));
  }
  // One pass: the prompt, or one token for each sequence.
  token_documents one;
  one.append(tiny_prompt(5), {});
  reset_twins();
  uint64_t passes = 0;
  const auto made = generate_group(*there, one, 0, 1, options, [&](int64_t) {
    passes += 1;
    return true;
  });
  CHECK(made->front().ids.size() == 12);
  CHECK(passes == 12);
  CHECK(twins().host_waits == passes);
  // What one kind of device has begun another does not end.
  const auto out = scratch.path() / "mixed.safetensors";
  int calls = 0;
  generate(*there, documents, out, options, [&](const generate_progress&) { return ++calls < 30; });
  CHECK_THROWS_WITH(generate(*here, documents, out, options, {}),
                    Catch::Matchers::Contains("other options: device"));
  no_faults();
}

TEST_CASE("a capture by lanes on devices holds the CPU's states, one wait a row",
          "[twin][capture]") {
  const auto here = tiny_target();
  const std::shared_ptr<const target> there[] = {
      tiny_target(compute_dtype::fp32, -1, tiny_vocab, twin(0)),
      tiny_target(compute_dtype::fp32, -1, tiny_vocab, twin(1))};
  const scratch_folder scratch;
  token_documents documents;
  for (int64_t i = 0; i < 9; ++i) {
    const auto ids = tiny_prompt(10 + 3 * i, i);
    documents.append(ids, std::vector<uint8_t>(ids.size(), 1));
  }
  const batch_source source(documents, 64, 4, 1);
  auto wanted = make_manifest(source, {1, 2}, true);
  wanted.form = capture_form_rows;
  wanted.target_hash = here->content_hash();
  wanted.dtype = "fp32";
  wanted.width = 32;
  wanted.threads = 1;
  wanted.program = "test";
  const auto row = [&](const target& model, const batch& b) {
    auto c = model.capture(b.input_ids, b.doc_offsets, wanted.taps, true);
    c.taps.push_back(c.last_hidden);
    return to_host(c.taps);
  };
  std::vector<std::vector<at::Tensor>> cpu(static_cast<size_t>(wanted.rows));
  const auto go_on = [](const capture_progress&) { return true; };
  const auto captured = [&](const char* name, const std::vector<at::Device>& lanes) {
    wanted.device = lanes.front().is_cpu() ? "cpu" : "twin";
    const row_maker make = [&](const batch& b, at::Device device) {
      if (device.is_cpu()) return cpu[static_cast<size_t>(b.row)] = row(*here, b);
      auto states = row(*there[device.index()], b);
      const auto& expected = cpu[static_cast<size_t>(b.row)];
      for (size_t t = 0; t < states.size(); ++t)
        if (!at::allclose(states[t], expected[t], 1e-4, 1e-4))
          throw std::runtime_error("another state");
      return states;
    };
    return run_capture(scratch.path() / name, wanted, source, make, lanes, go_on);
  };
  CHECK(captured("cpu", {at::kCPU}).complete);
  reset_twins();
  const auto report = captured("twin", {twin(0), twin(1), twin(1)});
  CHECK(report.complete);
  CHECK(report.rows_made == wanted.rows);
  CHECK(twins().host_waits == static_cast<uint64_t>(wanted.rows));
  no_faults();
  // The other kind of device is another capture.
  wanted.device = "cpu";
  CHECK_THROWS_WITH(run_capture(
                        scratch.path() / "twin",
                        wanted,
                        source,
                        [](const batch&, at::Device) { return std::vector<at::Tensor>(); },
                        {at::kCPU},
                        go_on),
                    Catch::Matchers::Contains("made on twin, wanted is cpu"));
}
