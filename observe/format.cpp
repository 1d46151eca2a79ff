#include "observe/format.hpp"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace dflash {

namespace {

// Three significant digits: 1.23, 12.3, 123.
std::string three_digits(double value) {
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", decimals, value);
  return buffer;
}

// Largest unit in which the rounded value is at least 1, so that 999,999 is 1.00M and not 1000k.
template <std::size_t Count>
std::string scaled(double value, const char* const (&units)[Count]) {
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < Count) {
    value /= 1000.0;
    ++unit;
  }
  return three_digits(value) + units[unit];
}

std::string two_units(std::int64_t large, const char* unit, std::int64_t small, const char* rest) {
  char buffer[64];
  std::snprintf(buffer,
                sizeof buffer,
                "%lld %s %02lld %s",
                static_cast<long long>(large),
                unit,
                static_cast<long long>(small),
                rest);
  return buffer;
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1000) return std::to_string(bytes) + " B";
  constexpr const char* units[] = {" kB", " MB", " GB", " TB", " PB"};
  return scaled(static_cast<double>(bytes) / 1000.0, units);
}

std::string duration_text(std::chrono::nanoseconds d) {
  if (d.count() < 0) return "-" + duration_text(-d);
  if (d.count() < 1000) return std::to_string(d.count()) + " ns";
  const double seconds = std::chrono::duration<double>(d).count();
  if (seconds < 0.9995) {
    constexpr const char* units[] = {" us", " ms"};
    return scaled(seconds * 1e6, units);
  }
  if (seconds < 59.95) return three_digits(seconds) + " s";
  const std::int64_t whole = std::llround(seconds);
  if (whole < 3600) return two_units(whole / 60, "min", whole % 60, "s");
  const std::int64_t minutes = whole / 60;
  if (minutes < 24 * 60) return two_units(minutes / 60, "h", minutes % 60, "min");
  return two_units(minutes / (24 * 60), "d", minutes / 60 % 24, "h");
}

std::string count_text(double count) {
  if (!std::isfinite(count)) return "?";
  if (count < 0.0) return "-" + count_text(-count);
  if (count < 999.5 && count == std::floor(count))
    return std::to_string(static_cast<std::int64_t>(count));
  constexpr const char* units[] = {"", "k", "M", "G", "T"};
  return scaled(count, units);
}

std::string rate_text(double per_second, const std::string& unit) {
  return count_text(per_second) + " " + unit + "/s";
}

std::string share_text(double share) {
  if (!std::isfinite(share)) return "? %";
  if (share <= 0.0) return "0 %";
  if (share < 0.01) return "<1 %";
  return std::to_string(std::llround(share * 100.0)) + " %";
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

}  // namespace dflash
