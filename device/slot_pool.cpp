#include "device/slot_pool.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "config/error.hpp"
#include "device/slot_memory.hpp"

namespace dflash {

struct slot_pool::state {
  mutable std::mutex mutex;
  std::vector<int64_t> free;          // slot ids, last one is taken next
  std::vector<uint64_t> generations;  // [slot]; 0: never used
  uint64_t next_generation = 1;
  int64_t peak = 0;
};

slot_lease::slot_lease(std::shared_ptr<slot_pool> pool, int64_t slot, uint64_t generation)
    : pool_(std::move(pool)), slot_(slot), generation_(generation) {}

slot_lease::slot_lease(slot_lease&& other) noexcept
    : pool_(std::move(other.pool_)),
      slot_(std::exchange(other.slot_, -1)),
      generation_(std::exchange(other.generation_, 0)) {}

slot_lease& slot_lease::operator=(slot_lease&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::move(other.pool_);
    slot_ = std::exchange(other.slot_, -1);
    generation_ = std::exchange(other.generation_, 0);
  }
  return *this;
}

slot_lease::~slot_lease() {
  release();
}

void slot_lease::release() {
  if (auto pool = std::exchange(pool_, nullptr)) pool->give_back(slot_, generation_);
}

slot_pool::slot_pool(int64_t slots, uint64_t slot_bytes, std::unique_ptr<slot_memory> memory)
    : slots_(slots),
      slot_bytes_(slot_bytes),
      memory_(std::move(memory)),
      state_(std::make_unique<state>()) {
  DFLASH_CHECK(slots > 0, "a slot pool needs a slot", slots);
  for (int64_t slot = slots - 1; slot >= 0; --slot) state_->free.push_back(slot);
  state_->generations.resize(static_cast<size_t>(slots), 0);
}

slot_pool::~slot_pool() = default;

std::shared_ptr<slot_pool> slot_pool::make(int64_t slots, uint64_t slot_bytes) {
  return make(slots, slot_bytes, nullptr);
}

std::shared_ptr<slot_pool> slot_pool::make(int64_t slots,
                                           uint64_t slot_bytes,
                                           std::unique_ptr<slot_memory> memory) {
  return std::shared_ptr<slot_pool>(new slot_pool(slots, slot_bytes, std::move(memory)));
}

std::optional<slot_lease> slot_pool::try_acquire() {
  const std::lock_guard guard(state_->mutex);
  if (state_->free.empty()) return std::nullopt;
  const int64_t slot = state_->free.back();
  state_->free.pop_back();
  const uint64_t generation = state_->next_generation++;
  state_->generations[static_cast<size_t>(slot)] = generation;
  state_->peak = std::max(state_->peak, slots_ - static_cast<int64_t>(state_->free.size()));
  return slot_lease(shared_from_this(), slot, generation);
}

void slot_pool::give_back(int64_t slot, uint64_t generation) {
  if (memory_) memory_->leave(slot);
  const std::lock_guard guard(state_->mutex);
  DFLASH_CHECK(state_->generations[static_cast<size_t>(slot)] == generation,
               "a lease outlived its slot",
               slot,
               generation);
  state_->free.push_back(slot);
}

int64_t slot_pool::in_use() const {
  const std::lock_guard guard(state_->mutex);
  return slots_ - static_cast<int64_t>(state_->free.size());
}

int64_t slot_pool::peak_in_use() const {
  const std::lock_guard guard(state_->mutex);
  return state_->peak;
}

}  // namespace dflash
