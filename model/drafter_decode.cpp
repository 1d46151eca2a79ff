#include "model/drafter_decode.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "config/error.hpp"
#include "model/sampling.hpp"

namespace dflash {

namespace {

// Blocks of one attention product and rows of one head product: both keep their scores in the
// cache.
constexpr int64_t attention_blocks = 32;
constexpr int64_t head_rows = 256;
// Blocks of one forward pass: bounds the activations of a walk.
constexpr int64_t forward_blocks = 1024;

at::Tensor fp32(const at::Tensor& weight) {
  return weight.detach().to(at::kFloat).contiguous();
}

// residual [n, H] fp32 += addend [n, H]
void add_to(at::Tensor& residual, const at::Tensor& addend) {
  residual.add_(addend);
}

at::Tensor normed(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType dtype) {
  at::Tensor out = at::empty(x.sizes(), x.options().dtype(dtype));
  kernel::rms_norm(out, x, weight, eps);
  return out;
}

}  // namespace

draft_model::draft_model(drafter_config config,
                         const drafter_weights& weights,
                         std::shared_ptr<const target> of)
    : config_{std::move(config)}, target_{std::move(of)} {
  check_drafter_fits(config_, target_->config(), "drafter");
  const auto dtype = scalar_type(target_->dtype());
  const auto pack = [dtype](const std::vector<at::Tensor>& parts) {
    std::vector<at::Tensor> rounded;
    for (const auto& part : parts) rounded.push_back(part.detach().to(dtype));
    return packed_linear{at::cat(rounded, 0).contiguous(), plain_weight::drop};
  };
  fc_ = pack({weights.fc});
  hidden_norm_ = fp32(weights.hidden_norm);
  norm_ = fp32(weights.norm);
  std::vector<at::Tensor> context;
  for (const auto& layer : weights.layers) {
    layers_.push_back({.input_norm = fp32(layer.input_layernorm),
                       .qkv = pack({layer.q_proj, layer.k_proj, layer.v_proj}),
                       .q_norm = fp32(layer.q_norm),
                       .k_norm = fp32(layer.k_norm),
                       .o = pack({layer.o_proj}),
                       .post_norm = fp32(layer.post_attention_layernorm),
                       .gate_up = pack({layer.gate_proj, layer.up_proj}),
                       .down = pack({layer.down_proj})});
    context.push_back(layer.k_proj);
    context.push_back(layer.v_proj);
  }
  context_kv_ = pack(context);
}

// Where the rows of a pass belong. Rows are ordered request by request, slot 0..B−1 in each.
struct drafter_proposer::block_rows {
  std::span<const draft_request> requests;
  at::Tensor positions;  // [requests·B] int32
  // Requests [first, last) share a slot; keys = the context rows that the longest of them sees.
  struct group {
    int64_t first, last, slot, keys;
  };
  std::vector<group> groups;
};

drafter_proposer::drafter_proposer(std::shared_ptr<const draft_model> model)
    : model_{std::move(model)} {}

void drafter_proposer::start(int64_t slots, int64_t capacity) {
  const c10::InferenceMode no_autograd;
  const auto& config = model_->config();
  slots_ = slots;
  capacity_ = capacity;
  lengths_.assign(static_cast<size_t>(slots), 0);
  // Plain RoPE has no end: the table reaches past the drafter's own max_position_embeddings if the
  // sequence does.
  rope_ = kernel::make_rope_table(capacity + config.block_size, config.head_dim, config.rope_theta);
  keys_.clear();
  values_.clear();
  for (int64_t i = 0; i < config.layers; ++i) {
    keys_.push_back(at::empty({slots, config.kv_heads, capacity, config.head_dim}, at::kFloat));
    values_.push_back(at::empty_like(keys_.back()));
  }
}

void drafter_proposer::reset(int64_t slot) {
  lengths_.at(static_cast<size_t>(slot)) = 0;
}

void drafter_proposer::commit(std::span<const committed_rows> rows,
                              const std::vector<at::Tensor>& taps) {
  const c10::InferenceMode no_autograd;
  const auto& config = model_->config();
  DFLASH_CHECK(taps.size() == config.taps.size(), "taps of committed rows", taps.size());
  const int64_t count = taps.front().size(0);
  std::vector<int32_t> row_positions;
  for (const auto& row : rows) {
    auto& length = lengths_.at(static_cast<size_t>(row.slot));
    DFLASH_CHECK(length == row.start, "rows out of order", length, row.start);
    length += static_cast<int64_t>(row.tokens.size());
    DFLASH_CHECK(length <= capacity_, "a sequence outgrew its slot", length, capacity_);
    for (size_t i = 0; i < row.tokens.size(); ++i)
      row_positions.push_back(narrow<int32_t>(row.start + static_cast<int64_t>(i)));
  }
  DFLASH_CHECK(static_cast<int64_t>(row_positions.size()) == count, "rows and taps", count);
  const auto positions = at::tensor(row_positions, at::kInt);
  // The concatenated form of fc (dflash.md 2.4): at inference the buffer is small.
  const auto joined = taps.size() == 1 ? taps.front().contiguous() : at::cat(taps, 1);
  const auto dtype = joined.scalar_type();
  const auto context = normed(model_->fc()(joined), model_->hidden_norm(), config.rms_eps, dtype);
  const auto kv = model_->context_kv()(context);  // [n, L·2·nkv·hd]
  const int64_t width = config.kv_width();
  at::Tensor rotated = at::empty({count, config.kv_heads, config.head_dim}, kv.options());
  for (int64_t i = 0; i < config.layers; ++i) {
    const auto heads = [&](int64_t part) {
      return kv.narrow(1, (2 * i + part) * width, width)
          .view({count, config.kv_heads, config.head_dim});
    };
    const auto layer = static_cast<size_t>(i);
    kernel::head_norm_rope(
        rotated, heads(0), model_->layers()[layer].k_norm, rope_, positions, config.rms_eps);
    const auto value = heads(1);
    int64_t row = 0;
    for (const auto& part : rows) {
      const auto length = static_cast<int64_t>(part.tokens.size());
      const auto place = [&](at::Tensor& cache) {
        return cache.select(0, part.slot).narrow(1, part.start, length);  // [nkv, n, hd]
      };
      place(keys_[layer]).copy_(rotated.narrow(0, row, length).transpose(0, 1));
      place(values_[layer]).copy_(value.narrow(0, row, length).transpose(0, 1));
      row += length;
    }
  }
}

drafter_proposer::block_rows drafter_proposer::lay_out(
    std::span<const draft_request> requests) const {
  const int64_t block = model_->config().block_size;
  block_rows rows{.requests = requests, .positions = {}, .groups = {}};
  std::vector<int32_t> positions;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& request = requests[i];
    DFLASH_CHECK(request.position <= lengths_.at(static_cast<size_t>(request.slot)) &&
                     request.count >= 1 && request.count < block,
                 "a draft request",
                 request.position,
                 request.count);
    for (int64_t k = 0; k < block; ++k) positions.push_back(narrow<int32_t>(request.position + k));
    const auto index = static_cast<int64_t>(i);
    if (rows.groups.empty() || rows.groups.back().slot != request.slot ||
        index - rows.groups.back().first == attention_blocks)
      rows.groups.push_back({index, index, request.slot, 0});
    auto& group = rows.groups.back();
    group.last = index + 1;
    group.keys = std::max(group.keys, request.position);
  }
  rows.positions = at::tensor(positions, at::kInt);
  return rows;
}

