#include "model/checkpoint.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>
#include <system_error>
#include <utility>

#include "config/error.hpp"
#include "data/files.hpp"
#include "data/safetensors.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

constexpr const char* prefix = "step-";
constexpr const char* unfinished = ".tmp";
constexpr const char* tensors_file = "trainer_state.safetensors";
constexpr const char* state_file = "state.json";
constexpr const char* config_file = "config.toml";
constexpr const char* checksums_file = "checksums";
constexpr std::array<const char*, 5> listed_files = {
    tensors_file, state_file, config_file, "model.safetensors", "config.json"};
constexpr uint64_t max_small_file = 16 << 20;

// ---- reading and writing single files
// -------------------------------------------------------------

std::string state_json(const checkpoint_state& s) {
  const nlohmann::json j = {{"format", 1},
                            {"steps", s.steps},
                            {"next_k", s.next_k},
                            {"total_steps", s.total_steps},
                            {"updates", s.updates},
                            {"skipped_steps", s.skipped_steps},
                            {"dropped", s.dropped},
                            {"target_hash", s.target_hash},
                            {"data_hash", s.data_hash},
                            {"dtype", s.dtype},
                            {"device", s.device},
                            {"program", s.program},
                            {"drafters", s.drafters},
                            {"drafter_threads", s.drafter_threads},
                            {"target_threads", s.target_threads}};
  return j.dump(2) + "\n";
}

checkpoint_state parse_state(const fs::path& file) {
  checkpoint_state s;
  try {
    const auto j = nlohmann::json::parse(read_file(file, max_small_file));
    if (j.at("format").get<uint64_t>() != 1) throw error("unknown format", file.string());
    j.at("steps").get_to(s.steps);
    j.at("next_k").get_to(s.next_k);
    j.at("total_steps").get_to(s.total_steps);
    j.at("updates").get_to(s.updates);
    j.at("skipped_steps").get_to(s.skipped_steps);
    j.at("dropped").get_to(s.dropped);
    j.at("target_hash").get_to(s.target_hash);
    j.at("data_hash").get_to(s.data_hash);
    j.at("dtype").get_to(s.dtype);
    j.at("device").get_to(s.device);
    j.at("program").get_to(s.program);
    j.at("drafters").get_to(s.drafters);
    j.at("drafter_threads").get_to(s.drafter_threads);
    j.at("target_threads").get_to(s.target_threads);
  } catch (const nlohmann::json::exception& e) {
    throw error(std::string("not a checkpoint's state: ") + e.what(), file.string());
  }
  return s;
}

std::span<const std::byte> as_bytes(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Every tensor that decides how training goes on, in one fixed order. They share the trainer's
// memory.
std::vector<std::pair<std::string, at::Tensor>> trainer_tensors(drafter_trainer& trainer) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& [name, tensor] : named_tensors(trainer.masters()))
    all.emplace_back("master." + name, *tensor);
  if (const drafter_weights* average = trainer.average())
    for (const auto& [name, tensor] : named_tensors(*average))
      all.emplace_back("ema." + name, *tensor);
  for (auto& [name, tensor] : trainer.state().state()) all.emplace_back(name, tensor);
  return all;
}

void write_trainer(const fs::path& file, drafter_trainer& trainer) {
  std::vector<at::Tensor> kept;  // alive as long as the views
  std::vector<st_view> views;
  for (const auto& [name, tensor] : trainer_tensors(trainer)) {
    kept.push_back(tensor.to(at::kCPU, at::kFloat).contiguous());
    views.push_back({name, st_dtype::f32, tensor.sizes().vec(), as_bytes(kept.back())});
  }
  write_safetensors(file, views);
}

// ---- checksums
// ------------------------------------------------------------------------------------

struct checksum {
  uint32_t crc = 0;
  uint64_t size = 0;
};

