#include "model/sampling.hpp"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "config/error.hpp"
#include "data/random.hpp"

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
  double value;  // logit / temperature, less the maximum
  int32_t id;
  bool operator<(const candidate& other) const {  // the likelier first, the lower id on ties
    return value > other.value || (value == other.value && id < other.id);
  }
};

// Tokens less likely than e^-30 of the likeliest are never drawn: over any real vocabulary they
// have less than one chance in a hundred million together, and leaving them out makes the draw
// cheap.
constexpr double reach = 30;

template <class T>
int32_t sample_row(const T* row, int64_t vocab, const sampling_options& options, double u) {
  decltype(order_key(T())) top_key;
  if (!maximum_of(row, vocab, top_key)) return bad_token;
  float top = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < vocab; ++i)
    if (order_key(row[i]) == top_key) {
      top = static_cast<float>(row[i]);
      break;
    }
  if (std::isinf(top)) return bad_token;
  // A float bound that is surely below the exact one; the exact test follows.
  const auto floor = static_cast<float>(top - reach * options.temperature * 1.001 - 1e-3);
  thread_local std::vector<candidate> candidates;
  candidates.clear();
  for (int64_t i = 0; i < vocab; ++i) {
    const auto x = static_cast<float>(row[i]);
    if (x < floor) continue;
    const double value = (static_cast<double>(x) - top) / options.temperature;
    if (value >= -reach) candidates.push_back({value, static_cast<int32_t>(i)});
  }
  if (options.top_k > 0 && static_cast<int64_t>(candidates.size()) > options.top_k) {
    std::nth_element(candidates.begin(), candidates.begin() + options.top_k - 1, candidates.end());
    candidates.resize(options.top_k);
  }
  std::sort(candidates.begin(), candidates.end());
  double total = 0;
  for (auto& c : candidates) total += c.value = std::exp(c.value);
  if (options.top_p < 1) {
    double kept = 0;
    size_t count = 0;
    while (count < candidates.size() && (count == 0 || kept < options.top_p * total))
      kept += candidates[count++].value;
    candidates.resize(count);
    total = kept;
  }
  double passed = 0;
  for (const auto& c : candidates)
    if ((passed += c.value) > u * total) return c.id;
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

}  // namespace

std::vector<int32_t> argmax_rows(const at::Tensor& logits, int64_t vocab) {
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
  return each_row(logits, vocab, [&](const auto* row, int64_t i) {
    const random_stream stream{options.seed, random_domain::sampling, keys[i].prompt};
    return sample_row(row, vocab, options, stream.uniform(keys[i].position));
  });
}

}  // namespace dflash
