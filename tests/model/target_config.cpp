// Configurations from the field: what counts where a file states little, twice, or in an old
// spelling.
#include "model/target_config.hpp"

#include <ATen/ops/equal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "config/error.hpp"
#include "model/target.hpp"
#include "model/target_pass.hpp"
#include "tests/model/tiny_llama.hpp"

namespace dflash {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

const fs::path cases = fs::path(DFLASH_TEST_DATA) / "cases";

nlohmann::json expected(const std::string& kind) {
  return nlohmann::json::parse(std::ifstream(cases / kind / "expect.json"));
}

target_config parse(const std::string& kind, const std::string& file) {
  return parse_target_config(json_file::open(cases / kind / file));
}

std::string refusal(const std::string& kind, const std::string& file) {
  try {
    parse(kind, file);
    return "";
  } catch (const error& problem) {
    return problem.what();
  }
}

bool notes_name(const target_config& c, const std::string& text) {
  for (const auto& note : c.notes)
    if (note.find(text) != std::string::npos) return true;
  return false;
}

rope_frequencies full(const target_config& c) {
  return make_rope(c.rope, c.rotary_dims());
}
rope_frequencies sliding(const target_config& c) {
  return make_rope(c.sliding_rope, c.rotary_dims());
}

// Nine digits are listed.
void check_frequencies(const std::vector<float>& got, const nlohmann::json& want) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i] == Approx(want[i].get<double>()).epsilon(2e-7));
  }
}

}  // namespace

TEST_CASE("case 01: a Gemma 3 file of five text keys leans on the defaults of its class",
          "[target_config]") {
  const auto want = expected("01-gemma3-sparse");
  const auto c = parse("01-gemma3-sparse", "config.json");
  CHECK(c.heads == want["num_attention_heads"]);
  CHECK(c.kv_heads == want["num_key_value_heads"]);
  CHECK(c.head_dim == want["head_dim"]);
  CHECK(c.vocab == want["vocab_size"]);
  CHECK(c.tied == want["tie_word_embeddings"]);
  CHECK(c.rms_eps == want["rms_norm_eps"]);
  CHECK(c.act == activation::gelu_tanh);
  CHECK(c.max_positions == want["max_position_embeddings"]);
  CHECK(c.attention_scale == want["attention_scale"]);
  CHECK(c.sliding_window == want["sliding_window"]);
  CHECK(c.hidden == 2560);
  CHECK(c.intermediate == 10240);
  std::vector<int64_t> full_layers;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.kind(i) == layer_kind::full) full_layers.push_back(i);
  CHECK(full_layers == want["full_attention_layers"].get<std::vector<int64_t>>());
  CHECK(c.layers - static_cast<int64_t>(full_layers.size()) == want["sliding_layers"]);
  CHECK(c.eos == want["eos_ids"].get<std::vector<int64_t>>());
  CHECK(c.stored_dtype == "bfloat16");
  for (const auto& [name, rope] : {std::pair{"rope_full", full(c)}, {"rope_sliding", sliding(c)}}) {
    CHECK(rope.inverse.front() == want[name]["inv_freq_first"]);
    CHECK(rope.inverse[1] == Approx(want[name]["inv_freq_1"].get<double>()).epsilon(2e-7));
    CHECK(rope.inverse.back() == Approx(want[name]["inv_freq_last"].get<double>()).epsilon(2e-7));
  }
  CHECK(embedding_scale(c, compute_dtype::fp32) ==
        Approx(want["embed_scale_fp32"].get<double>()).epsilon(1e-7));
  CHECK(embedding_scale(c, compute_dtype::bf16) == want["embed_scale_when_weights_are_bf16"]);
  CHECK(c.rope_theta == 1e6);
  CHECK(notes_name(c, "rope_theta is absent"));
}

