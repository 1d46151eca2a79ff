#include "tests/model/tiny_llama.hpp"

#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>

namespace dflash::test {

tiny_weights random_llama(const tiny_shape& s, uint64_t seed) {
  std::mt19937_64 random(seed);
  tiny_weights w;
  const auto add =
      [&](const std::string& name, std::vector<int64_t> shape, double scale, double centre) {
        int64_t n = 1;
        for (const auto size : shape) n *= size;
        std::vector<float> values(n);
        for (auto& x : values)
          x = static_cast<float>(centre +
                                 scale * (static_cast<double>(random() >> 11) * 0x1p-52 - 1));
        w.tensors[name] = {std::move(shape), std::move(values)};
      };
  const double scale = std::sqrt(3.0 / static_cast<double>(s.hidden));
  add("model.embed_tokens.weight", {s.vocab, s.hidden}, 1, 0);
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto p = "model.layers." + std::to_string(i) + ".";
    add(p + "input_layernorm.weight", {s.hidden}, 0.3, 1);
    add(p + "self_attn.q_proj.weight", {s.heads * s.head_dim, s.hidden}, 2 * scale, 0);
    add(p + "self_attn.k_proj.weight", {s.kv_heads * s.head_dim, s.hidden}, 2 * scale, 0);
    add(p + "self_attn.v_proj.weight", {s.kv_heads * s.head_dim, s.hidden}, scale, 0);
    add(p + "self_attn.o_proj.weight", {s.hidden, s.heads * s.head_dim}, scale, 0);
    add(p + "post_attention_layernorm.weight", {s.hidden}, 0.3, 1);
    add(p + "mlp.gate_proj.weight", {s.intermediate, s.hidden}, scale, 0);
    add(p + "mlp.up_proj.weight", {s.intermediate, s.hidden}, scale, 0);
    add(p + "mlp.down_proj.weight", {s.hidden, s.intermediate}, scale, 0);
  }
  add("model.norm.weight", {s.hidden}, 0.3, 1);
  if (!s.tied) add("lm_head.weight", {s.vocab, s.hidden}, 2 * scale, 0);
  return w;
}

void round_to_bf16(tiny_weights& weights) {
  for (auto& [name, tensor] : weights.tensors)
    for (auto& x : tensor.values) {
      auto bits = std::bit_cast<uint32_t>(x);
      bits += 0x7fff + ((bits >> 16) & 1);
      x = std::bit_cast<float>(bits & 0xffff0000U);
    }
}

std::string config_text(const tiny_shape& s, const std::string& more) {
  const auto number = [](const char* key, auto value) {
    return std::string("\"") + key + "\": " + std::to_string(value) + ",\n";
  };
  return "{\"model_type\": \"llama\",\n" + number("vocab_size", s.vocab) +
         number("hidden_size", s.hidden) + number("intermediate_size", s.intermediate) +
         number("num_hidden_layers", s.layers) + number("num_attention_heads", s.heads) +
         number("num_key_value_heads", s.kv_heads) + number("head_dim", s.head_dim) +
         number("max_position_embeddings", s.max_positions) + number("rope_theta", s.theta) +
         number("rms_norm_eps", s.eps) + more +
         "\"tie_word_embeddings\": " + (s.tied ? "true" : "false") +
         ",\n\"bos_token_id\": 1,\n\"eos_token_id\": 2}\n";
}

void write_folder(const std::filesystem::path& folder,
                  const tiny_shape& shape,
                  const tiny_weights& weights) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config_text(shape);
  std::vector<st_view> views;
  for (const auto& [name, tensor] : weights.tensors)
    views.push_back({name, st_dtype::f32, tensor.shape, std::as_bytes(std::span(tensor.values))});
  write_safetensors(folder / "model.safetensors", views);
}

namespace {

std::vector<double> product(
    const std::vector<double>& x, const std::vector<float>& w, int64_t n, int64_t k, int64_t m) {
  std::vector<double> y(n * m, 0.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j)
      for (int64_t l = 0; l < k; ++l) y[i * m + j] += x[i * k + l] * w[j * k + l];
  return y;
}

std::vector<double> norm(const std::vector<double>& x,
                         const std::vector<float>& w,
                         int64_t n,
                         double eps) {
  const auto d = static_cast<int64_t>(w.size());
  std::vector<double> y(n * d);
  for (int64_t i = 0; i < n; ++i) {
    double squares = 0;
    for (int64_t j = 0; j < d; ++j) squares += x[i * d + j] * x[i * d + j];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(d) + eps);
    for (int64_t j = 0; j < d; ++j) y[i * d + j] = x[i * d + j] * scale * w[j];
  }
  return y;
}

