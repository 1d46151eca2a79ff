#include "actors/runtime/credit_ledger.hpp"

#include "config/error.hpp"

namespace dflash {

void credit_ledger::grant(uint32_t consumer,
                          uint32_t epoch,
                          uint64_t limit_bytes,
                          uint32_t limit_batches) {
  account& a = accounts_.at(consumer);
  if (epoch < a.epoch) return;  // overtaken by a newer grant
  const bool same = a.open && epoch == a.epoch;
  a.open = true;
  a.epoch = epoch;
  a.limit_bytes = limit_bytes;
  a.limit_batches = limit_batches;
  if (same) return;
  a.reserved.clear();
  a.reserved_bytes = 0;
}

std::vector<uint64_t> credit_ledger::revoke(uint32_t consumer) {
  account& a = accounts_.at(consumer);
  std::vector<uint64_t> batches;
  for (const auto& [k, bytes] : a.reserved) batches.push_back(k);
  a.open = false;
  a.reserved.clear();
  a.reserved_bytes = 0;
  return batches;
}

bool credit_ledger::has_room(uint32_t consumer, uint64_t bytes) const {
  const account& a = accounts_.at(consumer);
  return a.open && a.reserved.size() < a.limit_batches && a.reserved_bytes + bytes <= a.limit_bytes;
}

uint32_t credit_ledger::reserve(uint32_t consumer, uint64_t k, uint64_t bytes) {
  DFLASH_CHECK(has_room(consumer, bytes), "reserved without room", consumer, k, bytes);
  account& a = accounts_.at(consumer);
  const bool added = a.reserved.emplace(k, bytes).second;
  DFLASH_CHECK(added, "a batch has its room already", consumer, k);
  a.reserved_bytes += bytes;
  return a.epoch;
}

bool credit_ledger::give_back(uint32_t consumer, uint32_t epoch, uint64_t k) {
  account& a = accounts_.at(consumer);
  if (!a.open || epoch != a.epoch) return false;
  const auto found = a.reserved.find(k);
  if (found == a.reserved.end()) return false;
  a.reserved_bytes -= found->second;
  a.reserved.erase(found);
  return true;
}

}  // namespace dflash
