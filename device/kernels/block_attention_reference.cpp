// ATen form of block_attention: block by block with explicit masks. Any device and floating type;
// the reference of the kernel's tests. fp32 (fp64 where given fp64) inside.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "device/kernels/block_attention.hpp"
#include "device/upload.hpp"

namespace dflash::kernel {
namespace {

at::Tensor wide(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? t : t.to(at::kFloat);
}

// One block's keys, values [n, nkv, hd], mask [queries, n], and where its context starts.
struct block_view {
  at::Tensor q, k, v;  // q [queries, nkv, group, hd]
  at::Tensor mask;
  int64_t first, context;
};

block_view view_of(const attention_layout& l, const attention_input& in, int64_t a) {
  const size_t i = static_cast<size_t>(a);
  const int64_t first = l.begin[i], context = l.anchor[i] - first, b = l.block_size;
  const auto keys = [&](const at::Tensor& c, const at::Tensor& own) {
    return at::cat({wide(c.narrow(0, first, context)), wide(own.narrow(0, a * b, b))}, 0);
  };
  // attention_layout::first_key and sees_slot as one rule on the distance of key and query, made
  // where it is used. The context lies before slot 0.
  const auto numbers = [&](int64_t from, int64_t to) {
    return at::arange(from, to, in.q.options().dtype(at::kLong));
  };
  const at::Tensor distance =
      numbers(-context, b).unsqueeze(0) - numbers(l.first_slot, b).unsqueeze(1);
  at::Tensor mask = l.causal ? distance.le(0) : distance.lt(l.window > 0 ? l.window : b);
  if (l.window > 0) mask = mask.logical_and(distance.gt(-l.window));
  return {.q = wide(in.q.narrow(0, a * l.queries(), l.queries()))
                   .reshape({l.queries(), l.kv_heads, l.heads / l.kv_heads, l.head_dim}),
          .k = keys(in.context_k, in.block_k),
          .v = keys(in.context_v, in.block_v),
          .mask = mask,
          .first = first,
          .context = context};
}

// [nkv, group, queries, n], masked and scaled.
at::Tensor scores_of(const attention_layout& l, const block_view& v) {
  const at::Tensor s =
      at::einsum("qhgd,nhd->hgqn", {v.q, v.k}) * (1.0 / std::sqrt(double(l.head_dim)));
  return s.masked_fill(v.mask.logical_not(), -std::numeric_limits<double>::infinity());
}

}  // namespace

at::Tensor spans_on(const attention_layout& l, const at::Device& device) {
  if (device.is_cpu()) return {};
  std::vector<int32_t> both = l.begin;
  both.insert(both.end(), l.anchor.begin(), l.anchor.end());
  return upload(both, device).view({2, l.blocks()});
}

attention_output block_attention_reference(const attention_layout& l, const attention_input& in) {
  std::vector<at::Tensor> out, lse;
  for (int64_t a = 0; a < l.blocks(); ++a) {
    const block_view v = view_of(l, in, a);
    const at::Tensor s = scores_of(l, v);
    out.push_back(at::einsum("hgqn,nhd->qhgd", {s.softmax(-1), v.v})
                      .reshape({l.queries(), l.heads, l.head_dim}));
    lse.push_back(s.logsumexp(-1).permute({2, 0, 1}).reshape({l.queries(), l.heads}));
  }
  return {.out = at::cat(out, 0).to(in.q.scalar_type()), .lse = at::cat(lse, 0)};
}

attention_gradients block_attention_backward_reference(const attention_layout& l,
                                                       const attention_input& in,
                                                       const attention_output& output,
                                                       const at::Tensor& d_out) {
  const at::Tensor like = wide(in.q);
  const int64_t context = in.context_k.size(0), b = l.block_size;
  attention_gradients g{
      .q = at::empty({in.q.size(0), l.heads, l.head_dim}, like.options()),
      .context_k = at::zeros({context, l.kv_heads, l.head_dim}, like.options()),
      .context_v = at::zeros({context, l.kv_heads, l.head_dim}, like.options()),
      .block_k = at::empty({l.blocks() * b, l.kv_heads, l.head_dim}, like.options()),
      .block_v = at::empty({l.blocks() * b, l.kv_heads, l.head_dim}, like.options())};
  const int64_t group = l.heads / l.kv_heads;
  for (int64_t a = 0; a < l.blocks(); ++a) {
    const block_view v = view_of(l, in, a);
    const auto rows = [&](const at::Tensor& t) {
      return wide(t.narrow(0, a * l.queries(), l.queries()))
          .reshape({l.queries(), l.kv_heads, group, -1});
    };
    const at::Tensor lse = rows(output.lse).squeeze(-1).permute({1, 2, 0}).unsqueeze(-1);
    const at::Tensor p = (scores_of(l, v) - lse).exp();
    const at::Tensor d = rows(d_out);
    const at::Tensor delta = (d * rows(output.out)).sum(-1).permute({1, 2, 0}).unsqueeze(-1);
    const at::Tensor dp = at::einsum("qhgd,nhd->hgqn", {d, v.v});
    const at::Tensor ds = p * (dp - delta) * (1.0 / std::sqrt(double(l.head_dim)));
    g.q.narrow(0, a * l.queries(), l.queries())
        .copy_(at::einsum("hgqn,nhd->qhgd", {ds, v.k}).reshape({l.queries(), l.heads, l.head_dim}));
    const at::Tensor dk = at::einsum("hgqn,qhgd->nhd", {ds, v.q});
    const at::Tensor dv = at::einsum("hgqn,qhgd->nhd", {p, d});
    g.context_k.narrow(0, v.first, v.context).add_(dk.narrow(0, 0, v.context));
    g.context_v.narrow(0, v.first, v.context).add_(dv.narrow(0, 0, v.context));
    g.block_k.narrow(0, a * b, b).copy_(dk.narrow(0, v.context, b));
    g.block_v.narrow(0, a * b, b).copy_(dv.narrow(0, v.context, b));
  }
  return g;
}

}  // namespace dflash::kernel
