// Rotary positions of targets: what config.json says about them, in the spellings of transformers 4
// and 5, and the frequencies that follow. Drafters take the base only (dflash.md 2.2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config_reader.hpp"

namespace dflash {

enum class rope_type { plain, linear, llama3, yarn };

struct rope_config {
  double theta = 10000;  // base
  rope_type type = rope_type::plain;
  double partial = 1;  // share of a head that is rotated, from its start
  double factor = 1;
  double original_positions = 0;                 // llama3, yarn
  double low_frequency = 1, high_frequency = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;          // yarn
  bool truncate = true;                          // yarn: bounds of the ramp are whole dimensions
  double attention_factor = 1;                   // yarn: cos and sin are multiplied by it
};

struct rope_frequencies {
  std::vector<float> inverse;  // [dims / 2]
  float attention_factor = 1;
};
rope_frequencies make_rope(const rope_config& rope, int64_t dims);

struct rope_defaults {
  double theta = 10000;
  double partial = 1;
  bool may_be_partial = false;
};

// From rope_parameters (transformers 5), rope_scaling and the top-level keys (4). Two places that
// disagree are refused: loaders in the field differ on which one wins. Remarks for the log (a base
// that nobody stated, keys that change nothing) are added to `notes`.
rope_config read_rope(const config_reader& reader,
                      const rope_defaults& defaults,
                      int64_t max_positions,
                      std::vector<std::string>& notes);

// The object `block` alone; its base is `theta` where it states none.
rope_config read_rope_block(const config_reader& reader,
                            const std::string& block,
                            double theta,
                            int64_t max_positions,
                            std::vector<std::string>& notes);

}  // namespace dflash
