// SSSE3, SSE4 and Ice Lake forms add compile time and no speed here.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "device/kernels/norms.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "config/error.hpp"
#include "device/kernels/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/kernels/norms.cpp"
#include <hwy/foreach_target.h>

#include "device/kernels/norm_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace dflash::kernel::HWY_NAMESPACE {

using c10::BFloat16;

template <class X, class Y>
void norm_rows(Y* y, const X* x, const float* w, size_t rows, size_t n, float eps) {
  for (size_t r = 0; r < rows; ++r) norm_row(y + r * n, x + r * n, w, n, eps);
}
template <class X, class G>
void norm_backward_rows(G* dx,
                        float* dw,
                        const G* dy,
                        const X* x,
                        const float* w,
                        const G* add,
                        size_t rows,
                        size_t n,
                        float eps) {
  for (size_t r = 0; r < rows; ++r)
    norm_backward_row(dx ? dx + r * n : nullptr,
                      dw,
                      dy + r * n,
                      x + r * n,
                      w,
                      add ? add + r * n : nullptr,
                      n,
                      eps);
}
// One head row; scratch holds hd floats.
template <class T>
void head_row(T* y,
              const T* x,
              const float* w,
              const float* c,
              const float* s,
              size_t hd,
              float eps,
              float* scratch) {
  norm_row(scratch, x, w, hd, eps);
  rotate_row(y, scratch, c, s, hd / 2, 1.0f);
}
// scratch holds 3 hd floats.
template <class T, class G>
void head_backward_row(T* dx,
                       float* dw,
                       const G* dy,
                       const T* x,
                       const float* w,
                       const float* c,
                       const float* s,
                       size_t hd,
                       float eps,
                       float* scratch) {
  rotate_row(scratch, dy, c, s, hd / 2, -1.0f);
  for (size_t i = 0; i < hd; ++i) scratch[hd + i] = static_cast<float>(x[i]);
  norm_backward_row<float, float>(scratch + 2 * hd, dw, scratch, scratch + hd, w, nullptr, hd, eps);
  for (size_t i = 0; i < hd; ++i) dx[i] = static_cast<T>(scratch[2 * hd + i]);
}

void norm_ff(float* y, const float* x, const float* w, size_t r, size_t n, float e) {
  norm_rows(y, x, w, r, n, e);
}
void norm_fb(BFloat16* y, const float* x, const float* w, size_t r, size_t n, float e) {
  norm_rows(y, x, w, r, n, e);
}
void norm_bb(BFloat16* y, const BFloat16* x, const float* w, size_t r, size_t n, float e) {
  norm_rows(y, x, w, r, n, e);
}
void back_ff(float* dx,
             float* dw,
             const float* dy,
             const float* x,
             const float* w,
             const float* add,
             size_t r,
             size_t n,
             float e) {
  norm_backward_rows(dx, dw, dy, x, w, add, r, n, e);
}
void back_fb(BFloat16* dx,
             float* dw,
             const BFloat16* dy,
             const float* x,
             const float* w,
             const BFloat16* add,
             size_t r,
             size_t n,
             float e) {
  norm_backward_rows(dx, dw, dy, x, w, add, r, n, e);
}
void back_bb(BFloat16* dx,
             float* dw,
             const BFloat16* dy,
             const BFloat16* x,
             const float* w,
             const BFloat16* add,
             size_t r,
             size_t n,
             float e) {
  norm_backward_rows(dx, dw, dy, x, w, add, r, n, e);
}
void head_f(float* y,
            const float* x,
            const float* w,
            const float* c,
            const float* s,
            size_t hd,
            float e,
            float* scratch) {
  head_row(y, x, w, c, s, hd, e, scratch);
}
void head_b(BFloat16* y,
            const BFloat16* x,
            const float* w,
            const float* c,
            const float* s,
            size_t hd,
            float e,
            float* scratch) {
  head_row(y, x, w, c, s, hd, e, scratch);
}
void head_back_ff(float* dx,
                  float* dw,
                  const float* dy,
                  const float* x,
                  const float* w,
                  const float* c,
                  const float* s,
                  size_t hd,
                  float e,
                  float* scratch) {
  head_backward_row(dx, dw, dy, x, w, c, s, hd, e, scratch);
}
void head_back_bb(BFloat16* dx,
                  float* dw,
                  const BFloat16* dy,
                  const BFloat16* x,
                  const float* w,
                  const float* c,
                  const float* s,
                  size_t hd,
                  float e,
                  float* scratch) {
  head_backward_row(dx, dw, dy, x, w, c, s, hd, e, scratch);
}
void head_back_bf(BFloat16* dx,
                  float* dw,
                  const float* dy,
                  const BFloat16* x,
                  const float* w,
                  const float* c,
                  const float* s,
                  size_t hd,
                  float e,
                  float* scratch) {
  head_backward_row(dx, dw, dy, x, w, c, s, hd, e, scratch);
}
}  // namespace dflash::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::kernel {
namespace {

using c10::BFloat16;

HWY_EXPORT(norm_ff);
HWY_EXPORT(norm_fb);
HWY_EXPORT(norm_bb);
HWY_EXPORT(back_ff);
HWY_EXPORT(back_fb);
HWY_EXPORT(back_bb);
HWY_EXPORT(head_f);
HWY_EXPORT(head_b);
HWY_EXPORT(head_back_ff);
HWY_EXPORT(head_back_bb);
HWY_EXPORT(head_back_bf);

bool is_bf16(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16;
}

bool on_cpu(const at::Tensor& t) {
  return t.is_cpu() && (is_bf16(t) || t.scalar_type() == at::kFloat);
}

// Norm weights are fp32 for the kernels, whatever they are stored as.
at::Tensor fp32(const at::Tensor& w) {
  return w.to(at::kFloat).contiguous();
}

// Sums d_weight over parts in order.
void add_parts(at::Tensor& d_weight, const at::Tensor& parts) {
  float* into = d_weight.data_ptr<float>();
  const int64_t n = d_weight.numel();
  for (int64_t p = 0; p < parts.size(0); ++p) {
    const float* from = parts.const_data_ptr<float>() + p * n;
    for (int64_t i = 0; i < n; ++i) into[i] += from[i];
  }
}

}  // namespace

