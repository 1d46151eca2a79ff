// SSSE3, SSE4 and Ice Lake forms add compile time and no speed here.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "device/kernels/adamw.hpp"

#include <ATen/TensorOperators.h>

#include <cmath>
#include <vector>

#include "config/error.hpp"
#include "device/kernels/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/kernels/adamw.cpp"
#include <hwy/foreach_target.h>

#include "device/kernels/lanes-inl.hpp"

#ifndef DFLASH_ADAMW_TYPES
#define DFLASH_ADAMW_TYPES
namespace dflash::kernel {
struct adamw_constants {
  float keep;        // 1 - lr weight_decay
  float step;        // lr / (1 - beta1^t)
  float root_scale;  // 1 / sqrt(1 - beta2^t)
  float beta1, beta2, eps, gradient_scale;
};
}  // namespace dflash::kernel
#endif

HWY_BEFORE_NAMESPACE();
namespace dflash::kernel::HWY_NAMESPACE {

using c10::BFloat16;

template <class T>
float adamw_chunk(
    float* p, float* m, float* v, const float* g, T* copy, size_t n, const adamw_constants& k) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  const auto b1 = hn::Set(d, k.beta1), a1 = hn::Set(d, 1.0f - k.beta1);
  const auto b2 = hn::Set(d, k.beta2), a2 = hn::Set(d, 1.0f - k.beta2);
  const auto scale = hn::Set(d, k.gradient_scale), keep = hn::Set(d, k.keep);
  const auto step = hn::Set(d, k.step), root = hn::Set(d, k.root_scale), eps = hn::Set(d, k.eps);
  auto moved = hn::Zero(d);
  const auto update = [&](float_vec pi, float_vec& mi, float_vec& vi, float_vec gi) {
    gi = hn::Mul(gi, scale);
    mi = hn::MulAdd(b1, mi, hn::Mul(a1, gi));
    vi = hn::MulAdd(b2, vi, hn::Mul(a2, hn::Mul(gi, gi)));
    const auto denominator = hn::MulAdd(hn::Sqrt(vi), root, eps);
    return hn::NegMulAdd(step, hn::Div(mi, denominator), hn::Mul(pi, keep));
  };
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto pi = load(d, p + i);
    auto mi = load(d, m + i), vi = load(d, v + i);
    const auto next = update(pi, mi, vi, load(d, g + i));
    const auto change = hn::Sub(next, pi);
    moved = hn::MulAdd(change, change, moved);
    store(d, mi, m + i);
    store(d, vi, v + i);
    store(d, next, p + i);
    if (copy) store(d, next, copy + i);
  }
  if (i < n) {
    const size_t rest = n - i;
    const auto pi = load_n(d, p + i, rest);
    auto mi = load_n(d, m + i, rest), vi = load_n(d, v + i, rest);
    const auto next = update(pi, mi, vi, load_n(d, g + i, rest));
    const auto change = hn::Sub(next, pi);
    moved = hn::MulAdd(change, change, moved);
    store_n(d, mi, m + i, rest);
    store_n(d, vi, v + i, rest);
    store_n(d, next, p + i, rest);
    if (copy) store_n(d, next, copy + i, rest);
  }
  return sum_lanes(d, moved);
}

float adamw_f(
    float* p, float* m, float* v, const float* g, float* copy, size_t n, const adamw_constants& k) {
  return adamw_chunk(p, m, v, g, copy, n, k);
}
float adamw_b(float* p,
              float* m,
              float* v,
              const float* g,
              BFloat16* copy,
              size_t n,
              const adamw_constants& k) {
  return adamw_chunk(p, m, v, g, copy, n, k);
}

float squares_chunk(const float* x, size_t n) {
  const float_tag d;
  const size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = load(d, x + i), b = load(d, x + i + lanes);
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
  }
  for (; i < n; i += lanes) {
    const auto a = load_n(d, x + i, n - i < lanes ? n - i : lanes);
    s1 = hn::MulAdd(a, a, s1);
  }
  return sum_lanes(d, hn::Add(s0, s1));
}

}  // namespace dflash::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::kernel {
namespace {

using c10::BFloat16;
HWY_EXPORT(adamw_f);
HWY_EXPORT(adamw_b);
HWY_EXPORT(squares_chunk);

constexpr int64_t chunk = 1 << 14;

template <class F>
double sum_over_chunks(int64_t n, const F& f) {
  const int64_t chunks = (n + chunk - 1) / chunk;
  std::vector<float> partial(static_cast<size_t>(chunks));
  at::parallel_for(0, chunks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      partial[static_cast<size_t>(c)] = f(c * chunk, std::min(chunk, n - c * chunk));
  });
  double sum = 0;
  for (const float p : partial) sum += p;
  return sum;
}

