// A tiny drafter with random weights, taps and a row of two documents: what tests of the training
// step start from.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include <utility>
#include <vector>

#include "model/drafter_pass.hpp"
#include "model/drafter_step.hpp"

namespace dflash::test {

inline drafter_config tiny() {
  return {.layers = 2,
          .hidden = 24,
          .intermediate = 20,
          .heads = 3,
          .kv_heads = 1,
          .head_dim = 8,
          .target_hidden = 24,
          .vocab = 37,
          .block_size = 3,
          .mask_token_id = 2,
          .sliding_window = 5,
          .num_target_layers = 6,
          .max_positions = 64,
          .rope_theta = 100.0,
          .rms_eps = 1e-5,
          .taps = {1, 3, 4},
          .sliding = {false, true},
          .causal = {}};
}

inline at::Tensor noise(std::vector<int64_t> shape, uint64_t seed, double scale = 1.0) {
  auto g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, g, at::TensorOptions().dtype(at::kFloat)) * scale;
}

struct problem {
  explicit problem(drafter_config c = tiny(), int64_t rows = 16) : shape(std::move(c)) {
    masters = make_drafter_weights(shape, at::kFloat);
    uint64_t seed = 10;
    for (const auto& [name, t] : named_tensors(masters)) {
      t->copy_(noise(t->sizes().vec(), seed++, t->dim() == 1 ? 0.2 : 0.25));
      if (t->dim() == 1) t->add_(1.0);
    }
    frozen = {.embedding = noise({shape.vocab, shape.hidden}, 1),
              .head = packed_linear(noise({shape.vocab, shape.hidden}, 2)),
              .final_norm = at::ones({shape.hidden}),
              .rms_eps = 1e-5};
    for (size_t j = 0; j < shape.taps.size(); ++j)
      taps.push_back(noise({rows, shape.target_hidden}, 100 + j));
    last_hidden = noise({rows, shape.target_hidden}, 99);
    tokens.doc_offsets = {0, 9, static_cast<int32_t>(rows)};
    for (int64_t t = 0; t < rows; ++t) {
      tokens.input_ids.push_back(static_cast<int32_t>((t * 7 + 3) % shape.vocab));
      tokens.loss_mask.push_back(t != 0 && t != 9);
    }
    tokens.anchors = {3, 7, 10, 12, 0};
    tokens.anchor_valid = {1, 1, 1, 1, 0};
    loss.terms = {{"ce", 0.6}, {"kl", 0.4}};
    loss.gamma = 2.0;
    loss.temperature = 1.3;
    optim.lr = 3e-3;
    optim.schedule = "constant";
    optim.warmup = {.share = 0, .steps = 0};
  }
  drafter_trainer trainer(compute_dtype dtype = compute_dtype::fp32) const {
    frozen_parts parts = frozen;
    if (dtype == compute_dtype::bf16) {
      parts.embedding = parts.embedding.to(at::kBFloat16);
      parts.head = packed_linear(parts.head.weight().to(at::kBFloat16));
    }
    return drafter_trainer(shape, loss, optim, masters, parts, dtype, 1000);
  }
  drafter_input input() const { return {taps, last_hidden, &tokens}; }

  drafter_config shape;
  drafter_weights masters;
  frozen_parts frozen;
  std::vector<at::Tensor> taps;
  at::Tensor last_hidden;
  batch tokens;
  loss_section loss;
  optim_section optim;
};

}  // namespace dflash::test
