// The number type that models compute in. Weights and activations have it; norms, softmax, rotary
// angles and losses are fp32 always.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace dflash {

enum class compute_dtype { fp32, bf16 };

// "auto" (bf16 if this CPU has bf16 dot products, else fp32), "bf16", "fp32"; else dflash::error.
compute_dtype choose_compute_dtype(const std::string& name);

const char* name_of(compute_dtype dtype);  // "bf16", "fp32"

inline c10::ScalarType scalar_type(compute_dtype dtype) {
  return dtype == compute_dtype::bf16 ? c10::ScalarType::BFloat16 : c10::ScalarType::Float;
}

}  // namespace dflash
