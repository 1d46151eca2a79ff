// Evaluation while training: the held-out data, what earlier processes of the run found out, and
// what goes on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "actors/pipeline.hpp"
#include "config/run_config.hpp"
#include "model/evaluation.hpp"

namespace dflash {

struct evaluation_setup {
  evaluation_parts parts;
  std::string settings;     // all that decides the figures
  uint64_t kept_bytes = 0;  // at most, from one evaluation to the next
  std::filesystem::path file;
};

/// Reads and checks data.held_out and eval.prompts. `shape`: of the hidden states of a batch.
/// Throws error for the user's mistakes.
evaluation_setup prepare_evaluation(const run_config& config,
                                    const std::shared_ptr<const target>& model,
                                    const hidden_shape& shape,
                                    const std::filesystem::path& checkpoints);

/// Fills in what the run has to know: rhythm, earlier evaluations up to `first_step`, checkpoints
/// up to there that were not evaluated, and the functions that work. Logs what is odd.
void add_evaluation(const evaluation_setup& setup,
                    const run_config& config,
                    const std::filesystem::path& checkpoints,
                    uint64_t first_step,
                    uint64_t total_steps,
                    pipeline_parts& into);

/// "every 100 steps: 16 held-out rows, 24 prompts of 64 new tokens, ..."
std::string evaluation_text(const evaluation_setup& setup, const run_config& config);

}  // namespace dflash