void rotate(std::vector<double>& x, int64_t n, int64_t heads, int64_t hd, double theta) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < hd / 2; ++j) {
        const double angle =
            static_cast<double>(i) *
            std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(hd));
        double& a = x[(i * heads + h) * hd + j];
        double& b = x[(i * heads + h) * hd + j + hd / 2];
        const double old = a;
        a = old * std::cos(angle) - b * std::sin(angle);
        b = b * std::cos(angle) + old * std::sin(angle);
      }
}

}  // namespace

naive_states naive_forward(const tiny_shape& s,
                           const tiny_weights& w,
                           const std::vector<int32_t>& ids) {
  const auto n = static_cast<int64_t>(ids.size());
  naive_states out;
  std::vector<double> x;
  const auto& table = w.of("model.embed_tokens.weight");
  for (const auto id : ids)
    x.insert(x.end(), table.begin() + id * s.hidden, table.begin() + (id + 1) * s.hidden);
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto p = "model.layers." + std::to_string(i) + ".";
    const auto y = norm(x, w.of(p + "input_layernorm.weight"), n, s.eps);
    const int64_t q_width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim;
    auto q = product(y, w.of(p + "self_attn.q_proj.weight"), n, s.hidden, q_width);
    auto k = product(y, w.of(p + "self_attn.k_proj.weight"), n, s.hidden, kv_width);
    const auto v = product(y, w.of(p + "self_attn.v_proj.weight"), n, s.hidden, kv_width);
    rotate(q, n, s.heads, s.head_dim, s.theta);
    rotate(k, n, s.kv_heads, s.head_dim, s.theta);
    std::vector<double> mixed(n * q_width, 0.0);
    for (int64_t t = 0; t < n; ++t)
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t kv = h / (s.heads / s.kv_heads);
        std::vector<double> score(t + 1);
        double total = 0;
        for (int64_t u = 0; u <= t; ++u) {
          for (int64_t d = 0; d < s.head_dim; ++d)
            score[u] += q[t * q_width + h * s.head_dim + d] * k[u * kv_width + kv * s.head_dim + d];
          score[u] = std::exp(score[u] / std::sqrt(static_cast<double>(s.head_dim)));
          total += score[u];
        }
        for (int64_t u = 0; u <= t; ++u)
          for (int64_t d = 0; d < s.head_dim; ++d)
            mixed[t * q_width + h * s.head_dim + d] +=
                score[u] / total * v[u * kv_width + kv * s.head_dim + d];
      }
    const auto o = product(mixed, w.of(p + "self_attn.o_proj.weight"), n, q_width, s.hidden);
    for (size_t j = 0; j < x.size(); ++j) x[j] += o[j];
    const auto z = norm(x, w.of(p + "post_attention_layernorm.weight"), n, s.eps);
    auto gate = product(z, w.of(p + "mlp.gate_proj.weight"), n, s.hidden, s.intermediate);
    const auto up = product(z, w.of(p + "mlp.up_proj.weight"), n, s.hidden, s.intermediate);
    for (size_t j = 0; j < gate.size(); ++j) gate[j] *= up[j] / (1 + std::exp(-gate[j]));
    const auto down = product(gate, w.of(p + "mlp.down_proj.weight"), n, s.intermediate, s.hidden);
    for (size_t j = 0; j < x.size(); ++j) x[j] += down[j];
    out.layers.push_back(x);
  }
  out.logits = product(norm(x, w.of("model.norm.weight"), n, s.eps),
                       w.of(s.tied ? "model.embed_tokens.weight" : "lm_head.weight"),
                       n,
                       s.hidden,
                       s.vocab);
  return out;
}

scratch_folder::scratch_folder() {
  auto pattern = (std::filesystem::temp_directory_path() / "dflash-test-XXXXXX").string();
  if (!::mkdtemp(pattern.data())) std::abort();
  path_ = pattern;
}

scratch_folder::~scratch_folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<int32_t> random_ids(int64_t n, int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(n);
  for (auto& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return ids;
}

}  // namespace dflash::test
