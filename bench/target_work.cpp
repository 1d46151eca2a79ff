// The target on the work of bench/peers: capture of taps, batched generation, decoding of one
// prompt. Prints one line of JSON. Usage: bench_target_work capture|generate|decode [--threads N]
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/work.hpp"
#include "config/error.hpp"
#include "data/shards.hpp"
#include "device/process_settings.hpp"
#include "model/decode.hpp"
#include "model/generate.hpp"
#include "model/target.hpp"

namespace dflash::bench {
namespace {

constexpr int64_t new_tokens = 128;

nlohmann::json capture(const target& model, const work_row& row) {
  const std::vector<int> taps = {1, 8, 14, 20, 27};
  std::vector<int32_t> eighths;
  for (int32_t i = 0; i <= 8; ++i)
    eighths.push_back(i * static_cast<int32_t>(row.tokens.input_ids.size()) / 8);
  const std::vector<int32_t> whole = {0, eighths.back()};
  nlohmann::json out;
  using layout = std::pair<const char*, const std::vector<int32_t>*>;
  for (const auto& [name, documents] : {layout{"8x256", &eighths}, layout{"1x2048", &whole}}) {
    std::vector<double> times;
    for (int run = 0; run < 4; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      (void)model.capture(row.tokens.input_ids, *documents, taps, false);
      if (run > 0) times.push_back(seconds_since(begin));
    }
    out["seconds"][name] = median(times);
    out["tokens_per_s"][name] = static_cast<double>(eighths.back()) / median(times);
  }
  return out;
}

nlohmann::json answer_all(const target& model, const token_documents& prompts) {
  generate_options options;
  options.max_new_tokens = new_tokens;
  options.ignore_eos = true;
  options.slots = prompts.size();
  options.group = prompts.size();
  const auto go_on = [](int64_t) { return true; };
  generate_options warm = options;
  warm.max_new_tokens = 2;
  (void)generate_group(model, prompts, 0, prompts.size(), warm, go_on);
  const auto begin = std::chrono::steady_clock::now();
  const auto answers = generate_group(model, prompts, 0, prompts.size(), options, go_on);
  const double seconds = seconds_since(begin);
  int64_t made = 0;
  for (const answer& a : answers.value()) made += static_cast<int64_t>(a.ids.size());
  if (made != prompts.size() * new_tokens) throw error("an answer ended early", "generate");
  return {{"seconds", seconds},
          {"new_tokens", made},
          {"tokens_per_s", static_cast<double>(made) / seconds}};
}

nlohmann::json decode_one(const target& model, std::span<const int32_t> prompt) {
  decode_options options;
  options.eos = {-1};  // no token: the answer is not ended
  options.max_slots = 1;
  options.max_new_tokens = 2;
  (void)decode_prompts(model, std::span(&prompt, 1), nullptr, options);
  options.max_new_tokens = new_tokens;
  const auto begin = std::chrono::steady_clock::now();
  const auto answers = decode_prompts(model, std::span(&prompt, 1), nullptr, options);
  const double seconds = seconds_since(begin);
  const auto made = static_cast<int64_t>(answers[0].tokens.size());
  if (made != new_tokens) throw error("the answer ended early", "decode");
  return {{"seconds", seconds},
          {"new_tokens", made},
          {"tokens_per_s", static_cast<double>(made) / seconds}};
}

int run(const arguments& given) {
  const auto model = target::load(given.model, compute_dtype::bf16);
  nlohmann::json out;
  if (given.what == "capture") {
    out = capture(*model, read_rows(given.work).at(0));
  } else {
    const auto prompts =
        read_prompt_shard(given.work / "prompts.safetensors", model->config().vocab);
    if (given.what == "generate")
      out = answer_all(*model, prompts);
    else if (given.what == "decode")
      out = decode_one(*model, prompts.ids(0));
    else
      throw error("say what: capture, generate or decode", "command line");
  }
  out["name"] = "dflash";
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace dflash::bench

int main(int count, char** values) {
  dflash::restart_with_settings(values);
  try {
    return dflash::bench::run(dflash::bench::parse_arguments(count, values));
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "error: %s\n", problem.what());
    return 2;
  }
}
