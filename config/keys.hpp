// The one table of configuration keys: name, type and range, meaning, default and what a resumed
// run may change. Private to config/: others use run_config.hpp.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/run_config.hpp"

namespace dflash::detail {

/// A key is bound to its member by a function that finds the member in a run_config.
template <class T>
using member = T& (*)(run_config&);

using choices = std::vector<std::string_view>;

struct integer_key {
  member<std::int64_t> at;
  std::int64_t least;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
};
struct seed_key {  // a whole number from 0; TOML has no larger one than 2^63 - 1
  member<std::uint64_t> at;
};
struct number_key {
  member<double> at;
  double least;
  double most = std::numeric_limits<double>::max();
  bool above_least = false;  // `least` itself is refused
};
struct flag_key {
  member<bool> at;
};
struct optional_flag_key {  // absent = unset
  member<std::optional<bool>> at;
};
struct text_key {
  member<std::string> at;
  choices one_of = {};  // empty: any text
};
struct texts_key {
  member<std::vector<std::string>> at;
  choices one_of = {};
};
struct integers_key {
  member<std::vector<int>> at;
  int least;
};
struct pair_key {  // two numbers in [0, 1)
  member<std::array<double, 2>> at;
};
struct weights_key {  // a table from names to numbers from 0
  member<std::map<std::string, double>> at;
  choices names;
};
struct addresses_key {  // a table from names of nodes to HOST:PORT
  member<std::map<std::string, std::string>> at;
};
struct bytes_key {
  member<std::uint64_t> at;
};
struct span_key {
  member<step_span> at;
};

using binding = std::variant<integer_key,
                             seed_key,
                             number_key,
                             flag_key,
                             optional_flag_key,
                             text_key,
                             texts_key,
                             integers_key,
                             pair_key,
                             weights_key,
                             addresses_key,
                             bytes_key,
                             span_key>;

enum class on_resume {
  free,         // may change
  fixed,        // decides the run's bits: must not change
  fixed_count,  // a list whose length decides bits (number of drafters), its entries do not
};

struct key {
  std::string_view name;  // "section.key"
  binding bound;
  std::string_view unit;  // empty: none
  std::string_view help;
  on_resume resume = on_resume::fixed;
  bool required = false;

  std::string_view section() const { return name.substr(0, name.find('.')); }
  std::string_view leaf() const { return name.substr(name.find('.') + 1); }
};

struct section {
  std::string_view name;
  std::string_view help;
};

std::span<const section> sections();  // in the order of the file
std::span<const key> keys();          // grouped by section, in that order
const key* find_key(std::string_view name);

/// The known name nearest to a mistyped one, or nothing if none is near.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace dflash::detail
