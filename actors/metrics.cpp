#include "actors/metrics.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace dflash {

namespace {

using self_ptr = metered_ptr<metrics_actor, metrics_state>;

constexpr int64_t least_window_ns = 500'000'000;

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void write_line(metrics_state& s, const json_object& line) {
  if (s.options.file.empty()) return;
  try {
    if (s.writer && s.writer->is_removed()) {
      if (!s.sink_failed) spdlog::error("metrics.jsonl was removed: a new one begins");
      s.writer.reset();
    }
    if (!s.writer) s.writer.emplace(s.options.file);
    s.writer->write(line);
    s.sink_failed = false;
  } catch (const std::exception& e) {
    if (!s.sink_failed)
      spdlog::error("metrics.jsonl cannot be written, training goes on: {}", e.what());
    s.sink_failed = true;
  }
}

json_object time_record(const metrics_state& s,
                        const run_totals& t,
                        const step_total& total,
                        uint64_t captured,
                        double step_s,
                        const wait_shares& waits) {
  json_object time;
  time.add("seconds", t.seconds);
  time.add("tokens_per_s", static_cast<double>(total.tokens) / step_s);
  time.add("anchors_per_s", static_cast<double>(total.all.blocks) / step_s);
  time.add("targets_wait", waits.targets_wait).add("drafters_wait", waits.drafters_wait);
  json_object targets, drafters, causes;
  targets.add("job", waits.target_job).add("slot", waits.target_slot);
  drafters.add("batch", waits.drafter_batch).add("peers", waits.drafter_peers);
  drafters.add("commit", waits.drafter_go);
  time.add("waits", causes.add("targets", targets).add("drafters", drafters));
  // Batches a second, had the lanes never waited.
  if (waits.target_busy_s > 0)
    time.add(
        "target_capacity",
        static_cast<double>(t.captured) * static_cast<double>(waits.targets) / waits.target_busy_s);
  if (waits.drafter_busy_s > 0)
    time.add("drafter_capacity",
             static_cast<double>(t.batches) * s.options.drafters / waits.drafter_busy_s);
  time.add("bytes_in_flight", waits.bytes_in_flight);
  time.add("moved_bytes", t.moved_bytes).add("saved_bytes", t.whole_bytes - t.moved_bytes);
  time.add("kept_batches", t.from_disk);
  if (waits.restarts > 0) time.add("restarts", waits.restarts);
  if (t.saves.failed > 0) time.add("failed_saves", t.saves.failed);
  if (t.saves.waited > 0) time.add("waited_saves", t.saves.waited);
  if (s.options.drafter_flops > 0) {
    const double flops =
        s.options.target_flops * static_cast<double>(captured) +
        s.options.drafter_flops * static_cast<double>(total.batches - total.dropped);
    time.add("flops_per_s", flops / step_s);
    if (s.options.peak_flops > 0) time.add("mfu", flops / step_s / s.options.peak_flops);
  }
  return time;
}

// At the pace of the last steps; once hidden states come from the disk, at the pace that the
// drafters could keep.
double seconds_left(const metrics_state& s,
                    const run_totals& t,
                    const wait_shares& waits,
                    uint64_t step) {
  const double pace = t.seconds_smooth;
  const uint64_t total = s.options.total_steps, capture_end = s.options.capture_steps;
  if (step >= capture_end || capture_end >= total) return pace * static_cast<double>(total - step);
  const double drafting = waits.drafter_busy_s /
                          (static_cast<double>(s.options.drafters) * static_cast<double>(t.steps));
  return pace * static_cast<double>(capture_end - step) +
         std::min(pace, drafting) * static_cast<double>(total - capture_end);
}

// To all sinks: what metrics.jsonl has, and a line for people.
void offer(metrics_state& s,
           const step_done& m,
           const step_total& total,
           const json_object& line,
           const wait_shares& waits) {
  if (s.options.sinks.empty()) return;
  const run_totals& t = *s.options.totals;
  train_progress p;
  p.step = s.options.first_step + t.steps;
  p.total_steps = s.options.total_steps;
  p.loss = t.loss_smooth;
  if (t.accept_len > 0) p.accept_len = t.accept_len;
  p.tau = t.tau;
  p.held_out_loss = t.held_out_loss;
  if (total.measured.supervised > 0) s.accuracy = accuracy(total.measured);
  p.accuracy = s.accuracy;
  p.tokens_per_second = t.tokens_smooth / t.seconds_smooth;
  p.drafters_wait = waits.drafters_wait;
  p.targets_wait = waits.targets_wait;
  p.from_disk = s.links->targets.empty();
  p.bytes_in_flight = waits.bytes_in_flight;
  p.time_left =
      std::chrono::nanoseconds(static_cast<int64_t>(1e9 * seconds_left(s, t, waits, p.step)));
  p.skipped_steps = t.skipped_steps;
  p.dropped_batches = t.dropped;
  p.restarts = waits.restarts;
  p.failed_saves = t.saves.failed;
  const auto shared = std::make_shared<const metrics_line>(
      metrics_line{m.step + 1, unix_seconds(), line.text(), progress_text(p)});
  for (const auto& sink : s.options.sinks) sink->offer(shared);
}

uint64_t steps_written(const metrics_state& s) {
  return s.options.first_step + s.options.totals->steps;
}

void count_moves(run_totals& t, const batch_report& m) {
  if (m.dropped) return;
  ++(m.kept ? t.from_disk : t.captured);
  t.moved_bytes += m.moved_bytes;
  t.whole_bytes += m.whole_bytes;
}

// One line, then the totals in one piece. A death in between leaves a line too many, which the next
// life cuts off.
void write_step(self_ptr self, const step_done& m) {
  metrics_state& s = self->state;
  run_totals t = *s.options.totals;
  step_total total;
  for (const batch_report& r : *m.reports) {
    total.add(r);
    count_moves(t, r);
  }
  ++t.steps;
  t.batches += total.batches;
  t.tokens += total.tokens;
  t.dropped += total.dropped;
  t.skipped_steps += m.skipped ? 1 : 0;
  const int64_t now = now_ns();
  t.seconds = seconds(now - t.began_ns);
  constexpr double keep = 0.95;
  t.loss = total.all.mean_loss();
  t.loss_smooth = t.steps == 1 ? t.loss : keep * t.loss_smooth + (1 - keep) * t.loss;
  if (total.measured.blocks > 0)
    t.accept_len = t.accept_len == 0
                       ? total.measured.accept_len()
                       : keep * t.accept_len + (1 - keep) * total.measured.accept_len();
  const double step_s = std::max(1e-9, seconds(now - t.last_ns));
  const double before = t.steps == 1 ? 0 : keep;
  t.tokens_smooth = before * t.tokens_smooth + (1 - before) * static_cast<double>(total.tokens);
  t.seconds_smooth = before * t.seconds_smooth + (1 - before) * step_s;
  t.last_ns = now;
  const wait_shares& waits = s.waits->look();
  json_object line = step_record(m, total, s.options.terms);
  const uint64_t captured = t.captured - s.options.totals->captured;
  line.add("time", time_record(s, t, total, captured, step_s, waits));
  s.stages.mark("figures");
  write_line(s, line);
  s.stages.mark("metrics.jsonl");
  self->fault("written");
  *s.options.totals = t;
  offer(s, m, total, line, waits);
  s.stages.mark("sinks");
  s.options.steps->store(m.step + 1);
  self->stats().complete();
  self->send(s.links->coordinator, step_noted{m.step});
}

void on_step(self_ptr self, const step_done& m) {
  metrics_state& s = self->state;
  if (m.step < steps_written(s)) {  // told again, but written
    self->send(s.links->coordinator, step_noted{m.step});
    return;
  }
  {
    const auto stage = s.stages.within("step");
    write_step(self, m);
  }
  s.stages.report_step(self->stats(), m.step);
  for (auto f = s.flushes.begin(); f != s.flushes.end() && f->first <= steps_written(s);) {
    f->second.deliver(f->first);
    f = s.flushes.erase(f);
  }
}

// Under a name of their own: they are of the checkpoint's step, beside what that step's line has.
void offer_evaluation(const metrics_state& s, const evaluation& e) {
  json_object figures, line;
  if (e.loss) figures.add("loss", *e.loss).add("accept_len", *e.accept_len);
  if (e.tau) figures.add("tau", *e.tau);
  line.add("held_out", figures);
  const auto shared =
      std::make_shared<const metrics_line>(metrics_line{e.step, unix_seconds(), line.text(), {}});
  for (const auto& sink : s.options.sinks) sink->offer(shared);
}

// One line each, in order, none twice.
void write_evaluation(self_ptr self, const evaluation_note& m) {
  metrics_state& s = self->state;
  run_totals& t = *s.options.totals;
  const evaluation& e = m.history->all().at(m.index);
  t.tau = e.tau;
  t.held_out_loss = e.loss;
  if (e.step > t.evaluated_step) {
    const auto stage = s.stages.within("evaluation");
    self->fault("figures");
    write_line(s, evaluation_line(*m.history, m.index));
    offer_evaluation(s, e);
    t.evaluated_step = e.step;
  }
  self->send(s.links->coordinator, evaluation_noted{e.step});
}

caf::result<uint64_t> on_flush(self_ptr self, const flush_metrics& m) {
  metrics_state& s = self->state;
  if (m.step <= steps_written(s)) return m.step;
  auto promise = self->make_response_promise<uint64_t>();
  s.flushes.emplace(m.step, promise);
  return promise;
}

void start(self_ptr self, const start_run& m) {
  metrics_state& s = self->state;
  s.stages.use(m.links->profiler);
  if (std::exchange(s.links, m.links)) return;
  run_totals& t = *s.options.totals;
  const bool first_life = self->stats().restarts == 0;
  if (first_life) {
    t.began_ns = t.last_ns = now_ns();
    t.evaluated_step = s.options.noted_evaluation;
  }
  if (s.options.file.empty()) return;
  try {
    if (!first_life) truncate_after(s.options.file, steps_written(s));
    s.writer.emplace(s.options.file);
  } catch (const std::exception& e) {
    spdlog::error("no metrics.jsonl, training goes on: {}", e.what());
  }
}

}  // namespace

