// Reads a run configuration: defaults, then the file, then overrides.
#include <fstream>

#include "config/error.hpp"
#include "config/values.hpp"

namespace dflash {

namespace {

using namespace detail;

constexpr std::uintmax_t largest_file_bytes = 1 << 20;

std::string place(const std::string& file, const toml::source_position& at) {
  return file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
}

std::string read_text(const std::filesystem::path& file) {
  std::error_code problem;
  const auto status = std::filesystem::status(file, problem);
  if (!std::filesystem::exists(status))
    throw error("the configuration file does not exist",
                file.string(),
                "config/presets/ has some to start from");
  if (std::filesystem::is_directory(status))
    throw error("the configuration is a folder, not a file", file.string(), "name a .toml file");
  std::ifstream in(file, std::ios::binary);
  if (!in) throw error("the configuration file cannot be read", file.string());
  std::string text(largest_file_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > largest_file_bytes)
    throw error("the configuration file is larger than 1 MiB",
                file.string(),
                "name the TOML file of a run");
  return text;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const section& s : sections()) names.emplace_back(s.name);
  return names;
}

// For a mistyped name: the nearest known one; for a known leaf in the wrong section: its place.
std::string suggestion(std::string_view name) {
  const auto leaf = name.substr(name.find('.') + 1);
  for (const key& k : keys())
    if (k.leaf() == leaf) return "did you mean " + std::string(k.name) + "?";
  std::vector<std::string> known;
  for (const key& k : keys()) known.emplace_back(k.name);
  if (const auto near = nearest(name, known)) return "did you mean " + *near + "?";
  return "dflash config --reference lists all keys";
}

[[noreturn]] void unknown_key(const std::string& name, const std::string& where) {
  throw error("unknown key " + name, where, suggestion(name));
}

[[noreturn]] void unknown_section(const std::string& name, const std::string& where) {
  const auto near = nearest(name, section_names());
  std::string all;
  for (const std::string& s : section_names()) all += (all.empty() ? "" : ", ") + s;
  throw error("unknown section [" + name + "]",
              where,
              near ? "did you mean [" + *near + "]?" : "sections are " + all);
}

bool is_section(std::string_view name) {
  for (const section& s : sections())
    if (s.name == name) return true;
  return false;
}

void read_toml(const std::string& text, const std::string& name, run_config& config) {
  toml::table root;
  try {
    root = toml::parse(text, name);
  } catch (const toml::parse_error& problem) {
    throw error("the configuration is not TOML: " + std::string(problem.description()),
                place(name, problem.source().begin),
                "strings stand in quotes; a section starts with [name]");
  }
  for (auto&& [section_name, node] : root) {
    const std::string section(section_name.str());
    const toml::table* const table = node.as_table();
    const std::string where = place(name, section_name.source().begin);
    if (!is_section(section)) {
      if (table == nullptr) unknown_key(section, where);
      unknown_section(section, where);
    }
    if (table == nullptr)
      throw error("[" + section + "] must be a section, not a value",
                  where,
                  "write [" + section + "] on a line of its own, its keys below");
    for (auto&& [leaf, value] : *table) {
      const std::string full = section + "." + std::string(leaf.str());
      const key* const k = find_key(full);
      if (k == nullptr) unknown_key(full, place(name, leaf.source().begin));
      read_value(*k, value, place(name, value.source().begin), config);
    }
  }
}

void read_override(const std::string& text, run_config& config) {
  const std::string_view bare =
      text.starts_with("--") ? std::string_view(text).substr(2) : std::string_view(text);
  const auto equals = bare.find('=');
  if (equals == std::string_view::npos)
    throw error("\"" + text + "\" has no value", "", "write --section.key=value");
  const std::string name(bare.substr(0, equals));
  const key* const k = find_key(name);
  if (k == nullptr) unknown_key(name, text);
  const toml::table parsed = toml::parse("v = " + override_to_toml(*k, bare.substr(equals + 1)));
  read_value(*k, *parsed.get("v"), text, config);
}

}  // namespace

run_config parse_run_config(const std::filesystem::path& file,
                            const std::vector<std::string>& overrides) {
  run_config config;
  if (!file.empty()) read_toml(read_text(file), file.string(), config);
  for (const std::string& text : overrides) read_override(text, config);
  return config;
}

run_config parse_run_text(const std::string& text, const std::string& name) {
  if (text.size() > largest_file_bytes) throw error("the configuration is larger than 1 MiB", name);
  run_config config;
  read_toml(text, name, config);
  return config;
}

run_config load_run_config(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides) {
  run_config config = parse_run_config(file, overrides);
  validate(config);
  return config;
}

}  // namespace dflash
