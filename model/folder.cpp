#include "model/folder.hpp"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "config/error.hpp"
#include "data/files.hpp"

namespace dflash {
namespace {

constexpr const char* single_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

std::optional<at::ScalarType> scalar_of(st_dtype dtype) {
  switch (dtype) {
    case st_dtype::f64:
      return at::kDouble;
    case st_dtype::f32:
      return at::kFloat;
    case st_dtype::f16:
      return at::kHalf;
    case st_dtype::bf16:
      return at::kBFloat16;
    default:
      return std::nullopt;
  }
}

bool is_float8(st_dtype dtype) {
  return dtype == st_dtype::f8_e4m3 || dtype == st_dtype::f8_e5m2 || dtype == st_dtype::f8_e8m0;
}

bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() == '*') {
    for (size_t i = 0; i <= text.size(); ++i)
      if (matches(pattern.substr(1), text.substr(i))) return true;
    return false;
  }
  return !text.empty() && text.front() == pattern.front() &&
         matches(pattern.substr(1), text.substr(1));
}

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// Names of files in an index: plain, inside the folder.
void check_file_name(const json_file& index, const std::string& name, const std::string& tensor) {
  if (name.empty() || name.find('/') != std::string::npos || name.find('\\') != std::string::npos ||
      name == "." || name == "..")
    throw error("the index leads out of the folder: \"" + name + "\" for " + tensor,
                index.path().string(),
                "fetch the model again");
}

}  // namespace

model_folder model_folder::open(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path))
    throw error("no such model folder",
                path.string(),
                "give a folder with config.json and safetensors files");
  model_folder folder;
  folder.path_ = path;
  if (!std::filesystem::exists(path / "config.json"))
    throw error("config.json is missing", path.string(), "fetch the model again");
  folder.config_ = json_file::open(path / "config.json");
  if (std::filesystem::exists(path / index_name)) {
    folder.add_indexed(json_file::open(path / index_name));
    if (std::filesystem::exists(path / single_name) && !folder.reads_file(single_name))
      spdlog::warn("{}: the index decides, {} beside it is not read", path.string(), single_name);
  } else if (std::filesystem::exists(path / single_name)) {
    const auto file =
        std::make_shared<const safetensors_file>(safetensors_file::open(path / single_name));
    for (const auto& tensor : file->tensors()) folder.places_[tensor.name] = {file, &tensor};
  } else {
    throw error(std::string("neither ") + single_name + " nor " + index_name + " is there",
                path.string(),
                "fetch the model again, as safetensors");
  }
  folder.refuse_quantised();
  return folder;
}

void model_folder::add_indexed(const json_file& index) {
  const auto* map = index.find("weight_map");
  if (!map || !map->is_object() || map->empty())
    throw error("weight_map is missing or empty", index.path().string(), "fetch the model again");
  std::map<std::string, std::shared_ptr<const safetensors_file>> files;
  for (const auto& [tensor, name] : map->items()) {
    if (!name.is_string())
      throw error("weight_map: the file of " + tensor + " is not a string", index.path().string());
    const auto file_name = name.get<std::string>();
    check_file_name(index, file_name, tensor);
    auto& file = files[file_name];
    if (!file) {
      if (!std::filesystem::exists(path_ / file_name))
        throw error(
            "the index names a file that is not there: " + file_name + " (for " + tensor + ")",
            index.path().string(),
            "fetch the missing file");
      file = std::make_shared<const safetensors_file>(safetensors_file::open(path_ / file_name));
    }
    const auto* found = file->find(tensor);
    if (!found)
      throw error("the index names " + tensor + " in " + file_name + ", which does not hold it",
                  index.path().string(),
                  "fetch index and files of the same version");
    places_[tensor] = {file, found};
  }
  for (const auto& [name, file] : files)
    for (const auto& tensor : file->tensors()) {
      const auto listed = places_.find(tensor.name);
      if (listed != places_.end() && listed->second.file == file) continue;
      spdlog::info("{}: {} is left out, the index does not name it there",
                   (path_ / name).string(),
                   tensor.name);
      if (listed == places_.end()) unlisted_.emplace(tensor.name, name);
    }
}

bool model_folder::reads_file(std::string_view name) const {
  for (const auto& [tensor, place] : places_)
    if (place.file->path().filename() == name) return true;
  return false;
}

// The stored type decides, with or without a key in the configuration: 8-bit codes without their
// scales are not weights.
void model_folder::refuse_quantised() const {
  std::string method;
  std::string key = "quantization_config";
  if (!config_.has(key) && config_.has("text_config.quantization_config"))
    key = "text_config.quantization_config";
  if (config_.has(key)) method = config_.get_string(key + ".quant_method", "unknown");
  for (const auto& [name, place] : places_)
    if (is_float8(place.tensor->dtype))
      throw error("8-bit weights are not supported: " + name + " is " +
                      std::string(dtype_name(place.tensor->dtype)) +
                      (method.empty() ? "" : " (quant_method " + method + ")"),
                  place.file->path().string(),
                  "take the bf16 version of the model");
  if (!method.empty())
    throw error("quantised models are not supported (quant_method " + method + ")",
                config_.where(key),
                "take the bf16 version of the model");
}

