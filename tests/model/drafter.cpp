// Shapes, names, limits and file form of a drafter.
#include "model/drafter.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isnan.h>

#include <unistd.h>
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <string>

#include "config/error.hpp"
#include "model/drafter_config.hpp"

using namespace dflash;

namespace {

target_config smol() {
  target_config t;
  t.hidden = 576;
  t.layers = 30;
  t.heads = 9;
  t.kv_heads = 3;
  t.head_dim = 64;
  t.intermediate = 1536;
  t.vocab = 49152;
  t.max_positions = 8192;
  t.rope_theta = 1e5;
  t.rms_eps = 1e-5;
  return t;
}

draft_section draft() {
  draft_section d;
  d.layers = 2;
  d.block_size = 5;
  d.taps = {1, 8, 27};
  d.mask_token_id = 16;
  return d;
}

std::string refusal(const draft_section& d) {
  try {
    make_drafter_config(d, smol());
  } catch (const error& problem) {
    return problem.what();
  }
  return {};
}

// A z-lab folder's config.json with one line changed.
class config_folder {
public:
  explicit config_folder(const std::string& extra, const std::string& inner = {}) {
    path_ =
        std::filesystem::temp_directory_path() / ("dflash-drafter-" + std::to_string(::getpid()));
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / "config.json")
        << R"({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_target_layers": 8,
 "vocab_size": 100, "max_position_embeddings": 128, "rope_theta": 10000.0, "rms_norm_eps": 1e-6)"
        << extra << R"(, "dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 4])" << inner
        << "}}";
  }
  ~config_folder() { std::filesystem::remove_all(path_); }
  drafter_config read() const { return read_drafter_config(path_); }
  std::string refusal() const {
    try {
      read();
    } catch (const error& problem) {
      return problem.what();
    }
    return {};
  }

private:
  std::filesystem::path path_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("default taps are the published ones") {
  CHECK(default_taps(36, 5) == std::vector<int>{1, 9, 17, 25, 33});
  CHECK(default_taps(64, 5) == std::vector<int>{1, 16, 31, 46, 61});
  CHECK(default_taps(30, 1) == std::vector<int>{15});
}

TEST_CASE("a drafter takes the target's sizes unless told otherwise") {
  draft_section d = draft();
  d.intermediate_size = 100;
  const drafter_config c = make_drafter_config(d, smol());
  CHECK(c.hidden == 576);
  CHECK(c.intermediate == 100);
  CHECK(c.query_width() == 576);
  CHECK(c.kv_width() == 192);
  CHECK(c.rope_theta == 1e5);
  CHECK(c.sliding == std::vector<bool>{false, false});
  CHECK_FALSE(c.layer_causal(0));
}

TEST_CASE("a drafter that does not fit its target is refused with key and numbers") {
  draft_section d = draft();
  d.mask_token_id = 49152;
  CHECK(has(refusal(d), "mask_token_id 49152"));
  d = draft();
  d.mask_token_id = -1;
  CHECK(has(refusal(d), "draft.mask_token_id"));
  d = draft();
  d.taps = {1, 30};
  CHECK(has(refusal(d), "tap 30"));
  d.taps = {8, 8};
  CHECK(has(refusal(d), "rise"));
  d = draft();
  d.heads = 8;
  CHECK(has(refusal(d), "kv_heads"));
  d = draft();
  d.layer_types = {"sliding_attention", "full_attention"};
  CHECK(has(refusal(d), "sliding_window"));
  d = draft();
  d.hidden_size = 512;
  CHECK(has(refusal(d), "draft.hidden_size"));
}

TEST_CASE("tensors: z-lab's 3 + 11 L names in one order, one flat buffer, NaN until set") {
  draft_section d = draft();
  d.layers = 5;
  const drafter_config c = make_drafter_config(d, smol());
  at::Tensor flat;
  drafter_weights w = make_drafter_weights(c, at::kFloat, &flat);
  const auto tensors = named_tensors(w);
  CHECK(tensors.size() == 58);
  CHECK(tensors[0].first == "fc.weight");
  CHECK(tensors[0].second->sizes() == at::IntArrayRef{576, 3 * 576});
  CHECK(tensors[57].first == "layers.4.mlp.down_proj.weight");
  CHECK(at::isnan(flat).all().item().toBool());
  w.norm.fill_(2.0);
  CHECK(at::isnan(flat).sum().item().toLong() == flat.numel() - 576);
  CHECK(flat.numel() == drafter_parameter_count(c));
}

TEST_CASE("config.json: block_size at the top, inside dflash_config or absent, never two of them") {
  CHECK(config_folder("").read().block_size == 16);
  CHECK(config_folder(", \"block_size\": 8").read().block_size == 8);
  CHECK(config_folder("", ", \"block_size\": 8").read().block_size == 8);
  CHECK(config_folder(", \"block_size\": 8", ", \"block_size\": 8").read().block_size == 8);
  CHECK(has(config_folder(", \"block_size\": 8", ", \"block_size\": 16").refusal(), "block_size"));
}

TEST_CASE("config.json: causality is resolved in the published order") {
  const std::string sliding =
      R"(, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6)";
  const drafter_config by_type = config_folder(sliding).read();
  CHECK(by_type.layer_causal(0));
  CHECK_FALSE(by_type.layer_causal(1));
  CHECK_FALSE(config_folder(sliding + ", \"is_causal\": false", ", \"causal\": true")
                  .read()
                  .layer_causal(0));
  CHECK(config_folder("", ", \"causal\": true").read().layer_causal(1));
  const drafter_config all =
      config_folder("", ", \"use_swa\": true, \"swa_window_size\": 9").read();
  CHECK(all.sliding == std::vector<bool>{true, true});
  CHECK(all.sliding_window == 9);
}

TEST_CASE("config.json of a variant that this program does not know is refused") {
  CHECK(has(config_folder("", ", \"conv_kernel_size\": 2").refusal(), "conv_kernel_size"));
  CHECK(has(config_folder(", \"attention_bias\": true").refusal(), "bias"));
  CHECK(has(config_folder(", \"rope_scaling\": {\"type\": \"yarn\"}").refusal(), "rotary"));
}
