// The shape of a target as its config.json states it, with the class defaults of transformers for
// absent keys. One plain struct for all families: what a family does not have keeps its default.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/json_file.hpp"
#include "model/rope.hpp"

namespace dflash {

enum class layer_kind : uint8_t { full, sliding, linear };
enum class activation : uint8_t { silu, gelu_tanh };

// Mixture of experts in place of the MLP of some layers.
struct expert_config {
  int64_t count = 0;                // E; 0: none
  int64_t per_token = 0;            // experts that a token takes
  int64_t intermediate = 0;         // of each
  int64_t shared_intermediate = 0;  // of the expert that every token takes; 0: none
  bool normalised = false;          // the weights of the taken ones add to 1
  std::vector<bool> layers;         // [layers] which have experts
};

// Gated DeltaNet in place of the attention of `linear` layers.
struct linear_config {
  int64_t key_heads = 0, value_heads = 0;  // hk divides hv
  int64_t key_dim = 0, value_dim = 0;      // of a head
  int64_t taps = 0;                        // K of the convolution
  int64_t key_width() const { return key_heads * key_dim; }
  int64_t value_width() const { return value_heads * value_dim; }
  int64_t channels() const { return 2 * key_width() + value_width(); }
};

struct target_config {
  std::string model_type;  // as the file says, "llama"
  int64_t hidden = 0;      // H
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;       // hd; not always hidden / heads
  int64_t intermediate = 0;   // I
  int64_t vocab = 0;          // V, rows of the embedding
  int64_t max_positions = 0;  // prompt + new tokens never pass it
  double rope_theta = 0;      // base of the full-attention layers: what a drafter takes
  double rms_eps = 0;
  bool tied = false;         // as the configuration says; the stored tensors decide
  int64_t bos = -1;          // -1: none
  std::vector<int64_t> eos;  // end-of-text ids; generation_config.json's if it has any

  std::vector<layer_kind> kinds = {};  // [layers]; empty: all full
  int64_t sliding_window = 0;          // W, counts the query itself
  rope_config rope = {};               // of full-attention layers
  rope_config sliding_rope = {};       // of sliding layers
  double attention_scale = 0;          // of the scores; 0: hd^-1/2
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool head_norms = false;      // RMSNorm of each query and key head before rotation
  bool attention_gate = false;  // attention's output · sigmoid of a gate of its own
  bool norms_from_one = false;  // stored norm weights are those minus 1
  bool norms_after = false;     // attention's and MLP's output are normed before they are added
  double embedding_scale = 1;   // of what the first layer reads; not of what a drafter reads
  double logit_cap = 0;         // c · tanh(logits / c); 0: none
  activation act = activation::silu;
  expert_config experts = {};
  linear_config linear = {};
  std::string stored_dtype = {};        // as the file says; empty: nothing. Nothing follows from it
  std::vector<std::string> notes = {};  // remarks for the log, each with its place

  layer_kind kind(int64_t layer) const {
    return kinds.empty() ? layer_kind::full : kinds[static_cast<size_t>(layer)];
  }
  bool is_hybrid() const;
  bool has_experts(int64_t layer) const {
    return !experts.layers.empty() && experts.layers[static_cast<size_t>(layer)];
  }
  // Rotated dimensions of a head, even.
  int64_t rotary_dims() const;
};

// Throws dflash::error naming file, line and key for anything missing, mistyped or not supported;
// the families and what each takes: docs/targets.md.
target_config parse_target_config(const json_file& config);

// The same, with the end-of-text ids of generation_config.json beside it where that file exists.
target_config read_target_config(const std::filesystem::path& folder);

}  // namespace dflash
