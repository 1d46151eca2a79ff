#include "data/npy.hpp"

#include <charconv>
#include <set>
#include <string_view>

#include "config/error.hpp"
#include "data/files.hpp"

namespace dflash {

namespace {

constexpr std::string_view magic = "\x93NUMPY";

// The header is a Python dict of three entries: {'descr': '<i8', 'fortran_order': False,
// 'shape': (50,), }
class header_parser {
public:
  header_parser(std::string_view text, const std::filesystem::path& path)
      : text_(text), path_(path) {}

  npy_array parse() {
    npy_array a;
    std::set<std::string> seen;
    want('{');
    while (!take('}')) {
      const std::string key = string();
      if (!seen.insert(key).second) refuse("names " + key + " twice");
      want(':');
      if (key == "descr") {
        if (at() == '[') refuse("is of records, not of plain numbers");
        a.type = string();
      } else if (key == "fortran_order") {
        a.fortran_order = flag();
      } else if (key == "shape") {
        a.shape = tuple();
      } else {
        refuse("has the key " + key);
      }
      if (!take(',')) {
        want('}');
        break;
      }
    }
    if (at() != '\0') refuse("goes on after its dict");
    if (seen.size() != 3) refuse("lacks one of descr, fortran_order, shape");
    return a;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw error(
        "no array of NumPy: its header " + what, path_.string(), "write it with numpy.save");
  }

private:
  char at() {
    while (place_ < text_.size() && (text_[place_] == ' ' || text_[place_] == '\n')) ++place_;
    return place_ < text_.size() ? text_[place_] : '\0';
  }
  bool take(char c) {
    if (at() != c) return false;
    ++place_;
    return true;
  }
  void want(char c) {
    if (!take(c)) refuse(std::string("has no '") + c + "' where one is due");
  }
  std::string string() {
    const char quote = at();
    if (quote != '\'' && quote != '"') refuse("has no string where one is due");
    const size_t end = text_.find(quote, ++place_);
    if (end == std::string_view::npos) refuse("has a string without end");
    std::string out(text_.substr(place_, end - place_));
    place_ = end + 1;
    return out;
  }
  bool flag() {
    at();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(place_, word.size()) != word) continue;
      place_ += word.size();
      return value;
    }
    refuse("has a fortran_order that is neither True nor False");
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> sizes;
    want('(');
    while (!take(')')) {
      at();
      int64_t size = -1;
      const char* end = text_.data() + text_.size();
      const auto [rest, problem] = std::from_chars(text_.data() + place_, end, size);
      if (problem != std::errc() || size < 0) refuse("has a shape that is no list of sizes");
      place_ = static_cast<size_t>(rest - text_.data());
      sizes.push_back(size);
      if (!take(',')) {
        want(')');
        break;
      }
    }
    return sizes;
  }

  std::string_view text_;
  const std::filesystem::path& path_;
  size_t place_ = 0;
};

// "<i8" has 8; 0 for what is no plain type.
uint64_t element_bytes(std::string_view type) {
  if (type.size() < 3 || std::string_view("<>|=").find(type[0]) == std::string_view::npos) return 0;
  if (std::string_view("biufc").find(type[1]) == std::string_view::npos) return 0;
  uint64_t bytes = 0;
  const auto [rest, problem] = std::from_chars(type.data() + 2, type.data() + type.size(), bytes);
  return problem == std::errc() && rest == type.data() + type.size() && bytes <= 32 ? bytes : 0;
}

}  // namespace

npy_array read_npy(const std::filesystem::path& path) {
  std::string file = read_file(path);
  const auto damaged = [&](const std::string& what) {
    throw error("no array of NumPy: " + what, path.string(), "write it with numpy.save");
  };
  const auto byte = [&](size_t i) { return static_cast<uint64_t>(static_cast<uint8_t>(file[i])); };
  if (file.size() < 12 || !file.starts_with(magic)) damaged("the file does not begin as one");
  const uint64_t version = byte(6);
  if (version < 1 || version > 3) damaged("format " + std::to_string(version) + " is unknown");
  // Little-endian: 2 bytes in format 1, 4 bytes since.
  uint64_t length = byte(8) | byte(9) << 8, begin = 10;
  if (version > 1) length |= byte(10) << 16 | byte(11) << 24, begin = 12;
  if (length > file.size() - begin) damaged("the file ends in its header");
  header_parser header(std::string_view(file).substr(begin, length), path);
  npy_array a = header.parse();
  const uint64_t size = element_bytes(a.type);
  if (size == 0) header.refuse("has the type " + a.type);
  uint64_t bytes = size;
  for (const int64_t n : a.shape)
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(n), &bytes)) header.refuse("overflows");
  a.bytes = file.substr(begin + length);
  if (a.bytes.size() != bytes)
    damaged("shape and type make " + std::to_string(bytes) + " bytes, the file has " +
            std::to_string(a.bytes.size()));
  return a;
}

}  // namespace dflash
