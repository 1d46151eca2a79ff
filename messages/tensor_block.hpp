// Contents of a tensor handle.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "device/ready_event.hpp"
#include "device/slot_pool.hpp"
#include "messages/tensor_handle.hpp"

namespace dflash {

struct tensor_block {
  std::vector<at::Tensor> tensors;  // hidden states: per tap [T, Ht], then the last hidden states
                                    // if asked for; gradients: one flat [P] fp32
  bool has_last = false;            // whether the last tensor is the last hidden state
  ready_event ready;
  slot_lease lease;
  uint64_t bytes = 0;
};

// Takes the tensors over; bytes are counted from their sizes.
tensor_handle make_tensor_handle(std::vector<at::Tensor> tensors,
                                 bool has_last,
                                 slot_lease lease,
                                 ready_event ready = {});

}  // namespace dflash
