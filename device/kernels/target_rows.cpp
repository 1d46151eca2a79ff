#include "device/kernels/target_rows.hpp"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/kernels/target_rows.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "device/kernels/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace dflash::kernel::HWY_NAMESPACE {

template <class T>
HWY_ATTR void norm_row(
    T* residual, const T* delta, const float* weight, float eps, size_t d, T* out) {
  const float_tag tag;
  const size_t lanes = hn::Lanes(tag), full = d / lanes * lanes;
  auto squares = hn::Zero(tag), more = hn::Zero(tag);
  for (size_t i = 0; i < full; i += lanes) {
    auto x = load(tag, residual + i);
    if (delta) {
      store(tag, hn::Add(x, load(tag, delta + i)), residual + i);
      x = load(tag, residual + i);
    }
    // Two sums hide the latency of one.
    const auto was = squares;
    squares = hn::MulAdd(x, x, more);
    more = was;
  }
  float total = sum_lanes(tag, hn::Add(squares, more));
  for (size_t i = full; i < d; ++i) {
    if (delta)
      residual[i] = static_cast<T>(static_cast<float>(residual[i]) + static_cast<float>(delta[i]));
    total += static_cast<float>(residual[i]) * static_cast<float>(residual[i]);
  }
  const float scale = 1.0F / std::sqrt(total / static_cast<float>(d) + eps);
  const auto factor = hn::Set(tag, scale);
  for (size_t i = 0; i < full; i += lanes)
    store(tag, hn::Mul(hn::Mul(load(tag, residual + i), factor), load(tag, weight + i)), out + i);
  for (size_t i = full; i < d; ++i)
    out[i] = static_cast<T>(static_cast<float>(residual[i]) * scale * weight[i]);
}

HWY_ATTR void norm_row_float(
    float* residual, const float* delta, const float* weight, float eps, size_t d, float* out) {
  norm_row(residual, delta, weight, eps, d, out);
}
HWY_ATTR void norm_row_bf16(c10::BFloat16* residual,
                            const c10::BFloat16* delta,
                            const float* weight,
                            float eps,
                            size_t d,
                            c10::BFloat16* out) {
  norm_row(residual, delta, weight, eps, d, out);
}

// g / (1 + exp(-g)) with exp of a negative argument only, so that nothing overflows.
HWY_ATTR HWY_INLINE float_vec silu_lanes(float_tag tag, float_vec g) {
  const auto one = hn::Set(tag, 1.0F);
  const auto e = exp_lanes(tag, hn::Neg(hn::Abs(g)));
  const auto sigmoid = hn::Div(hn::IfThenElse(hn::Ge(g, hn::Zero(tag)), one, e), hn::Add(one, e));
  return hn::Mul(g, sigmoid);
}

template <class T>
HWY_ATTR void silu_row(const T* gate, const T* up, size_t width, T* out) {
  const float_tag tag;
  const size_t lanes = hn::Lanes(tag), full = width / lanes * lanes;
  for (size_t i = 0; i < full; i += lanes)
    store(tag, hn::Mul(silu_lanes(tag, load(tag, gate + i)), load(tag, up + i)), out + i);
  if (full < width) {
    const size_t left = width - full;
    store_n(tag,
            hn::Mul(silu_lanes(tag, load_n(tag, gate + full, left)), load_n(tag, up + full, left)),
            out + full,
            left);
  }
}
HWY_ATTR void silu_row_float(const float* gate, const float* up, size_t width, float* out) {
  silu_row(gate, up, width, out);
}
HWY_ATTR void silu_row_bf16(const c10::BFloat16* gate,
                            const c10::BFloat16* up,
                            size_t width,
                            c10::BFloat16* out) {
  silu_row(gate, up, width, out);
}

