// Drafter folders of other programs: speculators-saved ones as dumps, every refusal by name, and
// both directions between the forms.
#include "model/drafter_form.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>

#include <catch2/catch.hpp>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "config/error.hpp"
#include "data/files.hpp"
#include "data/safetensors.hpp"
#include "model/drafter_step.hpp"
#include "model/export.hpp"
#include "model/target.hpp"
#include "tests/model/decode_fixture.hpp"

using namespace dflash;

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

const fs::path saved = fs::path(DFLASH_TEST_DATA) / "speculators";
const fs::path tiny_llama = fs::path(DFLASH_TEST_DATA) / "tiny_llama";

json config_of(const fs::path& folder) {
  std::ifstream file(folder / "config.json");
  return json::parse(file);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A copy of a drafter's folder that a test spoils.
class spoilt_folder {
public:
  explicit spoilt_folder(const fs::path& from) : path_(scratch_.path() / "drafter") {
    fs::copy(from, path_, fs::copy_options::recursive);
    config_ = config_of(path_);
  }
  const fs::path& path() const { return path_; }
  json& config() { return config_; }

  // The error's text (what, where, hint); empty if the folder is read.
  std::string refusal() const {
    std::ofstream(path_ / "config.json") << config_.dump();
    try {
      read_drafter(path_);
    } catch (const error& problem) {
      return problem.what_ + " | " + problem.where + " | " + problem.hint;
    }
    return {};
  }

  // The stored tensors with changes: an empty view removes one.
  void rewrite(const std::vector<st_view>& changes) const {
    const auto bytes = read_file(path_ / "model.safetensors", 1 << 20);
    write_file_atomically(scratch_.path() / "old", bytes);
    const auto old = safetensors_file::open(scratch_.path() / "old");
    std::vector<st_view> views;
    for (const st_tensor& t : old.tensors()) {
      bool changed = false;
      for (const st_view& c : changes) changed = changed || c.name == t.name;
      if (!changed) views.push_back({t.name, t.dtype, t.shape, old.bytes(t)});
    }
    for (const st_view& c : changes)
      if (!c.bytes.empty()) views.push_back(c);
    write_safetensors(path_ / "model.safetensors", views);
  }

private:
  decode_test::scratch_folder scratch_;
  fs::path path_;
  json config_;
};

std::vector<float> floats(const at::Tensor& t) {
  const at::Tensor c = t.to(at::kFloat).contiguous();
  return {c.data_ptr<float>(), c.data_ptr<float>() + c.numel()};
}

st_view view_of(const char* name, std::vector<int64_t> shape, const std::vector<float>& values) {
  return {name, st_dtype::f32, std::move(shape), std::as_bytes(std::span(values))};
}

void check_equal(const drafter_weights& a, const drafter_weights& b) {
  const auto x = named_tensors(a), y = named_tensors(b);
  REQUIRE(x.size() == y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    CAPTURE(x[i].first);
    CHECK(at::equal(*x[i].second, *y[i].second));
  }
}

drafter_extras with_verifier() {
  return {.bos = 1,
          .eos = {2},
          .pad = {},
          .target_hash = "h",
          .verifier = "org/model",
          .verifier_architectures = {"LlamaForCausalLM"}};
}

}  // namespace

TEST_CASE("a drafter that speculators saved is read: sizes, layer types, taps one lower") {
  const auto d = read_drafter(saved / "full");
  const auto& c = d.config;
  CHECK(c.layers == 2);
  CHECK(c.hidden == 48);
  CHECK(c.intermediate == 64);
  CHECK(c.heads == 4);
  CHECK(c.kv_heads == 2);
  CHECK(c.head_dim == 16);
  CHECK(c.vocab == 80);
  CHECK(c.block_size == 4);
  CHECK(c.mask_token_id == 5);
  CHECK(c.sliding == std::vector<bool>{false, true});
  CHECK(c.sliding_window == 9);
  CHECK(c.rope_theta == 10000.0);
  CHECK(c.rms_eps == 1e-5);
  CHECK(c.max_positions == 256);
  CHECK_FALSE(c.layer_causal(0));
  CHECK(c.layer_causal(1));
  CHECK(c.num_target_layers == 0);  // speculators does not store it
  // The file says layers 2 and 3 by input: outputs of the 0-based layers 1 and 2.
  CHECK(config_of(saved / "full")["aux_hidden_state_layer_ids"] == json{2, 3});
  CHECK(c.taps == std::vector<int>{1, 2});
  CHECK(c.draft_ids.empty());
  CHECK(c.draft_vocab() == 80);
  CHECK_FALSE(d.head.defined());
}

