// Every family against transformers (tests/data/families, made by the script there): capture by
// both paths, packed documents, cached decoding with rejected tokens. One list of names: a new
// family adds its folder.
#include "model/families/family.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "config/error.hpp"
#include "model/decode.hpp"
#include "model/target.hpp"
#include "tests/model/decode_fixture.hpp"
#include "tests/model/exactness.hpp"

namespace dflash {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> models = {"llama3",
                                         "llama_linear_biased",
                                         "mistral",
                                         "qwen2",
                                         "qwen3",
                                         "qwen3_moe",
                                         "gemma3",
                                         "qwen3_5",
                                         "qwen3_5_moe"};

// fp32: four to six layers of products of 32 to 64 terms in another order.
constexpr double fp32_bound = 1e-5;
// The norm behind the delta rule divides by what may be small, in transformers too: from an fp64
// run of these models its fp32 lies 1.2e-5 (dense) and 3.1e-5 (experts) away, ours 2.5e-5 and
// 1.6e-5.
constexpr double hybrid_bound = 3e-5;
// bf16 keeps 8 bits: every one of some 60 rounded steps adds up to 2^-9 of its own size.
constexpr double bf16_bound = 8e-2;

double difference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  const auto x = a.to(at::kDouble), y = b.to(at::kDouble);
  return ((x - y).abs().max() / y.abs().max()).item<double>();
}

struct reference {
  std::vector<int32_t> ids, offsets;
  std::vector<at::Tensor> layers;  // [layer] [n, H]
  at::Tensor logits;               // [n, V]