wait_meter::wait_meter(std::shared_ptr<mailbox_registry> registry)
    : registry_(std::move(registry)), last_ns_(now_ns()) {}

const wait_shares& wait_meter::look() {
  const int64_t now = now_ns();
  if (now - last_ns_ < least_window_ns) return shares_;
  wait_shares shares;
  times target_ns{}, drafter_ns{};
  int64_t drafters = 0;
  const auto book = [](times& all, const mailbox_stats& stats) {
    for (size_t a = 0; a < all.size(); ++a) all[a] += stats.spent_ns(static_cast<activity>(a));
  };
  for (const auto& stats : registry_->all()) {
    if (stats->name.starts_with("target_forward")) {
      shares.targets += stats->is_retired() ? 0 : 1;
      book(target_ns, *stats);
    } else if (stats->name.starts_with("drafter_train")) {
      ++drafters;
      book(drafter_ns, *stats);
    }
    if (stats->limit_bytes > 0) shares.bytes_in_flight += stats->bytes();
    shares.restarts += stats->restarts;
  }
  const auto at = [](activity what) { return static_cast<size_t>(what); };
  shares.target_busy_s = seconds(target_ns[at(activity::computing)]);
  shares.drafter_busy_s = seconds(drafter_ns[at(activity::computing)]);
  const double passed = std::max<double>(1, static_cast<double>(now - last_ns_));
  const auto share = [&](const times& all, const times& before, int64_t lanes, activity what) {
    if (lanes == 0) return 0.0;
    const auto spent = static_cast<double>(all[at(what)] - before[at(what)]);
    return std::clamp(spent / (passed * static_cast<double>(lanes)), 0.0, 1.0);
  };
  const auto of_targets = [&](activity what) {
    return share(target_ns, target_ns_, shares.targets, what);
  };
  const auto of_drafters = [&](activity what) {
    return share(drafter_ns, drafter_ns_, drafters, what);
  };
  shares.target_job = of_targets(activity::wants_job);
  shares.target_slot = of_targets(activity::wants_slot);
  shares.targets_wait = std::min(1.0, shares.target_job + shares.target_slot);
  shares.drafter_batch = shares.drafters_wait = of_drafters(activity::wants_batch);
  shares.drafter_peers = of_drafters(activity::wants_peers);
  shares.drafter_go = of_drafters(activity::wants_go);
  last_ns_ = now;
  target_ns_ = target_ns;
  drafter_ns_ = drafter_ns;
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
        state.stages = stage_sink(options.profile, self->stats());
        state.waits.emplace(self->identity().registry);
        return {
            [=](const start_run& m) { start(self, m); },
            [=](const step_done& m) { on_step(self, m); },
            [=](const save_counts& m) { self->state.options.totals->saves = m; },
            [=](const evaluation_note& m) { write_evaluation(self, m); },
            [=](const flush_metrics& m) { return on_flush(self, m); },
        };
      });
}

}  // namespace dflash