void rms_norm(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!on_cpu(x) || !x.is_contiguous() || !out.is_contiguous() || (is_bf16(x) && !is_bf16(out))) {
    out.copy_(rms_norm_reference(x, weight, eps));
    return;
  }
  const at::Tensor w = fp32(weight);
  const int64_t n = x.size(-1), rows = x.numel() / n;
  const float e = static_cast<float>(eps);
  for_parts(rows, part_count(rows, 16), [&](int64_t, int64_t first, int64_t last) {
    const size_t count = static_cast<size_t>(last - first), d = static_cast<size_t>(n);
    const float* wp = w.const_data_ptr<float>();
    if (is_bf16(x)) HWY_DYNAMIC_DISPATCH(norm_bb)
    (out.data_ptr<BFloat16>() + first * n,
     x.const_data_ptr<BFloat16>() + first * n,
     wp,
     count,
     d,
     e);
    else if (is_bf16(out)) HWY_DYNAMIC_DISPATCH(norm_fb)(out.data_ptr<BFloat16>() + first * n,
                                                         x.const_data_ptr<float>() + first * n,
                                                         wp,
                                                         count,
                                                         d,
                                                         e);
    else HWY_DYNAMIC_DISPATCH(norm_ff)(
        out.data_ptr<float>() + first * n, x.const_data_ptr<float>() + first * n, wp, count, d, e);
  });
}

void rms_norm_backward(at::Tensor& dx,
                       at::Tensor& d_weight,
                       const at::Tensor& dy,
                       const at::Tensor& x,
                       const at::Tensor& weight,
                       double eps,
                       const at::Tensor& add) {
  if (!on_cpu(x) || !x.is_contiguous() || !dy.is_contiguous() || (is_bf16(x) && !is_bf16(dy))) {
    const norm_gradients g = rms_norm_backward_reference(dy, x, weight, eps);
    d_weight.add_(g.d_weight);
    if (dx.defined()) dx.copy_(add.defined() ? g.dx.add(add) : g.dx);
    return;
  }
  const at::Tensor w = fp32(weight);
  const int64_t n = x.size(-1), rows = x.numel() / n, parts = part_count(rows, 16);
  const float e = static_cast<float>(eps);
  at::Tensor partial = at::zeros({parts, n}, w.options());
  for_parts(rows, parts, [&](int64_t part, int64_t first, int64_t last) {
    const size_t count = static_cast<size_t>(last - first), d = static_cast<size_t>(n);
    const float* wp = w.const_data_ptr<float>();
    float* dw = partial.data_ptr<float>() + part * n;
    const auto run = [&]<class X, class G>(auto kernel, const X*, const G*) {
      kernel(dx.defined() ? dx.data_ptr<G>() + first * n : nullptr,
             dw,
             dy.const_data_ptr<G>() + first * n,
             x.const_data_ptr<X>() + first * n,
             wp,
             add.defined() ? add.const_data_ptr<G>() + first * n : nullptr,
             count,
             d,
             e);
    };
    const float* f = nullptr;
    const BFloat16* b = nullptr;
    if (is_bf16(x))
      run(HWY_DYNAMIC_DISPATCH(back_bb), b, b);
    else if (is_bf16(dy))
      run(HWY_DYNAMIC_DISPATCH(back_fb), f, b);
    else
      run(HWY_DYNAMIC_DISPATCH(back_ff), f, f);
  });
  add_parts(d_weight, partial);
}

