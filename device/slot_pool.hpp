// A fixed number of equally large places for tensors. A lease is the right to one of them; it
// returns its slot when released or destroyed. On the CPU a slot is a right only: the tensors that
// fill it are adopted, not copied, and the pool proves that no more of them are alive than the
// limit allows; on another device a slot has memory of its own (slot_memory.hpp). Thread safe,
// never blocks: whoever takes a slot has been granted it before (credit), so an empty pool is a
// broken invariant at the caller.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace dflash {

class slot_memory;
class slot_pool;

class slot_lease {
public:
  slot_lease() = default;
  slot_lease(slot_lease&& other) noexcept;
  slot_lease& operator=(slot_lease&& other) noexcept;
  ~slot_lease();

  // Gives the slot back; safe to call twice.
  void release();
  bool held() const { return pool_ != nullptr; }
  int64_t slot() const { return slot_; }
  // Of this use of the slot; every lease of one pool has another one.
  uint64_t generation() const { return generation_; }

private:
  friend class slot_pool;
  slot_lease(std::shared_ptr<slot_pool> pool, int64_t slot, uint64_t generation);

  std::shared_ptr<slot_pool> pool_;
  int64_t slot_ = -1;
  uint64_t generation_ = 0;
};

class slot_pool : public std::enable_shared_from_this<slot_pool> {
public:
  static std::shared_ptr<slot_pool> make(int64_t slots, uint64_t slot_bytes);
  // memory: of as many slots, or null: tensors are adopted.
  static std::shared_ptr<slot_pool> make(int64_t slots,
                                         uint64_t slot_bytes,
                                         std::unique_ptr<slot_memory> memory);
  ~slot_pool();

  // nullopt when all slots are out.
  std::optional<slot_lease> try_acquire();

  slot_memory* memory() const { return memory_.get(); }
  int64_t slots() const { return slots_; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  uint64_t limit_bytes() const { return static_cast<uint64_t>(slots_) * slot_bytes_; }
  int64_t in_use() const;
  int64_t peak_in_use() const;  // since the pool was made

private:
  friend class slot_lease;
  slot_pool(int64_t slots, uint64_t slot_bytes, std::unique_ptr<slot_memory> memory);
  void give_back(int64_t slot, uint64_t generation);

  struct state;
  int64_t slots_;
  uint64_t slot_bytes_;
  std::unique_ptr<slot_memory> memory_;
  std::unique_ptr<state> state_;
};

}  // namespace dflash
