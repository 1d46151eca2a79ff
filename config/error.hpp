// The two ways in which things go wrong: the user's mistake (an exception that main prints as
// "error: ... / hint: ...") and the programmer's (DFLASH_CHECK, which ends the process in every
// build, because a broken invariant is not survivable and nothing on disk is ever half written).
#pragma once

#include <limits>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
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
  [[maybe_unused]] const char* separator = ": ";
  ((out << std::exchange(separator, ", ") << values), ...);
  return out.str();
}

}  // namespace detail

/// Cast between arithmetic types that must keep the value; a lost value is a broken invariant.
/// Values from outside (files, options) are checked with an error of their own before this.
template <class To, class From>
requires std::is_arithmetic_v<To> && std::is_arithmetic_v<From>
constexpr To narrow(From value) {
  bool fits = false;
  if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
    fits = std::in_range<To>(value);
  } else if constexpr (std::is_integral_v<To>) {
    // Powers of two are exact in every floating type, unlike the largest integers themselves.
    constexpr From least = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From half = static_cast<From>(std::numeric_limits<To>::max() / 2 + 1);
    fits = value >= least && value < 2 * half && static_cast<From>(static_cast<To>(value)) == value;
  } else {
    fits = static_cast<From>(static_cast<To>(value)) == value;
  }
  if (!fits) [[unlikely]]
    detail::check_failed(
        "narrow", __FILE__, __LINE__, detail::check_text("does not fit its new type", value));
  return static_cast<To>(value);
}

}  // namespace dflash

/// DFLASH_CHECK(cond, "sentence", values...): an invariant, checked in every build.
#define DFLASH_CHECK(condition, ...)                                                  \
  do {                                                                                \
    if (!(condition)) [[unlikely]]                                                    \
      ::dflash::detail::check_failed(                                                 \
          #condition, __FILE__, __LINE__, ::dflash::detail::check_text(__VA_ARGS__)); \
  } while (false)
