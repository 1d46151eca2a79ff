// A tiny random target and drafter on disk and in memory, for tests of decoding, walk and export.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "data/files.hpp"
#include "data/random.hpp"
#include "data/safetensors.hpp"
#include "model/drafter.hpp"
#include "model/drafter_config.hpp"
#include "model/proposer.hpp"
#include "model/target.hpp"
#include "tests/model/tiny_llama.hpp"

namespace dflash::decode_test {

using test::scratch_folder;

/// Uniform in ±scale, keyed by name.
inline std::vector<float> random_values(const std::string& name, int64_t count, float scale) {
  uint64_t key = 14695981039346656037U;  // FNV-1a of the name
  for (const char c : name) key = (key ^ static_cast<uint8_t>(c)) * 1099511628211U;
  const random_stream stream{.seed = 7, .domain = random_domain::init, .key = key};
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(scale * static_cast<float>(2 * stream.uniform(static_cast<uint64_t>(i)) - 1));
  return values;
}

inline constexpr int64_t tiny_vocab = 61;
inline constexpr int64_t tiny_mask_id = 60;

/// Llama shape: H 32, 4 layers, 4/2 heads × 8, I 48, 128 positions, tied head. Weights are large
/// enough for lively text; no id ends it unless `eos` names one.
inline void write_tiny_target(const std::filesystem::path& folder,
                              int64_t eos = -1,
                              int64_t vocab = tiny_vocab) {
  const int64_t hidden = 32, heads = 4, kv_heads = 2, head_dim = 8, intermediate = 48, layers = 4;
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
      {"model.embed_tokens.weight", {vocab, hidden}}, {"model.norm.weight", {hidden}}};
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    shapes.push_back({layer + "input_layernorm.weight", {hidden}});
    shapes.push_back({layer + "post_attention_layernorm.weight", {hidden}});
    shapes.push_back({layer + "self_attn.q_proj.weight", {heads * head_dim, hidden}});
    shapes.push_back({layer + "self_attn.k_proj.weight", {kv_heads * head_dim, hidden}});
    shapes.push_back({layer + "self_attn.v_proj.weight", {kv_heads * head_dim, hidden}});
    shapes.push_back({layer + "self_attn.o_proj.weight", {hidden, heads * head_dim}});
    shapes.push_back({layer + "mlp.gate_proj.weight", {intermediate, hidden}});
    shapes.push_back({layer + "mlp.up_proj.weight", {intermediate, hidden}});
    shapes.push_back({layer + "mlp.down_proj.weight", {hidden, intermediate}});
  }
  std::vector<std::vector<float>> values;
  std::vector<st_view> views;
  values.reserve(shapes.size());
  for (const auto& [name, shape] : shapes) {
    const int64_t count =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>{});
    values.push_back(random_values(name, count, 0.4F));
    if (shape.size() == 1)
      for (auto& value : values.back()) value += 1;
    views.push_back({.name = name,
                     .dtype = st_dtype::f32,
                     .shape = shape,
                     .bytes = std::as_bytes(std::span{values.back()})});
  }
  std::filesystem::create_directories(folder);
  write_safetensors(folder / "model.safetensors", views, {{"format", "pt"}});
  write_file_atomically(
      folder / "config.json",
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
"intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
"num_key_value_heads": 2, "head_dim": 8, "vocab_size": )" +
          std::to_string(vocab) + R"(, "max_position_embeddings": 128,
"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true,
"bos_token_id": 1)" +
          (eos < 0 ? "" : ", \"eos_token_id\": " + std::to_string(eos)) + "}\n");
}

inline std::shared_ptr<const target> tiny_target(compute_dtype dtype = compute_dtype::fp32,
                                                 int64_t eos = -1,
                                                 int64_t vocab = tiny_vocab,
                                                 at::Device device = at::kCPU) {
  // Products this small gain nothing from threads, and lose much on a busy machine.
  at::set_num_threads(1);
  const scratch_folder folder;
  write_tiny_target(folder.path(), eos, vocab);
  return target::load(folder.path(), dtype, device);
}

/// Two layers (the second may slide), taps 1 and 2; its own position limit is half the target's.
inline drafter_config tiny_drafter_config(int64_t block_size, bool sliding = false) {
  drafter_config config;
  config.layers = 2;
  config.hidden = 32;
  config.intermediate = 40;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.target_hidden = 32;
  config.vocab = tiny_vocab;
  config.block_size = block_size;
  config.mask_token_id = tiny_mask_id;
  config.num_target_layers = 4;
  config.max_positions = 64;
  config.rope_theta = 10000;
  config.rms_eps = 1e-5;
  config.taps = {1, 2};
  config.sliding = {false, sliding};
  config.sliding_window = sliding ? 5 : 0;
  return config;
}

inline drafter_weights tiny_drafter(const drafter_config& config) {
  auto weights = make_drafter_weights(config, at::kFloat);
  for (auto& [name, tensor] : named_tensors(weights)) {
    auto values = random_values(name, tensor->numel(), 0.3F);
    if (tensor->dim() == 1)
      for (auto& value : values) value += 1;
    tensor->copy_(at::from_blob(values.data(), tensor->sizes(), at::kFloat));
  }
  return weights;
}

/// A prompt of `length` tokens that differ from position to position.
inline std::vector<int32_t> tiny_prompt(int64_t length, int64_t salt = 0) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>((i * i * 7 + i * 13 + salt * 5 + 3) % 59));
  return ids;
}

/// Drafts from known answers, with every n-th token spoilt: right guesses of all lengths.
class scripted_proposer final : public proposer {
public:
  /// texts: [sequence] prompt + answer. Sequences are told apart by their committed tokens.
  scripted_proposer(std::vector<std::vector<int32_t>> texts, int64_t drafts, int64_t spoil)
      : texts_{std::move(texts)}, drafts_{drafts}, spoil_{spoil} {}

  int64_t max_drafts() const override { return drafts_; }
  std::span<const int> taps() const override { return {}; }
  void start(int64_t slots, int64_t) override { committed_.assign(static_cast<size_t>(slots), {}); }
  void reset(int64_t slot) override { committed_.at(static_cast<size_t>(slot)).clear(); }
  void commit(std::span<const committed_rows> rows, const std::vector<at::Tensor>&) override {
    for (const auto& row : rows) {
      auto& text = committed_.at(static_cast<size_t>(row.slot));
      text.insert(text.end(), row.tokens.begin(), row.tokens.end());
    }
  }
  std::vector<std::vector<int32_t>> propose(std::span<const draft_request> requests) override {
    std::vector<std::vector<int32_t>> out;
    for (const auto& request : requests) {
      auto seen = committed_.at(static_cast<size_t>(request.slot));
      seen.resize(static_cast<size_t>(request.position));
      seen.push_back(request.token);
      out.emplace_back();
      for (const auto& text : texts_) {
        if (text.size() < seen.size() || !std::equal(seen.begin(), seen.end(), text.begin()))
          continue;
        for (size_t i = seen.size();
             i < text.size() && static_cast<int64_t>(out.back().size()) < request.count;
             ++i) {
          const bool spoilt = spoil_ > 0 && static_cast<int64_t>(i) % spoil_ == 0;
          out.back().push_back(spoilt ? (text[i] + 1) % 59 : text[i]);
        }
        break;
      }
    }
    return out;
  }

private:
  std::vector<std::vector<int32_t>> texts_;
  int64_t drafts_, spoil_;
  std::vector<std::vector<int32_t>> committed_;  // [slot]
};

}  // namespace dflash::decode_test
