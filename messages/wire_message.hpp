// What travels over a data connection between nodes: a method, a small text and tensors. Tensors go
// as their raw bytes, never through CAF, whose serialiser changes floats.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dflash {

struct wire_message {
  std::string method;               // of an answer: empty
  std::string body;                 // JSON, small; from outside: hostile until checked
  std::vector<at::Tensor> tensors;  // CPU; sent from where they lie if contiguous
};

// Dtype and sizes of a tensor that is announced: checked, so that its bytes fit 64 bits and the
// limits.
struct wire_shape {
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<int64_t> sizes;

  uint64_t bytes() const;
  std::string text() const;  // "bfloat16 [3, 4]"
  bool operator==(const wire_shape&) const = default;
};
wire_shape shape_of(const at::Tensor& tensor);

// A message before the bytes of its tensors.
struct wire_announcement {
  std::string method;
  std::string body;
  std::vector<wire_shape> tensors;
};

// Gives memory for the tensors that are about to come, one each: contiguous, on the CPU; where
// dtype or sizes are others, or there are fewer to come, the message is refused. An undefined one
// or a list that ends early leaves it to an allocation within the limits. The bytes are received
// straight into it. Throws if this message is not wanted: the peer hears what it says. Tensors
// given are partly written if the connection is lost meanwhile.
using tensor_places = std::function<std::vector<at::Tensor>(const wire_announcement&)>;

}  // namespace dflash
