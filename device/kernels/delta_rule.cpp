#include "device/kernels/delta_rule.hpp"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/kernels/delta_rule.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "config/error.hpp"
#include "device/kernels/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace dflash::kernel::HWY_NAMESPACE {

template <class T>
HWY_ATTR void conv_row(const T* x, const float* weight, size_t channels, size_t taps, T* out) {
  const float_tag tag;
  const size_t lanes = hn::Lanes(tag);
  const auto one = hn::Set(tag, 1.0F);
  for (size_t c = 0; c < channels; c += lanes) {
    const size_t left = std::min(lanes, channels - c);
    auto sum = hn::Zero(tag);
    if (left == lanes)
      for (size_t j = 0; j < taps; ++j)
        sum =
            hn::MulAdd(load(tag, weight + j * channels + c), load(tag, x + j * channels + c), sum);
    else
      for (size_t j = 0; j < taps; ++j)
        sum = hn::MulAdd(load_n(tag, weight + j * channels + c, left),
                         load_n(tag, x + j * channels + c, left),
                         sum);
    // x / (1 + exp(-x)) with exp of a negative argument only.
    const auto e = exp_lanes(tag, hn::Neg(hn::Abs(sum)));
    const auto sigmoid =
        hn::Div(hn::IfThenElse(hn::Ge(sum, hn::Zero(tag)), one, e), hn::Add(one, e));
    if (left == lanes)
      store(tag, hn::Mul(sum, sigmoid), out + c);
    else
      store_n(tag, hn::Mul(sum, sigmoid), out + c, left);
  }
}
HWY_ATTR void conv_row_float(
    const float* x, const float* weight, size_t channels, size_t taps, float* out) {
  conv_row(x, weight, channels, taps, out);
}
HWY_ATTR void conv_row_bf16(
    const c10::BFloat16* x, const float* weight, size_t channels, size_t taps, c10::BFloat16* out) {
  conv_row(x, weight, channels, taps, out);
}

// One token and one head: q, k [dk] as they enter the rule; v [padded] in, output out; state [dk,
// padded], `padded` a multiple of the lanes.
HWY_ATTR void delta_step(const float* q,
                         const float* k,
                         float keep,
                         float beta,
                         size_t dk,
                         size_t padded,
                         float* state,
                         float* v) {
  const float_tag tag;
  const size_t lanes = hn::Lanes(tag);
  const auto kept = hn::Set(tag, keep), rate = hn::Set(tag, beta);
  for (size_t j = 0; j < padded; j += lanes) {
    float* column = state + j;
    auto known = hn::Zero(tag);
    for (size_t i = 0; i < dk; ++i) {
      const auto s = hn::Mul(hn::LoadU(tag, column + i * padded), kept);
      hn::StoreU(s, tag, column + i * padded);
      known = hn::MulAdd(s, hn::Set(tag, k[i]), known);
    }
    const auto change = hn::Mul(hn::Sub(hn::LoadU(tag, v + j), known), rate);
    auto out = hn::Zero(tag);
    for (size_t i = 0; i < dk; ++i) {
      const auto s = hn::MulAdd(hn::Set(tag, k[i]), change, hn::LoadU(tag, column + i * padded));
      hn::StoreU(s, tag, column + i * padded);
      out = hn::MulAdd(s, hn::Set(tag, q[i]), out);
    }
    hn::StoreU(out, tag, v + j);
  }
}

}  // namespace dflash::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::kernel {

HWY_EXPORT(conv_row_float);
HWY_EXPORT(conv_row_bf16);
HWY_EXPORT(delta_step);

namespace {

// Widest vector that Highway may choose, in floats.
constexpr int64_t most_lanes = 16;

template <class T>
void convolve(const T* x,
              const float* weight,
              int64_t n,
              int64_t channels,
              int64_t taps,
              T* out,
              void (*function)(const T*, const float*, size_t, size_t, T*)) {
  at::parallel_for(0, n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      function(x + t * channels,
               weight,
               static_cast<size_t>(channels),
               static_cast<size_t>(taps),
               out + t * channels);
  });
}

