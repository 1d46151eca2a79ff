#include "model/drafter.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <limits>

#include "config/error.hpp"
#include "data/random.hpp"
#include "model/draft_vocab.hpp"
#include "model/drafter_form.hpp"
#include "model/folder.hpp"
#include "model/target.hpp"

namespace dflash {
namespace {

// The order of every list of tensors: checkpoints, flat buffers and exports rely on it.
template <class Weights, class Tensor>
std::vector<std::pair<std::string, Tensor*>> list_tensors(Weights& w) {
  std::vector<std::pair<std::string, Tensor*>> out{
      {"fc.weight", &w.fc}, {"hidden_norm.weight", &w.hidden_norm}, {"norm.weight", &w.norm}};
  for (size_t i = 0; i < w.layers.size(); ++i) {
    auto& l = w.layers[i];
    const std::string at = "layers." + std::to_string(i) + ".";
    const std::pair<const char*, Tensor*> named[] = {
        {"input_layernorm", &l.input_layernorm},
        {"self_attn.q_proj", &l.q_proj},
        {"self_attn.k_proj", &l.k_proj},
        {"self_attn.v_proj", &l.v_proj},
        {"self_attn.o_proj", &l.o_proj},
        {"self_attn.q_norm", &l.q_norm},
        {"self_attn.k_norm", &l.k_norm},
        {"post_attention_layernorm", &l.post_attention_layernorm},
        {"mlp.gate_proj", &l.gate_proj},
        {"mlp.up_proj", &l.up_proj},
        {"mlp.down_proj", &l.down_proj}};
    for (const auto& [name, tensor] : named) out.emplace_back(at + name + ".weight", tensor);
  }
  return out;
}

constexpr const char* embedding_name = "embed_tokens.weight";
constexpr const char* head_name = "lm_head.weight";

// What a drafter's folder may hold without being read.
constexpr spare_rule spare_tensors[] = {
    {"verifier_lm_head.weight", "the target's, for teacher logits"},
    {"verifier_norm.weight", "the target's, for teacher logits"},
    {"*rotary_emb.inv_freq", "derived from the configuration"}};

// A stored copy of what is the target's. bf16 is how copies are stored and what most targets are
// computed in, so that is what has to be equal.
void check_copy(const char* name,
                const at::Tensor& copy,
                const at::Tensor& of,
                const std::string& where) {
  if (!at::equal(copy.to(at::kBFloat16), of.cpu().to(at::kBFloat16)))
    throw error(std::string(name) + " is not the target's",
                where,
                "the drafter belongs to another target; drafters with an embedding or a head of "
                "their own are not supported");
}

void check_same_tensors(const drafter_config& c,
                        const drafter_config& stored,
                        const std::filesystem::path& folder) {
  const std::vector<named_shape> mine = drafter_tensor_shapes(c),
                                 theirs = drafter_tensor_shapes(stored);
  for (size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i)
    if (mine[i].shape != theirs[i].shape)
      throw error("the drafter to start from has another shape: " + mine[i].name,
                  folder.string(),
                  "layers, sizes and number of taps must be those of [draft]");
  if (mine.size() != theirs.size() || stored.taps != c.taps)
    throw error("the drafter to start from has other layers or taps",
                folder.string(),
                "draft.layers and draft.taps must be its own");
}

bool is_norm(const std::string& name) {
  return name.find("norm") != std::string::npos;
}

// The target's last L layers, whose context is their own input: fc passes the last tap through and
// hidden_norm is the norm that the first of them had on it. Head norms, which Llama lacks, are 1.
// Layers that a drafter's cannot be equal to are refused.
void copy_target_layers(const drafter_config& c,
                        drafter_weights& w,
                        const target_config& t,
                        const std::filesystem::path& folder) {
  const auto need = [](const char* key, int64_t drafter, int64_t target) {
    if (drafter != target)
      throw error("init = \"target\" copies layers of the target, but " + std::string(key) +
                      " is " + std::to_string(drafter) + " and the target's " +
                      std::to_string(target),
                  std::string("draft.") + key,
                  "leave the key out, or start with init = \"random\"");
  };
  const bool other = t.is_hybrid() || t.experts.count > 0 || t.norms_after || t.norms_from_one ||
                     t.qkv_bias || t.out_bias || t.mlp_bias || t.act != activation::silu;
  if (other)
    throw error("init = \"target\" copies layers of the Llama or Qwen3 form, and those of " +
                    t.model_type + " are of another",
                "draft.init",
                "start with init = \"random\"");
  need("heads", c.heads, t.heads);
  need("kv_heads", c.kv_heads, t.kv_heads);
  need("head_dim", c.head_dim, t.head_dim);
  need("intermediate_size", c.intermediate, t.intermediate);
  if (c.layers > t.layers)
    throw error("init = \"target\" copies " + std::to_string(c.layers) +
                    " layers, the target has " + std::to_string(t.layers),
                "draft.layers");
  w.fc.zero_();
  w.fc.narrow(1, w.fc.size(1) - c.target_hidden, c.target_hidden)
      .copy_(at::eye(c.hidden, c.target_hidden, w.fc.options()));
  model_folder files = model_folder::open(folder);
  for (const auto& [name, tensor] : named_tensors(w)) {
    if (name.rfind("layers.", 0) != 0) continue;
    const size_t dot = name.find('.', 7);
    const std::string part = name.substr(dot);
    const bool head_norm = part == ".self_attn.q_norm.weight" || part == ".self_attn.k_norm.weight";
    if (head_norm && !t.head_norms) continue;
    const int64_t layer = t.layers - c.layers + std::stoll(name.substr(7, dot - 7));
    tensor->copy_(
        files.load("model.layers." + std::to_string(layer) + part, tensor->sizes(), at::kFloat));
  }
  w.hidden_norm.copy_(w.layers.front().input_layernorm);
}

// N(0, 0.02) by the run's seed and the tensor's place in the list: Qwen3's initializer_range.
void fill_random(at::Tensor& t, uint64_t seed, uint64_t key) {
  const random_stream stream{.seed = seed, .domain = random_domain::init, .key = key};
  float* p = t.data_ptr<float>();
  for (int64_t i = 0; i < t.numel(); ++i)
    p[i] = static_cast<float>(0.02 * stream.normal(static_cast<uint64_t>(i)));
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor*>> named_tensors(drafter_weights& w) {
  return list_tensors<drafter_weights, at::Tensor>(w);
}
std::vector<std::pair<std::string, const at::Tensor*>> named_tensors(const drafter_weights& w) {
  return list_tensors<const drafter_weights, const at::Tensor>(w);
}

std::vector<named_shape> drafter_tensor_shapes(const drafter_config& c) {
  const int64_t h = c.hidden, q = c.query_width(), kv = c.kv_width(), i = c.intermediate;
  std::vector<std::vector<int64_t>> shapes{
      {h, static_cast<int64_t>(c.taps.size()) * c.target_hidden}, {h}, {h}};
  for (int64_t layer = 0; layer < c.layers; ++layer)
    for (const auto& shape : std::vector<std::vector<int64_t>>{{h},
                                                               {q, h},
                                                               {kv, h},
                                                               {kv, h},
                                                               {h, q},
                                                               {c.head_dim},
                                                               {c.head_dim},
                                                               {h},
                                                               {i, h},
                                                               {i, h},
                                                               {h, i}})
      shapes.push_back(shape);
  drafter_weights names;
  names.layers.resize(static_cast<size_t>(c.layers));
  std::vector<named_shape> out;
  for (const auto& [name, tensor] : named_tensors(names)) out.push_back({name, shapes[out.size()]});
  return out;
}

int64_t drafter_parameter_count(const drafter_config& c) {
  int64_t count = 0;
  for (const named_shape& s : drafter_tensor_shapes(c)) {
    int64_t n = 1;
    for (const int64_t d : s.shape) n *= d;
    count += n;
  }
  return count;
}

drafter_weights view_drafter_weights(const drafter_config& c, const at::Tensor& flat) {
  DFLASH_CHECK(flat.dim() == 1 && flat.numel() == drafter_parameter_count(c),
               "flat buffer of another shape",
               flat.numel(),
               drafter_parameter_count(c));
  drafter_weights w;
  w.layers.resize(static_cast<size_t>(c.layers));
  const std::vector<named_shape> shapes = drafter_tensor_shapes(c);
  int64_t at = 0;
  size_t i = 0;
  for (const auto& [name, tensor] : named_tensors(w)) {
    int64_t n = 1;
    for (const int64_t d : shapes[i].shape) n *= d;
    *tensor = flat.narrow(0, at, n).view(shapes[i++].shape);
    at += n;
  }
  return w;
}

drafter_weights make_drafter_weights(const drafter_config& c,
                                     at::ScalarType dtype,
                                     at::Tensor* flat) {
  const at::Tensor buffer = at::full({drafter_parameter_count(c)},
                                     std::numeric_limits<double>::quiet_NaN(),
                                     at::TensorOptions().dtype(dtype));
  if (flat) *flat = buffer;
  return view_drafter_weights(c, buffer);
}

drafter_weights init_drafter(const drafter_config& c,
                             const std::string& how,
                             const target& frozen,
                             uint64_t seed,
                             double norm_scale,
                             const std::filesystem::path& target_folder) {
  check_drafter_fits(c, frozen.config(), "draft");
  if (how != "random" && how != "target") {
    drafter_config stored;
    drafter_weights w = load_drafter(how, frozen, stored);
    check_same_tensors(c, stored, how);
    return w;
  }
  drafter_weights w = make_drafter_weights(c, at::kFloat);
  uint64_t key = 0;
  for (const auto& [name, tensor] : named_tensors(w)) {
    if (is_norm(name))
      tensor->fill_(1.0);
    else if (how == "random")
      fill_random(*tensor, seed, key);
    ++key;
  }
  // A drafter with the target's own final norm starts at a loss far above log V, since its residual
  // stream is nothing like the target's; a fraction of it starts near log V.
  w.norm.copy_(frozen.final_norm() * norm_scale);
  if (how == "target") copy_target_layers(c, w, frozen.config(), target_folder);
  return w;
}

stored_drafter read_drafter(const std::filesystem::path& folder) {
  // Before any tensor is looked for: a folder of another kind is named as what it is.
  form_of(json_file::open(folder / "config.json"));
  model_folder files = model_folder::open(folder);
  stored_drafter d;
  d.config = take_drafter_config(files);
  d.weights = make_drafter_weights(d.config, at::kFloat);
  const std::vector<named_shape> shapes = drafter_tensor_shapes(d.config);
  size_t i = 0;
  for (const auto& [name, tensor] : named_tensors(d.weights))
    tensor->copy_(files.load(name, shapes[i++].shape, at::kFloat));
  if (files.has(embedding_name))
    d.embedding = files.load(embedding_name, {d.config.vocab, d.config.hidden}, at::kBFloat16);
  if (files.has(head_name))
    d.head = files.load(head_name, {d.config.draft_vocab(), d.config.hidden}, at::kFloat);
  files.finish(spare_tensors);
  d.target_hash = files.metadata("target_hash");
  return d;
}

drafter_weights load_drafter(const std::filesystem::path& folder, drafter_config& out) {
  stored_drafter d = read_drafter(folder);
  out = std::move(d.config);
  return std::move(d.weights);
}

drafter_weights load_drafter(const std::filesystem::path& folder,
                             const target& of,
                             drafter_config& out) {
  stored_drafter d = read_drafter(folder);
  const std::string where = folder.string();
  check_drafter_fits(d.config, of.config(), where);
  if (d.embedding.defined()) check_copy(embedding_name, d.embedding, of.embedding(), where);
  if (d.head.defined())
    check_copy(head_name, d.head, draft_head(of.head().weight(), d.config), where);
  if (!d.target_hash.empty() && d.target_hash != of.content_hash())
    spdlog::warn("{}: trained for another target (content hash {}, this one has {})",
                 where,
                 d.target_hash,
                 of.content_hash());
  out = std::move(d.config);
  return std::move(d.weights);
}

drafter_config adopt_drafter(drafter_config c, const std::filesystem::path& folder) {
  const drafter_config stored = read_drafter_config(folder);
  check_same_tensors(c, stored, folder);
  const auto note = [&](const char* what, bool differs) {
    if (differs) spdlog::warn("{}: trained with another {} than this run", folder.string(), what);
  };
  note("block size", c.block_size != stored.block_size);
  note("mask token", c.mask_token_id != stored.mask_token_id);
  note("layer_types", c.sliding != stored.sliding);
  note("sliding window", c.sliding_window != stored.sliding_window);
  note("causality", c.causal != stored.causal && c.sliding == stored.sliding);
  c.rope_theta = stored.rope_theta;
  c.rms_eps = stored.rms_eps;
  c.draft_ids = stored.draft_ids;
  return c;
}

}  // namespace dflash
