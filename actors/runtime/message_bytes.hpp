// Bytes of tensors that a message carries, as the limits count them.
#pragma once

#include <caf/all.hpp>

#include <cstdint>

namespace dflash {

struct message_load {
  uint64_t bytes = 0;  // 0: no tensors
  uint64_t k = 0;      // batch that they belong to
};

message_load load_of(const caf::type_erased_tuple& content);

}  // namespace dflash
