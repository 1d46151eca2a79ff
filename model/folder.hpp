// A Hugging Face model folder: config.json and safetensors files, single or sharded by an index.
// Strict: the index alone decides which file a tensor comes from, every expected tensor must be
// there with its shape, and whatever nobody asked for is an error unless a written rule of the
// model's family lets it be spare.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/safetensors.hpp"
#include "model/json_file.hpp"
#include "model/spare_rule.hpp"

namespace dflash {

class model_folder {
public:
  // Opens config.json and the headers of all listed files. Throws dflash::error naming file and
  // tensor for: a missing or damaged file, an index that names a missing file or tensor, a path
  // that leaves the folder, a tensor in two files, 8-bit float weights.
  static model_folder open(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  const json_file& config() const { return config_; }

  bool has(std::string_view name) const;
  const st_tensor& info(std::string_view name) const;  // throws if absent

  // A copy in memory of the stored tensor, converted to `dtype` (stored: f64, f32, f16, bf16).
  // Throws dflash::error if it is absent, of another shape or not a floating type.
  at::Tensor load(std::string_view name, at::IntArrayRef shape, at::ScalarType dtype);

  // Copies of tensors that hold no weights. Throw dflash::error for another shape or type.
  std::vector<int64_t> load_i64(std::string_view name, at::IntArrayRef shape);
  std::vector<uint8_t> load_bool(std::string_view name, at::IntArrayRef shape);

  // A metadata entry of model.safetensors; empty where it or the file is absent.
  std::string metadata(const std::string& key) const;

  // Refuses what was neither loaded nor matches a rule; names the first such tensor and counts the
  // others. What a rule leaves out is logged.
  void finish(std::span<const spare_rule> rules);

  // 16 hex digits: identity of configuration and weights. SHA-256 over config.json and, for each
  // tensor in order of name, its name, dtype, shape and the CRC-32C of *all* its bytes, cut to 64
  // bits. File names, sharding, and header layout do not enter.
  std::string content_hash() const;

private:
  struct place {
    std::shared_ptr<const safetensors_file> file;
    const st_tensor* tensor;
  };
  void add_indexed(const json_file& index);
  bool reads_file(std::string_view name) const;
  void refuse_quantised() const;
  const place& place_of(std::string_view name) const;
  const place& shaped(std::string_view name, at::IntArrayRef shape) const;
  template <class T>
  std::vector<T> load_values(std::string_view name, at::IntArrayRef shape, st_dtype dtype);

  std::filesystem::path path_;
  json_file config_;
  std::map<std::string, place, std::less<>> places_;          // tensor name
  std::map<std::string, std::string, std::less<>> unlisted_;  // tensor that no index names -> file
  std::set<std::string, std::less<>> used_;
};

}  // namespace dflash
