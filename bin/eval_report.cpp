#include "bin/eval_report.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace dflash {

namespace {

using json = nlohmann::ordered_json;

double rate(const decode_stats& stats) {
  return stats.pass_seconds > 0 ? static_cast<double>(stats.committed) / stats.pass_seconds : 0;
}

std::vector<double> shares(const std::vector<int64_t>& part, const std::vector<int64_t>& whole) {
  std::vector<double> out;
  for (size_t k = 0; k < whole.size(); ++k)
    out.push_back(whole[k] == 0 || k >= part.size()
                      ? 0.0
                      : static_cast<double>(part[k]) / static_cast<double>(whole[k]));
  return out;
}

json check_json(const output_check& check) {
  json listed = json::array();
  for (const auto& d : check.differences)
    listed.push_back({{"prompt", d.prompt},
                      {"position", d.position},
                      {"plain", d.plain},
                      {"speculative", d.speculative},
                      {"gap", d.verdict.gap},
                      {"tolerance", d.verdict.tolerance},
                      {"tie", d.verdict.is_tie()}});
  return {{"prompts", check.prompts},
          {"identical", check.identical},
          {"ties", check.ties},
          {"different", check.different},
          {"differences", listed}};
}

json decode_json(const decode_report& decode) {
  return {{"prompts", decode.prompts},
          {"plain_tokens_per_s", decode.plain_rate()},
          {"speculative_tokens_per_s", decode.speculative_rate()},
          {"speedup", decode.speedup()},
          {"tau", decode.speculative.tau()},
          {"plain_prefill_seconds", decode.plain.prefill_seconds},
          {"speculative_prefill_seconds", decode.speculative.prefill_seconds},
          {"plain_seconds", decode.plain.pass_seconds},
          {"speculative_seconds", decode.speculative.pass_seconds},
          {"output_check", check_json(decode.check)}};
}

struct line_writer {
  std::string text;

  template <class... Values>
  void add(const char* format, Values... values) {
    char buffer[512];
    std::snprintf(buffer, sizeof buffer, format, values...);
    text += buffer;
  }
};

void add_walk_table(line_writer& out, const eval_report& report, bool lookup) {
  out.add("\n%s\n",
          lookup ? "prompt lookup (n-grams of at most 6 tokens, 8 drafts), no training"
                 : "drafter, walking the target's answers");
  out.add("  %-14s %8s %8s %7s %11s   accepted at draft 1, 2, ...\n",
          "set",
          "prompts",
          "tokens",
          "tau",
          "accept_len");
  for (const auto& set : report.sets) {
    const auto& walk = lookup ? set.lookup : set.walk;
    out.add("  %-14s %8lld %8lld %7.3f %11.3f  ",
            set.name.c_str(),
            static_cast<long long>(walk.prompts),
            static_cast<long long>(walk.answer_tokens),
            walk.tau(),
            walk.accept_len());
    for (const double share : shares(walk.walk.accepted_at, walk.walk.offered_at))
      out.add(" %.2f", share);
    out.add("\n");
  }
}

void add_check(line_writer& out, const std::string& set, const output_check& check) {
  out.add("  %-14s %lld of %lld the same text, %lld ties, %lld different\n",
          set.c_str(),
          static_cast<long long>(check.identical),
          static_cast<long long>(check.prompts),
          static_cast<long long>(check.ties),
          static_cast<long long>(check.different));
  for (const auto& d : check.differences)
    out.add(
        "    prompt %lld, new token %lld: plain %d, speculative %d, gap %.3g, tolerance %.3g "
        "(%s)\n",
        static_cast<long long>(d.prompt),
        static_cast<long long>(d.position),
        d.plain,
        d.speculative,
        d.verdict.gap,
        d.verdict.tolerance,
        d.verdict.is_tie() ? "tie" : "different");
}

}  // namespace

double decode_report::plain_rate() const {
  return rate(plain);
}
double decode_report::speculative_rate() const {
  return rate(speculative);
}
double decode_report::speedup() const {
  return plain_rate() > 0 ? speculative_rate() / plain_rate() : 0;
}

