#include "actors/hidden_shape.hpp"

#include <ATen/ops/empty.h>

#include "config/error.hpp"

namespace dflash {

std::vector<at::Tensor> empty_hidden(const hidden_shape& shape) {
  std::vector<at::Tensor> tensors;
  for (int64_t i = 0; i < shape.tensors(); ++i)
    tensors.push_back(at::empty({shape.row_tokens, shape.width}, at::dtype(shape.dtype)));
  return tensors;
}

std::vector<std::span<const std::byte>> bytes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::span<const std::byte>> parts;
  for (const at::Tensor& tensor : tensors) {
    DFLASH_CHECK(tensor.is_contiguous() && tensor.is_cpu(), "not a plain tensor in memory");
    parts.emplace_back(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  return parts;
}

std::vector<std::span<std::byte>> mutable_bytes_of(std::vector<at::Tensor>& tensors) {
  std::vector<std::span<std::byte>> parts;
  for (at::Tensor& tensor : tensors) {
    DFLASH_CHECK(tensor.is_contiguous() && tensor.is_cpu(), "not a plain tensor in memory");
    parts.emplace_back(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
  }
  return parts;
}

}  // namespace dflash
