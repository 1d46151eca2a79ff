// The reference values of tests/data/golden as tensors, batches and weights.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>

#include <catch2/catch.hpp>

#include <map>
#include <string>

#include "data/safetensors.hpp"
#include "model/drafter_step.hpp"

namespace dflash::test {

class golden_file {
public:
  explicit golden_file(const std::string& name)
      : file_(safetensors_file::open(std::string(DFLASH_TEST_DATA "/golden/") + name)) {}

  at::Tensor operator[](const std::string& name) const {
    const st_tensor& t = file_.at(name);
    const auto type = t.dtype == st_dtype::f32   ? at::kFloat
                      : t.dtype == st_dtype::i64 ? at::kLong
                                                 : at::kInt;
    const auto bytes = file_.bytes(t);
    return at::from_blob(const_cast<std::byte*>(bytes.data()), t.shape, type).clone();
  }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  double scalar(const std::string& name) const { return (*this)[name].item().toDouble(); }
  const safetensors_file& file() const { return file_; }

private:
  safetensors_file file_;
};

inline double difference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.numel() == b.numel());
  const at::Tensor x = a.to(at::kDouble).flatten(), y = b.to(at::kDouble).flatten();
  return ((x - y).abs().max() / (y.abs().max() + 1e-30)).item().toDouble();
}

inline drafter_config golden_config() {
  return {.layers = 2,
          .hidden = 64,
          .intermediate = 64,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 32,
          .target_hidden = 64,
          .vocab = 128,
          .block_size = 4,
          .mask_token_id = 3,
          .sliding_window = 0,
          .num_target_layers = 8,
          .max_positions = 256,
          .rope_theta = 1e4,
          .rms_eps = 1e-6,
          .taps = {1, 4},
          .sliding = {false, false},
          .causal = {}};
}

struct golden_case {
  golden_case(const std::string& name, drafter_config config = golden_config())
      : weights("weights_inputs.safetensors"), values(name), shape(std::move(config)) {
    masters = make_drafter_weights(shape, at::kFloat);
    for (const auto& [tensor_name, tensor] : named_tensors(masters))
      tensor->copy_(weights["w." + tensor_name]);
    const at::Tensor hidden = weights["in.hidden_states"];
    taps = {hidden.narrow(1, 0, 64).contiguous(), hidden.narrow(1, 64, 64).contiguous()};
    last_hidden = weights["in.verifier_last_hidden"];
    const at::Tensor ids = weights["in.input_ids"];
    for (int64_t i = 0; i < 24; ++i) tokens.input_ids.push_back(ids[i].item().toInt());
  }
  void read_batch(const golden_file& from) {
    const auto ints = [&](const char* key) {
      const at::Tensor t = from[std::string("in.") + key].to(at::kInt);
      return std::vector<int32_t>(t.data_ptr<int32_t>(), t.data_ptr<int32_t>() + t.numel());
    };
    const std::vector<int32_t> docs = ints("document_ids");
    tokens.doc_offsets = {0};
    for (size_t i = 1; i < docs.size(); ++i)
      if (docs[i] != docs[i - 1]) tokens.doc_offsets.push_back(static_cast<int32_t>(i));
    tokens.doc_offsets.push_back(static_cast<int32_t>(docs.size()));
    for (const int32_t m : ints("loss_mask")) tokens.loss_mask.push_back(static_cast<uint8_t>(m));
    tokens.anchors = ints("anchors");
    for (const int32_t v : ints("anchor_valid"))
      tokens.anchor_valid.push_back(static_cast<uint8_t>(v));
  }
  // speculators labels slots with the target's argmax at a + k - 1. No anchor stands on a labelled
  // position, so those labels can be put in place of the data tokens.
  void label_by_target() {
    const at::Tensor best = values["spec.target_logits"].argmax(1);
    const at::Tensor positions = values["spec.block_pos"];
    for (size_t a = 0; a < tokens.anchors.size(); ++a)
      for (int64_t k = 1; tokens.anchor_valid[a] && k < 4; ++k) {
        const int64_t row = static_cast<int64_t>(a) * 4 + k;
        tokens.input_ids[static_cast<size_t>(positions[row].item().toInt())] =
            best[row].item().toInt();
      }
  }
  frozen_parts frozen() const {
    return {.embedding = weights["w.embed_tokens.weight"],
            .head = packed_linear(weights["w.lm_head.weight"]),
            .final_norm = weights["w.verifier_norm.weight"],
            .rms_eps = 1e-6};
  }
  static loss_section loss_of(const std::string& term, double gamma) {
    loss_section loss;
    loss.terms = {{term, 1.0}};
    loss.gamma = gamma;
    return loss;
  }
  drafter_trainer trainer(const std::string& term, double gamma) const {
    return trainer(loss_of(term, gamma));
  }
  drafter_trainer trainer(const loss_section& loss) const {
    return drafter_trainer(shape, loss, {}, masters, frozen(), compute_dtype::fp32, 10);
  }
  drafter_input input() const { return {taps, last_hidden, &tokens}; }
  // Rows of slots 1..B-1 of a [A B, n] reference.
  static at::Tensor slots(const at::Tensor& x) {
    return x.view({-1, 4, x.size(1)}).narrow(1, 1, 3).reshape({-1, x.size(1)});
  }

  golden_file weights, values;
  drafter_config shape;
  drafter_weights masters;
  std::vector<at::Tensor> taps;
  at::Tensor last_hidden;
  batch tokens;
};

}  // namespace dflash::test
