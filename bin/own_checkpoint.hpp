// Which checkpoint a run goes on from: the newest good one that is its own.
#pragma once

#include <filesystem>
#include <string>

#include "config/run_config.hpp"
#include "model/checkpoint.hpp"

namespace dflash {

/// Whether a whole checkpoint is of this run, as far as its configuration tells. Refers to
/// `config`.
checkpoint_check own_config(const run_config& config);

/// Throws error naming the keys that decide a run's bits and differ from the checkpoint's.
void check_resumed_config(const run_config& config, const checkpoint_scan& scan);

/// The newest good checkpoint that suits, with everything odd said aloud; without any if there is
/// none at all. Throws std::runtime_error if there are only damaged ones.
checkpoint_scan choose_checkpoint(const std::filesystem::path& checkpoints,
                                  const checkpoint_check& suits);

/// Once target and documents are known: the newest one that is of these, if there is any.
void drop_foreign_checkpoint(checkpoint_scan& scan,
                             const run_config& config,
                             const std::filesystem::path& checkpoints,
                             const std::string& target_hash,
                             const std::string& data_hash);

}  // namespace dflash
