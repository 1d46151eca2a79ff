// Runs the kernels on a device where there is one, against the same bodies on the CPU.
#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <vector>

#include "data/random.hpp"
#include "device/cuda/postprocess.hpp"
#include "tests/cuda_kernels/has_device.hpp"

namespace dflash::cuda {
namespace {

// Device memory for the length of a test.
template <class T>
class device_vector {
public:
  explicit device_vector(const std::vector<T>& host) : size_(host.size()) {
    REQUIRE(cudaMalloc(&data_, size_ * sizeof(T)) == cudaSuccess);
    REQUIRE(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice) ==
            cudaSuccess);
  }
  ~device_vector() { (void)cudaFree(data_); }
  device_vector(const device_vector&) = delete;
  device_vector& operator=(const device_vector&) = delete;
  T* data() { return static_cast<T*>(data_); }
  std::vector<T> host() const {
    std::vector<T> out(size_);
    REQUIRE(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    return out;
  }

private:
  void* data_ = nullptr;
  size_t size_;
};

std::vector<float> numbers(size_t n) {
  const random_stream stream{3, random_domain::init, 1};
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(4 * stream.normal(i));
  return out;
}

}  // namespace

TEST_CASE("postprocess on the device has the bits of the CPU") {
  if (!has_device()) return;
  const auto values = numbers(100003);
  const postprocess_task task{.count = 100003,
                              .amplitude = 0.05f,
                              .seed = 1,
                              .domain = static_cast<uint32_t>(random_domain::noise),
                              .key = 2};
  device_vector<float> in(values);
  device_vector<c10::BFloat16> out(std::vector<c10::BFloat16>(values.size()));
  device_vector<char> scratch(
      std::vector<char>(static_cast<size_t>(postprocess_scratch_bytes(task))));
  device_vector<value_range> range(std::vector<value_range>(1));
  postprocess(in.data(), out.data(), task, scratch.data(), range.data(), nullptr);
  std::vector<c10::BFloat16> expected(values.size());
  value_range expected_range;
  for (int64_t g = 0; g < value_groups(task); ++g)
    postprocess_group(values.data(), expected.data(), task, g, expected_range);
  const auto result = out.host();
  for (size_t i = 0; i < result.size(); ++i) REQUIRE(result[i].x == expected[i].x);
  CHECK(range.host()[0].low == expected_range.low);
  CHECK(range.host()[0].high == expected_range.high);
  CHECK(range.host()[0].bad == 0);
}

}  // namespace dflash::cuda
