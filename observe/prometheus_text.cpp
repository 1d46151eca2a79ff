// A run_view in Prometheus' text form. Series are labelled by an actor's kind and index, never by
// an id that changes with each life. Names are those of later versions of CAF where it has them.
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "observe/run_view.hpp"

namespace dflash {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using labels = std::vector<std::pair<std::string, std::string>>;

class families {
public:
  void add(const std::string& name, MetricType type, const char* help, const labels& of, double v) {
    ClientMetric m = labelled(of);
    if (type == MetricType::Counter)
      m.counter.value = v;
    else
      m.gauge.value = v;
    family(name, type, help).metric.push_back(std::move(m));
  }
  void add(const std::string& name, const char* help, const labels& of, const time_histogram& h) {
    ClientMetric m = labelled(of);
    m.histogram.sample_count = h.count;
    m.histogram.sample_sum = h.sum_s;
    for (std::size_t b = 0; b < h.up_to.size(); ++b)
      m.histogram.bucket.push_back({.cumulative_count = h.up_to[b],
                                    .upper_bound = static_cast<double>(time_bounds_ns[b]) * 1e-9});
    family(name, MetricType::Histogram, help).metric.push_back(std::move(m));
  }
  std::string text() const { return prometheus::TextSerializer().Serialize(all_); }

private:
  static ClientMetric labelled(const labels& of) {
    ClientMetric m;
    for (const auto& [name, value] : of) {
      ClientMetric::Label label;
      label.name = name;
      label.value = value;
      m.label.push_back(std::move(label));
    }
    return m;
  }
  MetricFamily& family(const std::string& name, MetricType type, const char* help) {
    const auto [at, is_new] = places_.try_emplace(name, all_.size());
    if (is_new) all_.push_back({name, help, type, {}});
    return all_[at->second];
  }

  std::vector<MetricFamily> all_;
  std::map<std::string, std::size_t> places_;  // by name, in all_
};

std::string metric_name(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return "dflash_" + name;
}

// "acc_at/3" is dflash_acc_at{place="3"}; "time/tokens_per_s" is dflash_tokens_per_s;
// "time/waits/targets/slot" is dflash_waits_targets_slot.
void add_scalar(families& f, const scalar& s) {
  constexpr const char* help = "Of the last step, as in metrics.jsonl.";
  const std::string name = s.name.starts_with("time/") ? s.name.substr(5) : s.name;
  const auto slash = name.rfind('/');
  const bool element = slash != std::string::npos &&
                       name.find_first_not_of("0123456789", slash + 1) == std::string::npos;
  if (element)
    f.add(metric_name(name.substr(0, slash)),
          MetricType::Gauge,
          help,
          {{"place", name.substr(slash + 1)}},
          s.value);
  else
    f.add(metric_name(name), MetricType::Gauge, help, {}, s.value);
}

void add_actor(families& f, const actor_view& a) {
  const labels of = {{"name", a.kind}, {"index", std::to_string(a.index)}};
  using enum MetricType;
  const auto gauge = [&](const char* name, const char* help, auto value) {
    f.add(name, Gauge, help, of, static_cast<double>(value));
  };
  gauge("caf_actor_mailbox_size", "Messages in the mailbox.", a.row.depth);
  f.add("caf_actor_mailbox_time_seconds", "Time of messages in the mailbox.", of, a.wait);
  f.add("caf_actor_processing_time_seconds", "Time of messages in the handler.", of, a.service);
  if (a.row.limit_bytes > 0) {
    gauge("dflash_mailbox_bytes", "Tensors waiting, on their way and in service.", a.row.bytes);
    gauge(
        "dflash_mailbox_limit_bytes", "Most that dflash_mailbox_bytes may be.", a.row.limit_bytes);
    gauge("dflash_mailbox_peak_bytes", "Most that dflash_mailbox_bytes was.", a.row.peak_bytes);
  }
  if (a.row.credits >= 0)
    gauge("dflash_actor_credits", "Batches that it may still send or be sent.", a.row.credits);
  gauge("dflash_actor_batches", "Batches that are at the actor.", a.row.held.size());
  f.add("dflash_actor_restarts_total",
        Counter,
        "Lives after the first.",
        of,
        static_cast<double>(a.row.restarts));
  for (const auto& [what, seconds] : a.spent_s) {
    labels with = of;
    with.emplace_back("activity", what);
    f.add("dflash_actor_time_seconds_total",
          Counter,
          "Time by what the actor did or waited for.",
          with,
          seconds);
  }
}

}  // namespace

std::string prometheus_text(const run_view& v) {
  using enum MetricType;
  families f;
  double queued = 0, handled = 0, refused = 0, running = 0;
  for (const actor_view& a : v.actors) {
    queued += static_cast<double>(a.row.depth);
    handled += static_cast<double>(a.handled);
    refused += static_cast<double>(a.row.refused);
    running += a.alive ? 1 : 0;
  }
  f.add("caf_system_running_actors", Gauge, "Actors of the pipeline that live.", {}, running);
  f.add("caf_system_queued_messages", Gauge, "Messages in all mailboxes.", {}, queued);
  f.add("caf_system_processed_messages_total", Counter, "Messages handled.", {}, handled);
  f.add("caf_system_rejected_messages_total",
        Counter,
        "Messages refused because they would have passed a limit in bytes.",
        {},
        refused);
  f.add(
      "dflash_steps_total", Counter, "Optimizer steps committed.", {}, static_cast<double>(v.step));
  f.add("dflash_planned_steps",
        Gauge,
        "Optimizer steps of the whole run.",
        {},
        static_cast<double>(v.total_steps));
  f.add("dflash_uptime_seconds", Gauge, "Since this process began to train.", {}, v.uptime_s);
  for (const stage_load& s : v.stages)
    f.add("dflash_stage_busy_ratio",
          Gauge,
          "Share of the last seconds in which the lanes of a stage computed.",
          {{"name", s.name}},
          s.busy);
  for (const actor_view& a : v.actors) add_actor(f, a);
  for (const scalar& s : v.latest) add_scalar(f, s);
  for (const sink_view& s : v.sinks) {
    const labels of = {{"name", s.name}};
    f.add("dflash_sink_written_total",
          Counter,
          "Steps that a sink has taken.",
          of,
          static_cast<double>(s.written));
    f.add("dflash_sink_dropped_total",
          Counter,
          "Steps that a sink was too slow or too broken for.",
          of,
          static_cast<double>(s.dropped));
  }
  return f.text();
}

}  // namespace dflash