at::Tensor drafter_proposer::block_hidden(std::span<const draft_request> requests) {
  const c10::InferenceMode no_autograd;
  const auto& config = model_->config();
  const auto& of = model_->of();
  const auto dtype = scalar_type(of.dtype());
  const auto rows = lay_out(requests);
  const auto count = static_cast<int64_t>(requests.size()) * config.block_size;
  std::vector<int64_t> ids(static_cast<size_t>(count), config.mask_token_id);
  for (size_t i = 0; i < requests.size(); ++i)
    ids[i * static_cast<size_t>(config.block_size)] = requests[i].token;
  // The residual stream stays in fp32.
  at::Tensor x = of.embedding().index_select(0, at::tensor(ids, at::kLong)).to(at::kFloat);
  at::Tensor gated = at::empty({count, config.intermediate}, x.options().dtype(dtype));
  for (size_t i = 0; i < model_->layers().size(); ++i) {
    const auto& layer = model_->layers()[i];
    const auto qkv = layer.qkv(normed(x, layer.input_norm, config.rms_eps, dtype));
    add_to(x, layer.o(attend(i, rows, qkv)));
    const auto gate_up = layer.gate_up(normed(x, layer.post_norm, config.rms_eps, dtype));
    kernel::swiglu(gated, gate_up);
    add_to(x, layer.down(gated));
  }
  return normed(x, model_->norm(), config.rms_eps, dtype);
}

