#include "config/error.hpp"

#include <execinfo.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace dflash {

namespace {

// Names and values of files from outside stand in messages: a terminal must not act on them, and a
// NUL must not cut them.
std::string printable(std::string text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f)
      out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    else
      out += c;
  }
  return out;
}

std::string joined(const std::string& what, const std::string& where, const std::string& hint) {
  std::string text = what;
  if (!where.empty()) text += " (" + where + ")";
  if (!hint.empty()) text += "\nhint: " + hint;
  return text;
}

}  // namespace

error::error(std::string what, std::string where_, std::string hint_)
    : std::runtime_error(joined(printable(what), printable(where_), printable(hint_))),
      what_(printable(std::move(what))),
      where(printable(std::move(where_))),
      hint(printable(std::move(hint_))) {}

namespace detail {

void check_failed(const char* condition, const char* file, int line, const std::string& text) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n  %s\n", file, line, condition, text.c_str());
  void* frames[48];
  const int count = ::backtrace(frames, 48);
  ::backtrace_symbols_fd(frames, count, STDERR_FILENO);
  std::fflush(nullptr);
  std::abort();
}

}  // namespace detail

}  // namespace dflash
