#include "model/export.hpp"

#include <ATen/ops/isfinite.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <system_error>

#include "config/error.hpp"
#include "data/files.hpp"
#include "data/safetensors.hpp"
#include "model/draft_vocab.hpp"

namespace dflash {

namespace {

namespace fs = std::filesystem;

std::string system_text() {
  return std::strerror(errno);
}

// The files of a drafter folder: nothing else may be lost by replacing one.
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

// Tensors on their way to a file; keeps the bytes alive that the views point to.
struct file_tensors {
  std::vector<at::Tensor> stored;
  std::vector<st_view> views;

  void add(const std::string& name, const at::Tensor& tensor, at::ScalarType dtype) {
    stored.push_back(tensor.detach().to(at::kCPU, dtype).contiguous());
    const at::Tensor& kept = stored.back();
    views.push_back({.name = name,
                     .dtype = dtype == at::kBFloat16 ? st_dtype::bf16 : st_dtype::f32,
                     .shape = kept.sizes().vec(),
                     .bytes = {static_cast<const std::byte*>(kept.const_data_ptr()),
                               static_cast<size_t>(kept.nbytes())}});
  }
};

}  // namespace

void write_drafter_files(const fs::path& folder,
                         const drafter_config& config,
                         const drafter_weights& weights,
                         const drafter_export& how) {
  check_form_fits(how.form, config, how.extras, folder.string());
  const auto shapes = drafter_tensor_shapes(config);
  file_tensors out;
  size_t i = 0;
  for (const auto& [name, tensor] : named_tensors(weights)) {
    DFLASH_CHECK(tensor->sizes().vec() == shapes.at(i).shape, "shape of an exported tensor", name);
    if (!at::isfinite(*tensor).all().item<bool>())
      throw error("the drafter's weights are not finite", name, "export an earlier checkpoint");
    out.add(shapes[i++].name, *tensor, how.dtype);
  }
  DFLASH_CHECK(i == shapes.size(), "drafter tensors", i, shapes.size());
  const auto offsets = d2t_of(config.draft_ids);
  const auto flags = t2d_of(config.draft_ids, config.vocab);
  if (!config.draft_ids.empty()) {
    DFLASH_CHECK(how.head.defined() && how.head.size(0) == config.draft_vocab(),
                 "a draft vocabulary is written with its head");
    out.add("lm_head.weight", how.head, how.dtype);
    out.views.push_back({.name = "d2t",
                         .dtype = st_dtype::i64,
                         .shape = {config.draft_vocab()},
                         .bytes = std::as_bytes(std::span(offsets))});
    out.views.push_back({.name = "t2d",
                         .dtype = st_dtype::boolean,
                         .shape = {config.vocab},
                         .bytes = std::as_bytes(std::span(flags))});
  }
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (!how.extras.target_hash.empty()) metadata["target_hash"] = how.extras.target_hash;
  write_safetensors(folder / "model.safetensors", out.views, metadata);
  write_file_atomically(folder / "config.json",
                        drafter_config_json(how.form, config, how.dtype, how.extras));
}

void write_drafter_folder(const fs::path& folder,
                          const drafter_config& config,
                          const drafter_weights& weights,
                          const drafter_export& how) {
  check_form_fits(how.form, config, how.extras, folder.string());
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
    write_drafter_files(aside, config, weights, how);
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