checksum checksum_of(const fs::path& file) {
  checksum sum;
  file_descriptor in = open_regular_file(file, sum.size);
  std::vector<std::byte> buffer(1 << 20);
  for (uint64_t left = sum.size; left > 0;) {
    const ssize_t got = ::read(in.get(), buffer.data(), std::min<uint64_t>(left, buffer.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw error("cannot be read to its end", file.string());
    sum.crc = crc32c(std::span(buffer).first(static_cast<size_t>(got)), sum.crc);
    left -= static_cast<uint64_t>(got);
  }
  return sum;
}

std::string checksums_text(const fs::path& folder) {
  std::string text;
  for (const char* name : listed_files) {
    const checksum sum = checksum_of(folder / name);
    text += fmt::format("{:08x} {} {}\n", sum.crc, sum.size, name);
  }
  return text;
}

std::map<std::string, checksum> parse_checksums(const fs::path& file) {
  std::map<std::string, checksum> sums;
  std::istringstream in(read_file(file, max_small_file));
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string crc, name;
    checksum sum;
    if (!(fields >> crc >> sum.size >> name) ||
        std::from_chars(crc.data(), crc.data() + crc.size(), sum.crc, 16).ptr !=
            crc.data() + crc.size())
      throw error("a line that is no checksum: " + line, file.string());
    sums[name] = sum;
  }
  return sums;
}

// ---- folders
// --------------------------------------------------------------------------------------

// N of "step-N"; nothing for other names.
std::optional<uint64_t> number_of(const std::string& name) {
  if (name.rfind(prefix, 0) != 0) return std::nullopt;
  const char* begin = name.data() + std::strlen(prefix);
  const char* end = name.data() + name.size();
  uint64_t number = 0;
  const auto [stopped, status] = std::from_chars(begin, end, number);
  if (status != std::errc() || stopped != end || begin == end) return std::nullopt;
  return number;
}

std::string folder_name(uint64_t steps) {
  return prefix + std::to_string(steps);
}

// Good as far as names and sizes tell, newest first.
std::vector<fs::path> whole_checkpoints(const fs::path& checkpoints) {
  std::vector<std::pair<uint64_t, fs::path>> found;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const auto number = number_of(entry.path().filename());
    if (number && check_checkpoint(entry.path(), false).empty())
      found.emplace_back(*number, entry.path());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<fs::path> paths;
  for (auto& [number, path] : found) paths.push_back(std::move(path));
  return paths;
}

void point_latest_at(const fs::path& checkpoints, const std::string& name) {
  const fs::path aside = checkpoints / "latest.tmp";
  fs::remove(aside);
  fs::create_directory_symlink(name, aside);
  fs::rename(aside, checkpoints / "latest");
  fsync_directory(checkpoints);
}

// Renamed first, so that no half removed folder carries the name of a checkpoint.
void remove_folder(const fs::path& folder) {
  fs::path aside = folder;
  aside += unfinished;
  fs::remove_all(aside);
  fs::rename(folder, aside);
  fs::remove_all(aside);
}

std::string what_latest_lacks(const fs::path& checkpoints) {
  const fs::path link = checkpoints / "latest";
  std::error_code ignored;
  if (!fs::is_symlink(fs::symlink_status(link, ignored)) || fs::exists(link, ignored)) return {};
  return "latest points to " + fs::read_symlink(link, ignored).string() + ", which does not exist";
}

}  // namespace

std::string check_checkpoint(const fs::path& folder, bool deep) {
  try {
    if (!fs::is_directory(folder)) return "not a folder";
    if (!fs::exists(folder / checksums_file)) {
      if (fs::is_empty(folder)) return "empty";
      return "has no list of checksums";
    }
    const auto sums = parse_checksums(folder / checksums_file);
    for (const char* name : listed_files) {
      const auto sum = sums.find(name);
      if (sum == sums.end()) return fmt::format("{} is not in its checksums", name);
      std::error_code failure;
      const auto size = fs::file_size(folder / name, failure);
      if (failure) return fmt::format("{}: {}", name, failure.message());
      if (size != sum->second.size)
        return fmt::format("{} has {} bytes instead of {}", name, size, sum->second.size);
    }
    const checkpoint_state state = parse_state(folder / state_file);
    if (folder.filename() != folder_name(state.steps))
      return fmt::format("its {} says step {}", state_file, state.steps);
    if (!deep) return {};
    for (const char* name : listed_files)
      if (checksum_of(folder / name).crc != sums.at(name).crc)
        return fmt::format("{} fails its checksum", name);
    return {};
  } catch (const std::exception& e) {
    return e.what();
  }
}

