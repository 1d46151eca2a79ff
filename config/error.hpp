// The two ways in which things go wrong: the user's mistake (an exception that main prints as
// "error: ... / hint: ...") and the programmer's (DFLASH_CHECK, which ends the process in every
// build, because a broken invariant is not survivable and nothing on disk is ever half written).
#pragma once

#include <concepts>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace dflash {

/// The user's mistake: what is wrong, where (file:line, key or tensor), how to mend it.
/// what() gives one text: "what (where)\nhint: ...". Everything but `what_` may be empty.
struct error : std::runtime_error {
  explicit error(std::string what, std::string where = {}, std::string hint = {});

  std::string what_;
  std::string where;
  std::string hint;
};

namespace detail {

/// Prints condition, place, sentence, values and a stack to stderr, then aborts. Any thread.
[[noreturn]] void check_failed(const char* condition,
                               const char* file,
                               int line,
                               const std::string& text);

template <class... Values>
std::string check_text(const char* sentence, const Values&... values) {
  std::ostringstream out;
  out << sentence;
  const char* separator = ": ";
  ((out << std::exchange(separator, ", ") << values), ...);
  return out.str();
}

}  // namespace detail

/// Cast between arithmetic types that must keep the value; a lost value is a broken invariant.
/// Values from outside (files, options) are checked with an error of their own before this.
template <class To, class From>
constexpr To narrow(From value) {
  const auto result = static_cast<To>(value);
  if (static_cast<From>(result) != value || (result < To{}) != (value < From{}))
    detail::check_failed("narrow", __FILE__, __LINE__, "value does not fit its new type");
  return result;
}

}  // namespace dflash

/// DFLASH_CHECK(cond, "sentence", values...): an invariant, checked in every build.
#define DFLASH_CHECK(condition, ...)                                                  \
  do {                                                                                \
    if (!(condition)) [[unlikely]]                                                    \
      ::dflash::detail::check_failed(                                                 \
          #condition, __FILE__, __LINE__, ::dflash::detail::check_text(__VA_ARGS__)); \
  } while (false)
