#include "model/drafter_decode.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "config/error.hpp"
#include "device/kernels/block_attention.hpp"
#include "device/upload.hpp"
#include "model/draft_vocab.hpp"
#include "model/sampling.hpp"

namespace dflash {

namespace {

// Blocks of one attention product and rows of one head product: both keep their scores in the
// cache.
constexpr int64_t attention_blocks = 32;
constexpr int64_t head_rows = 256;
// Blocks of one forward pass: bounds the activations of a walk.
constexpr int64_t forward_blocks = 1024;

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
  check_drafter_config(config_, "drafter");
  check_drafter_fits(config_, target_->config(), "drafter");
  const auto dtype = scalar_type(target_->dtype());
  const auto device = target_->device();
  const auto fp32 = [device](const at::Tensor& weight) {
    return weight.detach().to(device, at::kFloat).contiguous();
  };
  const auto pack = [dtype, device](const std::vector<at::Tensor>& parts) {
    std::vector<at::Tensor> rounded;
    for (const auto& part : parts) rounded.push_back(part.detach().to(device, dtype));
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
  head_ = config_.draft_ids.empty()
              ? target_->head()
              : packed_linear{draft_head(target_->head().weight(), config_), plain_weight::drop};
}

// The blocks of a pass. Rows are ordered request by request, slot 0..B−1 in each.
struct drafter_proposer::block_rows {
  at::Tensor positions;             // [requests·B] int32
  kernel::attention_layout layout;  // of a full layer; context rows as in the caches
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
  const auto device = model_->of().device();
  rope_ = kernel::make_rope_table(capacity + config.block_size, config.head_dim, config.rope_theta);
  rope_.cos = rope_.cos.to(device);
  rope_.sin = rope_.sin.to(device);
  const auto type = at::device(device).dtype(scalar_type(model_->of().dtype()));
  keys_.clear();
  values_.clear();
  for (int64_t i = 0; i < config.layers; ++i) {
    // Zeros: tiles of the attention kernel reach past a block's context, at weight 0.
    keys_.push_back(at::zeros({slots * capacity, config.kv_heads, config.head_dim}, type));
    values_.push_back(at::zeros_like(keys_.back()));
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
  const auto positions = upload(row_positions, model_->of().device());
  // The concatenated form of fc (dflash.md 2.4): at inference the buffer is small.
  const auto joined = taps.size() == 1 ? taps.front().contiguous() : at::cat(taps, 1);
  const auto dtype = joined.scalar_type();
  const auto context = normed(model_->fc()(joined), model_->hidden_norm(), config.rms_eps, dtype);
  const auto kv = model_->context_kv()(context);  // [n, L·2·nkv·hd]
  const int64_t width = config.kv_width();
  int64_t row = 0;
  for (const auto& part : rows) {
    const auto length = static_cast<int64_t>(part.tokens.size());
    const int64_t first = part.slot * capacity_ + part.start;
    for (int64_t i = 0; i < config.layers; ++i) {
      const auto layer = static_cast<size_t>(i);
      const auto heads = [&](int64_t which) {  // 0: keys, 1: values
        return kv.narrow(0, row, length)
            .narrow(1, (2 * i + which) * width, width)
            .view({length, config.kv_heads, config.head_dim});
      };
      at::Tensor key = keys_[layer].narrow(0, first, length);
      kernel::head_norm_rope(key,
                             heads(0),
                             model_->layers()[layer].k_norm,
                             rope_,
                             positions.narrow(0, row, length),
                             config.rms_eps);
      values_[layer].narrow(0, first, length).copy_(heads(1));
    }
    row += length;
  }
}

drafter_proposer::block_rows drafter_proposer::lay_out(
    std::span<const draft_request> requests) const {
  const auto& config = model_->config();
  block_rows rows;
  rows.layout.heads = config.heads;
  rows.layout.kv_heads = config.kv_heads;
  rows.layout.head_dim = config.head_dim;
  rows.layout.block_size = config.block_size;
  std::vector<int32_t> positions;
  for (const auto& request : requests) {
    DFLASH_CHECK(request.position <= lengths_.at(static_cast<size_t>(request.slot)) &&
                     request.count >= 1 && request.count < config.block_size,
                 "a draft request",
                 request.position,
                 request.count);
    const int64_t begin = request.slot * capacity_;
    rows.layout.begin.push_back(narrow<int32_t>(begin));
    rows.layout.anchor.push_back(narrow<int32_t>(begin + request.position));
    for (int64_t k = 0; k < config.block_size; ++k)
      positions.push_back(narrow<int32_t>(request.position + k));
  }
  rows.positions = upload(positions, model_->of().device());
  rows.layout.spans = kernel::spans_on(rows.layout, model_->of().device());
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
  at::Tensor x = of.embedding().index_select(0, upload(ids, of.device())).to(at::kFloat);
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

// Attention of the blocks over the cached context and themselves, [requests·B, nh·hd].
at::Tensor drafter_proposer::attend(size_t layer,
                                    const block_rows& rows,
                                    const at::Tensor& qkv) const {
  const auto& config = model_->config();
  const auto& weights = model_->layers()[layer];
  const int64_t count = qkv.size(0), nkv = config.kv_heads, hd = config.head_dim;
  const auto heads = [&](int64_t first, int64_t number) {
    return qkv.narrow(1, first * hd, number * hd).view({count, number, hd});
  };
  kernel::attention_input input;
  input.q = at::empty({count, config.heads, hd}, qkv.options());
  input.block_k = at::empty({count, nkv, hd}, qkv.options());
  kernel::head_norm_rope(
      input.q, heads(0, config.heads), weights.q_norm, rope_, rows.positions, config.rms_eps);
  kernel::head_norm_rope(input.block_k,
                         heads(config.heads, nkv),
                         weights.k_norm,
                         rope_,
                         rows.positions,
                         config.rms_eps);
  input.block_v = heads(config.heads + nkv, nkv);
  input.context_k = keys_[layer];
  input.context_v = values_[layer];
  kernel::attention_layout layout = rows.layout;
  layout.window = config.sliding[layer] ? config.sliding_window : 0;
  layout.causal = config.layer_causal(static_cast<int64_t>(layer));
  return kernel::block_attention(layout, input).out.view({count, config.heads * hd});
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
    const auto selected = part.size() == 1
                              ? hidden.narrow(0, 1, rows)
                              : hidden.index_select(0, upload(wanted, hidden.device()));
    std::vector<int32_t> best;
    for (int64_t row = 0; row < rows; row += head_rows) {
      const auto chunk = selected.narrow(0, row, std::min(head_rows, rows - row));
      auto ids = argmax_rows(model_->head()(chunk), model_->config().draft_vocab());
      const auto& tokens = model_->config().draft_ids;
      if (!tokens.empty())
        for (auto& id : ids)
          if (id != bad_token) id = tokens[static_cast<size_t>(id)];
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
