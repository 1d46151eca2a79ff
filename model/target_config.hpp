// The shape of a target of the Llama family (model_type llama or mistral) as its config.json states
// it, with the class defaults of transformers for absent keys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/json_file.hpp"

namespace dflash {

struct target_config {
  std::string model_type;  // "llama", "mistral"
  int64_t hidden = 0;      // H
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;       // hd; not always hidden / heads
  int64_t intermediate = 0;   // I
  int64_t vocab = 0;          // V, rows of the embedding
  int64_t max_positions = 0;  // prompt + new tokens never pass it
  double rope_theta = 0;
  double rms_eps = 0;
  bool tied = false;         // as the configuration says; the stored tensors decide
  int64_t bos = -1;          // -1: none
  std::vector<int64_t> eos;  // end-of-text ids; generation_config.json's if it has any
};

// Throws dflash::error naming file, line and key for anything missing, mistyped or not supported
// (rope scaling, sliding windows, biases, another activation or family).
target_config parse_target_config(const json_file& config);

// The same, with the end-of-text ids of generation_config.json beside it where that file exists.
target_config read_target_config(const std::filesystem::path& folder);

}  // namespace dflash