bool model_folder::has(std::string_view name) const {
  return places_.find(name) != places_.end();
}

const model_folder::place& model_folder::place_of(std::string_view name) const {
  const auto found = places_.find(name);
  if (found != places_.end()) return found->second;
  const auto unlisted = unlisted_.find(name);
  if (unlisted != unlisted_.end())
    throw error("the index does not name the tensor " + std::string(name) + " (it lies in " +
                    unlisted->second + ")",
                (path_ / index_name).string(),
                "fetch index and files of the same version");
  throw error("the tensor " + std::string(name) + " is missing",
              path_.string(),
              "fetch the model again, or the config.json that belongs to it");
}

const st_tensor& model_folder::info(std::string_view name) const {
  return *place_of(name).tensor;
}

const model_folder::place& model_folder::shaped(std::string_view name,
                                                at::IntArrayRef shape) const {
  const auto& found = place_of(name);
  const auto& stored = found.tensor->shape;
  if (at::IntArrayRef(stored) != shape)
    throw error(std::string(name) + " is " + shape_text(stored) + ", expected " + shape_text(shape),
                found.file->path().string(),
                "config.json and weights do not belong together");
  return found;
}

template <class T>
std::vector<T> model_folder::load_values(std::string_view name,
                                         at::IntArrayRef shape,
                                         st_dtype dtype) {
  const auto& [file, tensor] = shaped(name, shape);
  if (tensor->dtype != dtype)
    throw error(std::string(name) + " is " + std::string(dtype_name(tensor->dtype)) +
                    ", expected " + std::string(dtype_name(dtype)),
                file->path().string());
  const auto bytes = file->bytes(*tensor);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  used_.emplace(name);
  return values;
}

std::vector<int64_t> model_folder::load_i64(std::string_view name, at::IntArrayRef shape) {
  return load_values<int64_t>(name, shape, st_dtype::i64);
}

std::vector<uint8_t> model_folder::load_bool(std::string_view name, at::IntArrayRef shape) {
  return load_values<uint8_t>(name, shape, st_dtype::boolean);
}

at::Tensor model_folder::load(std::string_view name, at::IntArrayRef shape, at::ScalarType dtype) {
  const auto& [file, tensor] = shaped(name, shape);
  const auto where = file->path().string();
  const auto stored = scalar_of(tensor->dtype);
  if (!stored)
    throw error(std::string(name) + " is " + std::string(dtype_name(tensor->dtype)) +
                    ", expected a floating type",
                where,
                "take the bf16 version of the model");
  auto out = at::empty(shape, at::TensorOptions().dtype(*stored));
  const auto bytes = file->bytes(*tensor);
  DFLASH_CHECK(bytes.size() == out.nbytes(), "bytes of a tensor", bytes.size(), out.nbytes());
  if (!bytes.empty()) std::memcpy(out.mutable_data_ptr(), bytes.data(), bytes.size());
  out = out.to(dtype);
  if (out.numel() > 0) {
    const auto [low, high] = at::aminmax(out);
    if (!std::isfinite(low.item<double>()) || !std::isfinite(high.item<double>()))
      throw error(std::string(name) + " holds values that are not finite",
                  where,
                  "the file is damaged: fetch it again");
  }
  used_.emplace(name);
  return out;
}

std::string model_folder::metadata(const std::string& key) const {
  for (const auto& [name, place] : places_) {
    if (place.file->path().filename() != single_name) continue;
    const auto found = place.file->metadata().find(key);
    return found == place.file->metadata().end() ? std::string() : found->second;
  }
  return {};
}

void model_folder::finish(std::span<const spare_rule> rules) {
  std::vector<std::string> spare;
  for (const auto& [name, place] : places_) {
    if (used_.contains(name)) continue;
    const spare_rule* let = nullptr;
    for (const auto& rule : rules)
      if (matches(rule.pattern, name)) let = &rule;
    if (let)
      spdlog::info("{}: {} is left out: {}", path_.string(), name, let->reason);
    else
      spare.push_back(name);
  }
  if (spare.empty()) return;
  auto text =
      "the tensor " + spare.front() + " is not part of the model that config.json describes";
  if (spare.size() > 1) text += " (and " + std::to_string(spare.size() - 1) + " more)";
  throw error(text,
              places_.at(spare.front()).file->path().string(),
              "config.json and weights do not belong together");
}

std::string model_folder::content_hash() const {
  std::string text = config_.text();
  for (const auto& [name, place] : places_) {
    const auto bytes = place.file->bytes(*place.tensor);
    text += "\n" + name + " " + std::string(dtype_name(place.tensor->dtype)) + " " +
            place.tensor->shape_text() + " " + std::to_string(crc32c(bytes));
  }
  return sha256(std::string_view(text)).substr(0, 16);
}

}  // namespace dflash
