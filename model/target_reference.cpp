// The target's capture in ATen operators only: valid on every device, and what the CPU kernels are
// tested against.
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/square.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "config/error.hpp"
#include "model/target.hpp"

namespace dflash {
namespace {

at::Tensor norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto wide = x.to(at::kFloat);
  const auto scale = at::rsqrt(at::mean(at::square(wide), {-1}, true).add(eps));
  return wide.mul(scale).mul(weight).to(x.scalar_type());
}

// x [n, heads, hd], cos and sin [n, 1, hd / 2].
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto wide = x.to(at::kFloat);
  const int64_t half = x.size(2) / 2;
  const auto a = wide.narrow(2, 0, half), b = wide.narrow(2, half, half);
  return at::cat({a.mul(cos).sub(b.mul(sin)), b.mul(cos).add(a.mul(sin))}, 2).to(x.scalar_type());
}

at::Tensor to_device(std::vector<int64_t> values, at::Device device) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong)).to(device);
}

}  // namespace

at::Tensor target::normed_reference(const at::Tensor& hidden) const {
  return norm_rows(hidden, final_norm_, config_.rms_eps);
}

target::captured target::capture_reference(std::span<const int32_t> ids,
                                           std::span<const int32_t> doc_offsets,
                                           std::span<const int> taps,
                                           bool want_last) const {
  const auto n = static_cast<int64_t>(ids.size());
  const auto device = embedding_.device();
  int64_t layers = want_last ? config_.layers : 0;
  for (const int tap : taps) layers = std::max<int64_t>(layers, tap + 1);
  std::vector<int32_t> positions(ids.size());
  for (size_t d = 0; d + 1 < doc_offsets.size(); ++d)
    for (int32_t i = doc_offsets[d]; i < doc_offsets[d + 1]; ++i) positions[i] = i - doc_offsets[d];
  auto angles = rope_rows(positions);
  const auto rope =
      at::from_blob(angles.data(), {n, 1, config_.head_dim}, at::TensorOptions().dtype(at::kFloat))
          .to(device);
  const int64_t half = config_.head_dim / 2;
  const auto cos = rope.narrow(2, 0, half), sin = rope.narrow(2, half, half);
  auto residual = at::index_select(embedding_, 0, to_device({ids.begin(), ids.end()}, device));
  captured out;
  out.taps.resize(taps.size());
  const int64_t hd = config_.head_dim, heads = config_.heads, kv = config_.kv_heads;
  for (int64_t i = 0; i < layers; ++i) {
    const auto& layer = layers_[i];
    const auto qkv = layer.qkv(norm_rows(residual, layer.input_norm, config_.rms_eps))
                         .view({n, heads + 2 * kv, hd});
    const auto q = rotated(qkv.narrow(1, 0, heads), cos, sin);
    const auto k = rotated(qkv.narrow(1, heads, kv), cos, sin);
    const auto v = qkv.narrow(1, heads + kv, kv);
    std::vector<at::Tensor> mixed;
    for (size_t d = 0; d + 1 < doc_offsets.size(); ++d) {
      const int64_t first = doc_offsets[d], length = doc_offsets[d + 1] - first;
      if (length == 0) continue;
      // [1, heads, length, hd]
      const auto part = [&](const at::Tensor& x) {
        return x.narrow(0, first, length).transpose(0, 1).unsqueeze(0);
      };
      mixed.push_back(at::scaled_dot_product_attention(
                          part(q), part(k), part(v), std::nullopt, 0.0, true, std::nullopt, true)
                          .squeeze(0)
                          .transpose(0, 1)
                          .reshape({length, heads * hd}));
    }
    residual = residual.add(layer.o(at::cat(mixed)));
    const auto gate_up =
        layer.gate_up(norm_rows(residual, layer.post_attention_norm, config_.rms_eps));
    const auto gate = gate_up.narrow(1, 0, config_.intermediate).to(at::kFloat);
    const auto up = gate_up.narrow(1, config_.intermediate, config_.intermediate).to(at::kFloat);
    residual = residual.add(layer.down(at::silu(gate).mul(up).to(residual.scalar_type())));
    for (size_t t = 0; t < taps.size(); ++t)
      if (taps[t] == i) out.taps[t] = residual;
  }
  if (want_last) out.last_hidden = residual;
  return out;
}

}  // namespace dflash
