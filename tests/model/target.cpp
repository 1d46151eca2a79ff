// The target against loops in double: capture, cached forward, packed documents, taps.
#include "model/target.hpp"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "tests/model/exactness.hpp"
#include "tests/model/tiny_llama.hpp"

namespace dflash {
namespace {

using test::naive_states;
using test::tiny_shape;

struct fixture {
  tiny_shape shape;
  test::tiny_weights weights;
  test::scratch_folder folder;
  std::shared_ptr<const target> fp32, bf16;

  explicit fixture(tiny_shape s = {}) : shape(s), weights(test::random_llama(s, 7)) {
    test::round_to_bf16(weights);
    test::write_folder(folder.path(), shape, weights);
    fp32 = target::load(folder.path(), compute_dtype::fp32);
    bf16 = target::load(folder.path(), compute_dtype::bf16);
  }
  naive_states naive(const std::vector<int32_t>& ids) const {
    return test::naive_forward(shape, weights, ids);
  }
};

// max |a - b| / max |b| of rows [first, first + n) of a.
double difference(const at::Tensor& a, const std::vector<double>& b, int64_t first = 0) {
  const auto width = a.size(1);
  const auto values = a.to(at::kFloat).contiguous();
  const auto* p = values.const_data_ptr<float>() + first * width;
  double most = 0, scale = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(p[i]) - b[i]));
    scale = std::max(scale, std::abs(b[i]));
  }
  return most / scale;
}

std::vector<double> rows(const std::vector<double>& all, int64_t width, int64_t first, int64_t n) {
  return {all.begin() + first * width, all.begin() + (first + n) * width};
}

// The reference takes its angles in double, the model in fp32 as transformers does: 300 positions
// on, they differ by 1e-5.
constexpr double fp32_bound = 3e-5, bf16_bound = 8e-2;

}  // namespace

TEST_CASE("capture gives the residual stream after the asked layers", "[target]") {
  const fixture f;
  const auto ids = test::random_ids(70, f.shape.vocab, 1);
  const std::vector<int32_t> offsets = {0, 70};
  const std::vector<int> taps = {2, 0, 2};
  const auto naive = f.naive(ids);
  for (const auto& [model, bound] : {std::pair{f.fp32, fp32_bound}, {f.bf16, bf16_bound}}) {
    const auto got = model->capture(ids, offsets, taps, true);
    REQUIRE(got.taps.size() == 3);
    CHECK(difference(got.taps[0], naive.layers[2]) < bound);
    CHECK(difference(got.taps[1], naive.layers[0]) < bound);
    CHECK(at::equal(got.taps[0], got.taps[2]));
    CHECK(at::equal(got.taps[0], got.last_hidden));
    CHECK(difference(model->logits(got.last_hidden), naive.logits) < bound);
  }
}

TEST_CASE("capture without the last hidden state stops after the last tap", "[target]") {
  const fixture f;
  const auto ids = test::random_ids(20, f.shape.vocab, 2);
  const std::vector<int32_t> offsets = {0, 20};
  const std::vector<int> taps = {1};
  const auto some = f.fp32->capture(ids, offsets, taps, false);
  CHECK_FALSE(some.last_hidden.defined());
  CHECK(at::equal(some.taps[0], f.fp32->capture(ids, offsets, taps, true).taps[0]));
}

TEST_CASE("a folder that transformers saved gives what transformers computes", "[target][exact]") {
  const std::filesystem::path folder = std::filesystem::path(DFLASH_TEST_DATA) / "tiny_llama";
  const auto expected = safetensors_file::open(folder / "expected.safetensors");
  const auto values = [&](const std::string& name) {
    const auto bytes = expected.bytes(expected.at(name));
    std::vector<float> out(bytes.size() / sizeof(float));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return std::vector<double>(out.begin(), out.end());
  };
  const auto stored = expected.bytes(expected.at("ids"));
  std::vector<int32_t> ids(stored.size() / sizeof(int32_t));
  std::memcpy(ids.data(), stored.data(), stored.size());
  const std::vector<int32_t> offsets = {0, static_cast<int32_t>(ids.size())};
  const std::vector<int> taps = {0, 1, 2, 3};
  const auto fp32 = target::load(folder, compute_dtype::fp32);
  const auto got = fp32->capture(ids, offsets, taps, true);
  double largest = difference(fp32->logits(got.last_hidden), values("logits"));
  for (const int tap : taps) {
    const auto expected_rows = values("after_layer_" + std::to_string(tap));
    largest = std::max(largest, difference(got.taps[tap], expected_rows));
  }
  test::exactness_row("target llama: taps and logits", "transformers 5.18", largest, 1e-5);
  CHECK(largest < 1e-5);
  const auto bf16 = target::load(folder, compute_dtype::bf16);
  const auto rough = bf16->capture(ids, offsets, {}, true);
  CHECK(difference(bf16->logits(rough.last_hidden), values("logits")) < 2 * bf16_bound);
}