template <class T>
HWY_ATTR void weigh_row(const T* row, size_t n, float shift, float factor, float* weights) {
  const float_tag tag;
  const size_t lanes = hn::Lanes(tag), full = n / lanes * lanes;
  const auto top = hn::Set(tag, shift), scale = hn::Set(tag, factor);
  for (size_t i = 0; i < full; i += lanes)
    store(tag, exp_lanes(tag, hn::Mul(hn::Sub(load(tag, row + i), top), scale)), weights + i);
  if (full < n) {
    const size_t left = n - full;
    const auto x = load_n(tag, row + full, left, shift);
    store_n(tag, exp_lanes(tag, hn::Mul(hn::Sub(x, top), scale)), weights + full, left);
  }
}
HWY_ATTR void weigh_row_float(const float* row, size_t n, float shift, float factor, float* out) {
  weigh_row(row, n, shift, factor, out);
}
HWY_ATTR void weigh_row_bf16(
    const c10::BFloat16* row, size_t n, float shift, float factor, float* out) {
  weigh_row(row, n, shift, factor, out);
}

}  // namespace dflash::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::kernel {

HWY_EXPORT(norm_row_float);
HWY_EXPORT(norm_row_bf16);
HWY_EXPORT(silu_row_float);
HWY_EXPORT(silu_row_bf16);
HWY_EXPORT(weigh_row_float);
HWY_EXPORT(weigh_row_bf16);

void add_rms_norm(c10::ScalarType dtype,
                  void* residual,
                  const void* delta,
                  const float* weight,
                  double eps,
                  int64_t n,
                  int64_t d,
                  void* out) {
  const auto rows = [&](auto* zero, auto function) {
    using element = std::remove_pointer_t<decltype(zero)>;
    at::parallel_for(0, n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        function(static_cast<element*>(residual) + i * d,
                 delta ? static_cast<const element*>(delta) + i * d : nullptr,
                 weight,
                 static_cast<float>(eps),
                 static_cast<size_t>(d),
                 static_cast<element*>(out) + i * d);
    });
  };
  if (dtype == c10::ScalarType::Float)
    rows(static_cast<float*>(nullptr), HWY_DYNAMIC_DISPATCH(norm_row_float));
  else
    rows(static_cast<c10::BFloat16*>(nullptr), HWY_DYNAMIC_DISPATCH(norm_row_bf16));
}

void norm_heads(c10::ScalarType dtype,
                void* rows,
                int64_t n,
                int64_t stride,
                int64_t heads,
                int64_t d,
                const float* weight,
                double eps) {
  const auto each = [&](auto* zero, auto function) {
    using element = std::remove_pointer_t<decltype(zero)>;
    at::parallel_for(0, n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t h = 0; h < heads; ++h) {
          element* head = static_cast<element*>(rows) + i * stride + h * d;
          function(head, nullptr, weight, static_cast<float>(eps), static_cast<size_t>(d), head);
        }
    });
  };
  if (dtype == c10::ScalarType::Float)
    each(static_cast<float*>(nullptr), HWY_DYNAMIC_DISPATCH(norm_row_float));
  else
    each(static_cast<c10::BFloat16*>(nullptr), HWY_DYNAMIC_DISPATCH(norm_row_bf16));
}

void gated_silu(c10::ScalarType dtype, const void* gate_up, int64_t n, int64_t width, void* out) {
  const auto rows = [&](auto* zero, auto function) {
    using element = std::remove_pointer_t<decltype(zero)>;
    at::parallel_for(0, n, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto* gate = static_cast<const element*>(gate_up) + i * 2 * width;
        function(
            gate, gate + width, static_cast<size_t>(width), static_cast<element*>(out) + i * width);
      }
    });
  };
  if (dtype == c10::ScalarType::Float)
    rows(static_cast<float*>(nullptr), HWY_DYNAMIC_DISPATCH(silu_row_float));
  else
    rows(static_cast<c10::BFloat16*>(nullptr), HWY_DYNAMIC_DISPATCH(silu_row_bf16));
}

void softmax_weights(
    c10::ScalarType dtype, const void* row, int64_t n, float shift, float factor, float* weights) {
  const auto size = static_cast<size_t>(n);
  if (dtype == c10::ScalarType::Float) {
    const auto function = HWY_DYNAMIC_DISPATCH(weigh_row_float);
    function(static_cast<const float*>(row), size, shift, factor, weights);
  } else {
    const auto function = HWY_DYNAMIC_DISPATCH(weigh_row_bf16);
    function(static_cast<const c10::BFloat16*>(row), size, shift, factor, weights);
  }
}

}  // namespace dflash::kernel
#endif  // HWY_ONCE
