#include "device/collective.hpp"

#include <ATen/ops/add.h>

#include "config/error.hpp"

namespace dflash {

void sum_in_rank_order(std::span<const at::Tensor> parts, at::Tensor& out) {
  DFLASH_CHECK(!parts.empty(), "a sum needs a part");
  for (const at::Tensor& part : parts)
    DFLASH_CHECK(part.sizes() == out.sizes() && part.scalar_type() == out.scalar_type() &&
                     part.data_ptr() != out.data_ptr(),
                 "parts of a sum must match its result and not alias it");
  out.copy_(parts[0], /*non_blocking=*/true);
  for (const at::Tensor& part : parts.subspan(1))
    at::add_out(out, out, part.to(out.device(), /*non_blocking=*/true));
}

}  // namespace dflash
