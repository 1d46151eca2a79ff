#include "observe/metrics_line.hpp"

#include <nlohmann/json.hpp>

namespace dflash {

namespace {

using json_value = nlohmann::ordered_json;

void collect(const std::string& name, const json_value& value, std::vector<scalar>& out) {
  const auto inside = [&](const std::string& key) { return name.empty() ? key : name + "/" + key; };
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) collect(inside(key), member, out);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i)
      collect(inside(std::to_string(i + 1)), value[i], out);
  } else if (value.is_boolean()) {
    out.push_back({name, value.get<bool>() ? 1.0 : 0.0});
  } else if (value.is_number() && name != "step" && name != "k") {
    out.push_back({name, value.get<double>()});
  }
}

}  // namespace

std::vector<scalar> scalars_of(std::string_view json) {
  std::vector<scalar> out;
  const auto value = json_value::parse(json, nullptr, false);
  if (value.is_object()) collect("", value, out);
  return out;
}

}  // namespace dflash
