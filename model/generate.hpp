// Batched generation by the target: prompts in fixed groups, slots refilled inside a group. A group
// is the unit of restart: its answers depend on the group and the options only, are written to the
// work folder at once, and are not made again by the next run.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "data/shards.hpp"
#include "model/sampling.hpp"
#include "model/target.hpp"

namespace dflash {

struct generate_options {
  int64_t max_new_tokens = 512;
  bool ignore_eos = false;  // benchmarks: always max_new_tokens (or up to the context limit)
  int64_t slots = 64;       // sequences decoded at once
  int64_t group = 128;      // prompts a group
  sampling_options sampling;
};

// Why an answer ended.
enum class answer_end : uint8_t { eos, max_new_tokens, context, no_room, bad_logits };

struct answer {
  std::vector<int32_t> ids;  // new tokens, end-of-text id included
  answer_end end = answer_end::eos;
};

// How many new tokens a prompt may get: prompt + new tokens <= max_positions (cases: length rule).
int64_t room_for(int64_t prompt_tokens, int64_t max_positions, int64_t max_new_tokens);

// Answers to one group of prompts, in order. first_prompt: index of the group's first prompt in the
// whole set, for the random numbers. on_tokens is called with the number of tokens just made.
std::vector<answer> generate_group(const target& model,
                                   const token_documents& prompts,
                                   int64_t first_prompt,
                                   int64_t count,
                                   const generate_options& options,
                                   const std::function<void(int64_t)>& on_tokens = {});

struct generate_report {
  int64_t prompts = 0, groups_done = 0, groups_resumed = 0, groups_total = 0;
  int64_t new_tokens = 0;   // in the whole output
  int64_t made_tokens = 0;  // by this run
  double seconds = 0;       // of this run's generation
  int64_t ended[5] = {};    // by answer_end
  bool complete = false;    // false: stopped by `stop`; finished groups are kept
};

// Answers all prompts; writes `out` (token shard: prompt ids mask 0, new ids mask 1) when all
// groups are done and removes the work folder `out`.work then. Prompts without a single new token
// are left out of the shard and counted. `stop` is looked at between groups and between passes: the
// group in work is given up, finished ones stay. Throws dflash::error for a prompt longer than the
// context (before any work), and if the work folder was made with other options or prompts.
struct generate_progress {
  int64_t prompts_done, prompts_total, tokens, made_tokens;
  double seconds;
};
generate_report generate(const target& model,
                         const token_documents& prompts,
                         const std::filesystem::path& out,
                         const generate_options& options,
                         const std::atomic<bool>& stop,
                         const std::function<void(const generate_progress&)>& on_progress = {});

}  // namespace dflash
