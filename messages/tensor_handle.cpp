#include "messages/tensor_handle.hpp"

#include <utility>

#include "messages/tensor_block.hpp"

namespace dflash {

tensor_handle::tensor_handle(std::shared_ptr<tensor_block> block) : block_(std::move(block)) {}

uint64_t tensor_handle::bytes() const {
  return block_ ? block_->bytes : 0;
}

void tensor_handle::release() const {
  if (!block_) return;
  block_->tensors.clear();
  block_->bytes = 0;
  block_->lease.release();
}

tensor_handle make_tensor_handle(std::vector<at::Tensor> tensors,
                                 bool has_last,
                                 slot_lease lease,
                                 ready_event ready) {
  auto block = std::make_shared<tensor_block>();
  for (const at::Tensor& tensor : tensors) block->bytes += tensor.nbytes();
  block->tensors = std::move(tensors);
  block->has_last = has_last;
  block->ready = std::move(ready);
  block->lease = std::move(lease);
  return tensor_handle(std::move(block));
}

}  // namespace dflash