TEST_CASE("a draft vocabulary is read with its head: ids are rows plus offsets") {
  const auto d = read_drafter(saved / "reduced");
  CHECK(d.config.draft_vocab() == 50);
  REQUIRE(d.head.defined());
  CHECK(d.head.sizes() == at::IntArrayRef{50, 48});
  const auto stored = safetensors_file::open(saved / "reduced" / "model.safetensors");
  const auto* offsets = reinterpret_cast<const int64_t*>(stored.bytes(stored.at("d2t")).data());
  for (size_t i = 0; i < 50; ++i)
    CHECK(d.config.draft_ids[i] == static_cast<int64_t>(i) + offsets[i]);
  // The carried head is that of the target's rows.
  drafter_config c;
  const auto model = target::load(tiny_llama, compute_dtype::fp32);
  load_drafter(saved / "reduced", *model, c);
  CHECK(c.draft_vocab() == 50);
}

TEST_CASE("from z-lab's form to speculators' and back: same bits, taps up by one and down again") {
  const decode_test::scratch_folder scratch;
  auto config = decode_test::tiny_drafter_config(5, true);
  const std::optional<bool> causal = GENERATE(std::optional<bool>(), std::optional<bool>(false));
  config.causal = causal;
  write_drafter_folder(scratch.path() / "z", config, decode_test::tiny_drafter(config));
  const auto z = read_drafter(scratch.path() / "z");
  write_drafter_folder(scratch.path() / "s",
                       z.config,
                       z.weights,
                       {.form = drafter_form::speculators, .extras = with_verifier()});
  const auto s = read_drafter(scratch.path() / "s");
  write_drafter_folder(scratch.path() / "z2", s.config, s.weights);
  CHECK(config_of(scratch.path() / "z")["dflash_config"]["target_layer_ids"] == json{1, 2});
  CHECK(config_of(scratch.path() / "s")["aux_hidden_state_layer_ids"] == json{2, 3});
  CHECK(config_of(scratch.path() / "z2") == config_of(scratch.path() / "z"));
  check_equal(s.weights, z.weights);
  check_equal(read_drafter(scratch.path() / "z2").weights, z.weights);
}

TEST_CASE("a speculators-saved drafter is written again with the same keys and bits") {
  const decode_test::scratch_folder scratch;
  const std::string name = GENERATE("full", "reduced");
  const auto d = read_drafter(saved / name);
  const auto extras = read_drafter_extras(saved / name);
  CHECK(extras.verifier == "tests/data/tiny_llama");
  write_drafter_folder(scratch.path() / "again",
                       d.config,
                       d.weights,
                       {.form = drafter_form::speculators, .extras = extras, .head = d.head});
  const auto old_file = safetensors_file::open(saved / name / "model.safetensors");
  const auto new_file = safetensors_file::open(scratch.path() / "again" / "model.safetensors");
  CHECK(new_file.tensors().size() == old_file.tensors().size());
  for (const st_tensor& t : old_file.tensors()) {
    CAPTURE(t.name);
    const auto& again = new_file.at(t.name);
    CHECK(again.dtype == t.dtype);
    CHECK(again.shape == t.shape);
    const auto a = old_file.bytes(t), b = new_file.bytes(again);
    CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  }
  json was = config_of(saved / name), is = config_of(scratch.path() / "again");
  // Not carried over: where transformers finds speculators' class, and the version that saved it.
  for (const char* key : {"auto_map", "transformers_version"}) was.erase(key);
  // Used only for layers without a type.
  was["transformer_layer_config"]["max_window_layers"] = 2;
  CHECK(is == was);
}

TEST_CASE("z-lab's form knows no draft vocabulary, speculators' no causal full layers") {
  const decode_test::scratch_folder scratch;
  const auto d = read_drafter(saved / "reduced");
  CHECK_THROWS_WITH(write_drafter_folder(scratch.path() / "z", d.config, d.weights),
                    Catch::Contains("draft vocabulary") && Catch::Contains("--form speculators"));
  const auto full = read_drafter(saved / "full");
  CHECK_THROWS_WITH(write_drafter_folder(scratch.path() / "z", full.config, full.weights),
                    Catch::Contains("number of target layers") && Catch::Contains("--target"));
  auto config = decode_test::tiny_drafter_config(5, true);
  config.causal = true;
  CHECK_THROWS_WITH(
      write_drafter_folder(scratch.path() / "s",
                           config,
                           decode_test::tiny_drafter(config),
                           {.form = drafter_form::speculators, .extras = with_verifier()}),
      Catch::Contains("causal"));
  CHECK(fs::is_empty(scratch.path()));
}

