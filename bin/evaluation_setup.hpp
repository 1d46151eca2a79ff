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
#include "model/memory.hpp"

namespace dflash {

struct evaluation_setup {
  evaluation_parts parts;
  evaluation_shapes shapes;
  std::string settings;  // all that decides the figures
  std::filesystem::path file;
};

/// Reads and checks data.held_out and eval.prompts; what needs the model is not there yet.
/// `shape`: of the hidden states of a batch. Throws error for the user's mistakes.
evaluation_setup outline_evaluation(const run_config& config,
                                    const target_config& target,
                                    const hidden_shape& shape,
                                    const std::filesystem::path& checkpoints);

void give_model(evaluation_setup& setup,
                const run_config& config,
                const std::shared_ptr<const target>& model);

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
