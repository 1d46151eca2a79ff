#include "model/export.hpp"

#include <ATen/ops/equal.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "config/error.hpp"
#include "tests/model/decode_fixture.hpp"

namespace dflash {
namespace {

nlohmann::json config_of(const std::filesystem::path& folder) {
  std::ifstream file{folder / "config.json"};
  return nlohmann::json::parse(file);
}

TEST_CASE("an exported drafter is read back bit for bit", "[export]") {
  const decode_test::scratch_folder scratch;
  auto config = decode_test::tiny_drafter_config(5, true);
  if (GENERATE(false, true)) config.causal = false;
  const auto dtype = GENERATE(at::kBFloat16, at::kFloat);
  const auto weights = decode_test::tiny_drafter(config);
  const auto out = scratch.path() / "drafter";
  const auto form = GENERATE(drafter_form::zlab, drafter_form::speculators);
  write_drafter_folder(out,
                       config,
                       weights,
                       {.form = form,
                        .dtype = dtype,
                        .extras = {.bos = 1,
                                   .eos = {2},
                                   .pad = 2,
                                   .target_hash = "h",
                                   .verifier = "org/model",
                                   .verifier_architectures = {"LlamaForCausalLM"}}});
  drafter_config read;
  const auto back = load_drafter(out, read);
  CHECK(read.layers == config.layers);
  CHECK(read.block_size == 5);
  CHECK(read.mask_token_id == config.mask_token_id);
  CHECK(read.taps == config.taps);
  CHECK(read.sliding == config.sliding);
  CHECK(read.sliding_window == config.sliding_window);
  CHECK(read.causal == config.causal);
  CHECK(read.rope_theta == config.rope_theta);
  CHECK(read.rms_eps == config.rms_eps);
  CHECK(read.target_hidden == config.target_hidden);
  CHECK(read.num_target_layers == config.num_target_layers);
  const auto want = named_tensors(weights);
  const auto got = named_tensors(back);
  REQUIRE(got.size() == want.size());
  CHECK(got.size() == 3 + 11 * 2);
  for (size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].first == want[i].first);
    CHECK(at::equal(got[i].second->to(dtype), want[i].second->to(dtype)));
  }
  const auto extras = read_drafter_extras(out);
  CHECK(extras.bos == 1);
  CHECK(extras.eos == std::vector<int64_t>{2});
  CHECK(extras.target_hash == "h");
}

TEST_CASE("config.json has the keys of z-lab's files", "[export]") {
  const auto text =
      drafter_config_json(drafter_form::zlab, decode_test::tiny_drafter_config(5), at::kBFloat16);
  const auto config = nlohmann::json::parse(text);
  CHECK(config["architectures"] == nlohmann::json{"DFlashDraftModel"});
  CHECK(config["auto_map"]["AutoModel"] == "dflash.DFlashDraftModel");
  CHECK(config["model_type"] == "qwen3");
  CHECK(config["dtype"] == "bfloat16");
  CHECK(config["head_dim"] == 8);
  CHECK(config["num_target_layers"] == 4);
  CHECK(config["block_size"] == 5);
  CHECK(config["dflash_config"]["mask_token_id"] == decode_test::tiny_mask_id);
  CHECK(config["dflash_config"]["target_layer_ids"] == nlohmann::json{1, 2});
  CHECK(config["layer_types"] == nlohmann::json{"full_attention", "full_attention"});
  CHECK(config["sliding_window"].is_null());
  CHECK(config["use_sliding_window"] == false);
  CHECK(config["rope_theta"] == 10000.0);
  CHECK(config["rope_scaling"].is_null());
  CHECK(config["tie_word_embeddings"] == false);
  CHECK_FALSE(config.contains("is_causal"));
  CHECK_FALSE(config.contains("partial_rotary_factor"));
}

TEST_CASE("an export replaces an export and nothing else", "[export]") {
  const decode_test::scratch_folder scratch;
  const auto config = decode_test::tiny_drafter_config(4);
  const auto weights = decode_test::tiny_drafter(config);
  const auto out = scratch.path() / "new" / "drafter";
  write_drafter_folder(out, config, weights);
  auto other = config;
  other.block_size = 7;
  write_drafter_folder(out / "", other, weights);
  CHECK(config_of(out)["block_size"] == 7);
  // No temporary folder is left.
  CHECK(std::distance(std::filesystem::directory_iterator{out.parent_path()}, {}) == 1);
  std::ofstream{out / "notes.txt"} << "mine";
  CHECK_THROWS_AS(write_drafter_folder(out, config, weights), error);
  CHECK(config_of(out)["block_size"] == 7);
  const auto file = scratch.path() / "file";
  std::ofstream{file} << "mine";
  CHECK_THROWS_AS(write_drafter_folder(file, config, weights), error);
}

TEST_CASE("weights that are not finite are not exported", "[export]") {
  const decode_test::scratch_folder scratch;
  const auto config = decode_test::tiny_drafter_config(4);
  const auto weights = make_drafter_weights(config, at::kFloat);  // NaN everywhere
  CHECK_THROWS_AS(write_drafter_folder(scratch.path() / "d", config, weights), error);
  CHECK(std::filesystem::is_empty(scratch.path()));
}

}  // namespace
}  // namespace dflash
