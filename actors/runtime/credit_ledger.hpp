// The sender's side of consumer-owned credit: how much room each consumer has granted, and what of
// it is reserved, by batch. Plain struct, one owner (the dispatcher). Invariant: reserved <=
// granted, in bytes and in batches, for every consumer, at any time.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace dflash {

class credit_ledger {
public:
  explicit credit_ledger(uint32_t consumers) : accounts_(consumers) {}

  // A consumer opens, or opens anew: what was reserved under an older epoch is void.
  void grant(uint32_t consumer, uint32_t epoch, uint64_t limit_bytes, uint32_t limit_batches);
  // The consumer is gone: no room until it grants again. Returns the batches that were reserved
  // there.
  std::vector<uint64_t> revoke(uint32_t consumer);

  bool has_room(uint32_t consumer, uint64_t bytes) const;
  // Pre-condition: has_room. Returns the epoch that the reservation belongs to.
  uint32_t reserve(uint32_t consumer, uint64_t k, uint64_t bytes);
  // false: unknown batch or an old epoch; nothing changes then.
  bool give_back(uint32_t consumer, uint32_t epoch, uint64_t k);

  bool is_open(uint32_t consumer) const { return accounts_[consumer].open; }
  uint32_t epoch(uint32_t consumer) const { return accounts_[consumer].epoch; }
  uint64_t reserved_bytes(uint32_t consumer) const { return accounts_[consumer].reserved_bytes; }
  int64_t free_batches(uint32_t consumer) const {
    const account& a = accounts_[consumer];
    return a.open ? static_cast<int64_t>(a.limit_batches) - static_cast<int64_t>(a.reserved.size())
                  : 0;
  }
  uint64_t reserved_batches(uint32_t consumer) const { return accounts_[consumer].reserved.size(); }

private:
  struct account {
    bool open = false;
    uint32_t epoch = 0;
    uint64_t limit_bytes = 0;
    uint32_t limit_batches = 0;
    uint64_t reserved_bytes = 0;
    std::map<uint64_t, uint64_t> reserved;  // bytes by k
  };
  std::vector<account> accounts_;  // [consumer]
};

}  // namespace dflash