TEST_CASE("case 03: bands of Llama 3's rotary positions, all end ids, no stored head needed",
          "[target_config]") {
  const auto want = expected("03-llama32-rope");
  const auto c = read_target_config(cases / "03-llama32-rope");
  check_frequencies(full(c).inverse, want["inv_freq"]);
  CHECK(full(c).attention_factor == 1);
  CHECK(c.eos == want["stop_ids"].get<std::vector<int64_t>>());
  CHECK(c.tied);
  const auto unscaled = make_rope({.theta = c.rope_theta}, c.rotary_dims()).inverse;
  CHECK(unscaled.back() == Approx(want["unscaled_last"].get<double>()).epsilon(2e-7));
}

TEST_CASE("case 04: the base and the scaling in every spelling", "[target_config]") {
  const std::string kind = "04-rope-and-dtype-keys";
  for (const char* file : {"v4.json", "v5.json", "theta_is_int.json"}) {
    CAPTURE(file);
    const auto c = parse(kind, file);
    CHECK(c.rope_theta == 500000);
    CHECK(c.rope.type == rope_type::plain);
    CHECK(c.notes.empty());
  }
  CHECK_THAT(refusal(kind, "v5_stale_top.json"),
             Contains("rope_theta") && Contains("rope_parameters.rope_theta"));
  const auto absent = parse(kind, "absent.json");
  CHECK(absent.rope_theta == 10000);
  CHECK(notes_name(absent, "10000"));
  for (const char* file : {"type_and_rope_type.json", "legacy_type.json"}) {
    CAPTURE(file);
    const auto c = parse(kind, file);
    CHECK(c.rope_theta == 500000);
    CHECK(c.rope.type == rope_type::linear);
    CHECK(c.rope.factor == 2);
    CHECK(full(c).inverse[0] == 0.5F);
  }
  const auto mrope = parse(kind, "mrope_default.json");
  CHECK(mrope.rope_theta == 1e6);
  CHECK(mrope.rope.type == rope_type::plain);
  const auto layers = parse(kind, "per_layer_v5.json");
  CHECK(layers.kind(4) == layer_kind::sliding);
  CHECK(layers.kind(5) == layer_kind::full);
  CHECK(layers.sliding_rope.theta == 10000);
  CHECK(sliding(layers).inverse[0] == 1);
  CHECK(layers.rope.theta == 1e6);
  CHECK(full(layers).inverse[0] == 0.125F);
  CHECK(parse(kind, "v4.json").stored_dtype == "bfloat16");
  CHECK(parse(kind, "type_and_rope_type.json").stored_dtype == "bfloat16");
  CHECK(parse(kind, "theta_is_int.json").stored_dtype.empty());
  CHECK_THAT(refusal(kind, "dtype_disagrees.json"), Contains("dtype") && Contains("torch_dtype"));
}

TEST_CASE("two objects for rotary positions that differ are refused", "[target_config]") {
  const test::tiny_shape shape;
  const auto refused = [&](const std::string& more) {
    try {
      parse_target_config(json_file::parse(test::config_text(shape, more), "config.json"));
      return std::string();
    } catch (const error& problem) {
      return std::string(problem.what());
    }
  };
  const std::string a = R"({"rope_type": "linear", "factor": 2.0})",
                    b = R"({"rope_type": "linear", "factor": 4.0})";
  const auto both = [](const std::string& x, const std::string& y) {
    return "\"rope_scaling\": " + x + ", \"rope_parameters\": " + y + ",";
  };
  CHECK(refused(both(a, a)).empty());
  CHECK_THAT(refused(both(a, b)), Contains("rope_scaling") && Contains("rope_parameters"));
  CHECK_THAT(refused(R"("rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0},)"),
             Contains("yarn") && Contains("linear"));
  CHECK_THAT(refused(R"("rope_scaling": {"rope_type": "linear"},)"),
             Contains("rope_scaling.factor"));
  CHECK_THAT(refused(R"("rope_scaling": {"rope_type": "linear", "factor": -2.0},)"),
             Contains("rope_scaling.factor") && Contains("above 0"));
  CHECK_THAT(refused(R"("rope_scaling": {"rope_type": "longrope", "factor": 2.0},)"),
             Contains("longrope") && Contains("rope_scaling.rope_type"));
  CHECK_THAT(refused(R"("rope_scaling": [1],)"), Contains("rope_scaling"));
  CHECK_THAT(refused(R"("partial_rotary_factor": 0.5,)"), Contains("partial_rotary_factor"));
}

