// Model folders from the field, each kind of fault by name.
#include "model/folder.hpp"

#include <ATen/ops/equal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "config/error.hpp"
#include "model/target.hpp"
#include "tests/model/tiny_llama.hpp"

namespace dflash {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

const fs::path cases = fs::path(DFLASH_TEST_DATA) / "cases";

std::shared_ptr<const target> load(const fs::path& folder) {
  return target::load(folder, compute_dtype::fp32);
}

// what, place and hint of the error that loading gives; empty if it loads.
std::string refusal(const fs::path& folder) {
  try {
    load(folder);
    return "";
  } catch (const error& problem) {
    CHECK_FALSE(problem.what_.empty());
    return problem.what();
  }
}

// A copy of `from` whose `as` is the file `file`.
struct variant {
  test::scratch_folder scratch;
  fs::path folder;
  variant(const fs::path& from, const fs::path& file, const std::string& as)
      : folder(scratch.path() / "model") {
    fs::create_directories(folder);
    for (const auto& entry : fs::directory_iterator(from))
      if (entry.path().filename() != as)
        fs::copy_file(entry.path(), folder / entry.path().filename());
    fs::copy_file(file, folder / as);
  }
};

std::string config_refusal(const std::string& kind, const std::string& file) {
  const variant v(cases / kind, cases / kind / file, "config.json");
  return refusal(v.folder);
}

at::Tensor states(const target& model) {
  const std::vector<int32_t> ids = {1, 5, 9, 3, 14, 2}, offsets = {0, 6};
  return model.capture(ids, offsets, {}, true).last_hidden;
}

}  // namespace

TEST_CASE("head_dim is its own key; absent or null it is hidden over heads", "[folder]") {
  const auto nemo = load(cases / "07-head-dim/nemo_like");
  CHECK(nemo->config().head_dim == 8);
  CHECK(nemo->config().hidden == 40);
  const auto folder = cases / "07-head-dim/null_head_dim";
  const auto null = load(folder);
  CHECK(null->config().head_dim == 8);
  const variant absent(folder, folder / "config_absent.json", "config.json");
  CHECK(at::equal(states(*null), states(*load(absent.folder))));
  CHECK_THAT(config_refusal("07-head-dim/null_head_dim", "config_no_kv_heads.json"),
             Contains("k_proj") && Contains("[16, 32]") && Contains("[32, 32]"));
  CHECK_THAT(config_refusal("07-head-dim/null_head_dim", "config_does_not_divide.json"),
             Contains("32 is not a multiple of 5") && Contains("head_dim"));
}

TEST_CASE("odd numbers in config.json are tolerated where unused and refused by key where used",
          "[folder]") {
  const std::string kind = "09-json-infinity";
  for (const char* file :
       {"config_infinity.json", "config_infinity_tagged.json", "config_bom.json"})
    CHECK(config_refusal(kind, file).empty());
  CHECK_THAT(config_refusal(kind, "config_used_key_nan.json"),
             Contains("rope_theta") && Contains("config.json:15"));
  CHECK_THAT(config_refusal(kind, "config_trailing_comma.json"), Contains("config.json:23:"));
  CHECK_THAT(config_refusal(kind, "config_float_int.json"),
             Contains("hidden_size") && Contains("16.0"));
  const variant big(cases / kind, cases / kind / "config_big_int.json", "config.json");
  CHECK(load(big.folder)->config().max_positions == (int64_t{1} << 30));
}

TEST_CASE("8-bit weights are refused by type and tensor, with or without the key", "[folder]") {
  CHECK_THAT(refusal(cases / "10-fp8-target"),
             Contains("F8_E4M3") && Contains("fp8") && Contains("model.layers.0."));
  CHECK_THAT(config_refusal("10-fp8-target", "config_no_quant_key.json"), Contains("F8_E4M3"));
}

TEST_CASE("the index decides which file a tensor comes from", "[folder]") {
  const auto kind = cases / "13-index-authority";
  auto folder = model_folder::open(kind / "model");
  const auto k = folder.load("model.layers.0.self_attn.k_proj.weight",
                             folder.info("model.layers.0.self_attn.k_proj.weight").shape,
                             at::kFloat);
  const float expected[] = {0.1982421875F, -0.04296875F, -0.1708984375F, -0.1494140625F};
  for (int i = 0; i < 4; ++i) CHECK(k.const_data_ptr<float>()[i] == expected[i]);
  CHECK(load(kind / "model"));
  const auto with = [&](const char* index) {
    const variant v(kind / "model", kind / index, "model.safetensors.index.json");
    return refusal(v.folder);
  };
  CHECK_THAT(with("index_names_missing_file.json"),
             Contains("model-00003-of-00003.safetensors") && Contains("gate_proj"));
  CHECK_THAT(with("index_names_absent_tensor.json"),
             Contains("input_layernorm") && Contains("model-00002-of-00002.safetensors"));
  CHECK_THAT(with("index_without_one_entry.json"), Contains("q_proj") && Contains("index"));
  CHECK_THAT(with("index_path_escapes.json"), Contains("../outside.safetensors"));
  CHECK(with("index_wrong_total.json").empty());
  // A single file beside the index is not read.
  const variant beside(
      kind / "model", kind / "model/model-00002-of-00002.safetensors", "model.safetensors");
  CHECK(at::equal(states(*load(kind / "model")), states(*load(beside.folder))));
}

