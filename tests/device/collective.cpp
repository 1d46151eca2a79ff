#include "device/collective.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

using namespace dflash;

TEST_CASE("gradients are summed in the order of ranks") {
  // In fp32, (1e8 + -1e8) + 1 is 1, but 1e8 + (-1e8 + 1) is 0.
  const std::vector<at::Tensor> parts = {
      at::full({3}, 1e8F), at::full({3}, -1e8F), at::full({3}, 1.0F)};
  at::Tensor out = at::empty({3});
  sum_in_rank_order(parts, out);
  CHECK(at::equal(out, at::full({3}, 1.0F)));
  sum_in_rank_order(std::span(parts).first(1), out);
  CHECK(at::equal(out, parts[0]));
}

TEST_CASE("one to eight ranks give the bits of a loop in their order") {
  // One element, a few, and more than one thread's share; magnitudes so different that any other
  // order would round differently.
  for (const int64_t size : {1, 7, 100'003})
    for (int64_t ranks = 1; ranks <= 8; ++ranks) {
      std::vector<at::Tensor> parts;
      std::vector<float> expected(static_cast<size_t>(size));
      for (int64_t r = 0; r < ranks; ++r) {
        at::Tensor part = at::empty({size});
        for (int64_t i = 0; i < size; ++i) {
          const auto wild = static_cast<float>((i * 37 + r * 101) % 61 - 30);
          part.mutable_data_ptr<float>()[i] = std::sin(wild) * std::exp2(wild);
        }
        for (int64_t i = 0; i < size; ++i) {
          float& sum = expected[static_cast<size_t>(i)];
          const float value = part.const_data_ptr<float>()[i];
          sum = r == 0 ? value : sum + value;
        }
        parts.push_back(part);
      }
      at::Tensor out = at::empty({size});
      sum_in_rank_order(parts, out);
      int64_t differ = 0;
      for (int64_t i = 0; i < size; ++i)
        differ += std::bit_cast<uint32_t>(out.const_data_ptr<float>()[i]) !=
                  std::bit_cast<uint32_t>(expected[static_cast<size_t>(i)]);
      CHECK(differ == 0);
    }
}
