// status.json of the page.
#include <span>

#include "observe/run_view.hpp"

namespace dflash {

namespace {

json_object actor_json(const actor_view& a) {
  json_object json = mailbox_json(a.row);
  json.add("kind", a.kind).add("index", a.index).add("alive", a.alive).add("busy", a.busy);
  json_object spent;
  for (const auto& [what, seconds] : a.spent_s) spent.add(what, seconds);
  json.add("spent_s", spent);
  return json;
}

template <class T, class Function>
std::vector<json_object> each(const std::vector<T>& items, Function to_json) {
  std::vector<json_object> all;
  for (const T& item : items) all.push_back(to_json(item));
  return all;
}

void add_all(json_object& json, std::string_view key, const std::vector<json_object>& items) {
  json.add(key, std::span<const json_object>(items));
}

json_object curve_json(const std::vector<curve_point>& points) {
  json_object step_loss;
  std::vector<std::int64_t> steps, accept_steps;
  std::vector<double> loss, accept;
  for (const curve_point& p : points) {
    steps.push_back(static_cast<std::int64_t>(p.step));
    loss.push_back(p.loss);
    if (!p.accept_len) continue;
    accept_steps.push_back(static_cast<std::int64_t>(p.step));
    accept.push_back(*p.accept_len);
  }
  step_loss.add("step", std::span<const std::int64_t>(steps));
  step_loss.add("loss", std::span<const double>(loss));
  step_loss.add("accept_step", std::span<const std::int64_t>(accept_steps));
  step_loss.add("accept_len", std::span<const double>(accept));
  return step_loss;
}

}  // namespace

std::string status_json(const run_view& v) {
  json_object json;
  json.add("run", v.run).add("node", v.node);
  json.add("step", v.step).add("total_steps", v.total_steps).add("uptime_s", v.uptime_s);
  if (v.slowest) {
    json_object slowest;
    slowest.add("name", v.slowest->name).add("busy", v.slowest->busy);
    slowest.add("next", v.slowest->next).add("headroom", v.slowest->headroom);
    slowest.add("text", bottleneck_text(*v.slowest));
    json.add("bottleneck", slowest);
  }
  add_all(json, "stages", each(v.stages, [](const stage_load& s) {
            json_object stage;
            stage.add("name", s.name).add("lanes", s.lanes).add("busy", s.busy);
            return stage;
          }));
  add_all(json, "actors", each(v.actors, actor_json));
  json_object latest;
  for (const scalar& s : v.latest) latest.add(s.name, s.value);
  json.add("latest", latest).add("curve", curve_json(v.curve));
  add_all(json, "warnings", each(v.warnings, [](const log_line& w) {
            json_object line;
            line.add("time", w.unix_time).add("level", w.level).add("text", w.text);
            return line;
          }));
  add_all(json, "sinks", each(v.sinks, [](const sink_view& s) {
            json_object sink;
            sink.add("name", s.name).add("written", s.written).add("dropped", s.dropped);
            return sink;
          }));
  return json.text();
}

}  // namespace dflash