nlohmann::ordered_json to_json(const eval_report& report) {
  json out;
  out["target"] = report.target;
  out["target_hash"] = report.target_hash;
  out["drafter"] = report.drafter;
  out["max_drafts"] = report.max_drafts;
  out["max_new_tokens"] = report.max_new_tokens;
  out["threads"] = report.threads;
  out["device"] = report.device;
  const auto& drawing = report.sampling;
  out["temperature"] = drawing.temperature;
  if (drawing.temperature > 0) {
    out["top_p"] = drawing.top_p;
    out["top_k"] = drawing.top_k;
    out["seed"] = drawing.seed;
  }
  out["dtype"] = report.dtype;
  const auto per_set = [&](auto value) {
    json values = json::object();
    for (const auto& set : report.sets) values[set.name] = value(set);
    return values;
  };
  out["prompts"] = per_set([](const set_report& s) { return s.walk.prompts; });
  out["answer_tokens"] = per_set([](const set_report& s) { return s.walk.answer_tokens; });
  out["tau"] = per_set([](const set_report& s) { return s.walk.tau(); });
  out["accept_len"] = per_set([](const set_report& s) { return s.walk.accept_len(); });
  out["passes"] = per_set([](const set_report& s) { return s.walk.walk.passes; });
  out["anchors"] = per_set([](const set_report& s) { return s.walk.anchors; });
  out["accepted_at"] = per_set(
      [](const set_report& s) { return shares(s.walk.walk.accepted_at, s.walk.walk.offered_at); });
  out["accuracy_at"] =
      per_set([](const set_report& s) { return shares(s.walk.hits_at, s.walk.supervised_at); });
  out["lookup_tau"] = per_set([](const set_report& s) { return s.lookup.tau(); });
  out["lookup_accept_len"] = per_set([](const set_report& s) { return s.lookup.accept_len(); });
  if (!report.decode_dtype.empty()) {
    const auto& first = report.sets.front().decode;
    out["decode_dtype"] = report.decode_dtype;
    out["decode_set"] = report.sets.front().name;
    out["decode_tokens_per_s"] = {{"plain", first.plain_rate()},
                                  {"speculative", first.speculative_rate()}};
    out["decode_speedup"] = first.speedup();
    out["decode"] = per_set([](const set_report& s) { return decode_json(s.decode); });
  }
  if (!report.check_dtype.empty()) {
    output_check all;
    for (const auto& set : report.sets) all.add(set.check.check);
    out["check_dtype"] = report.check_dtype;
    out["outputs_identical"] = all.passed();
    out["output_check"] = per_set([](const set_report& s) {
      json one = check_json(s.check.check);
      one["checked"] = s.check.prompts;
      return one;
    });
  }
  out["seconds"] = {{"load", report.load_seconds},
                    {"answers", report.answer_seconds},
                    {"walk", report.walk_seconds},
                    {"decode", report.decode_seconds},
                    {"check", report.check_seconds}};
  return out;
}

std::string to_text(const eval_report& report) {
  line_writer out;
  out.add("target %s, drafter %s, %s, %s, %lld threads, at most %lld new tokens\n",
          report.target.c_str(),
          report.drafter.c_str(),
          report.dtype.c_str(),
          report.device.c_str(),
          static_cast<long long>(report.threads),
          static_cast<long long>(report.max_new_tokens));
  if (report.sampling.temperature > 0)
    out.add("answers are drawn: temperature %g, top-p %g, top-k %lld, seed %llu\n",
            report.sampling.temperature,
            report.sampling.top_p,
            static_cast<long long>(report.sampling.top_k),
            static_cast<unsigned long long>(report.sampling.seed));
  if (!report.drafter_is_lookup) add_walk_table(out, report, false);
  add_walk_table(out, report, true);
  if (!report.decode_dtype.empty()) {
    out.add("\nreal decoding of one prompt at a time, %s, plain and speculative in turns\n",
            report.decode_dtype.c_str());
    out.add("  %-14s %8s %14s %20s %9s %7s\n",
            "set",
            "prompts",
            "plain tok/s",
            "speculative tok/s",
            "speed-up",
            "tau");
    for (const auto& set : report.sets)
      out.add("  %-14s %8zu %14.1f %20.1f %9.2f %7.3f\n",
              set.name.c_str(),
              set.decode.prompts.size(),
              set.decode.plain_rate(),
              set.decode.speculative_rate(),
              set.decode.speedup(),
              set.decode.speculative.tau());
    if (report.sampling.temperature == 0)
      out.add("\ntexts of both in %s\n", report.decode_dtype.c_str());
    for (const auto& set : report.sets)
      if (report.sampling.temperature == 0) add_check(out, set.name, set.decode.check);
  }
  if (!report.check_dtype.empty()) {
    out.add("\ntexts of plain and speculative decoding in %s, in batches\n",
            report.check_dtype.c_str());
    for (const auto& set : report.sets) add_check(out, set.name, set.check.check);
  }
  return out.text;
}

}  // namespace dflash