void head_norm_rope(at::Tensor& out,
                    const at::Tensor& x,
                    const at::Tensor& weight,
                    const rope_table& table,
                    const at::Tensor& positions,
                    double eps) {
  if (!on_cpu(x) || x.stride(-1) != 1 || !out.is_contiguous()) {
    out.copy_(head_norm_rope_reference(x, weight, table, positions, eps));
    return;
  }
  const at::Tensor w = fp32(weight);
  const int64_t rows = x.size(0), heads = x.size(1), hd = x.size(2);
  const int32_t* position = positions.const_data_ptr<int32_t>();
  for_parts(rows, part_count(rows, 8), [&](int64_t, int64_t first, int64_t last) {
    std::vector<float> scratch(static_cast<size_t>(hd));
    const auto run = [&]<class T>(auto kernel, const T*) {
      for (int64_t r = first; r < last; ++r) {
        const float* c = table.cos.const_data_ptr<float>() + position[r] * (hd / 2);
        const float* s = table.sin.const_data_ptr<float>() + position[r] * (hd / 2);
        for (int64_t h = 0; h < heads; ++h)
          kernel(out.data_ptr<T>() + (r * heads + h) * hd,
                 x.const_data_ptr<T>() + r * x.stride(0) + h * x.stride(1),
                 w.const_data_ptr<float>(),
                 c,
                 s,
                 static_cast<size_t>(hd),
                 static_cast<float>(eps),
                 scratch.data());
      }
    };
    if (is_bf16(x))
      run(HWY_DYNAMIC_DISPATCH(head_b), static_cast<const BFloat16*>(nullptr));
    else
      run(HWY_DYNAMIC_DISPATCH(head_f), static_cast<const float*>(nullptr));
  });
}

void head_norm_rope_backward(at::Tensor& dx,
                             at::Tensor& d_weight,
                             const at::Tensor& dy,
                             const at::Tensor& x,
                             const at::Tensor& weight,
                             const rope_table& table,
                             const at::Tensor& positions,
                             double eps) {
  if (!on_cpu(x) || x.stride(-1) != 1 || dx.stride(-1) != 1 || !dy.is_contiguous() ||
      (!is_bf16(x) && is_bf16(dy))) {
    const norm_gradients g =
        head_norm_rope_backward_reference(dy, x, weight, table, positions, eps);
    d_weight.add_(g.d_weight);
    dx.copy_(g.dx);
    return;
  }
  const at::Tensor w = fp32(weight);
  const int64_t rows = x.size(0), heads = x.size(1), hd = x.size(2), parts = part_count(rows, 8);
  const int32_t* position = positions.const_data_ptr<int32_t>();
  at::Tensor partial = at::zeros({parts, hd}, w.options());
  for_parts(rows, parts, [&](int64_t part, int64_t first, int64_t last) {
    std::vector<float> scratch(static_cast<size_t>(3 * hd));
    const auto run = [&]<class T, class G>(auto kernel, const T*, const G*) {
      for (int64_t r = first; r < last; ++r) {
        const float* c = table.cos.const_data_ptr<float>() + position[r] * (hd / 2);
        const float* s = table.sin.const_data_ptr<float>() + position[r] * (hd / 2);
        for (int64_t h = 0; h < heads; ++h)
          kernel(dx.data_ptr<T>() + r * dx.stride(0) + h * dx.stride(1),
                 partial.data_ptr<float>() + part * hd,
                 dy.const_data_ptr<G>() + (r * heads + h) * hd,
                 x.const_data_ptr<T>() + r * x.stride(0) + h * x.stride(1),
                 w.const_data_ptr<float>(),
                 c,
                 s,
                 static_cast<size_t>(hd),
                 static_cast<float>(eps),
                 scratch.data());
      }
    };
    const float* f = nullptr;
    const BFloat16* b = nullptr;
    if (!is_bf16(x))
      run(HWY_DYNAMIC_DISPATCH(head_back_ff), f, f);
    else if (is_bf16(dy))
      run(HWY_DYNAMIC_DISPATCH(head_back_bb), b, b);
    else
      run(HWY_DYNAMIC_DISPATCH(head_back_bf), b, f);
  });
  add_parts(d_weight, partial);
}

}  // namespace dflash::kernel
#endif