TEST_CASE("case 05: YaRN by its explicit factor, its own attention factor, and no other key",
          "[target_config]") {
  const std::string kind = "05-yarn-variants";
  const auto want = expected(kind);
  for (const auto& [file, values] : want.items()) {
    if (!values.is_object()) continue;
    CAPTURE(file);
    const auto c = parse(kind, file);
    const auto rope = full(c);
    CHECK(rope.attention_factor == Approx(values["attention_factor"].get<double>()).epsilon(2e-7));
    check_frequencies(rope.inverse, values["inv_freq"]);
    CHECK(notes_name(c, "attn_factor") == (file == "d_attn_factor_typo.json"));
  }
}

TEST_CASE("case 08: a Qwen3.5 wrapper, its text part and a renamed one are one model",
          "[target_config]") {
  const std::string kind = "08-qwen35-wrapper";
  const auto want = expected(kind);
  const auto& published = want["published_config.json"];
  const auto c = parse(kind, "published_config.json");
  CHECK(c.layers == published["layers"]);
  std::vector<int64_t> full_layers;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.kind(i) == layer_kind::full) full_layers.push_back(i);
  CHECK(full_layers == published["full_attention_layers"].get<std::vector<int64_t>>());
  CHECK(c.head_dim == published["head_dim"]);
  CHECK(c.rotary_dims() == published["rotary_dims"]);
  CHECK(2 * c.heads * c.head_dim == published["q_proj_rows"]);
  CHECK_FALSE(c.tied);
  CHECK(c.stored_dtype == "bfloat16");
  CHECK(c.eos == published["eos_ids"].get<std::vector<int64_t>>());
  CHECK(notes_name(c, "rope_theta is absent"));
  CHECK(c.experts.count == 512);

  std::vector<int32_t> ids;
  for (int32_t i = 1; i <= 16; ++i) ids.push_back(i);
  const std::vector<int32_t> offsets = {0, 16};
  for (const auto dtype : {compute_dtype::fp32, compute_dtype::bf16}) {
    std::vector<at::Tensor> states;
    for (const char* name : {"text_only_clean", "text_only_prefixed", "wrapped"}) {
      const auto model = target::load(cases / kind / name, dtype);
      CHECK(model->config().rotary_dims() == want["tiny rotary_dims"]);
      states.push_back(model->capture(ids, offsets, {}, true).last_hidden);
    }
    CHECK(at::equal(states[0], states[1]));
    CHECK(at::equal(states[0], states[2]));
  }
}

TEST_CASE("case 08: each text tensor that is missing is named as the file would name it",
          "[target_config]") {
  const auto from = cases / "08-qwen35-wrapper" / "wrapped";
  const auto file = safetensors_file::open(from / "model.safetensors");
  const test::scratch_folder scratch;
  fs::copy_file(from / "config.json", scratch.path() / "config.json");
  int removed = 0;
  for (const auto& missing : file.tensors()) {
    if (missing.name.find("language_model.layers.") == std::string::npos) continue;
    std::vector<st_view> views;
    for (const auto& tensor : file.tensors())
      if (tensor.name != missing.name)
        views.push_back({tensor.name, tensor.dtype, tensor.shape, file.bytes(tensor)});
    write_safetensors(scratch.path() / "model.safetensors", views);
    CHECK_THROWS_WITH(target::load(scratch.path(), compute_dtype::fp32), Contains(missing.name));
    ++removed;
  }
  CHECK(removed == 25);
}

TEST_CASE("a number that no double can hold is an error of the file, not of the program") {
  for (const char* text : {"{\"a\": 1e400}", "{\"vocab_size\": -1e999}"})
    CHECK_THROWS_WITH(json_file::parse(text, "config.json"),
                      Catch::Contains("no double") && Catch::Contains("config.json"));
}

}  // namespace dflash
