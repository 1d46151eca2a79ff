#include "actors/metrics.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace dflash {

namespace {

using self_ptr = metered_ptr<metrics_actor, metrics_state>;

constexpr int64_t least_window_ns = 500'000'000;

bool starts_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

void write_line(metrics_state& s, const json_object& line) {
  if (!s.writer) return;
  try {
    s.writer->write(line);
    s.sink_failed = false;
  } catch (const std::exception& e) {
    if (!s.sink_failed)
      spdlog::error("metrics.jsonl cannot be written, training goes on: {}", e.what());
    s.sink_failed = true;
  }
}

json_object time_record(const metrics_state& s, const step_total& total, const wait_shares& waits) {
  const run_totals& t = *s.options.totals;
  const double step_s = std::max(1e-9, seconds(now_ns() - s.last_ns));
  json_object time;
  time.add("seconds", t.seconds);
  time.add("tokens_per_s", static_cast<double>(total.tokens) / step_s);
  time.add("targets_wait", waits.targets_wait).add("drafters_wait", waits.drafters_wait);
  // Batches a second, had the lanes never waited.
  if (waits.target_busy_s > 0)
    time.add("target_capacity",
             static_cast<double>(t.captured) * s.options.targets / waits.target_busy_s);
  if (waits.drafter_busy_s > 0)
    time.add("drafter_capacity",
             static_cast<double>(t.batches) * s.options.drafters / waits.drafter_busy_s);
  time.add("bytes_in_flight", waits.bytes_in_flight);
  time.add("moved_bytes", t.moved_bytes);
  time.add("kept_batches", t.from_disk);
  return time;
}

void show(metrics_state& s, const wait_shares& waits) {
  if (!s.line) return;
  const run_totals& t = *s.options.totals;
  train_progress p;
  p.step = s.options.first_step + t.steps;
  p.total_steps = s.options.total_steps;
  p.loss = t.loss_smooth;
  if (t.accept_len > 0) p.accept_len = t.accept_len;
  p.tokens_per_second = s.tokens_smooth / s.seconds_smooth;
  p.drafters_wait = waits.drafters_wait;
  p.targets_wait = waits.targets_wait;
  p.from_disk = s.options.targets == 0;
  p.bytes_in_flight = waits.bytes_in_flight;
  p.time_left =
      std::chrono::nanoseconds(static_cast<int64_t>(t.seconds * 1e9 / static_cast<double>(t.steps) *
                                                    static_cast<double>(p.total_steps - p.step)));
  p.skipped_steps = t.skipped_steps;
  s.line->show(progress_text(p));
}

void on_step(self_ptr self, const step_done& m) {
  metrics_state& s = self->state;
  step_total total;
  for (auto r = s.reports.lower_bound(m.first_k); r != s.reports.end() && r->first < m.end_k;) {
    total.add(r->second);
    r = s.reports.erase(r);
  }
  run_totals& t = *s.options.totals;
  ++t.steps;
  t.batches += total.batches;
  t.tokens += total.tokens;
  t.dropped += total.dropped;
  t.skipped_steps += m.skipped ? 1 : 0;
  t.seconds = seconds(now_ns() - s.began_ns);
  constexpr double keep = 0.95;
  t.loss = total.all.mean_loss();
  t.loss_smooth = t.steps == 1 ? t.loss : keep * t.loss_smooth + (1 - keep) * t.loss;
  if (total.measured.blocks > 0)
    t.accept_len = t.accept_len == 0
                       ? total.measured.accept_len()
                       : keep * t.accept_len + (1 - keep) * total.measured.accept_len();
  const double step_s = std::max(1e-9, seconds(now_ns() - s.last_ns));
  const double before = t.steps == 1 ? 0 : keep;
  s.tokens_smooth = before * s.tokens_smooth + (1 - before) * static_cast<double>(total.tokens);
  s.seconds_smooth = before * s.seconds_smooth + (1 - before) * step_s;
  const wait_shares& waits = s.waits->look();
  json_object line = step_record(m, total, s.options.terms);
  line.add("time", time_record(s, total, waits));
  write_line(s, line);
  show(s, waits);
  s.last_ns = now_ns();
  s.options.steps->store(m.step + 1);
}

}  // namespace

wait_meter::wait_meter(std::shared_ptr<mailbox_registry> registry)
    : registry_(std::move(registry)), last_ns_(now_ns()) {}

const wait_shares& wait_meter::look() {
  const int64_t now = now_ns();
  if (now - last_ns_ < least_window_ns) return shares_;
  wait_shares shares;
  int64_t targets_ns = 0, drafters_ns = 0, targets = 0, drafters = 0;
  for (const auto& stats : registry_->all()) {
    if (starts_with(stats->name, "target_forward")) {
      ++targets;
      targets_ns += stats->spent_ns(activity::wants_job) + stats->spent_ns(activity::wants_slot);
      shares.target_busy_s += seconds(stats->spent_ns(activity::computing));
    } else if (starts_with(stats->name, "drafter_train")) {
      ++drafters;
      drafters_ns += stats->spent_ns(activity::wants_batch);
      shares.drafter_busy_s += seconds(stats->spent_ns(activity::computing));
    }
    if (stats->limit_bytes > 0) shares.bytes_in_flight += stats->bytes();
  }
  const double passed = std::max<double>(1, static_cast<double>(now - last_ns_));
  if (targets > 0)
    shares.targets_wait = std::min(
        1.0,
        static_cast<double>(targets_ns - targets_ns_) / (passed * static_cast<double>(targets)));
  if (drafters > 0)
    shares.drafters_wait = std::min(
        1.0,
        static_cast<double>(drafters_ns - drafters_ns_) / (passed * static_cast<double>(drafters)));
  last_ns_ = now;
  targets_ns_ = targets_ns;
  drafters_ns_ = drafters_ns;
  shares_ = shares;
  return shares_;
}

metrics_actor spawn_metrics(caf::actor_system& system,
                            actor_identity identity,
                            metrics_options options) {
  return spawn_metered<metrics_actor, metrics_state>(
      system,
      runs_as::scheduled,
      std::move(identity),
      [options = std::move(options)](self_ptr self) -> metrics_actor::behavior_type {
        metrics_state& state = self->state;
        state.options = options;
        state.began_ns = state.last_ns = now_ns();
        state.waits.emplace(self->identity().registry);
        if (options.progress) state.line.emplace();
        return {
            [=](const start_run&) {
              metrics_state& s = self->state;
              s.began_ns = s.last_ns = now_ns();
              if (s.options.file.empty()) return;
              try {
                s.writer.emplace(s.options.file);
              } catch (const std::exception& e) {
                spdlog::error("no metrics.jsonl, training goes on: {}", e.what());
              }
            },
            [=](const batch_report& m) { self->state.reports.insert_or_assign(m.k, m); },
            [=](const delivered& m) {
              metrics_state& s = self->state;
              run_totals& t = *s.options.totals;
              ++(m.lane < s.options.targets ? t.captured : t.from_disk);
              t.moved_bytes += m.moved_bytes;
              t.whole_bytes += m.whole_bytes;
            },
            [=](const step_done& m) { on_step(self, m); },
            [=](const flush_metrics& m) { return m.step; },
        };
      });
}

}  // namespace dflash
