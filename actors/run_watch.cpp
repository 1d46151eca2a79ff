#include "actors/run_watch.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/runtime/mailbox_rows.hpp"

namespace dflash {

namespace {

constexpr int64_t look_every_ns = 2'000'000'000;
constexpr size_t most_points = 1024;
constexpr std::array<const char*, 5> flow = {
    "loader", "dispatcher", "target_forward", "postprocess", "drafter_train"};

time_histogram histogram_of(const live_histogram& h, int64_t sum_ns) {
  time_histogram out;
  for (size_t b = 0; b < time_bounds_ns.size(); ++b) out.up_to[b] = h.count_to(time_bounds_ns[b]);
  out.count = std::max(h.count(), out.up_to.back());
  out.sum_s = static_cast<double>(sum_ns) * 1e-9;
  return out;
}

double value_of(const std::vector<scalar>& scalars, const char* name) {
  const auto found =
      std::find_if(scalars.begin(), scalars.end(), [&](const scalar& s) { return s.name == name; });
  return found == scalars.end() ? std::nan("") : found->value;
}

}  // namespace

std::string node_name() {
  char host[256] = {};
  const bool known = ::gethostname(host, sizeof host - 1) == 0;
  return (known ? std::string(host) : std::string("host")) + ":" + std::to_string(::getpid());
}

actor_name split_name(const std::string& name) {
  const auto blank = name.rfind(' ');
  const bool numbered = blank != std::string::npos && blank + 1 < name.size() &&
                        name.size() - blank < 9 &&
                        name.find_first_not_of("0123456789", blank + 1) == std::string::npos;
  if (!numbered) return {name, 0};
  return {name.substr(0, blank), static_cast<uint32_t>(std::stoul(name.substr(blank + 1)))};
}

run_watch::run_watch(watch_options options)
    : options_(std::move(options)), step_(options_.first_step) {}

void run_watch::observe(std::shared_ptr<const mailbox_registry> registry,
                        std::function<std::vector<sink_view>()> sinks) {
  const std::lock_guard guard(mutex_);
  registry_ = std::move(registry);
  sinks_ = std::move(sinks);
  looked_ns_ = {born_ns_, born_ns_};
}

void run_watch::note(const metrics_line& line) {
  auto scalars = scalars_of(line.json);
  const double loss = value_of(scalars, "loss"), accept = value_of(scalars, "accept_len");
  const std::lock_guard guard(mutex_);
  step_ = std::max(step_, line.step);  // an evaluation is of an earlier step
  // Sampled figures stay until their next sample.
  for (scalar& s : scalars) {
    const auto known = std::find_if(
        latest_.begin(), latest_.end(), [&](const scalar& l) { return l.name == s.name; });
    if (known == latest_.end())
      latest_.push_back(std::move(s));
    else
      known->value = s.value;
  }
  const bool measured = std::isfinite(accept);
  if (!std::isfinite(loss) || (line.step % every_ != 0 && !curve_.empty())) return;
  curve_.push_back({line.step, loss, measured ? std::optional(accept) : std::nullopt});
  if (curve_.size() < most_points) return;
  every_ *= 2;
  std::erase_if(curve_, [&](const curve_point& p) { return p.step % every_ != 0; });
}

void run_watch::look(int64_t now) {
  if (now - looked_ns_[1] < look_every_ns) return;
  looks_[0] = std::move(looks_[1]);
  looked_ns_[0] = looked_ns_[1];
  looks_[1].clear();
  looked_ns_[1] = now;
  for (const auto& stats : registry_->all())
    looks_[1][stats->name] = {stats->spent_ns(activity::computing), stats->handled()};
}

run_view run_watch::view() {
  run_view v;
  v.run = options_.run;
  v.node = node_name();
  v.total_steps = options_.total_steps;
  if (options_.warnings) v.warnings = options_.warnings();
  const std::lock_guard guard(mutex_);
  const int64_t now = now_ns();
  v.step = step_;
  v.uptime_s = static_cast<double>(now - born_ns_) * 1e-9;
  v.latest = latest_;
  v.curve = curve_;
  if (!registry_) return v;
  if (sinks_) v.sinks = sinks_();
  look(now);
  const double seconds = std::max(1e-3, static_cast<double>(now - looked_ns_[0]) * 1e-9);
  std::map<std::string, stage_load> loads;
  for (const auto& stats : registry_->all()) {
    actor_view a;
    const mailbox_report report = stats->row();
    const actor_name name = split_name(report.actor);
    a.kind = name.kind;
    a.index = name.index;
    a.row = rows_of({report}).front();
    a.handled = report.handled;
    const activity now_does = stats->current();
    a.alive = now_does != activity::ended && now_does != activity::retired &&
              now_does != activity::restarting;
    const seen before = looks_[0].contains(report.actor) ? looks_[0].at(report.actor) : seen{};
    const int64_t busy_ns = stats->spent_ns(activity::computing);
    a.busy = std::clamp(static_cast<double>(busy_ns - before.busy_ns) * 1e-9 / seconds, 0.0, 1.0);
    if (report.handled >= before.handled)
      a.row.messages_per_second = static_cast<double>(report.handled - before.handled) / seconds;
    for (size_t what = 0; what < report.spent_ns.size(); ++what)
      if (report.spent_ns[what] > 0)
        a.spent_s.emplace_back(activity_text(static_cast<activity>(what)),
                               static_cast<double>(report.spent_ns[what]) * 1e-9);
    a.wait = histogram_of(stats->wait_times(), report.wait_ns);
    a.service = histogram_of(stats->service_times(), report.service_ns);
    stage_load& load = loads[a.kind];
    if (now_does != activity::retired) {
      ++load.lanes;
      load.busy += a.busy;
    }
    v.actors.push_back(std::move(a));
  }
  for (const char* name : flow) {
    const auto found = loads.find(name);
    if (found == loads.end() || found->second.lanes == 0) continue;
    v.stages.push_back({name, found->second.lanes, found->second.busy / found->second.lanes});
  }
  v.slowest = find_bottleneck(v.stages);
  return v;
}

}  // namespace dflash
