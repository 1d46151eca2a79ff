// The configuration as text: TOML, the reference page, and comparison for resume.
#include "config/error.hpp"
#include "config/key_names.hpp"
#include "config/values.hpp"

namespace dflash {

namespace {

using namespace detail;

std::string type_and_unit(const key& k) {
  return type_text(k) + (k.unit.empty() ? "" : " (" + std::string(k.unit) + ")");
}

// Markdown table cells must not hold a bar.
std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, "\\");
  return text;
}

std::string default_cell(const key& k) {
  if (k.required) return "(required)";
  const auto text = print_value(k, run_config{});
  return text ? "`" + *text + "`" : "(not set)";
}

const char* resume_cell(const key& k) {
  switch (k.resume) {
    case on_resume::free:
      return "may change";
    case on_resume::fixed_count:
      return "same number";
    case on_resume::fixed:
      break;
  }
  return "fixed";
}

std::size_t entries(const key& k, const run_config& config) {
  const auto* list = std::get_if<texts_key>(&k.bound);
  DFLASH_CHECK(list != nullptr, "only lists of strings may be fixed by their length", k.name);
  run_config copy = config;
  return list->at(copy).size();
}

}  // namespace

std::string to_toml(const run_config& config) {
  std::string out;
  for (const section& s : sections()) {
    out += (out.empty() ? "" : "\n") + std::string("# ") + std::string(s.help) + "\n[" +
           std::string(s.name) + "]\n";
    for (const key& k : keys()) {
      if (k.section() != s.name) continue;
      const auto value = print_value(k, config);
      out += "# " + std::string(k.help) + "\n";
      if (value)
        out += std::string(k.leaf()) + " = " + *value + "\n";
      else
        out += "# " + std::string(k.leaf()) + " is not set\n";
    }
  }
  return out;
}

std::string reference_markdown() {
  std::string out =
      "# Configuration\n\n"
      "<!-- made by `dflash config --reference`; do not edit -->\n\n"
      "A run is described by one TOML file. Any key can also be given on the command line as\n"
      "`--section.key=value`, which wins over the file: bare words need no quotes, and lists may "
      "be\n"
      "written `[a,b]` or `a,b`. Unknown keys, wrong types and values out of range are errors "
      "that\n"
      "name the place. `dflash config FILE` prints everything filled in. Paths are relative to "
      "the\n"
      "folder in which the program is started.\n\n"
      "Periods are bare numbers: batches for metrics, optimizer steps elsewhere. Sizes take "
      "units:\n"
      "kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024). A share is written "
      "with\n"
      "a point (`0.04`), a number of steps without (`100`); a share of the run is rounded to "
      "whole\n"
      "steps. \"On resume\" says what a resumed run may change: fixed keys decide the bits of the\n"
      "weights.\n";
  for (const section& s : sections()) {
    out += "\n## `[" + std::string(s.name) + "]`\n\n" + std::string(s.help) +
           "\n\n| key | type | default | range | on resume | meaning |\n"
           "| --- | --- | --- | --- | --- | --- |\n";
    for (const key& k : keys()) {
      if (k.section() != s.name) continue;
      out += "| `" + std::string(k.leaf()) + "` | " + cell(type_and_unit(k)) + " | " +
             cell(default_cell(k)) + " | " + cell(range_text(k)) + " | " + resume_cell(k) + " | " +
             cell(std::string(k.help)) + " |\n";
    }
  }
  return out;
}

std::vector<std::string> differing_keys(const run_config& a,
                                        const run_config& b,
                                        bool fixed_on_resume_only) {
  std::vector<std::string> names;
  for (const key& k : keys()) {
    if (print_value(k, a) == print_value(k, b)) continue;
    if (fixed_on_resume_only) {
      if (k.resume == on_resume::free) continue;
      if (k.resume == on_resume::fixed_count && entries(k, a) == entries(k, b)) continue;
    }
    names.emplace_back(k.name);
  }
  return names;
}

std::vector<std::string> config_keys() {
  std::vector<std::string> names;
  for (const key& k : keys()) names.emplace_back(k.name);
  return names;
}

std::string value_text(const run_config& config, const std::string& name) {
  const key* const k = find_key(name);
  DFLASH_CHECK(k != nullptr, "no such key", name);
  return print_value(*k, config).value_or("(not set)");
}

}  // namespace dflash
