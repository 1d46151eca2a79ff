// From a configuration to the parts of a pipeline: everything that can be wrong is found here,
// cheap checks first, before anything is written.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/pipeline.hpp"
#include "bin/evaluation_setup.hpp"
#include "bin/memory_plan.hpp"
#include "config/run_config.hpp"
#include "model/checkpoint.hpp"
#include "model/compute_dtype.hpp"
#include "model/drafter_config.hpp"
#include "model/target.hpp"

namespace dflash {

struct training_setup {
  run_config config;
  pipeline_parts parts;  // without drafters: those are made of the trainers, or simulated
  // [M], equal weights; null: of another host
  std::vector<std::shared_ptr<drafter_trainer>> trainers;
  std::shared_ptr<const target> model;
  drafter_config drafter;
  compute_dtype dtype = compute_dtype::fp32;
  checkpoint_scan resumed_from;                // newest is empty: a new run
  int64_t padding_permille = 0;                // of the rows' tokens
  std::optional<evaluation_setup> evaluation;  // none without eval.every
  std::string states_form;                     // of captured hidden states, empty without
  uint64_t states_bytes = 0;

  bool from_disk() const { return !config.data.hidden_states.empty(); }
  memory_shapes memory;
  double covered_share = 1;  // of the supervised tokens that the draft vocabulary has

  /// Checksum of the training documents, in hexadecimal: a resumed run has to have the same.
  std::string data_hash() const;
  /// What is going to happen, for people.
  std::string plan_text() const;
};

/// Weights that the run starts with, and a trainer that has them, or the state of the checkpoint
/// that the run goes on from, on the device of `model`.
drafter_weights start_weights(const training_setup& setup);
std::shared_ptr<drafter_trainer> start_trainer(const training_setup& setup,
                                               const drafter_weights& start,
                                               const std::shared_ptr<const target>& model);

/// All that is known without loading a model or making a lane: shapes, data, steps, limits, memory.
/// Throws as prepare_training.
training_setup outline_training(const run_config& config, const std::filesystem::path& checkpoints);

/// `checkpoints`: looked at if config.run.resume; `kept_states`: file for hidden states that are
/// kept. Throws error for the user's mistakes, std::runtime_error if there are only damaged
/// checkpoints. Of simulated lanes: without model, drafter and trainers.
training_setup prepare_training(const run_config& config,
                                const std::filesystem::path& checkpoints,
                                const std::filesystem::path& kept_states);

}  // namespace dflash