TEST_CASE("copies of the target's embedding and head are read, compared, and others refused") {
  const auto model = target::load(tiny_llama, compute_dtype::fp32);
  auto embedding = floats(model->embedding());
  auto head = floats(model->head().weight());
  const spoilt_folder folder(saved / "full");
  const auto write = [&] {
    folder.rewrite({view_of("embed_tokens.weight", {80, 48}, embedding),
                    view_of("lm_head.weight", {80, 48}, head),
                    view_of("verifier_norm.weight", {48}, std::vector<float>(48, 1))});
  };
  write();
  drafter_config c;
  CHECK(read_drafter(folder.path()).embedding.defined());
  CHECK_NOTHROW(load_drafter(folder.path(), *model, c));
  embedding[7 * 48] += 1;
  write();
  CHECK_THROWS_WITH(load_drafter(folder.path(), *model, c),
                    Catch::Contains("embed_tokens.weight is not the target's"));
  embedding[7 * 48] -= 1;
  head[3] += 1;
  write();
  CHECK_THROWS_WITH(load_drafter(folder.path(), *model, c),
                    Catch::Contains("lm_head.weight is not the target's"));
  folder.rewrite({view_of("lm_head.weight", {79, 48}, std::vector<float>(79 * 48))});
  CHECK_THROWS_WITH(read_drafter(folder.path()), Catch::Contains("[79, 48], expected [80, 48]"));
}

TEST_CASE("a drafter for another target is refused with both numbers") {
  auto c = read_drafter_config(saved / "full");
  auto shape = read_target_config(tiny_llama);
  CHECK_NOTHROW(check_drafter_fits(c, shape, "here"));
  shape.layers = 2;  // not stated by the drafter, but it reads layer 2
  CHECK_THROWS_WITH(check_drafter_fits(c, shape, "here"), Catch::Contains("reads layer 2 of 2"));
  shape = read_target_config(tiny_llama);
  shape.vocab = 81;
  CHECK_THROWS_WITH(check_drafter_fits(c, shape, "here"), Catch::Contains("vocabulary is 80"));
  shape = read_target_config(tiny_llama);
  shape.hidden = 64;
  CHECK_THROWS_WITH(check_drafter_fits(c, shape, "here"), Catch::Contains("hidden size is 48"));
}

TEST_CASE("what is no DFlash drafter is named as what it is") {
  struct wrong {
    json config;
    std::string what;
  };
  const std::vector<wrong> all = {
      {{{"architectures", {"LlamaForCausalLMEagle3"}}, {"draft_vocab_size", 32000}}, "EAGLE"},
      {{{"architectures", {"Qwen3ForCausalLM"}}, {"model_type", "qwen3"}}, "not a drafter"},
      {{{"model_type", "qwen3"}}, "no DFlash drafter"},
      {{{"architectures", {"DFlash2DraftModel"}}, {"dflash_config", {{"block_size", 8}}}},
       "DFlash 2"},
      {{{"architectures", {"DSparkDraftModel"}}}, "DSpark"},
      {{{"speculators_model_type", "eagle3"}, {"architectures", {"Eagle3Speculator"}}}, "eagle3"},
      {{{"speculators_model_type", "dspark"}, {"markov_rank", 256}}, "dspark"},
      {{{"speculators_model_type", "dflash2"}}, "dflash2"},
      {{{"speculators_model_type", "dflash"}}, "without transformer_layer_config"}};
  for (const auto& [config, what] : all) {
    spoilt_folder folder(saved / "full");
    folder.config() = config;
    CAPTURE(config.dump());
    const std::string text = folder.refusal();
    CHECK(has(text, what));
    CHECK(has(text, "config.json"));
  }
}

