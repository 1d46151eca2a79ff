#include "model/target_config.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "config/error.hpp"
#include "model/families/family.hpp"

namespace dflash {
namespace {

int64_t checked_token(const target_config& c,
                      const json_file& file,
                      std::string_view key,
                      int64_t id) {
  if (id < 0 || id >= c.vocab)
    throw error(
        fmt::format("\"{}\" {} is outside of the {} rows of the vocabulary", key, id, c.vocab),
        file.where(key));
  return id;
}

// dtype and torch_dtype are one key in two spellings.
std::string dtype_of(const config_reader& r) {
  const auto read = [&](const char* name) {
    const auto given = r.text(name, "");
    const std::string_view prefix = "torch.";
    return given.rfind(prefix, 0) == 0 ? given.substr(prefix.size()) : given;
  };
  const auto newer = read("dtype"), older = read("torch_dtype");
  if (!newer.empty() && !older.empty() && newer != older)
    throw error(
        fmt::format(
            "{} is \"{}\" and {} is \"{}\"", r.key("dtype"), newer, r.key("torch_dtype"), older),
        r.where("torch_dtype"),
        "keep the one that the weights have");
  return newer.empty() ? older : newer;
}

}  // namespace

bool target_config::is_hybrid() const {
  return std::find(kinds.begin(), kinds.end(), layer_kind::linear) != kinds.end();
}

int64_t target_config::rotary_dims() const {
  return static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial) / 2 * 2;
}

target_config parse_target_config(const json_file& file) {
  const family& f = family_of(file);
  const bool wrapped = file.has("text_config");
  const config_reader reader(file, wrapped ? "text_config" : "");
  target_config c;
  c.model_type = file.get_string("model_type", std::string(f.model_types.front()));
  f.read(reader, c);
  c.rope_theta = c.rope.theta;
  const bool slides =
      std::find(c.kinds.begin(), c.kinds.end(), layer_kind::sliding) != c.kinds.end();
  if (slides && c.sliding_window == 0)
    reader.refuse("layer_types", "sliding layers without a sliding_window are not supported");
  const auto inner = dtype_of(reader), outer = dtype_of(config_reader(file, ""));
  c.stored_dtype = outer.empty() ? inner : outer;
  const auto bos = reader.outer_or_own("bos_token_id"), eos = reader.outer_or_own("eos_token_id");
  if (file.has(bos)) c.bos = checked_token(c, file, bos, file.get_int(bos));
  for (const auto id : file.get_ints(eos)) c.eos.push_back(checked_token(c, file, eos, id));
  return c;
}

target_config read_target_config(const std::filesystem::path& folder) {
  auto config = parse_target_config(json_file::open(folder / "config.json"));
  const auto path = folder / "generation_config.json";
  if (!std::filesystem::exists(path)) return config;
  const auto generation = json_file::open(path);
  std::vector<int64_t> ids;
  for (const auto id : generation.get_ints("eos_token_id"))
    ids.push_back(checked_token(config, generation, "eos_token_id", id));
  if (!ids.empty()) config.eos = ids;
  return config;
}

}  // namespace dflash
