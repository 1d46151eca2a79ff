// Problems of tests/peers/drafter_cases.py read from a safetensors file: configuration, row and
// anchors stand there, all numbers are cut from its pool by the rule of that file's numbers().
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <string>
#include <vector>

#include "data/safetensors.hpp"
#include "model/drafter_step.hpp"

namespace dflash::test {

class case_file {
public:
  explicit case_file(const std::string& path) : file_(safetensors_file::open(path)) {}
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  at::Tensor operator[](const std::string& name) const {
    const st_tensor& t = file_.at(name);
    const auto bytes = file_.bytes(t);
    const auto type = t.dtype == st_dtype::i32 ? at::kInt : at::kFloat;
    return at::from_blob(const_cast<std::byte*>(bytes.data()), t.shape, type).clone();
  }
  std::vector<int32_t> ints(const std::string& name) const {
    const at::Tensor t = (*this)[name];
    return {t.const_data_ptr<int32_t>(), t.const_data_ptr<int32_t>() + t.numel()};
  }

private:
  safetensors_file file_;
};

// Tensor `index` of the list begins at (seed + 1009 index) of the pool, which repeats.
struct number_pool {
  at::Tensor pool;
  int64_t seed = 0;
  int64_t index = 0;

  at::Tensor next(at::IntArrayRef shape) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    const at::Tensor at = (at::arange(n, at::kLong) + (seed + 1009 * index++)) % pool.numel();
    return at::index_select(pool, 0, at).reshape(shape);
  }
  at::Tensor next_weight(at::IntArrayRef shape) {
    if (shape.size() == 1) return next(shape) * 0.2 + 1.0;
    return next(shape) * (1.5 / std::sqrt(static_cast<double>(shape[1])));
  }
};

struct drafter_case {
  drafter_case(const case_file& file, const std::string& prefix) {
    const auto ints = [&](const char* name) { return file.ints(prefix + "." + name); };
    const std::vector<int32_t> s = ints("shape");
    shape = {.layers = s.at(0),
             .hidden = s.at(1),
             .intermediate = s.at(2),
             .heads = s.at(3),
             .kv_heads = s.at(4),
             .head_dim = s.at(5),
             .target_hidden = s.at(1),
             .vocab = s.at(6),
             .block_size = s.at(7),
             .mask_token_id = s.at(8),
             .sliding_window = s.at(9),
             .num_target_layers = 16,
             .max_positions = 256,
             .rope_theta = 1e4,
             .rms_eps = 1e-6,
             .taps = {},
             .sliding = {},
             .causal = {}};
    if (s.at(10) >= 0) shape.causal = s.at(10) == 1;
    for (const int32_t t : ints("taps")) shape.taps.push_back(t);
    for (const int32_t slides : ints("sliding")) shape.sliding.push_back(slides != 0);
    tokens.input_ids = ints("input_ids");
    tokens.doc_offsets = ints("doc_offsets");
    for (const int32_t m : ints("loss_mask")) tokens.loss_mask.push_back(static_cast<uint8_t>(m));
    tokens.anchors = ints("anchors");
    for (const int32_t v : ints("anchor_valid"))
      tokens.anchor_valid.push_back(static_cast<uint8_t>(v));

    number_pool numbers{file["pool"], s.at(11)};
    masters = make_drafter_weights(shape, at::kFloat);
    for (const auto& [name, tensor] : named_tensors(masters))
      tensor->copy_(numbers.next_weight(tensor->sizes()));
    frozen.embedding = numbers.next_weight({shape.vocab, shape.hidden});
    frozen.head = packed_linear(numbers.next_weight({shape.vocab, shape.hidden}));
    frozen.final_norm = at::ones({shape.hidden});
    frozen.rms_eps = shape.rms_eps;
    const int64_t rows = static_cast<int64_t>(tokens.input_ids.size());
    for (size_t j = 0; j < shape.taps.size(); ++j)
      taps.push_back(numbers.next({rows, shape.hidden}));
  }

  drafter_trainer trainer(const optim_section& optim = {}, uint64_t steps = 10) const {
    loss_section loss;
    loss.gamma = 4.0;
    return drafter_trainer(shape, loss, optim, masters, frozen, compute_dtype::fp32, steps);
  }
  drafter_input input() const { return {taps, {}, &tokens}; }
  // Rows of slots 1..B-1 of valid blocks, of all slots [A B, n] or of these [A (B-1), n].
  at::Tensor valid_slots(const at::Tensor& x, bool with_anchor_slot) const {
    const int64_t blocks = static_cast<int64_t>(tokens.anchors.size()), b = shape.block_size;
    at::Tensor rows = x.view({blocks, -1, x.size(1)});
    if (with_anchor_slot) rows = rows.narrow(1, 1, b - 1);
    std::vector<int64_t> valid;
    for (int64_t a = 0; a < blocks; ++a)
      if (tokens.anchor_valid[static_cast<size_t>(a)]) valid.push_back(a);
    const at::Tensor index =
        at::from_blob(valid.data(), {static_cast<int64_t>(valid.size())}, at::kLong).clone();
    return at::index_select(rows, 0, index).reshape({-1, x.size(1)});
  }

  drafter_config shape;
  drafter_weights masters;
  frozen_parts frozen;
  std::vector<at::Tensor> taps;
  batch tokens;
};

}  // namespace dflash::test
