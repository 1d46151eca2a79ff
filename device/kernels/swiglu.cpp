// SwiGLU and the sum of products into fp32, declared in norms.hpp.
// SSSE3, SSE4 and Ice Lake forms add compile time and no speed here.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "device/kernels/norms.hpp"
#include "device/kernels/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/kernels/swiglu.cpp"
#include <hwy/foreach_target.h>

#include "device/kernels/norm_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace dflash::kernel::HWY_NAMESPACE {

using c10::BFloat16;

void swiglu_f(float* y, const float* gate, const float* up, size_t n) {
  swiglu_row(y, gate, up, n);
}
void swiglu_b(BFloat16* y, const BFloat16* gate, const BFloat16* up, size_t n) {
  swiglu_row(y, gate, up, n);
}
void swiglu_back_f(
    float* dg, float* du, const float* dy, const float* g, const float* u, size_t n) {
  swiglu_backward_row(dg, du, dy, g, u, n);
}
void swiglu_back_b(BFloat16* dg,
                   BFloat16* du,
                   const BFloat16* dy,
                   const BFloat16* g,
                   const BFloat16* u,
                   size_t n) {
  swiglu_backward_row(dg, du, dy, g, u, n);
}
void accumulate_f(float* into, const float* from, size_t n, bool overwrite) {
  accumulate_row(into, from, n, overwrite);
}
void accumulate_b(float* into, const BFloat16* from, size_t n, bool overwrite) {
  accumulate_row(into, from, n, overwrite);
}

}  // namespace dflash::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::kernel {
namespace {

using c10::BFloat16;

HWY_EXPORT(swiglu_f);
HWY_EXPORT(swiglu_b);
HWY_EXPORT(swiglu_back_f);
HWY_EXPORT(swiglu_back_b);
HWY_EXPORT(accumulate_f);
HWY_EXPORT(accumulate_b);

bool is_bf16(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16;
}

bool on_cpu(const at::Tensor& t) {
  return t.is_cpu() && (is_bf16(t) || t.scalar_type() == at::kFloat);
}

}  // namespace

void swiglu(at::Tensor& out, const at::Tensor& gate_up) {
  if (!on_cpu(gate_up) || !gate_up.is_contiguous() || !out.is_contiguous()) {
    out.copy_(swiglu_reference(gate_up));
    return;
  }
  const int64_t rows = gate_up.size(0), n = gate_up.size(1) / 2;
  const size_t count = static_cast<size_t>(n);
  for_parts(rows, part_count(rows, 4), [&](int64_t, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      if (is_bf16(gate_up)) {
        const BFloat16* g = gate_up.const_data_ptr<BFloat16>() + r * 2 * n;
        HWY_DYNAMIC_DISPATCH(swiglu_b)(out.data_ptr<BFloat16>() + r * n, g, g + n, count);
      } else {
        const float* g = gate_up.const_data_ptr<float>() + r * 2 * n;
        HWY_DYNAMIC_DISPATCH(swiglu_f)(out.data_ptr<float>() + r * n, g, g + n, count);
      }
    }
  });
}

void swiglu_backward(at::Tensor& d_gate_up, const at::Tensor& d_out, const at::Tensor& gate_up) {
  if (!on_cpu(gate_up) || !gate_up.is_contiguous() || !d_out.is_contiguous() ||
      !d_gate_up.is_contiguous()) {
    d_gate_up.copy_(swiglu_backward_reference(d_out, gate_up));
    return;
  }
  const int64_t rows = gate_up.size(0), n = gate_up.size(1) / 2;
  for_parts(rows, part_count(rows, 4), [&](int64_t, int64_t first, int64_t last) {
    const auto run = [&]<class T>(auto kernel, const T*) {
      for (int64_t r = first; r < last; ++r) {
        T* d = d_gate_up.data_ptr<T>() + r * 2 * n;
        const T* g = gate_up.const_data_ptr<T>() + r * 2 * n;
        kernel(d, d + n, d_out.const_data_ptr<T>() + r * n, g, g + n, static_cast<size_t>(n));
      }
    };
    if (is_bf16(gate_up))
      run(HWY_DYNAMIC_DISPATCH(swiglu_back_b), static_cast<const BFloat16*>(nullptr));
    else
      run(HWY_DYNAMIC_DISPATCH(swiglu_back_f), static_cast<const float*>(nullptr));
  });
}

void accumulate(at::Tensor& into, const at::Tensor& from, bool overwrite) {
  if (!on_cpu(from) || !from.is_contiguous() || into.dim() != 2 || into.stride(1) != 1) {
    if (overwrite)
      into.copy_(from);
    else
      into.add_(from);
    return;
  }
  const int64_t rows = into.size(0), n = into.size(1);
  for_parts(rows, part_count(rows, 8), [&](int64_t, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      float* row = into.data_ptr<float>() + r * into.stride(0);
      if (is_bf16(from)) HWY_DYNAMIC_DISPATCH(accumulate_b)
      (row, from.const_data_ptr<BFloat16>() + r * n, static_cast<size_t>(n), overwrite);
      else HWY_DYNAMIC_DISPATCH(accumulate_f)(
          row, from.const_data_ptr<float>() + r * n, static_cast<size_t>(n), overwrite);
    }
  });
}

}  // namespace dflash::kernel
#endif
