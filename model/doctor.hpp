// What is wrong with a drafter for a target: checks on its files and on one short run of drafting,
// each of which names what it found, why that matters and how to mend it. The checks are the
// mistakes that users of such drafters meet (dflash.md 9) as far as files or a run can show them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/safetensors.hpp"
#include "data/shards.hpp"
#include "model/draft_trials.hpp"
#include "model/drafter.hpp"
#include "model/drafter_config.hpp"
#include "model/json_file.hpp"
#include "model/target.hpp"

namespace dflash {

enum class health { ok, warn, fail };
const char* name_of(health level);

struct finding {
  std::string check;  // "taps", "rope", ...: one finding each
  health level = health::ok;
  std::string what;       // seen
  std::string why = {};   // empty if ok
  std::string mend = {};  // empty if ok
};

/// What the checks on files look at.
struct doctor_files {
  std::filesystem::path target_folder, drafter_folder;
  target_config target;
  json_file config;          // the drafter's config.json
  safetensors_file weights;  // its model.safetensors
};
/// Throws error for what cannot be read at all.
doctor_files open_doctor_files(const std::filesystem::path& target_folder,
                               const std::filesystem::path& drafter_folder);

/// form, vocabulary, size, taps, mask_token, block_size, rope, layer_kinds.
std::vector<finding> check_config(const doctor_files& files);
/// tensors, dtype, weights, head.
std::vector<finding> check_weights(const doctor_files& files);
/// The target that the drafter was trained for, by the hash that its file holds.
finding check_target_hash(const doctor_files& files, const std::string& target_hash);

/// The drafter's configuration with what only names the target taken from the target, so that a
/// drafter with a wrong entry there can still be tried. Nothing if it cannot be tried.
std::optional<drafter_config> triable_config(const doctor_files& files);

struct doctor_run {
  int64_t prompts = 0;
  int64_t answer_tokens = 0;
  double tau = 0;
  std::vector<double> accepted_at;  // [k - 1] share of passes that accept drafts 1..k
  std::vector<double> accuracy_at;  // [k - 1] over all anchors
  std::vector<draft_trial> trials;  // the first one: as given
  std::vector<finding> findings;    // acceptance, tap_shift, labels, causality, drafts
};

finding check_acceptance(const doctor_run& run);
/// shifted: by -1 and +1, as far as the target has such layers.
finding check_tap_shift(const draft_trial& given,
                        const std::map<int, draft_trial>& shifted,
                        const std::vector<int>& taps);
finding check_labels(const draft_counts& counts);
/// causal: as given.
finding check_causality(const draft_trial& given, const draft_trial& flipped, bool causal);
finding check_drafts(const draft_counts& counts, int64_t mask_token_id);

struct doctor_options {
  int64_t max_new_tokens = 64;
};

/// Prompts without a tokenizer: what the target itself writes from its first token, drawn with
/// fixed seeds.
token_documents self_written_prompts(const target& model, int64_t count, int64_t tokens);

/// Drafts as given and with the usual mistakes undone, on the target's greedy answers.
doctor_run try_drafting(std::shared_ptr<const target> model,
                        const drafter_config& config,
                        const drafter_weights& weights,
                        const token_documents& prompts,
                        const doctor_options& options);

}  // namespace dflash