  explicit reference(const fs::path& folder) {
    const auto file = safetensors_file::open(folder / "expected.safetensors");
    const auto floats = [&](const std::string& name) {
      const auto& info = file.at(name);
      const auto bytes = file.bytes(info);
      return at::from_blob(const_cast<std::byte*>(bytes.data()), info.shape, at::kFloat).clone();
    };
    const auto ints = [&](const char* name) {
      const auto bytes = file.bytes(file.at(name));
      std::vector<int32_t> out(bytes.size() / sizeof(int32_t));
      std::memcpy(out.data(), bytes.data(), bytes.size());
      return out;
    };
    ids = ints("input_ids");
    offsets = ints("doc_offsets");
    for (int i = 0; file.find("layer." + std::to_string(i)); ++i)
      layers.push_back(floats("layer." + std::to_string(i)));
    logits = floats("logits");
  }
  std::vector<int> taps() const {
    std::vector<int> all(layers.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  std::span<const int32_t> document(size_t d) const {
    return std::span(ids).subspan(offsets[d], offsets[d + 1] - offsets[d]);
  }
};

fs::path folder_of(const std::string& name) {
  return fs::path(DFLASH_TEST_DATA) / "families" / name;
}

std::shared_ptr<const target> load(const std::string& name,
                                   compute_dtype dtype = compute_dtype::fp32) {
  at::set_num_threads(1);
  return target::load(folder_of(name), dtype);
}

double largest(const target& model, const target::captured& got, const reference& want) {
  double most = difference(got.last_hidden, want.layers.back());
  for (size_t i = 0; i < want.layers.size(); ++i)
    most = std::max(most, difference(got.taps[i], want.layers[i]));
  return std::max(most, difference(model.logits(got.last_hidden), want.logits));
}

}  // namespace

TEST_CASE("each family's taps, last hidden state and logits are those of transformers",
          "[families][exact]") {
  for (const auto& name : models) {
    CAPTURE(name);
    const reference want(folder_of(name));
    const auto model = load(name);
    const auto got = model->capture(want.ids, want.offsets, want.taps(), true);
    const double kernels = largest(*model, got, want);
    const double bound = model->config().is_hybrid() ? hybrid_bound : fp32_bound;
    test::exactness_row("target " + name, "transformers 5.18, fp32", kernels, bound);
    CHECK(kernels < bound);
    const auto plain = model->capture_reference(want.ids, want.offsets, want.taps(), true);
    const double operators = largest(*model, plain, want);
    test::exactness_row(
        "target " + name + ", ATen path", "transformers 5.18, fp32", operators, bound);
    CHECK(operators < bound);
  }
}

TEST_CASE("computed in bf16 each family stays near fp32, by both paths", "[families]") {
  for (const auto& name : models) {
    CAPTURE(name);
    const reference want(folder_of(name));
    const auto model = load(name, compute_dtype::bf16);
    CHECK(model->embedding().scalar_type() == at::kBFloat16);
    const auto got = model->capture(want.ids, want.offsets, want.taps(), true);
    const auto plain = model->capture_reference(want.ids, want.offsets, want.taps(), true);
    // Experts near the border of those that are taken change places: a row is then another one.
    const auto typical = [&](const at::Tensor& a, const at::Tensor& b) {
      const auto x = a.to(at::kDouble), y = b.to(at::kDouble);
      return ((x - y).abs().amax(1).median() / y.abs().max()).item<double>();
    };
    for (size_t i = 0; i < want.layers.size(); ++i) {
      CHECK(typical(got.taps[i], want.layers[i]) < bf16_bound);
      CHECK(typical(plain.taps[i], want.layers[i]) < bf16_bound);
    }
    CHECK(typical(model->logits(got.last_hidden), want.logits) < 2 * bf16_bound);
  }
}

TEST_CASE("packed documents are the documents one by one", "[families]") {
  for (const auto& name : models) {
    CAPTURE(name);
    const reference want(folder_of(name));
    const auto model = load(name);
    const auto packed = model->capture(want.ids, want.offsets, want.taps(), true);
    for (size_t d = 0; d + 1 < want.offsets.size(); ++d) {
      const auto ids = want.document(d);
      const std::vector<int32_t> alone = {0, static_cast<int32_t>(ids.size())};
      const auto got = model->capture(ids, alone, want.taps(), true);
      for (size_t i = 0; i < want.layers.size(); ++i)
        CHECK(
            difference(packed.taps[i].narrow(0, want.offsets[d], static_cast<int64_t>(ids.size())),
                       got.taps[i]) < 2e-6);
    }
  }
}

TEST_CASE("chunks through the cache, with wrong tokens taken back, equal the whole sequence",
          "[families]") {
  for (const auto& name : models)
    for (const auto dtype : {compute_dtype::fp32, compute_dtype::bf16}) {
      CAPTURE(name);
      const reference want(folder_of(name));
      const auto model = load(name, dtype);
      const auto a = want.document(0), b = want.document(1);
      const std::vector<int> taps = {1};
      kv_cache cache(model->config(), dtype, 3, 80, 5);
      std::vector<at::Tensor> hidden_a, hidden_b, tap_a;
      // {tokens of a, tokens of b, wrong tokens behind those of a that are taken back}
      const int64_t steps[][3] = {{3, 11, 0},
                                  {1, 1, 5},
                                  {2, 0, 3},
                                  {1, 4, 5},
                                  {30, 1, 0},
                                  {1, 1, 4},
                                  {31, 7, 5},
                                  {1, 1, 0}};
      int64_t at_a = 0, at_b = 0;
      for (const auto& [n_a, n_b, wrong] : steps) {
        auto offered = std::vector<int32_t>(a.begin() + at_a, a.begin() + at_a + n_a);
        for (int64_t i = 0; i < wrong; ++i) offered.push_back(static_cast<int32_t>(7 * i % 60));
        const target::chunk chunks[] = {{2, b.subspan(at_b, n_b)}, {0, offered}};
        const auto got = model->forward(cache, chunks, taps);
        hidden_b.push_back(got.hidden.narrow(0, 0, n_b));
        hidden_a.push_back(got.hidden.narrow(0, n_b, n_a));
        tap_a.push_back(got.taps[0].narrow(0, n_b, n_a));
        at_a += n_a, at_b += n_b;
        cache.crop(0, at_a);
        CHECK(cache.length(0) == at_a);
        CHECK(cache.length(2) == at_b);
      }
      REQUIRE(at_a == static_cast<int64_t>(a.size()));
      const auto whole = model->capture(want.ids, want.offsets, taps, true);
      const double bound = dtype == compute_dtype::fp32 ? fp32_bound : bf16_bound;
      const auto near =
          [&](const std::vector<at::Tensor>& parts, const at::Tensor& all, int64_t first) {
            const auto got = at::cat(parts);
            const auto expected = all.narrow(0, first, got.size(0));
            if (dtype == compute_dtype::bf16 && model->config().experts.count > 0)
              return;  // see above
            CHECK(difference(got, expected) < bound);
          };
      near(hidden_a, whole.last_hidden, 0);
      near(tap_a, whole.taps[0], 0);
      near(hidden_b, whole.last_hidden, want.offsets[1]);
      // A slot that begins again remembers nothing.
      cache.clear(0);
      const target::chunk again{0, a.first(20)};
      const auto fresh = model->forward(cache, {&again, 1}, taps);
      near({fresh.hidden}, whole.last_hidden, 0);
      CHECK(cache.bytes() > 0);
    }
}

TEST_CASE("speculative decoding equals plain decoding in each family", "[families]") {
  for (const auto& name : models) {
    CAPTURE(name);
    const reference want(folder_of(name));
    const auto model = load(name);
    const std::vector<std::span<const int32_t>> prompts = {
        want.document(0).first(9), want.document(1).first(1), want.document(1).first(20)};
    decode_options options;
    options.max_new_tokens = 24;
    options.max_slots = 2;
    const auto plain = decode_prompts(*model, prompts, nullptr, options);
    std::vector<std::vector<int32_t>> texts;
    for (size_t i = 0; i < prompts.size(); ++i) {
      texts.emplace_back(prompts[i].begin(), prompts[i].end());
      texts.back().insert(texts.back().end(), plain[i].tokens.begin(), plain[i].tokens.end());
    }
    for (const int64_t spoil : {0, 3, 7}) {
      decode_test::scripted_proposer drafts{texts, 6, spoil};
      const auto fast = decode_prompts(*model, prompts, &drafts, options);
      for (size_t i = 0; i < prompts.size(); ++i) CHECK(fast[i].tokens == plain[i].tokens);
    }
  }
}

TEST_CASE("the registry names each architecture once and refuses others with the list",
          "[families]") {
  std::vector<std::string_view> seen;
  for (const family* f : families())
    for (const auto& list : {f->architectures, f->model_types})
      for (const auto name : list) {
        CHECK(std::find(seen.begin(), seen.end(), name) == seen.end());
        seen.push_back(name);
      }
  const auto refusal = [](const std::string& text) {
    try {
      family_of(json_file::parse(text, "config.json"));
      return std::string();
    } catch (const error& problem) {
      return std::string(problem.what());
    }
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal(R"({"architectures": ["PhiForCausalLM"], "model_type": "phi"})"),
             Contains("PhiForCausalLM") && Contains("Qwen3.5 (Qwen3_5ForCausalLM)"));
  CHECK_THAT(refusal(R"({"model_type": "phi"})"), Contains("phi") && Contains("Gemma 3"));
  CHECK_THAT(refusal(R"({"architectures": ["LlamaForCausalLM"], "model_type": "qwen3"})"),
             Contains("different families"));
  CHECK(refusal(R"({"architectures": ["Qwen3ForCausalLM"]})").empty());
}

}  // namespace dflash
