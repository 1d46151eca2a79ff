// Which actors start again together, and where their handles stand. Plain functions on the links.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "messages/actors.hpp"

namespace dflash {

enum class part : uint8_t {
  loader,
  dispatcher,
  target,
  drafter,
  checkpointer,
  evaluator,
  metrics,
  profiler,
  inspector
};

// A target with its postprocess, the loader with the postprocess of kept states, or one actor.
struct group_id {
  part what = part::loader;
  uint32_t index = 0;  // of a target or drafter
};

struct group_member {
  std::string name;
  caf::strong_actor_ptr actor;
  uint32_t stage = 0;  // of the shutdown: sources first
};

// What a dispatcher's death takes with it: those that work for it, on batches that its next life
// could not know of.
bool is_upstream(part what);
std::vector<group_id> groups_of(const pipeline_links& links);
// Without those whose handle is invalid.
std::vector<group_member> members_of(const pipeline_links& links, group_id group);
// Makes the handles of a group invalid.
void clear_group(pipeline_links& links, group_id group);
// Who is who, to everyone in it but the coordinator. Drafters last: nothing flows before they grant
// room, and when a new life of one does, everybody knows of it.
void send_links(const std::shared_ptr<const pipeline_links>& links);

}  // namespace dflash
