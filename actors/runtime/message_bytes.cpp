#include "actors/runtime/message_bytes.hpp"

#include "data/batches.hpp"
#include "messages/actors.hpp"

namespace dflash {

message_load load_of(const caf::type_erased_tuple& content) {
  if (content.size() != 1) return {};
  if (content.match_element<hidden_batch>(0)) {
    const auto& m = content.get_as<hidden_batch>(0);
    return {m.hidden.bytes(), m.tokens->k};
  }
  if (content.match_element<captured>(0)) {
    const auto& m = content.get_as<captured>(0);
    return {m.hidden.bytes(), m.job.tokens->k};
  }
  return {};
}

}  // namespace dflash
