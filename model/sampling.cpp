#include "model/sampling.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/isnan.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "config/error.hpp"
#include "data/random.hpp"
#include "device/kernels/target_rows.hpp"

namespace dflash {
namespace {

// Integers in the order of the floats they stand for (-0.0 = 0.0), so that a maximum is found by
// plain integer loops, which compilers vectorise. bits: the float's, NaN excluded by the caller.
int32_t order_key(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  if (bits == std::numeric_limits<int32_t>::min()) return 0;
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
int16_t order_key(c10::BFloat16 x) {
  const auto bits = std::bit_cast<int16_t>(x.x);
  const auto key = static_cast<int16_t>(bits ^ ((bits >> 15) & 0x7fff));
  return bits == std::numeric_limits<int16_t>::min() ? int16_t{0} : key;
}
int32_t magnitude(float x) {
  return std::bit_cast<int32_t>(x) & 0x7fffffff;
}
int16_t magnitude(c10::BFloat16 x) {
  return static_cast<int16_t>(x.x & 0x7fff);
}
constexpr int32_t infinity_bits(float) {
  return 0x7f800000;
}
constexpr int16_t infinity_bits(c10::BFloat16) {
  return 0x7f80;
}

// The key of the row's maximum; nothing if the row is bad.
template <class T>
bool maximum_of(const T* row, int64_t vocab, decltype(order_key(T()))& top) {
  top = std::numeric_limits<decltype(order_key(T()))>::min();
  decltype(magnitude(T())) largest = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    top = std::max(top, order_key(row[i]));
    largest = std::max(largest, magnitude(row[i]));
  }
  return largest <= infinity_bits(T()) &&
         top > order_key(T(-std::numeric_limits<float>::infinity()));
}

template <class T>
int32_t argmax_row(const T* row, int64_t vocab) {
  decltype(order_key(T())) top;
  if (!maximum_of(row, vocab, top)) return bad_token;
  int64_t i = 0;
  while (order_key(row[i]) != top) ++i;
  return static_cast<int32_t>(i);
}

struct candidate {
  float logit;
  float weight;
  int32_t id;
  bool operator<(const candidate& other) const {  // the likelier first, the lower id on ties
    return logit > other.logit || (logit == other.logit && id < other.id);
  }
};

double sum_of(const std::vector<float>& weights) {
  double sums[8] = {};  // eight chains of additions instead of one
  const size_t full = weights.size() / 8 * 8;
  for (size_t i = 0; i < full; i += 8)
    for (size_t j = 0; j < 8; ++j) sums[j] += static_cast<double>(weights[i + j]);
  for (size_t i = full; i < weights.size(); ++i) sums[0] += static_cast<double>(weights[i]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// The tokens with weights of at least `least`, sorted.
template <class T>
void likely_tokens(const T* row,
                   const std::vector<float>& weights,
                   float least,
                   std::vector<candidate>& out) {
  out.clear();
  for (size_t i = 0; i < weights.size(); ++i)
    if (weights[i] >= least)
      out.push_back({static_cast<float>(row[i]), weights[i], static_cast<int32_t>(i)});
  std::sort(out.begin(), out.end());
}

// The tokens that top-k and top-p leave, the likeliest first, and the sum of their weights. Sorting
// the whole vocabulary is slow: what is left nearly always lies among the few likeliest.
template <class T>
double keep_likeliest(const T* row,
                      const std::vector<float>& weights,
                      const sampling_options& options,
                      std::vector<candidate>& out) {
  const double all = sum_of(weights);
  const auto mass = [&] {
    double sum = 0;
    for (const auto& c : out) sum += static_cast<double>(c.weight);
    return sum;
  };
  for (const double distance : {2.0, 4.0, 8.0, 16.0, 1e9}) {  // e^-1e9 = 0: everything
    likely_tokens(row, weights, static_cast<float>(std::exp(-distance)), out);
    if (options.top_k > 0 ? static_cast<int64_t>(out.size()) >= options.top_k
                          : mass() >= options.top_p * all)
      break;
  }
  if (options.top_k > 0 && static_cast<int64_t>(out.size()) > options.top_k)
    out.resize(options.top_k);
  const double total = options.top_k > 0 ? mass() : all;
  double kept = 0;
  size_t count = 0;
  while (count < out.size() && (count == 0 || kept < options.top_p * total))
    kept += static_cast<double>(out[count++].weight);
  out.resize(count);
  return kept;
}

template <class T>
int32_t sample_row(const T* row, int64_t vocab, const sampling_options& options, double u) {
  const auto best = argmax_row(row, vocab);
  if (best == bad_token) return bad_token;
  const auto top = static_cast<float>(row[best]);
  if (std::isinf(top)) return bad_token;
  thread_local std::vector<float> weights;
  weights.resize(vocab);
  kernel::softmax_weights(c10::CppTypeToScalarType<T>::value,
                          row,
                          vocab,
                          top,
                          static_cast<float>(1 / options.temperature),
                          weights.data());
  double passed = 0;
  if (options.top_k == 0 && options.top_p == 1) {
    const double total = sum_of(weights);
    for (size_t i = 0; i < weights.size(); ++i)
      if ((passed += static_cast<double>(weights[i])) > u * total) return static_cast<int32_t>(i);
    return best;
  }
  thread_local std::vector<candidate> candidates;
  const double total = keep_likeliest(row, weights, options, candidates);
  for (const auto& c : candidates)
    if ((passed += static_cast<double>(c.weight)) > u * total) return c.id;
  return candidates.back().id;
}

// function(row pointer, row number) for each row, spread over the caller's threads.
template <class Function>
std::vector<int32_t> each_row(const at::Tensor& logits, int64_t vocab, const Function& function) {
  DFLASH_CHECK(logits.dim() == 2 && logits.is_contiguous() && logits.device().is_cpu(),
               "logits are rows on the CPU",
               logits.dim());
  const int64_t n = logits.size(0), width = logits.size(1);
  DFLASH_CHECK(vocab > 0 && vocab <= width, "vocabulary of the logits", vocab, width);
  std::vector<int32_t> out(n);
  at::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      out[i] = logits.scalar_type() == at::kFloat
                   ? function(logits.const_data_ptr<float>() + i * width, i)
                   : function(logits.const_data_ptr<c10::BFloat16>() + i * width, i);
  });
  return out;
}

// The rule of argmax_row in ATen operators: argmax takes the first of equal values, and a NaN
// before any number. -> [n] int32, on the logits' device.
at::Tensor argmax_reference(const at::Tensor& logits, int64_t vocab) {
  const auto part = logits.narrow(1, 0, vocab);
  const auto best = at::argmax(part, 1, true);
  const auto top = at::gather(part, 1, best);
  const auto bad = at::isnan(top).logical_or(top.eq(-std::numeric_limits<double>::infinity()));
  return best.masked_fill(bad, bad_token).squeeze(1).to(at::kInt);
}

}  // namespace

std::vector<int32_t> argmax_rows(const at::Tensor& logits, int64_t vocab) {
  if (!logits.is_cpu()) {
    const auto ids = argmax_reference(logits, vocab).to(at::kCPU);
    const auto* first = ids.const_data_ptr<int32_t>();
    return {first, first + ids.numel()};
  }
  return each_row(logits, vocab, [&](const auto* row, int64_t) { return argmax_row(row, vocab); });
}

void check_sampling(const sampling_options& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    throw error("temperature is " + std::to_string(options.temperature),
                "--temperature",
                "use 0 for greedy answers, or a number above 0, usually below 2");
  if (options.temperature > 0 && options.temperature < 1e-3)
    throw error("temperature is " + std::to_string(options.temperature),
                "--temperature",
                "use 0 for greedy answers, or at least 0.001");
  if (!(options.top_p > 0) || options.top_p > 1)
    throw error("top-p is " + std::to_string(options.top_p),
                "--top-p",
                "use a share above 0 and at most 1 (1: off)");
  if (options.top_k < 0)
    throw error("top-k is " + std::to_string(options.top_k), "--top-k", "use 0 (off) or a count");
  if (options.temperature == 0 && (options.top_p < 1 || options.top_k > 0))
    throw error("top-p and top-k have no meaning for greedy answers",
                "--temperature",
                "give a temperature above 0, or leave them out");
}

std::vector<int32_t> sample_rows(const at::Tensor& logits,
                                 int64_t vocab,
                                 const sampling_options& options,
                                 std::span<const sampling_key> keys) {
  if (options.temperature == 0) return argmax_rows(logits, vocab);
  DFLASH_CHECK(static_cast<int64_t>(keys.size()) == logits.size(0), "a key for each row");
  return each_row(logits.to(at::kCPU), vocab, [&](const auto* row, int64_t i) {
    const random_stream stream{options.seed, random_domain::sampling, keys[i].prompt};
    return sample_row(row, vocab, options, stream.uniform(keys[i].position));
  });
}

}  // namespace dflash