TEST_CASE("features that change what the tensors mean are refused by name, wherever they stand") {
  const std::vector<std::pair<std::string, json>> keys = {{"conv_kernel_size", 2},
                                                          {"selector_rank", 256},
                                                          {"projector_type", "domino"},
                                                          {"gru_hidden_dim", 1024},
                                                          {"sample_from_anchor", true},
                                                          {"shift_label", true},
                                                          {"attention_sink_bias", true},
                                                          {"markov_rank", 8},
                                                          {"output_multiplier", 0.196},
                                                          {"final_logit_softcapping", 20},
                                                          {"causal_head", true},
                                                          {"rope_is_neox_style", false},
                                                          {"attention_value_scale", 2.0}};
  for (const auto& [key, value] : keys) {
    CAPTURE(key);
    spoilt_folder folder(saved / "full");
    folder.config()[key] = value;
    CHECK(has(folder.refusal(), key));
    folder.config() = config_of(saved / "full");
    folder.config()["dflash_config"][key] = value;
    CHECK(has(folder.refusal(), "dflash_config." + key));
  }
  spoilt_folder neutral(saved / "full");
  neutral.config()["output_multiplier"] = 1.0;
  neutral.config()["attention_sink_bias"] = false;
  neutral.config()["projector_type"] = nullptr;
  CHECK(neutral.refusal().empty());
  spoilt_folder mask(saved / "full");
  std::ofstream(mask.path() / "mask_embedding.pt") << "pickle";
  CHECK(has(mask.refusal(), "mask embedding"));
}