template <class T>
void unit_vector(const T* from, int64_t n, float scale, float* to) {
  float squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<float>(from[i]);
    squares += to[i] * to[i];
  }
  const float factor = scale / std::sqrt(squares + 1e-6F);
  for (int64_t i = 0; i < n; ++i) to[i] *= factor;
}

template <class T>
void run_head(const delta_shape& shape, const delta_span& span, int64_t head) {
  const int64_t dk = shape.key_dim, dv = shape.value_dim;
  const int64_t padded = (dv + most_lanes - 1) / most_lanes * most_lanes;
  const int64_t key_head = head / (shape.value_heads / shape.key_heads);
  const int64_t key_width = shape.key_heads * dk;
  std::vector<float> state(static_cast<size_t>(dk * padded)), q(static_cast<size_t>(dk)),
      k(static_cast<size_t>(dk)), v(static_cast<size_t>(padded));
  float* kept = span.state ? span.state + head * dk * dv : nullptr;
  if (kept)
    for (int64_t i = 0; i < dk; ++i)
      std::copy(kept + i * dv, kept + (i + 1) * dv, state.data() + i * padded);
  const auto settle = [&] {
    for (int64_t i = 0; i < dk; ++i)
      std::copy(state.data() + i * padded, state.data() + i * padded + dv, kept + i * dv);
  };
  const auto step = HWY_DYNAMIC_DISPATCH(delta_step);
  const float scale = 1.0F / std::sqrt(static_cast<float>(dk));
  for (int64_t t = 0; t < span.rows; ++t) {
    if (kept && t == span.settled) settle();
    const T* row = static_cast<const T*>(span.qkv) + t * shape.channels();
    unit_vector(row + key_head * dk, dk, scale, q.data());
    unit_vector(row + key_width + key_head * dk, dk, 1.0F, k.data());
    const T* value = row + 2 * key_width + head * dv;
    for (int64_t j = 0; j < dv; ++j) v[static_cast<size_t>(j)] = static_cast<float>(value[j]);
    const float* gate = span.gates + t * 2 * shape.value_heads + head;
    step(q.data(),
         k.data(),
         std::exp(gate[0]),
         gate[shape.value_heads],
         static_cast<size_t>(dk),
         static_cast<size_t>(padded),
         state.data(),
         v.data());
    if (t < span.silent) continue;
    T* out = static_cast<T*>(span.out) + (t - span.silent) * shape.value_heads * dv + head * dv;
    for (int64_t j = 0; j < dv; ++j) out[j] = static_cast<T>(v[static_cast<size_t>(j)]);
  }
  if (kept && span.settled == span.rows) settle();
}

}  // namespace

void causal_conv_silu(c10::ScalarType dtype,
                      const void* x,
                      const float* weight,
                      int64_t n,
                      int64_t channels,
                      int64_t taps,
                      void* out) {
  if (dtype == c10::ScalarType::Float)
    convolve(static_cast<const float*>(x),
             weight,
             n,
             channels,
             taps,
             static_cast<float*>(out),
             HWY_DYNAMIC_DISPATCH(conv_row_float));
  else
    convolve(static_cast<const c10::BFloat16*>(x),
             weight,
             n,
             channels,
             taps,
             static_cast<c10::BFloat16*>(out),
             HWY_DYNAMIC_DISPATCH(conv_row_bf16));
}

void delta_rule(c10::ScalarType dtype, delta_shape shape, std::span<const delta_span> spans) {
  DFLASH_CHECK(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0,
               "heads of the delta rule",
               shape.key_heads,
               shape.value_heads);
  for (const auto& span : spans)
    DFLASH_CHECK(span.settled >= 0 && span.settled <= span.rows && span.silent >= 0 &&
                     span.silent <= span.rows,
                 "rows of the delta rule",
                 span.rows,
                 span.settled,
                 span.silent);
  const int64_t heads = shape.value_heads;
  at::parallel_for(
      0, static_cast<int64_t>(spans.size()) * heads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const auto& span = spans[static_cast<size_t>(i / heads)];
          if (dtype == c10::ScalarType::Float)
            run_head<float>(shape, span, i % heads);
          else
            run_head<c10::BFloat16>(shape, span, i % heads);
        }
      });
}

}  // namespace dflash::kernel
#endif  // HWY_ONCE
