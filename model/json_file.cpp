#include "model/json_file.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "config/error.hpp"
#include "data/files.hpp"

namespace dflash {
namespace {

constexpr uint64_t most_bytes = uint64_t{256} << 20;

// What Python's Infinity, -Infinity and NaN become before parsing: a string of the same length that
// no file can hold otherwise (raw DEL bytes around the word), so that columns stay right.
constexpr char mark = '\x7f';

bool is_marked(const nlohmann::json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return !text.empty() && text.front() == mark;
}

void mark_python_numbers(std::string& text) {
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '"')
        quoted = false;
    } else if (text[i] == '"') {
      quoted = true;
    } else {
      for (const std::string_view word : {"-Infinity", "Infinity", "NaN"})
        if (std::string_view(text).substr(i, word.size()) == word) {
          text[i] = '"';
          std::fill(text.begin() + i + 1, text.begin() + i + word.size() - 1, mark);
          text[i + word.size() - 1] = '"';
          i += word.size() - 1;
          break;
        }
    }
  }
}

std::string place(const std::filesystem::path& path, const std::string& text, size_t byte) {
  const auto before = std::string_view(text).substr(0, std::min(byte, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const auto start = before.rfind('\n');
  const auto column = start == std::string_view::npos ? before.size() : before.size() - start - 1;
  return path.string() + ":" + std::to_string(line) + ":" +
         std::to_string(std::max<size_t>(column, 1));
}

// Walks text that is known to be JSON and notes the line of each key path; refuses a key that one
// object holds twice (parsers disagree on which counts).
class key_walker {
public:
  key_walker(const std::string& text,
             const std::filesystem::path& path,
             std::map<std::string, int, std::less<>>& lines)
      : text_(text), path_(path), lines_(lines) {}

  void walk() {
    std::vector<std::string> prefixes;  // of open objects and arrays
    std::string key;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c == '{' || c == '[') {
        prefixes.push_back(key.empty() ? "" : key + ".");
        if (c == '[') prefixes.back() += "[]";
        key.clear();
      } else if (c == '}' || c == ']') {
        prefixes.pop_back();
      } else if (c == '"') {
        const size_t first = at_;
        std::string word = string_token();
        size_t next = at_ + 1;
        while (next < text_.size() && std::isspace(static_cast<unsigned char>(text_[next]))) ++next;
        if (next < text_.size() && text_[next] == ':') {
          key = prefixes.back() + word;
          // Inside an array several objects may share a path: only the first is noted.
          const bool fresh = lines_.emplace(key, line_).second;
          if (!fresh && key.find("[]") == std::string::npos)
            throw error("the key \"" + word + "\" is given twice",
                        place(path_, text_, first + 1),
                        "keep one of them");
        } else {
          key.clear();
        }
      } else if (c == ',') {
        key.clear();
      }
    }
  }

private:
  std::string string_token() {
    const size_t first = at_;
    for (++at_; text_[at_] != '"'; ++at_)
      if (text_[at_] == '\\') ++at_;
    const auto token = std::string_view(text_).substr(first, at_ - first + 1);
    return nlohmann::json::parse(token).get<std::string>();
  }

  const std::string& text_;
  const std::filesystem::path& path_;
  std::map<std::string, int, std::less<>>& lines_;
  size_t at_ = 0;
  int line_ = 1;
};

