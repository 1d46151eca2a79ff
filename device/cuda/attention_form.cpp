#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>

#include "config/error.hpp"
#include "device/cuda/attention.hpp"
#include "device/kernels/gpu_attention.hpp"
#include "device/kernels/on_gpu.hpp"

namespace dflash::kernel::gpu {

namespace {

using c10::BFloat16;

cuda::attention_shape shape_of(const attention_layout& l, const attention_input& in) {
  DFLASH_CHECK(l.spans.defined() && l.spans.device() == in.q.device(),
               "a layout without its spans on the device");
  cuda::attention_shape s;
  s.blocks = l.blocks();
  s.context = in.context_k.size(0);
  s.heads = static_cast<int>(l.heads);
  s.kv_heads = static_cast<int>(l.kv_heads);
  s.head_dim = static_cast<int>(l.head_dim);
  s.block_size = static_cast<int>(l.block_size);
  s.first_slot = static_cast<int>(l.first_slot);
  s.window = l.window;
  s.causal = l.causal;
  s.begin = l.spans.const_data_ptr<int32_t>();
  s.anchor = s.begin + l.blocks();
  s.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(l.head_dim)));
  return s;
}

template <class T>
cuda::head_rows<const T> read(const at::Tensor& t) {
  DFLASH_CHECK(t.dim() == 3 && (t.size(0) == 0 || t.stride(2) == 1), "[rows, heads, head_dim]");
  return {t.const_data_ptr<T>(), t.stride(0), t.stride(1)};
}
template <class T>
cuda::head_rows<T> written(const at::Tensor& t) {
  return {t.mutable_data_ptr<T>(), t.stride(0), t.stride(1)};
}

at::Tensor like(const at::Tensor& t, at::ScalarType type) {
  return at::empty(t.sizes(), t.options().dtype(type));
}

template <class T>
void forward(const attention_layout& l, const attention_input& in, attention_output& out) {
  cuda::attention_tensors<T> t;
  t.q = read<T>(in.q);
  t.context_k = read<T>(in.context_k);
  t.context_v = read<T>(in.context_v);
  t.block_k = read<T>(in.block_k);
  t.block_v = read<T>(in.block_v);
  t.out = written<T>(out.out);
  t.lse = out.lse.mutable_data_ptr<float>();
  cuda::attention_forward(shape_of(l, in), t, c10::cuda::getCurrentCUDAStream().stream());
}

template <class T>
void backward(const attention_layout& l,
              const attention_input& in,
              const attention_output& output,
              const at::Tensor& d_out,
              attention_gradients& g) {
  cuda::attention_backward_tensors<T> t;
  t.q = read<T>(in.q);
  t.context_k = read<T>(in.context_k);
  t.context_v = read<T>(in.context_v);
  t.block_k = read<T>(in.block_k);
  t.block_v = read<T>(in.block_v);
  t.out = read<T>(output.out);
  t.d_out = read<T>(d_out);
  t.lse = output.lse.const_data_ptr<float>();
  t.d_q = written<float>(g.q);
  t.d_context_k = written<float>(g.context_k);
  t.d_context_v = written<float>(g.context_v);
  t.d_block_k = written<float>(g.block_k);
  t.d_block_v = written<float>(g.block_v);
  cuda::attention_backward(shape_of(l, in), t, c10::cuda::getCurrentCUDAStream().stream());
}

}  // namespace

bool attends(const attention_layout& l, const attention_input& in) {
  const at::ScalarType type = in.q.scalar_type();
  if (!takes(in.q) || l.head_dim % 16 != 0 || (type != at::kFloat && type != at::kBFloat16))
    return false;
  const int hd = static_cast<int>(l.head_dim), b = static_cast<int>(l.block_size);
  const int64_t bytes = type == at::kFloat ? cuda::attention_memory<float>(hd, b)
                                           : cuda::attention_memory<BFloat16>(hd, b);
  return bytes <= static_cast<int64_t>(
                      at::cuda::getDeviceProperties(in.q.device().index())->sharedMemPerBlockOptin);
}

attention_output block_attention(const attention_layout& l, const attention_input& in) {
  attention_output out{.out = like(in.q, in.q.scalar_type()),
                       .lse = at::empty({in.q.size(0), l.heads}, in.q.options().dtype(at::kFloat))};
  if (in.q.scalar_type() == at::kFloat)
    forward<float>(l, in, out);
  else
    forward<BFloat16>(l, in, out);
  return out;
}

attention_gradients block_attention_backward(const attention_layout& l,
                                             const attention_input& in,
                                             const attention_output& output,
                                             const at::Tensor& d_out) {
  attention_gradients g{.q = like(in.q, at::kFloat),
                        .context_k = like(in.context_k, at::kFloat),
                        .context_v = like(in.context_v, at::kFloat),
                        .block_k = like(in.block_k, at::kFloat),
                        .block_v = like(in.block_v, at::kFloat)};
  if (in.q.scalar_type() == at::kFloat)
    backward<float>(l, in, output, d_out, g);
  else
    backward<BFloat16>(l, in, output, d_out, g);
  return g;
}

}  // namespace dflash::kernel::gpu