bool plain(const at::Tensor& t) {
  return t.is_cpu() && t.is_contiguous() && t.scalar_type() == at::kFloat;
}

}  // namespace

void square_sum::add(const at::Tensor& value) {
  device_ = device_.defined() ? device_ + value : value;
}

double square_sum::value() const {
  return host_ + (device_.defined() ? device_.item().toDouble() : 0.0);
}

void adamw_update(at::Tensor& weight,
                  at::Tensor& exp_avg,
                  at::Tensor& exp_avg_sq,
                  const at::Tensor& gradient,
                  at::Tensor& compute,
                  const adamw_options& o,
                  square_sum& moved) {
  const bool bf16 = compute.defined() && compute.scalar_type() == at::kBFloat16;
  if (!plain(weight) || !plain(exp_avg) || !plain(exp_avg_sq) || !plain(gradient) ||
      (compute.defined() && (!compute.is_contiguous() || (!bf16 && !plain(compute)))))
    return adamw_update_reference(weight, exp_avg, exp_avg_sq, gradient, compute, o, moved);
  const double t = static_cast<double>(o.updates);
  const adamw_constants k{
      .keep = static_cast<float>(1.0 - o.lr * o.weight_decay),
      .step = static_cast<float>(o.lr / (1.0 - std::pow(o.beta1, t))),
      .root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(o.beta2, t))),
      .beta1 = static_cast<float>(o.beta1),
      .beta2 = static_cast<float>(o.beta2),
      .eps = static_cast<float>(o.eps),
      .gradient_scale = static_cast<float>(o.gradient_scale)};
  float* p = weight.data_ptr<float>();
  float* m = exp_avg.data_ptr<float>();
  float* v = exp_avg_sq.data_ptr<float>();
  const float* g = gradient.const_data_ptr<float>();
  moved.add(sum_over_chunks(weight.numel(), [&](int64_t i, int64_t n) {
    const size_t count = static_cast<size_t>(n);
    if (bf16)
      return HWY_DYNAMIC_DISPATCH(adamw_b)(
          p + i, m + i, v + i, g + i, compute.data_ptr<BFloat16>() + i, count, k);
    float* copy = compute.defined() ? compute.data_ptr<float>() + i : nullptr;
    return HWY_DYNAMIC_DISPATCH(adamw_f)(p + i, m + i, v + i, g + i, copy, count, k);
  }));
}

void adamw_update_reference(at::Tensor& weight,
                            at::Tensor& exp_avg,
                            at::Tensor& exp_avg_sq,
                            const at::Tensor& gradient,
                            at::Tensor& compute,
                            const adamw_options& o,
                            square_sum& moved) {
  const double t = static_cast<double>(o.updates);
  const at::Tensor g = gradient * o.gradient_scale;
  const at::Tensor before = weight.clone();
  weight.mul_(1.0 - o.lr * o.weight_decay);
  exp_avg.mul_(o.beta1).add_(g, 1.0 - o.beta1);
  exp_avg_sq.mul_(o.beta2).add_(g * g, 1.0 - o.beta2);
  const at::Tensor denominator =
      exp_avg_sq.sqrt().mul_(1.0 / std::sqrt(1.0 - std::pow(o.beta2, t))).add_(o.eps);
  weight.sub_(exp_avg / denominator * (o.lr / (1.0 - std::pow(o.beta1, t))));
  if (compute.defined()) compute.copy_(weight);
  add_squares_reference(weight - before, moved);
}

void add_squares(const at::Tensor& t, square_sum& into) {
  if (!plain(t)) return add_squares_reference(t, into);
  const float* x = t.const_data_ptr<float>();
  into.add(sum_over_chunks(t.numel(), [&](int64_t i, int64_t n) {
    return HWY_DYNAMIC_DISPATCH(squares_chunk)(x + i, static_cast<size_t>(n));
  }));
}

void add_squares_reference(const at::Tensor& t, square_sum& into) {
  into.add((t * t).sum(at::kDouble));
}

}  // namespace dflash::kernel
#endif
