// Checkpoints of a training run: RUN/checkpoints/step-N, N = committed steps.
//
//   trainer_state.safetensors  fp32 masters ("master.NAME") and moments, by name
//   state.json                 where the run stands, and what must be the same to go on
//   config.toml                the run's resolved configuration
//   model.safetensors, config.json   the drafter in the export dtype, a z-lab folder
//   checksums                  CRC-32C, size and name of each file above
//
// Written as step-N.tmp, each file synced, checksums last, then renamed; the link `latest` after
// that. So a folder without .tmp is whole, or was damaged later, which its checksums show.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/drafter_step.hpp"
#include "model/export.hpp"
#include "model/loss_statistics.hpp"
#include "model/trainer_snapshot.hpp"

namespace dflash {

// state.json
struct checkpoint_state {
  uint64_t steps = 0;   // committed
  uint64_t next_k = 0;  // first batch that is not part of them
  uint64_t total_steps = 0;
  uint64_t updates = 0;  // of the optimizer: steps less the skipped ones
  uint64_t skipped_steps = 0;
  loss_statistics losses;
  std::vector<uint64_t> dropped;  // k below next_k that added nothing
  std::string target_hash;
  std::string data_hash;  // of the training documents: lengths, ids and masks
  std::string dtype;      // compute dtype: "bf16", "fp32"
  std::string device;     // kind of the drafters' device: "cpu"
  std::string program;
  uint64_t drafters = 1;
  uint64_t drafter_threads = 1;
  uint64_t target_threads = 1;
};

struct checkpoint_options {
  std::string config_toml;  // config.toml
  at::ScalarType export_dtype = at::kBFloat16;
  drafter_extras extras;
};

// Writes CHECKPOINTS/step-N and points `latest` at it. Blocks. Throws where the disk refuses; what
// was there before is untouched then.
void write_checkpoint(const std::filesystem::path& checkpoints,
                      checkpoint_state state,
                      const trainer_snapshot& snapshot,
                      const checkpoint_options& options);

struct checkpoint_scan {
  struct refused {
    std::string name;
    std::string why;
  };
  std::optional<std::filesystem::path> newest;  // the good one with the most steps
  checkpoint_state state;                       // of that one
  std::vector<refused> refusals;                // in order of name
  std::string latest_note;                      // what is wrong with `latest`; empty: nothing
  bool nothing_there = false;  // no checkpoint, good or bad; at most a first save that was cut off
};

// Looks for the newest good checkpoint: by the number in state.json, which must be the folder's,
// and by a passed check of all its bytes; neither by order of names nor by time. Folders of other
// names are ignored. `suits` says why a whole checkpoint is not this run's own (empty: it is):
// such ones are refused as long as an older one suits; if none does, the newest is given.
using checkpoint_check =
    std::function<std::string(const std::filesystem::path&, const checkpoint_state&)>;
checkpoint_scan find_checkpoint(const std::filesystem::path& checkpoints,
                                const checkpoint_check& suits = {});

// Fills masters, moments and update count of a trainer of the same shape. Throws error naming file
// and tensor for anything missing, spare or of another shape.
void load_checkpoint(const std::filesystem::path& folder,
                     const checkpoint_state& state,
                     drafter_trainer& trainer);

// The newest good checkpoint into a trainer of the same shape, and where it stands; nothing: there
// is none. What a drafter goes on from that has lost its state and has no replica.
std::optional<checkpoint_state> load_newest_checkpoint(const std::filesystem::path& checkpoints,
                                                       drafter_trainer& trainer);

// Why this folder (or what the link points to) is not a whole checkpoint; empty: it is. `deep`:
// reads and checks all bytes, else names and sizes only.
std::string check_checkpoint(const std::filesystem::path& folder, bool deep);

// N of "step-N"; nothing for other names.
std::optional<uint64_t> checkpoint_number(const std::string& name);
std::filesystem::path checkpoint_folder(const std::filesystem::path& checkpoints, uint64_t steps);

}  // namespace dflash
