#include "model/kv_cache.hpp"

#include <ATen/ops/from_blob.h>

#include <cstdlib>
#include <new>

#include "config/error.hpp"
#include "device/kernels/target_attention.hpp"

namespace dflash {
namespace {

// Zeros whose pages come from the system when they are first touched: slots that stay short cost
// little.
at::Tensor lazy_zeros(at::IntArrayRef shape, at::ScalarType dtype) {
  size_t bytes = c10::elementSize(dtype);
  for (const auto size : shape) bytes *= static_cast<size_t>(size);
  void* memory = std::calloc(bytes, 1);
  if (!memory) throw std::bad_alloc();
  return at::from_blob(
      memory, shape, [](void* p) { std::free(p); }, at::TensorOptions().dtype(dtype));
}

}  // namespace

kv_cache::kv_cache(const target_config& config,
                   compute_dtype dtype,
                   int64_t slots,
                   int64_t capacity)
    : capacity_(capacity), lengths_(static_cast<size_t>(slots), 0) {
  DFLASH_CHECK(slots > 0 && capacity > 0, "room of a cache", slots, capacity);
  const int64_t blocks = kernel::blocks_for(capacity);
  for (int64_t i = 0; i < config.layers; ++i) {
    keys_.push_back(
        lazy_zeros({slots, config.kv_heads, blocks, kernel::key_block_elements(config.head_dim)},
                   scalar_type(dtype)));
    values_.push_back(
        lazy_zeros({slots, config.kv_heads, blocks, kernel::value_block_elements(config.head_dim)},
                   scalar_type(dtype)));
  }
}

int64_t kv_cache::length(int64_t slot) const {
  DFLASH_CHECK(slot >= 0 && slot < slots(), "slot of a cache", slot, slots());
  return lengths_[slot];
}

void kv_cache::crop(int64_t slot, int64_t length) {
  DFLASH_CHECK(length >= 0 && length <= this->length(slot), "crop of a slot", slot, length);
  lengths_[slot] = length;
}

int64_t kv_cache::bytes() const {
  int64_t total = 0;
  for (const auto& tensor : keys_) total += static_cast<int64_t>(tensor.nbytes());
  for (const auto& tensor : values_) total += static_cast<int64_t>(tensor.nbytes());
  return total;
}

}  // namespace dflash
