// "--section.key=value": the shell takes quotes away, so the value may be barer than in a file.
#include <algorithm>

#include "config/values.hpp"

namespace dflash::detail {

namespace {

constexpr std::string_view blanks = " \t";

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

bool is_toml_value(const std::string& text) {
  if (text.find_first_of("\r\n") != std::string::npos) return false;
  try {
    return toml::parse("v = " + text).size() == 1;
  } catch (const toml::parse_error&) {
    return false;
  }
}

bool starts_quoted(std::string_view text) {
  return text.starts_with('"') || text.starts_with('\'');
}

// a,b or [a,b] with bare words -> ["a", "b"]
std::string list_of_strings(std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) text = trimmed(text.substr(1, text.size() - 2));
  std::string out = "[";
  while (!text.empty()) {
    const auto comma = text.find(',');
    const auto word = trimmed(text.substr(0, comma));
    out += (out.size() > 1 ? ", " : "") +
           (starts_quoted(word) ? std::string(word) : toml_string(word));
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
  }
  return out + "]";
}

std::string enclosed(std::string_view text, char open, char close) {
  return text.starts_with(open) ? std::string(text) : open + std::string(text) + close;
}

}  // namespace

std::string override_to_toml(const key& k, std::string_view raw) {
  const std::string_view text = trimmed(raw);
  std::string toml;
  if (std::holds_alternative<text_key>(k.bound)) {
    toml = starts_quoted(text) ? std::string(text) : toml_string(raw);
  } else if (std::holds_alternative<texts_key>(k.bound)) {
    toml = std::string(text);
    if (!text.starts_with('[') || !is_toml_value(toml)) toml = list_of_strings(text);
  } else if (std::holds_alternative<integers_key>(k.bound) ||
             std::holds_alternative<pair_key>(k.bound)) {
    toml = enclosed(text, '[', ']');
  } else if (std::holds_alternative<weights_key>(k.bound)) {
    toml = enclosed(text, '{', '}');
  } else {
    toml = std::string(text);
  }
  return is_toml_value(toml) ? toml
                             : toml_string(raw);  // then the reader says what it takes instead
}

}  // namespace dflash::detail