checkpoint_scan find_checkpoint(const fs::path& checkpoints) {
  checkpoint_scan scan;
  std::map<std::string, std::string> refused;
  std::vector<std::pair<uint64_t, fs::path>> candidates;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(checkpoints, missing)) {
    const std::string name = entry.path().filename();
    const bool cut_off = name.size() > std::strlen(unfinished) && name.ends_with(unfinished) &&
                         number_of(name.substr(0, name.size() - std::strlen(unfinished)));
    if (cut_off) {
      refused[name] = "a save that was cut off";
    } else if (const auto number = number_of(name)) {
      const std::string why = check_checkpoint(entry.path(), false);
      if (why.empty())
        candidates.emplace_back(*number, entry.path());
      else
        refused[name] = why;
    }
  }
  std::sort(candidates.rbegin(), candidates.rend());
  for (const auto& [number, path] : candidates) {
    const std::string why = check_checkpoint(path, true);
    if (why.empty()) {
      scan.newest = path;
      scan.state = parse_state(path / state_file);
      break;
    }
    refused[path.filename()] = why;
  }
  for (auto& [name, why] : refused) scan.refusals.push_back({name, why});
  scan.latest_note = what_latest_lacks(checkpoints);
  scan.nothing_there = !scan.newest && scan.refusals.empty();
  return scan;
}

void save_checkpoint(const fs::path& checkpoints,
                     checkpoint_state state,
                     drafter_trainer& trainer,
                     const checkpoint_options& options) {
  DFLASH_CHECK(options.keep >= 1, "a run keeps at least one checkpoint", options.keep);
  fs::create_directories(checkpoints);
  state.updates = trainer.state().updates();
  const std::string name = folder_name(state.steps);
  const fs::path folder = checkpoints / name;
  fs::path aside = folder;
  aside += unfinished;
  fs::remove_all(aside);
  try {
    fs::create_directory(aside);
    write_trainer(aside / tensors_file, trainer);
    write_file_atomically(aside / state_file, state_json(state));
    write_file_atomically(aside / config_file, options.config_toml);
    // z-lab's form where it can say all: it knows no draft vocabulary.
    const bool whole = trainer.config().draft_ids.empty();
    write_drafter_files(aside,
                        trainer.config(),
                        trainer.exported(),
                        {.form = whole ? drafter_form::zlab : drafter_form::speculators,
                         .dtype = options.export_dtype,
                         .extras = options.extras,
                         .head = whole ? at::Tensor() : trainer.head()});
    write_file_atomically(aside / checksums_file, checksums_text(aside));
    fsync_directory(aside);
    if (fs::exists(fs::symlink_status(folder))) {  // damaged: the run came here from before it
      fs::path spoiled = checkpoints / (name + ".damaged");
      fs::remove_all(spoiled);
      fs::rename(folder, spoiled);
    }
    fs::rename(aside, folder);
    fsync_directory(checkpoints);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(aside, ignored);
    throw;
  }
  point_latest_at(checkpoints, name);
  const auto whole = whole_checkpoints(checkpoints);
  for (size_t i = static_cast<size_t>(options.keep); i < whole.size(); ++i) remove_folder(whole[i]);
}

void load_checkpoint(const fs::path& folder,
                     const checkpoint_state& state,
                     drafter_trainer& trainer) {
  const auto file = safetensors_file::open(folder / tensors_file);
  const auto wanted = trainer_tensors(trainer);
  for (const auto& [name, tensor] : wanted) {
    const st_tensor& stored = file.at(name);
    if (stored.dtype != st_dtype::f32 || stored.shape != tensor.sizes().vec())
      throw error(fmt::format("tensor {} is {} {}, the run needs F32 {}",
                              name,
                              dtype_name(stored.dtype),
                              stored.shape_text(),
                              fmt::format("[{}]", fmt::join(tensor.sizes(), ", "))),
                  file.path().string());
    DFLASH_CHECK(tensor.is_contiguous() && tensor.is_cpu(), "a master or moment in memory", name);
    const auto bytes = file.bytes(stored);
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  if (file.tensors().size() != wanted.size()) {
    std::set<std::string> known;
    for (const auto& [name, tensor] : wanted) known.insert(name);
    for (const st_tensor& stored : file.tensors())
      if (!known.contains(stored.name))
        throw error("spare tensor " + stored.name, file.path().string());
  }
  trainer.state().set_updates(state.updates);
  trainer.refresh_compute();
}

}  // namespace dflash
