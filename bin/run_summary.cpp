#include "bin/run_summary.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "bin/memory_plan.hpp"
#include "bin/service_times.hpp"

namespace dflash {

namespace {

struct peaks {
  uint64_t peak_bytes = 0;  // sum of the mailboxes' own peaks
  uint64_t refused = 0;
  int64_t steering_ns = 0;  // service time of the actors that only steer
};

peaks peaks_of(const std::vector<mailbox_report>& mailboxes) {
  peaks p;
  for (const mailbox_report& m : mailboxes) {
    p.peak_bytes += m.peak_bytes;
    p.refused += m.refused;
    if (m.actor == "dispatcher" || m.actor == "coordinator" || m.actor == "metrics")
      p.steering_ns += m.service_ns;
  }
  return p;
}

const char* status_text(run_status status) {
  switch (status) {
    case run_status::completed:
      return "completed";
    case run_status::stopped:
      return "stopped";
    case run_status::failed:
      return "failed";
  }
  return "?";
}

json_object figures_of(const evaluation& e) {
  json_object j;
  j.add("step", e.step);
  if (e.tau) j.add("tau", *e.tau);
  if (e.loss) j.add("loss", *e.loss).add("accept_len", *e.accept_len);
  return j;
}

void add_evaluations(json_object& j, const run_outcome& outcome) {
  const evaluation* best = best_of(outcome);
  if (best == nullptr) return;
  j.add("evaluations", outcome.evaluations->all().size());
  j.add("best", figures_of(*best))
      .add("last_evaluation", figures_of(outcome.evaluations->all().back()));
  j.add("stopped_early", outcome.stopped_early);
}

json_object saves_of(const run_outcome& outcome) {
  const save_counts& c = outcome.saves;
  const auto mean_ms = [&](int64_t ns) {
    return static_cast<double>(ns) * 1e-6 / static_cast<double>(std::max<uint64_t>(1, c.written));
  };
  json_object j;
  j.add("written", c.written).add("failed", c.failed).add("waited", c.waited);
  j.add("waited_seconds", static_cast<double>(c.waited_ns) * 1e-9);
  j.add("copy_ms", mean_ms(c.copied_ns)).add("write_ms", mean_ms(c.written_ns));
  return j;
}

// By kind of actor; parts of a stage stand behind it, with its name before theirs.
json_object stages_json(const actor_profile& profile) {
  json_object all;
  std::vector<json_object> stages;
  std::string kind;
  const auto end_kind = [&] {
    if (!stages.empty()) all.add(kind, std::span<const json_object>(stages));
    stages.clear();
  };
  std::vector<std::string> path;
  for (const auto& row : profile.rows()) {
    if (row.kind != kind) end_kind();
    kind = row.kind;
    path.resize(row.depth);
    path.push_back(row.stats.name);
    json_object stage;
    stage.add("stage", fmt::format("{}", fmt::join(path, ": ")));
    stage.add("count", row.stats.count).add("total_ns", row.stats.total.count());
    stage.add("mean_ns", row.stats.mean.count()).add("p50_ns", row.stats.p50.count());
    stage.add("p99_ns", row.stats.p99.count()).add("share", row.stats.share);
    stages.push_back(std::move(stage));
  }
  end_kind();
  return all;
}

}  // namespace

std::string restarts_text(const std::vector<mailbox_report>& mailboxes) {
  std::string text;
  for (const mailbox_report& m : mailboxes)
    if (m.restarts > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", m.actor, m.restarts);
  return text;
}

std::vector<std::string> retired_of(const std::vector<mailbox_report>& mailboxes) {
  std::vector<std::string> names;
  for (const mailbox_report& m : mailboxes)
    if (m.state == activity_text(activity::retired)) names.push_back(m.actor);
  return names;
}

const evaluation* best_of(const run_outcome& outcome) {
  return outcome.evaluations ? outcome.evaluations->best() : nullptr;
}

json_object run_summary(const training_setup& s,
                        const pipeline_result& result,
                        const service_meter& meter) {
  const run_totals& t = result.totals;
  const peaks p = peaks_of(result.mailboxes);
  json_object j;
  j.add("status", status_text(result.outcome.status));
  j.add("steps", result.outcome.steps).add("total_steps", s.parts.plan->total_steps());
  if (is_simulated(s.config))
    j.add("simulated", true);
  else
    j.add("checkpoint", result.outcome.saved_step)
        .add("parameters", drafter_parameter_count(s.drafter));
  add_evaluations(j, result.outcome);
  if (!result.outcome.reason.empty()) j.add("reason", result.outcome.reason);
  j.add("loss", t.loss).add("loss_smooth", t.loss_smooth).add("accept_len", t.accept_len);
  j.add("skipped_steps", t.skipped_steps).add("dropped_batches", t.dropped);
  json_object here;  // of this process; earlier parts of a resumed run are not in it
  here.add("steps", t.steps).add("batches", t.batches).add("tokens", t.tokens);
  here.add("seconds", t.seconds);
  here.add("tokens_per_s", t.seconds > 0 ? static_cast<double>(t.tokens) / t.seconds : 0.0);
  here.add("captured_batches", t.captured).add("kept_batches", t.from_disk);
  here.add("moved_share",
           t.whole_bytes > 0
               ? static_cast<double>(t.moved_bytes) / static_cast<double>(t.whole_bytes)
               : 0.0);
  here.add("limit_bytes", s.parts.limits.total_bytes()).add("peak_bytes", p.peak_bytes);
  here.add("refused_messages", p.refused);
  here.add("saves", saves_of(result.outcome));
  if (result.outcome.eval_waited_ns > 0)
    here.add("evaluation_waited_seconds",
             static_cast<double>(result.outcome.eval_waited_ns) * 1e-9);
  json_object restarts;
  uint64_t restarts_in_all = 0;
  for (const mailbox_report& m : result.mailboxes) {
    if (m.restarts > 0) restarts.add(m.actor, m.restarts);
    restarts_in_all += m.restarts;
  }
  here.add("restarts", restarts_in_all);
  if (restarts_in_all > 0) here.add("restarts_of", restarts);
  if (const auto retired = retired_of(result.mailboxes); !retired.empty())
    here.add("retired", std::span<const std::string>(retired));
  if (t.batches > 0)
    here.add("actor_layer_us_per_batch",
             static_cast<double>(p.steering_ns) * 1e-3 / static_cast<double>(t.batches));
  here.add("peak_resident_bytes", peak_resident_bytes());
  here.add("service_times", json_of(meter.means(result.mailboxes)));
  json_object actors;
  for (const mailbox_report& m : result.mailboxes) {
    json_object spent;
    for (size_t a = 0; a < m.spent_ns.size(); ++a)
      if (m.spent_ns[a] > 0 && static_cast<activity>(a) != activity::ended)
        spent.add(activity_text(static_cast<activity>(a)),
                  static_cast<double>(m.spent_ns[a]) * 1e-9);
    actors.add(m.actor, spent);
  }
  here.add("actors", actors);
  if (!result.stages.empty()) here.add("stages", stages_json(result.stages));
  j.add("this_process", here);
  return j;
}

}  // namespace dflash
