#include "actors/supervision.hpp"

#include <fmt/format.h>

#include <utility>

namespace dflash {

bool is_upstream(part what) {
  return what == part::dispatcher || what == part::loader || what == part::target;
}

std::vector<group_id> groups_of(const pipeline_links& links) {
  std::vector<group_id> groups = {{part::loader}, {part::dispatcher}};
  for (uint32_t i = 0; i < links.targets.size(); ++i) groups.push_back({part::target, i});
  for (uint32_t i = 0; i < links.drafters.size(); ++i) groups.push_back({part::drafter, i});
  if (links.checkpointer) groups.push_back({part::checkpointer});
  if (links.evaluator) groups.push_back({part::evaluator});
  groups.push_back({part::metrics});
  if (links.profiler) groups.push_back({part::profiler});
  if (links.inspector) groups.push_back({part::inspector});
  return groups;
}

std::vector<group_member> members_of(const pipeline_links& links, group_id group) {
  std::vector<group_member> members;
  const auto add = [&](uint32_t stage, std::string who, const auto& handle) {
    if (handle)
      members.push_back({std::move(who), caf::actor_cast<caf::strong_actor_ptr>(handle), stage});
  };
  const auto add_postprocess = [&](size_t i) {
    if (i < links.postprocess.size())
      add(2, fmt::format("postprocess {}", i), links.postprocess[i]);
  };
  switch (group.what) {
    case part::loader:
      add(0, "loader", links.loader);
      add_postprocess(links.targets.size());
      break;
    case part::dispatcher:
      add(0, "dispatcher", links.dispatcher);
      break;
    case part::target:
      add(1, fmt::format("target_forward {}", group.index), links.targets.at(group.index));
      add_postprocess(group.index);
      break;
    case part::drafter:
      add(3, fmt::format("drafter_train {}", group.index), links.drafters.at(group.index));
      break;
    case part::checkpointer:
      add(4, "checkpointer", links.checkpointer);
      break;
    case part::evaluator:
      add(1, "evaluator", links.evaluator);
      break;
    case part::metrics:
      add(4, "metrics", links.metrics);
      break;
    case part::profiler:
      add(4, "profiler", links.profiler);
      break;
    case part::inspector:
      add(5, "inspector", links.inspector);
      break;
  }
  return members;
}

void clear_group(pipeline_links& links, group_id group) {
  switch (group.what) {
    case part::loader:
      links.loader = nullptr;
      if (links.postprocess.size() > links.targets.size()) links.postprocess.back() = nullptr;
      break;
    case part::dispatcher:
      links.dispatcher = nullptr;
      break;
    case part::target:
      links.targets.at(group.index) = nullptr;
      links.postprocess.at(group.index) = nullptr;
      break;
    case part::drafter:
      links.drafters.at(group.index) = nullptr;
      break;
    case part::checkpointer:
      links.checkpointer = nullptr;
      break;
    case part::evaluator:
      links.evaluator = nullptr;
      break;
    case part::metrics:
      links.metrics = nullptr;
      break;
    case part::profiler:
      links.profiler = nullptr;
      break;
    case part::inspector:
      links.inspector = nullptr;
      break;
  }
}

void send_links(const std::shared_ptr<const pipeline_links>& links) {
  const start_run m{links};
  const auto tell = [&](const auto& actor) {
    if (actor) caf::anon_send(actor, m);
  };
  tell(links->metrics);
  tell(links->inspector);
  tell(links->checkpointer);
  tell(links->evaluator);
  for (const auto& post : links->postprocess) tell(post);
  tell(links->dispatcher);
  tell(links->loader);
  for (const auto& target : links->targets) tell(target);
  for (const auto& drafter : links->drafters) tell(drafter);
}

}  // namespace dflash