TEST_CASE("packed documents see themselves only and count positions from 0", "[target]") {
  const fixture f;
  const auto ids = test::random_ids(90, f.shape.vocab, 3);
  const std::vector<int32_t> offsets = {0, 1, 40, 40, 90};
  const std::vector<int> taps = {0, 2};
  for (const auto& [model, bound] : {std::pair{f.fp32, fp32_bound}, {f.bf16, bf16_bound}}) {
    const auto packed = model->capture(ids, offsets, taps, false);
    for (size_t d = 0; d + 1 < offsets.size(); ++d) {
      if (offsets[d] == offsets[d + 1]) continue;
      const auto alone = f.naive({ids.begin() + offsets[d], ids.begin() + offsets[d + 1]});
      CHECK(difference(packed.taps[0], alone.layers[0], offsets[d]) < bound);
      CHECK(difference(packed.taps[1], alone.layers[2], offsets[d]) < bound);
    }
  }
}

TEST_CASE("the kernels equal the form in ATen operators", "[target]") {
  const fixture f;
  const auto ids = test::random_ids(90, f.shape.vocab, 9);
  const std::vector<int32_t> offsets = {0, 30, 30, 90};
  const std::vector<int> taps = {0, 1};
  for (const auto& [model, bound] : {std::pair{f.fp32, fp32_bound}, {f.bf16, bf16_bound}}) {
    const auto got = model->capture(ids, offsets, taps, true);
    const auto reference = model->capture_reference(ids, offsets, taps, true);
    const auto values = [](const at::Tensor& t) {
      const auto wide = t.to(at::kFloat).contiguous();
      const auto* p = wide.const_data_ptr<float>();
      return std::vector<double>(p, p + wide.numel());
    };
    for (size_t i = 0; i < taps.size(); ++i)
      CHECK(difference(got.taps[i], values(reference.taps[i])) < bound);
    CHECK(difference(got.last_hidden, values(reference.last_hidden)) < bound);
  }
}

TEST_CASE("ragged chunks through the cache equal the whole sequences", "[target]") {
  const fixture f;
  const auto a = test::random_ids(300, f.shape.vocab, 4),
             b = test::random_ids(41, f.shape.vocab, 5);
  const auto naive_a = f.naive(a), naive_b = f.naive(b);
  const std::vector<int> taps = {1};
  for (const auto& [model, bound] : {std::pair{f.fp32, fp32_bound}, {f.bf16, bf16_bound}}) {
    kv_cache cache(model->config(), model->dtype(), 3, 300);
    int64_t at_a = 0, at_b = 0;
    const std::pair<int64_t, int64_t> sizes[] = {{17, 0}, {1, 30}, {239, 1}, {1, 5}, {42, 5}};
    for (const auto& [n_a, n_b] : sizes) {
      const target::chunk chunks[] = {{2, std::span(b).subspan(at_b, n_b)},
                                      {0, std::span(a).subspan(at_a, n_a)}};
      const auto got = model->forward(cache, chunks, taps);
      const auto h = f.shape.hidden;
      if (n_b > 0) {
        CHECK(difference(got.hidden, rows(naive_b.layers[2], h, at_b, n_b)) < bound);
        CHECK(difference(got.taps[0], rows(naive_b.layers[1], h, at_b, n_b)) < bound);
      }
      CHECK(difference(got.hidden, rows(naive_a.layers[2], h, at_a, n_a), n_b) < bound);
      at_a += n_a, at_b += n_b;
      CHECK(cache.length(0) == at_a);
      CHECK(cache.length(2) == at_b);
    }
    CHECK(cache.length(1) == 0);
  }
}

TEST_CASE("cropped tokens leave no trace", "[target]") {
  const fixture f;
  const auto ids = test::random_ids(80, f.shape.vocab, 6);
  const auto wrong = test::random_ids(40, f.shape.vocab, 7);
  const auto model = f.bf16;
  const auto finish = [&](kv_cache& cache) {
    const target::chunk rest{0, std::span(ids).subspan(30, 20)};
    return model->forward(cache, {&rest, 1}).hidden;
  };
  const target::chunk head{0, std::span(ids).first(30)};
  kv_cache clean(model->config(), model->dtype(), 1, 100);
  model->forward(clean, {&head, 1});
  kv_cache used(model->config(), model->dtype(), 1, 100);
  model->forward(used, {&head, 1});
  const target::chunk drafted{0, wrong};
  model->forward(used, {&drafted, 1});
  used.crop(0, 30);
  CHECK(at::equal(finish(clean), finish(used)));
}

TEST_CASE("a head dimension that is no multiple of 16 and one key head a query head", "[target]") {
  tiny_shape shape;
  shape.heads = shape.kv_heads = 3;
  shape.head_dim = 10;
  shape.hidden = 30;
  shape.tied = true;
  const fixture f(shape);
  const auto ids = test::random_ids(50, shape.vocab, 8);
  const std::vector<int32_t> offsets = {0, 50};
  const auto naive = f.naive(ids);
  for (const auto& [model, bound] : {std::pair{f.fp32, fp32_bound}, {f.bf16, bf16_bound}}) {
    const auto got = model->capture(ids, offsets, {}, true);
    CHECK(difference(model->logits(got.last_hidden), naive.logits) < bound);
    CHECK(model->head().weight().is_same(model->embedding()));
  }
}

}  // namespace dflash
