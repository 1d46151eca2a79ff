// Batched generation by the target: prompts in fixed groups, slots refilled inside a group. A group
// is the unit of restart: its answers depend on the group and the options only, are written to the
// work folder when the group is done, and are not made again by the next run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/shards.hpp"
#include "model/sampling.hpp"
#include "model/target.hpp"

namespace dflash {

struct generate_options {
  int64_t max_new_tokens = 512;
  bool ignore_eos = false;        // benchmarks: always max_new_tokens (or up to the context limit)
  int64_t slots = 64;             // sequences decoded at once
  int64_t group = 256;            // prompts a group
  int64_t workers = 1;            // groups worked on at once, each by a thread of its own
  int64_t threads_per_group = 1;  // ATen threads of a worker; change rounding
  sampling_options sampling;
};
// Throws dflash::error for values out of range.
void check_generate(const generate_options& options);

// Why an answer ended. no_room: the prompt fills the context; bad_logits: NaN, the answer is
// dropped.
enum class answer_end : uint8_t { eos, max_new_tokens, context, no_room, bad_logits };
inline constexpr int answer_ends = 5;

struct answer {
  std::vector<int32_t> ids;  // new tokens, end-of-text id included
  answer_end end = answer_end::eos;
};

// How many new tokens a prompt may get: prompt + new tokens <= max_positions, so a prompt as long
// as the context gets none, although one more id could be read from its last position.
int64_t room_for(int64_t prompt_tokens, int64_t max_positions, int64_t max_new_tokens);

// Answers to the prompts first .. first + count - 1, in order; nothing if go_on, which is told the
// number of tokens that each pass made, returned false. The random numbers are keyed by the
// prompt's index in the whole set. Uses the caller's ATen threads, and its current stream of the
// target's device: the host waits once a pass, for the tokens.
std::optional<std::vector<answer>> generate_group(const target& model,
                                                  const token_documents& prompts,
                                                  int64_t first,
                                                  int64_t count,
                                                  const generate_options& options,
                                                  const std::function<bool(int64_t)>& go_on);

struct generate_progress {
  int64_t prompts_done = 0;  // of finished groups, those of earlier runs included
  int64_t prompts_total = 0;
  int64_t made_tokens = 0;  // by this run
  double share = 0;         // of the whole work, 0 to 1, an estimate
};

struct generate_report {
  bool complete = false;  // false: stopped; finished groups stand in the work folder
  int64_t prompts = 0;
  int64_t groups = 0;          // in all
  int64_t groups_done = 0;     // by now, the resumed ones included
  int64_t groups_resumed = 0;  // found done at the start
  int64_t new_tokens = 0;      // in the output
  int64_t made_tokens = 0;     // by this run
  double seconds = 0;          // of this run's passes
  int64_t ended[answer_ends] = {};
};

std::filesystem::path work_folder_of(const std::filesystem::path& out);  // OUT.work

// Answers all prompts and writes the token shard `out` (prompt ids mask 0, new ids mask 1), then
// removes the work folder. Prompts without one new token, and those whose logits went bad, are left
// out of the shard and counted. go_on is asked after each pass, by the workers in turn, never by
// two at once: false gives the groups in work up. The bytes do not depend on the number of workers.
// Throws dflash::error before any work for a prompt longer than the context, and if the work folder
// was made from other prompts, with other options or
// on another kind of device. Each worker has a stream of its own on the target's device.
generate_report generate(const target& model,
                         const token_documents& prompts,
                         const std::filesystem::path& out,
                         const generate_options& options,
                         const std::function<bool(const generate_progress&)>& go_on);

}  // namespace dflash
