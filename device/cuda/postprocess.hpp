// Hand-over of one tap on the device: range check, cast, uniform noise, in one pass over the
// values. CPU twin: all_finite and add_noise of the postprocess actor, whose noise has the same
// bits.
#pragma once

#include <c10/util/BFloat16.h>

#include <cmath>
#include <cstdint>

#include "device/cuda/launch.hpp"
#include "device/cuda/philox.hpp"

namespace dflash::cuda {

// What the finite values span, and how many values are not finite.
struct value_range {
  float low = INFINITY, high = -INFINITY;
  uint64_t bad = 0;
};

DFLASH_HOST_DEVICE inline void take(value_range& range, float value) {
  // Written so that a NaN is bad: fmin and fmax would drop it.
  if (!(value - value == 0.0f)) {
    ++range.bad;
    return;
  }
  range.low = value < range.low ? value : range.low;
  range.high = value > range.high ? value : range.high;
}

DFLASH_HOST_DEVICE inline value_range join(const value_range& a, const value_range& b) {
  return {a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high, a.bad + b.bad};
}

// One tap of `count` values. amplitude 0: no noise, and none is drawn.
struct postprocess_task {
  int64_t count = 0;
  float amplitude = 0;  // U(-amplitude, amplitude)
  uint64_t seed = 0;
  uint32_t domain = 0;  // dflash::random_domain::noise
  uint64_t key = 0;     // batch number
  uint64_t first_block =
      0;  // of the tap in the batch's stream; a tap of n values uses (n + 3) / 4 blocks
};

DFLASH_HOST_DEVICE inline int64_t value_groups(const postprocess_task& t) {
  return (t.count + 3) / 4;
}

// Values 4 group .. 4 group + 3, as far as there are any: the range is that of the input, before
// cast and noise.
template <class In, class Out>
DFLASH_HOST_DEVICE inline void postprocess_group(
    const In* in, Out* out, const postprocess_task& t, int64_t group, value_range& range) {
  const int64_t first = group * 4;
  const int64_t last = first + 4 < t.count ? first + 4 : t.count;
  if (t.amplitude == 0.0f) {
    for (int64_t i = first; i < last; ++i) {
      const float value = static_cast<float>(in[i]);
      take(range, value);
      out[i] = static_cast<Out>(value);
    }
    return;
  }
  const float scale = t.amplitude * 0x1p-31f;
  const philox_words words =
      philox_block(t.seed, t.domain, t.key, t.first_block + static_cast<uint64_t>(group));
  for (int64_t i = first; i < last; ++i) {
    const float value = static_cast<float>(in[i]);
    take(range, value);
    const float noise =
        add(multiply(static_cast<float>(words.word[i - first]), scale), -t.amplitude);
    out[i] = static_cast<Out>(add(static_cast<float>(static_cast<Out>(value)), noise));
  }
}

// Bytes of the scratch that the launches below want, on the device.
int64_t postprocess_scratch_bytes(const postprocess_task& task);

// in, out [count] on the device of the current context; may be the same memory where the types are.
// range: one value on the device, complete when the stream has passed. Does not block. Throws
// std::runtime_error when the launch fails.
void postprocess(const float* in,
                 float* out,
                 const postprocess_task&,
                 void* scratch,
                 value_range* range,
                 stream_handle);
void postprocess(const float* in,
                 c10::BFloat16* out,
                 const postprocess_task&,
                 void* scratch,
                 value_range* range,
                 stream_handle);
void postprocess(const c10::BFloat16* in,
                 float* out,
                 const postprocess_task&,
                 void* scratch,
                 value_range* range,
                 stream_handle);
void postprocess(const c10::BFloat16* in,
                 c10::BFloat16* out,
                 const postprocess_task&,
                 void* scratch,
                 value_range* range,
                 stream_handle);

}  // namespace dflash::cuda
