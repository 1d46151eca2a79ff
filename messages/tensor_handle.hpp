// The handle by which hidden states and gradients go from actor to actor: inside a process only the
// handle moves, never the bytes. It owns the tensors, the event that marks them ready, and the
// lease on the slot that they occupy. Messages are shared and const, so the contents sit behind a
// pointer; one consumer at a time works with them, in the order in which the handle travels.
#pragma once

#include <cstdint>
#include <memory>

namespace dflash {

struct tensor_block;  // messages/tensor_block.hpp, for those who touch the tensors

class tensor_handle {
public:
  tensor_handle() = default;
  explicit tensor_handle(std::shared_ptr<tensor_block> block);

  explicit operator bool() const { return block_ != nullptr; }
  tensor_block& operator*() const { return *block_; }
  tensor_block* operator->() const { return block_.get(); }
  // What the tensors occupy; 0 once released.
  uint64_t bytes() const;
  // Drops the tensors and gives the slot back, though copies of the handle (the message in which it
  // came) are still alive. By the consumer, before it returns the credit.
  void release() const;

private:
  std::shared_ptr<tensor_block> block_;
};

}  // namespace dflash
