#include "model/config_reader.hpp"

#include <utility>

#include "config/error.hpp"

namespace dflash {

config_reader::config_reader(const json_file& file, std::string_view inside)
    : file_(&file), prefix_(inside.empty() ? "" : std::string(inside) + ".") {}

bool config_reader::states(std::string_view name) const {
  const auto* object =
      prefix_.empty() ? &file_->root() : file_->find(prefix_.substr(0, prefix_.size() - 1));
  return object && object->is_object() && object->contains(std::string(name));
}

std::string config_reader::outer_or_own(std::string_view name) const {
  return file_->has(name) ? std::string(name) : key(name);
}

int64_t config_reader::size(std::string_view name) const {
  const int64_t value = file_->get_int(key(name));
  if (value < 1 || value > (int64_t{1} << 24))
    throw error("\"" + key(name) + "\" is " + std::to_string(value) +
                    ", expected a number from 1 to 16777216",
                where(name),
                "take the file that belongs to this model");
  return value;
}

int64_t config_reader::size(std::string_view name, int64_t fallback) const {
  return fallback == 0 || has(name) ? size(name) : fallback;
}

double config_reader::real(std::string_view name, double fallback) const {
  return file_->get_real(key(name), fallback);
}

bool config_reader::flag(std::string_view name, bool fallback) const {
  return file_->get_bool(key(name), fallback);
}

std::string config_reader::text(std::string_view name, std::string fallback) const {
  return file_->get_string(key(name), std::move(fallback));
}

void config_reader::refuse(std::string_view name, const std::string& what) const {
  throw error(what, where(name), "choose a target without it");
}

}  // namespace dflash
