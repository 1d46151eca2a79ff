#include "model/kv_cache.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "config/error.hpp"
#include "device/kernels/target_attention.hpp"

namespace dflash {
namespace {

// On the CPU zeros whose pages come from the system when they are first touched: slots that stay
// short cost little.
at::Tensor lazy_zeros(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  if (!device.is_cpu()) return at::zeros(shape, at::TensorOptions().dtype(dtype).device(device));
  size_t bytes = c10::elementSize(dtype);
  for (const auto size : shape) bytes *= static_cast<size_t>(size);
  void* memory = std::calloc(std::max<size_t>(bytes, 1), 1);
  if (!memory) throw std::bad_alloc();
  return at::from_blob(
      memory, shape, [](void* p) { std::free(p); }, at::TensorOptions().dtype(dtype));
}

}  // namespace

kv_cache::kv_cache(const target_config& config,
                   compute_dtype dtype,
                   int64_t slots,
                   int64_t capacity,
                   int64_t rollback,
                   at::Device device)
    : device_(device),
      capacity_(capacity),
      rollback_(rollback),
      hybrid_(config.is_hybrid()),
      lengths_(static_cast<size_t>(slots), 0),
      settled_(static_cast<size_t>(slots), 0) {
  DFLASH_CHECK(slots > 0 && capacity > 0 && rollback >= 0, "room of a cache", slots, capacity);
  const int64_t blocks = kernel::blocks_for(capacity);
  const auto type = scalar_type(dtype);
  const auto& l = config.linear;
  for (int64_t i = 0; i < config.layers; ++i) {
    at::Tensor keys, values;
    linear_memory memory;
    if (config.kind(i) == layer_kind::linear) {
      memory.state = lazy_zeros({slots, l.value_heads, l.key_dim, l.value_dim}, at::kFloat, device);
      memory.inputs = lazy_zeros({slots, l.taps - 1 + rollback, l.channels()}, type, device);
      memory.gates = lazy_zeros({slots, rollback, 2 * l.value_heads}, at::kFloat, device);
    } else {
      const auto shape = [&](int64_t elements) {
        return device.is_cpu()
                   ? std::vector<int64_t>{slots, config.kv_heads, blocks, elements}
                   : std::vector<int64_t>{slots, capacity, config.kv_heads, config.head_dim};
      };
      keys = lazy_zeros(shape(kernel::key_block_elements(config.head_dim)), type, device);
      values = lazy_zeros(shape(kernel::value_block_elements(config.head_dim)), type, device);
    }
    keys_.push_back(keys);
    values_.push_back(values);
    linear_.push_back(memory);
  }
}

int64_t kv_cache::length(int64_t slot) const {
  DFLASH_CHECK(slot >= 0 && slot < slots(), "slot of a cache", slot, slots());
  return lengths_[slot];
}

void kv_cache::crop(int64_t slot, int64_t length) {
  DFLASH_CHECK(length >= 0 && length <= this->length(slot), "crop of a slot", slot, length);
  // Operators on other devices read past a sequence's end, at weight 0: what an earlier sequence
  // left there must be numbers.
  if (!device_.is_cpu() && length == 0 && lengths_[slot] > 0)
    for (const auto* all : {&keys_, &values_})
      for (const auto& layer : *all)
        if (layer.defined()) layer.select(0, slot).zero_();
  lengths_[slot] = length;
  if (!hybrid_ || length >= settled_[slot]) return;
  DFLASH_CHECK(length == 0, "crop before what can be taken back", length, settled_[slot]);
  settled_[slot] = 0;
  for (auto& memory : linear_) {
    if (!memory.state.defined()) continue;
    memory.state.select(0, slot).zero_();
    memory.inputs.select(0, slot).zero_();
  }
}

void kv_cache::append(int64_t slot, int64_t tokens) {
  lengths_[slot] += tokens;
  settled_[slot] = lengths_[slot] - std::min(tokens, rollback_);
}

int64_t kv_cache::bytes() const {
  int64_t total = 0;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined()) total += static_cast<int64_t>(tensor.nbytes());
  };
  for (const auto& tensor : keys_) add(tensor);
  for (const auto& tensor : values_) add(tensor);
  for (const auto& memory : linear_) add(memory.state), add(memory.inputs), add(memory.gates);
  return total;
}

}  // namespace dflash
