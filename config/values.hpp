// Values of keys: out of TOML with checks of type and range, and back into TOML text. Private to
// config/.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <toml++/toml.h>

#include "config/keys.hpp"

namespace dflash::detail {

/// Checks `value` and puts it into its member. `where` goes into the error: "file:line:column".
void read_value(const key& k,
                const toml::node& value,
                const std::string& where,
                run_config& config);

/// TOML text of the value; nothing if it is not set (an optional or required key).
std::optional<std::string> print_value(const key& k, const run_config& config);

/// "a whole number", "a list of strings": what the key takes.
std::string type_text(const key& k);

/// "at least 1", "one of `a`, `b`"; empty if any value of the type will do.
std::string range_text(const key& k);

/// The right side of "--section.key=..." as TOML: bare words become strings where the key takes
/// strings, and lists may come without brackets.
std::string override_to_toml(const key& k, std::string_view raw);

/// Shortest text that reads back as the same double, with a point or an exponent.
std::string number_text(double value);

/// A TOML basic string, quotes included.
std::string toml_string(std::string_view text);

}  // namespace dflash::detail
