#include "model/compute_dtype.hpp"

#include "config/error.hpp"
#include "device/packed_linear.hpp"

namespace dflash {

compute_dtype choose_compute_dtype(const std::string& name) {
  if (name == "bf16") return compute_dtype::bf16;
  if (name == "fp32") return compute_dtype::fp32;
  if (name == "auto") return cpu_has_bf16_product() ? compute_dtype::bf16 : compute_dtype::fp32;
  throw error("unknown number type '" + name + "'", "dtype", "use auto, bf16 or fp32");
}

const char* name_of(compute_dtype dtype) {
  return dtype == compute_dtype::bf16 ? "bf16" : "fp32";
}

}  // namespace dflash
