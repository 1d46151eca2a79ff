#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "config/error.hpp"
#include "model/families/family.hpp"

namespace dflash {
namespace {

bool holds(const std::vector<std::string_view>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

std::string known_names() {
  std::string text;
  for (const family* f : families()) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{} ({})", f->name, f->architectures.front());
  }
  return text;
}

[[noreturn]] void unknown(const json_file& file, std::string_view key, const std::string& name) {
  throw error(fmt::format("{} \"{}\" is not supported", key, name),
              file.where(key),
              "targets are of these families: " + known_names());
}

const family* find(const std::string& name, std::vector<std::string_view> family::*list) {
  for (const family* f : families())
    if (holds(f->*list, name)) return f;
  return nullptr;
}

}  // namespace

std::span<const family* const> families() {
  static const std::array<const family*, 8> all = {&llama_family(),
                                                   &mistral_family(),
                                                   &qwen2_family(),
                                                   &qwen3_family(),
                                                   &qwen3_moe_family(),
                                                   &gemma3_family(),
                                                   &qwen3_5_family(),
                                                   &qwen3_5_moe_family()};
  return all;
}

const family& family_of(const json_file& file) {
  const auto architectures = file.get_strings("architectures");
  const family* by_architecture = nullptr;
  if (!architectures.empty()) {
    by_architecture = find(architectures.front(), &family::architectures);
    if (!by_architecture) unknown(file, "architectures", architectures.front());
  }
  if (by_architecture && !file.has("model_type")) return *by_architecture;
  const auto type = file.get_string("model_type");
  const family* by_type = find(type, &family::model_types);
  if (!by_type) unknown(file, "model_type", type);
  if (by_architecture && by_architecture != by_type)
    throw error(fmt::format("model_type \"{}\" and architectures \"{}\" name different families",
                            type,
                            architectures.front()),
                file.where("architectures"),
                "take the file that belongs to this model");
  return *by_type;
}

}  // namespace dflash