TEST_CASE("speculators' config is read strictly: each wrong value with file and key") {
  const auto refusal = [](const std::string& pointer, const json& value) {
    spoilt_folder folder(saved / "full");
    folder.config()[json::json_pointer(pointer)] = value;
    return folder.refusal();
  };
  const std::string layers = "/transformer_layer_config/";
  CHECK(has(refusal("/quantization_config", {{"quant_method", "fp8"}}), "quantised"));
  CHECK(has(refusal("/aux_hidden_state_layer_ids", json{0, 3}), "tap 0"));
  CHECK(has(refusal("/aux_hidden_state_layer_ids", json{3, 2}), "rise"));
  CHECK(has(refusal("/aux_hidden_state_layer_ids", json::array()), "no target layers"));
  CHECK(has(refusal("/aux_hidden_state_layer_ids", json{2, 3, 4}), "fc.weight is [48, 96]"));
  CHECK(has(refusal("/mask_token_id", nullptr), "mask_token_id"));
  CHECK(has(refusal("/mask_token_id", 80), "mask_token_id 80"));
  CHECK(has(refusal("/block_size", 1), "block_size is 1"));
  CHECK(has(refusal("/draft_vocab_size", 81), "draft_vocab_size is 81"));
  CHECK(has(refusal("/draft_vocab_size", 50), "d2t is missing"));
  CHECK(has(refusal(layers + "model_type", "llama"), "type llama"));
  CHECK(has(refusal(layers + "attention_bias", true), "biases"));
  CHECK(has(refusal(layers + "hidden_act", "gelu"), "gelu"));
  CHECK(has(refusal(layers + "layer_types", json{"full_attention", "chunked"}), "chunked"));
  CHECK(has(refusal(layers + "layer_types", json{"full_attention"}), "1 entries for 2 layers"));
  CHECK(has(refusal(layers + "num_hidden_layers", 3), "layer_types"));
  CHECK(has(refusal(layers + "intermediate_size", 63), "expected [63, 48]"));
  CHECK(has(refusal(layers + "rope_parameters/rope_type", "yarn"), "rope_parameters.rope_type"));
  CHECK(has(refusal(layers + "rope_parameters/factor", 8.0), "factor"));
  CHECK(has(refusal(layers + "rope_parameters/mrope_section", json{8, 4, 4}), "mrope_section"));
  CHECK(has(refusal(layers + "rope_parameters/partial_rotary_factor", 0.25), "partial_rotary"));
  CHECK(has(refusal(layers + "rope_parameters",
                    {{"full_attention", {{"rope_theta", 1e4}, {"rope_type", "default"}}}}),
            "full_attention"));
  CHECK(has(refusal(layers + "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}),
            "rope_scaling."));
  CHECK(has(refusal(layers + "rope_theta", 1e6), "differ"));
  CHECK(refusal(layers + "rope_theta", 1e4).empty());
  CHECK(refusal(layers + "rope_scaling", nullptr).empty());
}

TEST_CASE("missing, spare and quantised tensors are named") {
  spoilt_folder folder(saved / "full");
  folder.rewrite(
      {{.name = "layers.1.mlp.up_proj.weight", .dtype = st_dtype::f32, .shape = {}, .bytes = {}}});
  CHECK(has(folder.refusal(), "layers.1.mlp.up_proj.weight is missing"));
  spoilt_folder spare(saved / "full");
  spare.rewrite({view_of("midlayer.bias", {2}, {1, 2})});
  CHECK(has(spare.refusal(), "midlayer.bias"));
  spoilt_folder codes(saved / "full");
  const std::vector<uint8_t> bytes(48, 7);
  codes.rewrite({{"norm.weight", st_dtype::f8_e4m3, {48}, std::as_bytes(std::span(bytes))}});
  CHECK(has(codes.refusal(), "norm.weight is F8_E4M3"));
  codes.rewrite({{"norm.weight", st_dtype::i8, {48}, std::as_bytes(std::span(bytes))}});
  CHECK(has(codes.refusal(), "norm.weight is I8"));
  spoilt_folder d2t(saved / "full");
  const std::vector<int64_t> offsets(80, 0);
  d2t.rewrite({{"d2t", st_dtype::i64, {80}, std::as_bytes(std::span(offsets))}});
  CHECK(has(d2t.refusal(), "d2t"));  // a whole vocabulary has none
}

TEST_CASE("a damaged draft vocabulary is refused with the row") {
  const auto with = [](size_t row, int64_t offset) {
    spoilt_folder folder(saved / "reduced");
    const auto file = safetensors_file::open(folder.path() / "model.safetensors");
    std::vector<int64_t> d2t(50);
    std::memcpy(d2t.data(), file.bytes(file.at("d2t")).data(), 400);
    d2t[row] = offset;
    folder.rewrite({{"d2t", st_dtype::i64, {50}, std::as_bytes(std::span(d2t))}});
    return folder.refusal();
  };
  CHECK(has(with(49, 31), "d2t[49]"));  // token 80 of 80
  CHECK(has(with(0, -1), "d2t[0]"));
  CHECK(has(with(3, INT64_MAX), "d2t[3]"));
  CHECK(has(with(3, INT64_MIN), "d2t[3]"));
  CHECK(has(with(20, -20), "rise"));
  spoilt_folder flags(saved / "reduced");
  std::vector<uint8_t> t2d(80, 1);
  flags.rewrite({{"t2d", st_dtype::boolean, {80}, std::as_bytes(std::span(t2d))}});
  CHECK(has(flags.refusal(), "t2d marks 80 tokens and d2t lists 50"));
  t2d.assign(80, 0);
  flags.rewrite({{"t2d", st_dtype::boolean, {80}, std::as_bytes(std::span(t2d))}});
  CHECK(has(flags.refusal(), "which t2d does not mark"));
  t2d[0] = 2;
  flags.rewrite({{"t2d", st_dtype::boolean, {80}, std::as_bytes(std::span(t2d))}});
  CHECK(has(flags.refusal(), "neither true nor false"));
  spoilt_folder other(saved / "reduced");
  const std::vector<int32_t> narrow(50, 0);
  other.rewrite({{"d2t", st_dtype::i32, {50}, std::as_bytes(std::span(narrow))}});
  CHECK(has(other.refusal(), "d2t is I32, expected I64"));
}

TEST_CASE("a run starts from a speculators-saved drafter and takes over base, eps and vocabulary") {
  draft_section d;
  d.layers = 2;
  d.block_size = 4;
  d.taps = {1, 2};
  d.mask_token_id = 5;
  d.intermediate_size = 64;
  d.heads = 4;
  d.layer_types = {"full_attention", "sliding_attention"};
  d.sliding_window = 9;
  const auto model = target::load(tiny_llama, compute_dtype::fp32);
  auto c = make_drafter_config(d, model->config());
  c.rope_theta = 5;
  c = adopt_drafter(c, saved / "reduced");
  CHECK(c.rope_theta == 10000.0);
  CHECK(c.draft_vocab() == 50);
  const auto start = init_drafter(c, (saved / "reduced").string(), *model, 1, 0.2, tiny_llama);
  check_equal(start, read_drafter(saved / "reduced").weights);
  d.taps = {1, 3};
  CHECK_THROWS_WITH(adopt_drafter(make_drafter_config(d, model->config()), saved / "reduced"),
                    Catch::Contains("taps"));
  d.taps = {1, 2};
  d.intermediate_size = 96;
  CHECK_THROWS_WITH(adopt_drafter(make_drafter_config(d, model->config()), saved / "reduced"),
                    Catch::Contains("gate_proj"));
}
