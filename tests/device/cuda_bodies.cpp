// The kernels' bodies of device/cuda, run on the CPU for every block and thread of a launch.

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "data/random.hpp"
#include "device/cuda/postprocess.hpp"

namespace dflash::cuda {
namespace {

std::vector<float> numbers(size_t n, uint64_t key, float scale) {
  const random_stream stream{5, random_domain::init, key};
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = scale * static_cast<float>(stream.normal(i));
  return out;
}

// As a block does it: halves of the threads join until one is left.
template <class Part>
Part join_block(std::vector<Part> parts) {
  for (size_t half = parts.size() / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) parts[i] = join(parts[i], parts[i + half]);
  return parts[0];
}

template <class In, class Out>
value_range walk(const In* in, Out* out, const postprocess_task& task, grid g) {
  std::vector<value_range> blocks;
  for (uint32_t block = 0; block < g.blocks; ++block) {
    std::vector<value_range> threads(g.threads);
    for (uint32_t thread = 0; thread < g.threads; ++thread)
      for (int64_t i = first_item(block, thread, g); i < value_groups(task); i += item_stride(g))
        postprocess_group(in, out, task, i, threads[thread]);
    blocks.push_back(join_block(threads));
  }
  value_range all;
  for (const value_range& range : blocks) all = join(all, range);
  return all;
}

}  // namespace

TEST_CASE("every item belongs to just one thread, whatever the number of blocks") {
  for (const int64_t items : {1, 31, 32, 33, 1000}) {
    for (const uint32_t most : {1U, 3U, 100U}) {
      const grid g = grid_for(items, 32, most);
      CHECK(g.blocks >= 1);
      CHECK(g.blocks <= most);
      std::vector<int> seen(static_cast<size_t>(items), 0);
      for (uint32_t block = 0; block < g.blocks; ++block)
        for (uint32_t thread = 0; thread < g.threads; ++thread)
          for (int64_t i = first_item(block, thread, g); i < items; i += item_stride(g))
            ++seen[static_cast<size_t>(i)];
      CHECK(seen == std::vector<int>(static_cast<size_t>(items), 1));
    }
  }
}

TEST_CASE("the device's random blocks are those of random_stream") {
  for (const uint64_t i : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40}) {
    const random_stream stream{0x123456789abcdef, random_domain::noise, 77 + (i << 33)};
    const philox_words words =
        philox_block(stream.seed, static_cast<uint32_t>(stream.domain), stream.key, i);
    const auto expected = stream.block(i);
    for (size_t j = 0; j < 4; ++j) CHECK(words.word[j] == expected[j]);
  }
}

TEST_CASE("postprocessing adds the noise of the stream to values cast first") {
  const size_t n = 1003;  // not a multiple of four
  const auto in = numbers(n, 1, 3.0f);
  const postprocess_task task{.count = static_cast<int64_t>(n),
                              .amplitude = 0.1f,
                              .seed = 9,
                              .domain = static_cast<uint32_t>(random_domain::noise),
                              .key = 4,
                              .first_block = 50};
  std::vector<c10::BFloat16> out(n);
  const value_range range = walk(in.data(), out.data(), task, grid_for(value_groups(task), 32, 3));
  const random_stream stream{9, random_domain::noise, 4};
  float low = in[0], high = in[0];
  for (size_t i = 0; i < n; ++i) {
    low = std::min(low, in[i]);
    high = std::max(high, in[i]);
    const float noise = static_cast<float>(stream.u32(200 + i)) * (0.1f * 0x1p-31f) - 0.1f;
    const c10::BFloat16 expected = static_cast<float>(static_cast<c10::BFloat16>(in[i])) + noise;
    REQUIRE(out[i].x == expected.x);
  }
  CHECK(range.low == low);
  CHECK(range.high == high);
  CHECK(range.bad == 0);
}

TEST_CASE("postprocessing without noise only casts, and counts what is not finite") {
  std::vector<float> in = {1, -2, std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY, 3};
  std::vector<float> out(in.size());
  const postprocess_task task{.count = static_cast<int64_t>(in.size())};
  const value_range range = walk(in.data(), out.data(), task, grid{1, 32});
  CHECK(range.bad == 3);
  CHECK(range.low == -2);
  CHECK(range.high == 3);
  CHECK(out[5] == 3);
  CHECK(std::isnan(out[2]));
}

}  // namespace dflash::cuda
