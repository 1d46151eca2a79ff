// CAF's view of the messages: which ones may cross a process (they have an id and an inspect),
// which ones never do.
#pragma once

#include <caf/all.hpp>

#include "messages/messages.hpp"

namespace dflash {

// Lists come from another process: refuse absurd ones before anything is allocated for them.
inline constexpr uint64_t max_report_rows = 4096;
inline constexpr uint64_t max_report_list = 256;

// A list whose length is checked before anything is made for it.
template <class Inspector, class T>
caf::error inspect_list(Inspector& f, std::vector<T>& list, uint64_t most) {
  uint64_t count = list.size();
  if (auto err = f(count)) return err;
  if (count > most) return caf::make_error(caf::sec::invalid_argument, "a list is too long");
  list.resize(count);
  for (T& item : list)
    if (auto err = f(item)) return err;
  return caf::error{};
}

template <class Inspector>
inline constexpr bool goes_over_the_wire = std::is_base_of_v<caf::deserializer, Inspector> ||
                                           std::is_base_of_v<caf::serializer, Inspector>;

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, mailbox_report& x) {
  if constexpr (goes_over_the_wire<Inspector>) {
    if (auto err = f(x.actor,
                     x.where,
                     x.state,
                     x.state_ns,
                     x.depth,
                     x.peak_depth,
                     x.bytes,
                     x.limit_bytes,
                     x.peak_bytes,
                     x.handled,
                     x.refused,
                     x.wait_ns,
                     x.service_ns,
                     x.alive_ns,
                     x.restarts,
                     x.wait_p50_ns,
                     x.wait_p99_ns,
                     x.service_p50_ns,
                     x.service_p99_ns,
                     x.credits))
      return err;
    if (auto err = inspect_list(f, x.held, max_report_list)) return err;
    return inspect_list(f, x.spent_ns, max_report_list);
  } else {
    return f(caf::meta::type_name("mailbox_report"), x.actor, x.state, x.depth, x.bytes);
  }
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, system_report& x) {
  if constexpr (goes_over_the_wire<Inspector>) {
    if (auto err = f(x.run, x.node, x.uptime_ns, x.steps, x.total_steps)) return err;
    return inspect_list(f, x.rows, max_report_rows);
  } else {
    return f(caf::meta::type_name("system_report"), x.run, x.steps, x.rows);
  }
}

}  // namespace dflash

CAF_BEGIN_TYPE_ID_BLOCK(dflash, first_custom_type_id)
CAF_ADD_TYPE_ID(dflash, (dflash::mailbox_report))
CAF_ADD_TYPE_ID(dflash, (dflash::system_report))
CAF_ADD_ATOM(dflash, dflash, inspect_atom, "inspect")
CAF_ADD_ATOM(dflash, dflash, next_atom, "next")
CAF_ADD_ATOM(dflash, dflash, describe_atom, "describe")
CAF_ADD_ATOM(dflash, dflash, dump_atom, "dump")
CAF_END_TYPE_ID_BLOCK(dflash)

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::start_run)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::stop_request)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::stop_at)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::stage_deadline)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::give_up)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::restart_group)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::watch_tick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::run_outcome)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::load_credit)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::load_again)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::batch_ready)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::lane_free)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::capture_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::captured)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::slot_credit)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::hidden_batch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::delivered)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::not_finite)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::batch_dropped)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::kept_missing)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::room_grant)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::credit_return)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::refused_batch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::step_part)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::step_reduced)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::step_go)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::step_hold)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::replica_held)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::replica_ready)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::step_committed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::step_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::step_noted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::evaluation_noted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::flush_metrics)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::stage_report)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::save_request)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::snapshot_taken)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::snapshot_made)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::save_counts)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::save_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::evaluate_request)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::evaluated)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::evaluation_record)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::record_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(dflash::evaluation_note)