namespace {

// 0 where slot k of a block whose anchor is at `position` sees the key, −inf elsewhere (dflash.md
// 2.3): context rows t < position, within the window of a sliding layer, then the block's own
// slots.
void fill_visible(float* mask,
                  int64_t position,
                  int64_t k,
                  int64_t keys,
                  int64_t block,
                  int64_t window,
                  bool causal) {
  constexpr float hidden = -std::numeric_limits<float>::infinity();
  const int64_t first = window > 0 ? std::max<int64_t>(0, position + k - (window - 1)) : 0;
  std::fill(mask, mask + keys, hidden);
  if (first < position) std::fill(mask + first, mask + position, 0.0f);
  for (int64_t j = 0; j < block; ++j) {
    const bool far = window > 0 && std::abs(j - k) >= window;
    mask[keys + j] = far || (causal && j > k) ? hidden : 0.0f;
  }
}

}  // namespace

// Attention of the blocks over cached context and themselves, [requests·B, nh·hd]. Requests of one
// slot share products over its keys; groups are spread over the threads.
at::Tensor drafter_proposer::attend(size_t layer,
                                    const block_rows& rows,
                                    const at::Tensor& qkv) const {
  const auto& config = model_->config();
  const auto& weights = model_->layers()[layer];
  const int64_t block = config.block_size, nkv = config.kv_heads, hd = config.head_dim;
  const int64_t shared = config.heads / nkv;  // query heads of one key head
  const int64_t count = qkv.size(0);
  const auto heads = [&](int64_t first, int64_t number) {
    return qkv.narrow(1, first * hd, number * hd).view({count, number, hd});
  };
  at::Tensor query = at::empty({count, config.heads, hd}, qkv.options());
  at::Tensor key = at::empty({count, nkv, hd}, qkv.options());
  kernel::head_norm_rope(
      query, heads(0, config.heads), weights.q_norm, rope_, rows.positions, config.rms_eps);
  kernel::head_norm_rope(
      key, heads(config.heads, nkv), weights.k_norm, rope_, rows.positions, config.rms_eps);
  const auto value = heads(config.heads + nkv, nkv);
  const int64_t window = config.sliding[layer] ? config.sliding_window : 0;
  const bool causal = config.layer_causal(static_cast<int64_t>(layer));
  const double scale = 1.0 / std::sqrt(static_cast<double>(hd));
  at::Tensor out = at::empty({count, config.heads * hd}, qkv.options());
  const auto work = [&](int64_t from, int64_t to) {
    const c10::InferenceMode no_autograd;
    for (int64_t g = from; g < to; ++g) {
      const auto& group = rows.groups[static_cast<size_t>(g)];
      const int64_t n = group.last - group.first, keys = group.keys;
      const auto mine = [&](const at::Tensor& t) {
        return t.narrow(0, group.first * block, n * block);
      };
      // [nkv, n, B·shared, hd]
      const auto q = mine(query)
                         .to(at::kFloat)
                         .mul_(scale)
                         .view({n, block, nkv, shared, hd})
                         .permute({2, 0, 1, 3, 4})
                         .reshape({nkv, n, block * shared, hd});
      const auto own = [&](const at::Tensor& t) {  // [nkv·n, B, hd]
        return mine(t)
            .to(at::kFloat)
            .reshape({n, block, nkv, hd})
            .permute({2, 0, 1, 3})
            .reshape({nkv * n, block, hd});
      };
      const auto context = [&](const at::Tensor& cache) {  // [nkv, keys, hd]
        return cache.select(0, group.slot).narrow(1, 0, keys);
      };
      const auto flat_q = q.view({nkv, n * block * shared, hd});
      auto scores =
          at::cat({at::bmm(flat_q, context(keys_[layer]).transpose(1, 2))
                       .view({nkv, n, block * shared, keys}),
                   at::bmm(q.view({nkv * n, block * shared, hd}), own(key).transpose(1, 2))
                       .view({nkv, n, block * shared, block})},
                  3);
      // One full-attention block that sees all the context needs no mask.
      if (n > 1 || window > 0 || causal) {
        at::Tensor mask = at::empty({n, block, 1, keys + block}, at::kFloat);
        float* row = mask.mutable_data_ptr<float>();
        for (int64_t i = 0; i < n; ++i)
          for (int64_t k = 0; k < block; ++k, row += keys + block)
            fill_visible(row,
                         rows.requests[static_cast<size_t>(group.first + i)].position,
                         k,
                         keys,
                         block,
                         window,
                         causal);
        scores.view({nkv, n, block, shared, keys + block}).add_(mask);
      }
      const auto weight = scores.softmax(3);
      auto mixed = at::bmm(weight.narrow(3, keys, block).reshape({nkv * n, block * shared, block}),
                           own(value))
                       .view({nkv, n * block * shared, hd});
      mixed.add_(at::bmm(weight.narrow(3, 0, keys).reshape({nkv, n * block * shared, keys}),
                         context(values_[layer])));
      mine(out)
          .view({n, block, nkv, shared, hd})
          .copy_(mixed.view({nkv, n, block, shared, hd}).permute({1, 2, 0, 3, 4}));
    }
  };
  const auto groups = static_cast<int64_t>(rows.groups.size());
  if (groups == 1)
    work(0, 1);
  else
    at::parallel_for(0, groups, 1, work);
  return out;
}

