// Shape of the hidden states of one batch; the same for all batches of a run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dflash {

struct hidden_shape {
  int64_t row_tokens = 0;  // T
  int64_t width = 0;       // Ht
  int64_t taps = 0;        // nT
  bool last = false;       // the last hidden state too
  at::ScalarType dtype = at::kFloat;

  int64_t tensors() const { return taps + (last ? 1 : 0); }
  uint64_t row_bytes() const {  // of one token in one tensor
    return static_cast<uint64_t>(width) * c10::elementSize(dtype);
  }
  uint64_t bytes() const { return static_cast<uint64_t>(tensors() * row_tokens) * row_bytes(); }
};

// tensors() uninitialised CPU tensors [T, Ht].
std::vector<at::Tensor> empty_hidden(const hidden_shape& shape);
// Their bytes, in order: what a hidden_store takes. The tensors must be contiguous and on the CPU.
std::vector<std::span<const std::byte>> bytes_of(const std::vector<at::Tensor>& tensors);
std::vector<std::span<std::byte>> mutable_bytes_of(std::vector<at::Tensor>& tensors);

}  // namespace dflash
