#include "observe/format.hpp"
#include "observe/jsonl.hpp"

namespace dflash {

namespace {

// Length of the UTF-8 sequence that starts text, or 0 if it is not one (overlong forms, surrogates
// and values above U+10FFFF are none).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  if (first == 0xe0 && byte(1) < 0xa0) return 0;
  if (first == 0xed && byte(1) > 0x9f) return 0;
  if (first == 0xf0 && byte(1) < 0x90) return 0;
  if (first == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

template <class Range, class Print>
std::string listed(const Range& values, Print&& print) {
  std::string text = "[";
  for (const auto& value : values) {
    if (text.size() > 1) text += ',';
    text += print(value);
  }
  return text + "]";
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const char c = text.front();
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr char digits[] = "0123456789abcdef";
      out += "\\u00";
      out += digits[static_cast<unsigned char>(c) >> 4];
      out += digits[static_cast<unsigned char>(c) & 15];
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + '"';
}

json_object& json_object::add_raw(std::string_view key, std::string_view json) {
  if (!members_.empty()) members_ += ',';
  members_ += json_string(key);
  members_ += ':';
  members_ += json;
  return *this;
}

json_object& json_object::add(std::string_view key, double value) {
  return add_raw(key, json_number(value));
}

json_object& json_object::add(std::string_view key, std::string_view value) {
  return add_raw(key, json_string(value));
}

json_object& json_object::add(std::string_view key, const json_object& value) {
  return add_raw(key, value.text());
}

json_object& json_object::add(std::string_view key, std::span<const double> values) {
  return add_raw(key, listed(values, json_number));
}

json_object& json_object::add(std::string_view key, std::span<const std::int64_t> values) {
  return add_raw(key, listed(values, [](std::int64_t v) { return std::to_string(v); }));
}

json_object& json_object::add(std::string_view key, std::span<const std::string> values) {
  return add_raw(key, listed(values, [](const std::string& v) { return json_string(v); }));
}

json_object& json_object::add(std::string_view key, std::span<const json_object> values) {
  return add_raw(key, listed(values, [](const json_object& v) { return v.text(); }));
}

}  // namespace dflash