std::vector<std::vector<int32_t>> drafter_proposer::propose(
    std::span<const draft_request> requests) {
  const c10::InferenceMode no_autograd;
  const int64_t block = model_->config().block_size;
  std::vector<std::vector<int32_t>> drafts;
  drafts.reserve(requests.size());
  for (size_t first = 0; first < requests.size(); first += forward_blocks) {
    const auto part = requests.subspan(
        first, std::min(static_cast<size_t>(forward_blocks), requests.size() - first));
    const auto hidden = block_hidden(part);
    std::vector<int64_t> wanted;  // slot k predicts the token at its own position
    for (size_t i = 0; i < part.size(); ++i)
      for (int64_t k = 1; k <= part[i].count; ++k)
        wanted.push_back(static_cast<int64_t>(i) * block + k);
    const auto rows = static_cast<int64_t>(wanted.size());
    const auto selected = part.size() == 1 ? hidden.narrow(0, 1, rows)
                                           : hidden.index_select(0, at::tensor(wanted, at::kLong));
    std::vector<int32_t> best;
    for (int64_t row = 0; row < rows; row += head_rows) {
      const auto chunk = selected.narrow(0, row, std::min(head_rows, rows - row));
      const auto ids = argmax_rows(model_->of().head()(chunk), model_->config().vocab);
      best.insert(best.end(), ids.begin(), ids.end());
    }
    auto next = best.begin();
    for (const auto& request : part) {
      const auto end = next + request.count;
      // A row without numbers ends the draft: it is never a token.
      drafts.emplace_back(next, std::find(next, end, bad_token));
      next = end;
    }
  }
  return drafts;
}

}  // namespace dflash