TEST_CASE("what may be spare is written down, and the stored head decides what is tied",
          "[folder]") {
  const auto kind = cases / "14-spare-and-tied";
  CHECK(load(kind / "a_inv_freq"));
  const auto untied = load(kind / "b_tied_head_differs");
  CHECK_FALSE(at::equal(untied->head().weight(), untied->embedding()));
  CHECK_THAT(refusal(kind / "c_tie_absent_no_head"), Contains("lm_head.weight"));
  CHECK_THAT(refusal(kind / "d_untied_no_head"), Contains("lm_head.weight"));
  CHECK_THAT(refusal(kind / "e_unknown_spare"), Contains("is not part of the model"));
  CHECK_THAT(refusal(kind / "f_bias_without_key"), Contains("bias"));
  CHECK_THAT(refusal(kind / "g_layer_beyond_count"), Contains("model.layers.1."));
}

TEST_CASE("missing, cut and mis-shaped files are refused by name", "[folder]") {
  const test::tiny_shape shape;
  auto weights = test::random_llama(shape, 1);
  const test::scratch_folder scratch;
  const auto folder = scratch.path() / "model";
  CHECK_THAT(refusal(folder), Contains("no such model folder"));
  fs::create_directories(folder);
  CHECK_THAT(refusal(folder), Contains("config.json"));
  test::write_folder(folder, shape, weights);
  CHECK(refusal(folder).empty());
  fs::resize_file(folder / "model.safetensors", fs::file_size(folder / "model.safetensors") - 100);
  CHECK_THAT(refusal(folder), Contains("model.safetensors"));
  fs::remove(folder / "model.safetensors");
  CHECK_THAT(refusal(folder), Contains("model.safetensors"));
  auto wrong = weights;
  wrong.tensors["model.norm.weight"] = {{shape.hidden + 1}, std::vector<float>(shape.hidden + 1)};
  test::write_folder(folder, shape, wrong);
  CHECK_THAT(refusal(folder),
             Contains("model.norm.weight") && Contains("[49]") && Contains("[48]"));
  wrong = weights;
  wrong.tensors["model.norm.weight"].values[3] = INFINITY;
  test::write_folder(folder, shape, wrong);
  CHECK_THAT(refusal(folder), Contains("model.norm.weight") && Contains("not finite"));
}

TEST_CASE("what this program does not compute is refused by key", "[folder]") {
  const test::tiny_shape shape;
  const auto refused = [&](const std::string& more) {
    try {
      parse_target_config(json_file::parse(test::config_text(shape, more), "config.json"));
      return std::string();
    } catch (const error& problem) {
      return std::string(problem.what());
    }
  };
  CHECK(refused("").empty());
  CHECK(refused("\"rope_scaling\": null, \"attention_bias\": false,").empty());
  CHECK_THAT(refused("\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 8},"),
             Contains("dynamic") && Contains("rope_scaling.rope_type"));
  CHECK_THAT(refused("\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5.0},"),
             Contains("rope_theta") && Contains("differ"));
  CHECK_THAT(refused("\"hidden_act\": \"gelu\","), Contains("gelu"));
  CHECK_THAT(refused("\"hidden_size\": 48,"), Contains("given twice"));
}

TEST_CASE("end-of-text ids come from generation_config.json where it has any", "[folder]") {
  const test::tiny_shape shape;
  const test::scratch_folder scratch;
  test::write_folder(scratch.path(), shape, test::random_llama(shape, 1));
  CHECK(read_target_config(scratch.path()).eos == std::vector<int64_t>{2});
  std::ofstream(scratch.path() / "generation_config.json") << "{\"eos_token_id\": [5, 6]}";
  CHECK(read_target_config(scratch.path()).eos == std::vector<int64_t>{5, 6});
  std::ofstream(scratch.path() / "generation_config.json") << "{\"eos_token_id\": [97]}";
  CHECK_THROWS_WITH(read_target_config(scratch.path()), Contains("97"));
}

TEST_CASE("the content hash sees weights and configuration, not their files", "[folder]") {
  const test::tiny_shape shape;
  auto weights = test::random_llama(shape, 1);
  const test::scratch_folder scratch;
  const auto hash = [&] {
    test::write_folder(scratch.path(), shape, weights);
    return model_folder::open(scratch.path()).content_hash();
  };
  const auto first = hash();
  CHECK(first.size() == 16);
  CHECK(hash() == first);
  weights.tensors["model.norm.weight"].values[0] += 1e-3F;
  CHECK(hash() != first);
}

}  // namespace dflash
