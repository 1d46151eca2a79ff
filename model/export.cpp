#include "model/export.hpp"

#include <ATen/ops/isfinite.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <system_error>

#include "config/error.hpp"
#include "data/files.hpp"
#include "data/safetensors.hpp"
#include "model/json_file.hpp"

namespace dflash {

namespace {

namespace fs = std::filesystem;

const char* dtype_text(at::ScalarType dtype) {
  DFLASH_CHECK(dtype == at::kBFloat16 || dtype == at::kFloat,
               "drafters are stored in bf16 or fp32",
               c10::toString(dtype));
  return dtype == at::kBFloat16 ? "bfloat16" : "float32";
}

std::string system_text() {
  return std::strerror(errno);
}

// The files of a z-lab folder: nothing else may be lost by replacing one.
const std::set<std::string> own_files = {"config.json", "model.safetensors"};

void check_replaceable(const fs::path& folder) {
  if (!fs::is_directory(fs::symlink_status(folder)))
    throw error("the export folder's name is taken by something else", folder.string());
  for (const auto& entry : fs::directory_iterator(folder))
    if (!own_files.contains(entry.path().filename().string()))
      throw error("the export folder holds files that are not an export's: " +
                      entry.path().filename().string(),
                  folder.string(),
                  "give another --out, or empty the folder");
}

}  // namespace

zlab_extras read_zlab_extras(const fs::path& folder) {
  const auto config = json_file::open(folder / "config.json");
  const auto one = [&](const char* key) -> std::optional<int64_t> {
    const auto ids = config.get_ints(key);
    if (ids.empty()) return std::nullopt;
    return ids.front();
  };
  zlab_extras extras{.bos = one("bos_token_id"),
                     .eos = config.get_ints("eos_token_id"),
                     .pad = one("pad_token_id"),
                     .target_hash = {}};
  const auto file = safetensors_file::open(folder / "model.safetensors");
  const auto hash = file.metadata().find("target_hash");
  if (hash != file.metadata().end()) extras.target_hash = hash->second;
  return extras;
}

std::string zlab_config_json(const drafter_config& config,
                             at::ScalarType dtype,
                             const zlab_extras& extras) {
  using json = nlohmann::ordered_json;
  const auto id_or_null = [](const std::optional<int64_t>& id) { return id ? json(*id) : json(); };
  json eos;
  if (extras.eos.size() == 1)
    eos = extras.eos.front();
  else if (!extras.eos.empty())
    eos = extras.eos;
  json layer_types = json::array();
  bool any_sliding = false;
  for (const bool sliding : config.sliding) {
    layer_types.push_back(sliding ? "sliding_attention" : "full_attention");
    any_sliding = any_sliding || sliding;
  }
  json out;
  out["architectures"] = json::array({"DFlashDraftModel"});
  out["auto_map"] = {{"AutoModel", "dflash.DFlashDraftModel"}};
  out["model_type"] = "qwen3";
  out["dtype"] = dtype_text(dtype);
  out["hidden_size"] = config.hidden;
  out["intermediate_size"] = config.intermediate;
  out["num_hidden_layers"] = config.layers;
  out["num_attention_heads"] = config.heads;
  out["num_key_value_heads"] = config.kv_heads;
  out["head_dim"] = config.head_dim;
  out["num_target_layers"] = config.num_target_layers;
  out["block_size"] = config.block_size;
  out["dflash_config"] = {{"mask_token_id", config.mask_token_id},
                          {"target_layer_ids", config.taps}};
  out["layer_types"] = layer_types;
  out["sliding_window"] = any_sliding ? json(config.sliding_window) : json();
  out["use_sliding_window"] = any_sliding;
  out["max_window_layers"] = config.layers;
  if (config.causal) out["is_causal"] = *config.causal;
  out["rope_theta"] = config.rope_theta;
  out["rope_scaling"] = json();
  out["max_position_embeddings"] = config.max_positions;
  out["vocab_size"] = config.vocab;
  out["bos_token_id"] = id_or_null(extras.bos);
  out["eos_token_id"] = eos;
  out["pad_token_id"] = id_or_null(extras.pad);
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = config.rms_eps;
  out["attention_bias"] = false;
  out["attention_dropout"] = 0.0;
  out["initializer_range"] = 0.02;
  out["tie_word_embeddings"] = false;
  out["use_cache"] = true;
  return out.dump(2) + "\n";
}

void write_zlab_files(const fs::path& folder,
                      const drafter_config& config,
                      const drafter_weights& weights,
                      at::ScalarType dtype,
                      const zlab_extras& extras) {
  const auto named = named_tensors(weights);
  const auto shapes = drafter_tensor_shapes(config);
  DFLASH_CHECK(named.size() == shapes.size(), "drafter tensors", named.size(), shapes.size());
  std::vector<at::Tensor> stored;  // keeps the bytes alive that the views point to
  std::vector<st_view> views;
  for (size_t i = 0; i < named.size(); ++i) {
    const auto& [name, tensor] = named[i];
    DFLASH_CHECK(tensor->sizes().vec() == shapes[i].shape, "shape of an exported tensor", name);
    if (!at::isfinite(*tensor).all().item<bool>())
      throw error("the drafter's weights are not finite", name, "export an earlier checkpoint");
    stored.push_back(tensor->detach().to(at::kCPU, dtype).contiguous());
    const at::Tensor& kept = stored.back();
    views.push_back({.name = name,
                     .dtype = dtype == at::kBFloat16 ? st_dtype::bf16 : st_dtype::f32,
                     .shape = shapes[i].shape,
                     .bytes = {static_cast<const std::byte*>(kept.const_data_ptr()),
                               static_cast<size_t>(kept.nbytes())}});
  }
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (!extras.target_hash.empty()) metadata["target_hash"] = extras.target_hash;
  write_safetensors(folder / "model.safetensors", views, metadata);
  write_file_atomically(folder / "config.json", zlab_config_json(config, dtype, extras));
}

void write_zlab_folder(const fs::path& folder,
                       const drafter_config& config,
                       const drafter_weights& weights,
                       at::ScalarType dtype,
                       const zlab_extras& extras) {
  fs::path target = fs::absolute(folder).lexically_normal();
  if (target.filename().empty()) target = target.parent_path();  // "out/"
  const fs::path parent = target.parent_path();
  std::error_code failure;
  fs::create_directories(parent, failure);
  if (failure)
    throw error("cannot make the export's parent folder: " + failure.message(), parent.string());
  const bool replaces = fs::exists(fs::symlink_status(target));
  if (replaces) check_replaceable(target);
  fs::path aside = target;
  aside += ".tmp-" + std::to_string(::getpid());
  fs::remove_all(aside, failure);
  if (!fs::create_directory(aside, failure) || failure)
    throw error("cannot make the export folder: " + failure.message(),
                target.string(),
                "choose a folder that this user may write");
  try {
    write_zlab_files(aside, config, weights, dtype, extras);
    fsync_directory(aside);
    // Exchanging two folders in one call leaves no moment without an export under the name.
    const unsigned flags = replaces ? RENAME_EXCHANGE : RENAME_NOREPLACE;
    int result = ::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, target.c_str(), flags);
    if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {  // file systems without flags
      if (replaces) fs::remove_all(target);
      result = ::rename(aside.c_str(), target.c_str());
    }
    if (result != 0)
      throw error("cannot rename the finished export: " + system_text(), target.string());
    fsync_directory(parent);
    fs::remove_all(aside, failure);  // the former export after an exchange
  } catch (...) {
    fs::remove_all(aside, failure);
    throw;
  }
}

}  // namespace dflash
