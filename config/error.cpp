#include "config/error.hpp"

#include <execinfo.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace dflash {

namespace {

std::string joined(const std::string& what, const std::string& where, const std::string& hint) {
  std::string text = what;
  if (!where.empty()) text += " (" + where + ")";
  if (!hint.empty()) text += "\nhint: " + hint;
  return text;
}

}  // namespace

error::error(std::string what, std::string where_, std::string hint_)
    : std::runtime_error(joined(what, where_, hint_)),
      what_(std::move(what)),
      where(std::move(where_)),
      hint(std::move(hint_)) {}

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