std::string shown(const nlohmann::json& value) {
  if (is_marked(value)) return "NaN or infinite";
  auto text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

json_file json_file::open(const std::filesystem::path& path) {
  return parse(read_file(path, most_bytes), path);
}

json_file json_file::parse(std::string text, std::filesystem::path name) {
  json_file file;
  file.path_ = std::move(name);
  std::string marked = text;
  mark_python_numbers(marked);
  try {
    file.root_ = nlohmann::json::parse(marked);
  } catch (const nlohmann::json::parse_error& problem) {
    throw error("not valid JSON",
                place(file.path_, text, problem.byte),
                "mend the file by hand or fetch it again");
  } catch (const nlohmann::json::out_of_range& problem) {  // 1e400
    throw error("it holds a number that no double can: " + std::string(problem.what()),
                file.path_.string(),
                "the file is damaged: get it again");
  }
  if (!file.root_.is_object())
    throw error(
        "the file does not hold a JSON object", file.path_.string(), "fetch the file again");
  key_walker(marked, file.path_, file.lines_).walk();
  file.text_ = std::move(text);
  return file;
}

const nlohmann::json* json_file::find(std::string_view key) const {
  const nlohmann::json* value = &root_;
  while (true) {
    const auto dot = key.find('.');
    if (!value->is_object()) return nullptr;
    const auto found = value->find(std::string(key.substr(0, dot)));
    if (found == value->end() || found->is_null()) return nullptr;
    value = &*found;
    if (dot == std::string_view::npos) return value;
    key.remove_prefix(dot + 1);
  }
}

std::string json_file::where(std::string_view key) const {
  const auto line = lines_.find(key);
  return path_.string() + (line == lines_.end() ? "" : ":" + std::to_string(line->second)) + ", " +
         std::string(key);
}

namespace {

[[noreturn]] void absent(const json_file& file, std::string_view key) {
  throw error("the key \"" + std::string(key) + "\" is missing",
              file.path().string(),
              "take the file that belongs to this model");
}

[[noreturn]] void wrong(const json_file& file,
                        std::string_view key,
                        const nlohmann::json& value,
                        const std::string& expected) {
  throw error("\"" + std::string(key) + "\" is " + shown(value) + ", expected " + expected,
              file.where(key),
              "correct the value in this file");
}

int64_t integer(const json_file& file, std::string_view key, const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number <= static_cast<uint64_t>(INT64_MAX)) return static_cast<int64_t>(number);
  } else if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  wrong(file, key, value, "an integer that fits in 64 bits");
}

}  // namespace

int64_t json_file::get_int(std::string_view key) const {
  const auto* value = find(key);
  if (!value) absent(*this, key);
  return integer(*this, key, *value);
}

int64_t json_file::get_int(std::string_view key, int64_t fallback) const {
  return has(key) ? get_int(key) : fallback;
}

int64_t json_file::get_limit(std::string_view key, int64_t fallback, int64_t most) const {
  const auto* value = find(key);
  if (!value) return std::min(fallback, most);
  // An integer beyond 64 bits is parsed as a real number.
  if (value->is_number() && value->get<double>() >= static_cast<double>(most)) return most;
  return std::min(integer(*this, key, *value), most);
}

double json_file::get_real(std::string_view key) const {
  const auto* value = find(key);
  if (!value) absent(*this, key);
  if (!value->is_number() || !std::isfinite(value->get<double>()))
    wrong(*this, key, *value, "a finite number");
  return value->get<double>();
}

double json_file::get_real(std::string_view key, double fallback) const {
  return has(key) ? get_real(key) : fallback;
}

bool json_file::get_bool(std::string_view key) const {
  const auto* value = find(key);
  if (!value) absent(*this, key);
  if (!value->is_boolean()) wrong(*this, key, *value, "true or false");
  return value->get<bool>();
}

bool json_file::get_bool(std::string_view key, bool fallback) const {
  return has(key) ? get_bool(key) : fallback;
}

std::string json_file::get_string(std::string_view key) const {
  const auto* value = find(key);
  if (!value) absent(*this, key);
  if (!value->is_string() || is_marked(*value)) wrong(*this, key, *value, "a string");
  return value->get<std::string>();
}

std::string json_file::get_string(std::string_view key, std::string fallback) const {
  return has(key) ? get_string(key) : fallback;
}

std::vector<std::string> json_file::get_strings(std::string_view key) const {
  std::vector<std::string> out;
  const auto* value = find(key);
  if (!value) return out;
  if (!value->is_array()) wrong(*this, key, *value, "a list of strings");
  for (const auto& item : *value) {
    if (!item.is_string() || is_marked(item)) wrong(*this, key, item, "a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<int64_t> json_file::get_ints(std::string_view key) const {
  const auto* value = find(key);
  if (!value) return {};
  if (!value->is_array()) return {integer(*this, key, *value)};
  std::vector<int64_t> out;
  for (const auto& item : *value) out.push_back(integer(*this, key, item));
  return out;
}

}  // namespace dflash
