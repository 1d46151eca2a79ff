#include "model/checkpoint.hpp"

#include <ATen/ops/empty_like.h>
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
#include "device/lane_streams.hpp"
#include "model/checkpoint_retention.hpp"

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
constexpr int64_t state_format = 1;

// ---- reading and writing single files
// -------------------------------------------------------------

std::string state_json(const checkpoint_state& s) {
  const nlohmann::json j = {{"format", state_format},
                            {"steps", s.steps},
                            {"next_k", s.next_k},
                            {"total_steps", s.total_steps},
                            {"updates", s.updates},
                            {"skipped_steps", s.skipped_steps},
                            {"loss_count", s.losses.count},
                            {"loss_mean", s.losses.mean},
                            {"loss_variance", s.losses.variance},
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
    if (const auto format = j.at("format").get<int64_t>(); format != state_format)
      throw error(
          fmt::format("format {} is not known, this program reads {}", format, state_format),
          file.string(),
          "use the program that wrote it");
    j.at("steps").get_to(s.steps);
    j.at("next_k").get_to(s.next_k);
    j.at("total_steps").get_to(s.total_steps);
    j.at("updates").get_to(s.updates);
    j.at("skipped_steps").get_to(s.skipped_steps);
    // Not in those of the first versions.
    s.losses.count = j.value("loss_count", uint64_t{0});
    s.losses.mean = j.value("loss_mean", 0.0);
    s.losses.variance = j.value("loss_variance", 0.0);
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

void write_trainer(const fs::path& file, const trainer_snapshot& snapshot) {
  std::vector<st_view> views;
  for (const auto& [name, tensor] : snapshot.tensors)
    views.push_back({name, st_dtype::f32, tensor.sizes().vec(), as_bytes(tensor)});
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

std::string folder_name(uint64_t steps) {
  return prefix + std::to_string(steps);
}

std::string what_latest_lacks(const fs::path& checkpoints) {
  const fs::path link = checkpoints / "latest";
  std::error_code ignored;
  if (!fs::is_symlink(fs::symlink_status(link, ignored)) || fs::exists(link, ignored)) return {};
  return "latest points to " + fs::read_symlink(link, ignored).string() + ", which does not exist";
}

}  // namespace

std::optional<uint64_t> checkpoint_number(const std::string& name) {
  if (name.rfind(prefix, 0) != 0) return std::nullopt;
  const char* begin = name.data() + std::strlen(prefix);
  const char* end = name.data() + name.size();
  uint64_t number = 0;
  const auto [stopped, status] = std::from_chars(begin, end, number);
  if (status != std::errc() || stopped != end || begin == end) return std::nullopt;
  return number;
}

fs::path checkpoint_folder(const fs::path& checkpoints, uint64_t steps) {
  return checkpoints / folder_name(steps);
}

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
      if (size > max_small_file && !fs::path(name).extension().string().ends_with("safetensors"))
        return fmt::format("{} has {} bytes, more than any checkpoint's", name, size);
    }
    const checkpoint_state state = parse_state(folder / state_file);
    // `latest` and `best` are links.
    const fs::path named = fs::is_symlink(folder) ? fs::canonical(folder) : folder;
    if (named.filename() != folder_name(state.steps))
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

checkpoint_scan find_checkpoint(const fs::path& checkpoints, const checkpoint_check& suits) {
  checkpoint_scan scan;
  std::map<std::string, std::string> refused;
  std::vector<std::pair<uint64_t, fs::path>> candidates;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(checkpoints, missing)) {
    const std::string name = entry.path().filename();
    const bool cut_off = name.size() > std::strlen(unfinished) && name.ends_with(unfinished) &&
                         checkpoint_number(name.substr(0, name.size() - std::strlen(unfinished)));
    if (cut_off) {
      refused[name] = "a save that was cut off";
    } else if (const auto number = checkpoint_number(name)) {
      const std::string why = check_checkpoint(entry.path(), false);
      if (why.empty())
        candidates.emplace_back(*number, entry.path());
      else
        refused[name] = why;
    }
  }
  std::sort(candidates.rbegin(), candidates.rend());
  std::optional<fs::path> foreign;  // the newest whole one that does not suit
  for (const auto& [number, path] : candidates) {
    std::string why = check_checkpoint(path, true);
    if (why.empty()) {
      const checkpoint_state state = parse_state(path / state_file);
      if (suits) why = suits(path, state);
      if (why.empty()) {
        scan.newest = path;
        scan.state = state;
        break;
      }
      if (!foreign) foreign = path;
    }
    refused[path.filename()] = why;
  }
  if (!scan.newest && foreign) {
    scan.newest = foreign;
    scan.state = parse_state(*foreign / state_file);
    refused.erase(foreign->filename());
  }
  for (auto& [name, why] : refused) scan.refusals.push_back({name, why});
  scan.latest_note = what_latest_lacks(checkpoints);
  // A save that was cut off never was a checkpoint, and the last good one is never removed.
  scan.nothing_there = !scan.newest && std::all_of(refused.begin(), refused.end(), [](auto& r) {
    return r.first.ends_with(unfinished);
  });
  return scan;
}

void write_checkpoint(const fs::path& checkpoints,
                      checkpoint_state state,
                      const trainer_snapshot& snapshot,
                      const checkpoint_options& options) {
  fs::create_directories(checkpoints);
  state.updates = snapshot.updates;
  const std::string name = folder_name(state.steps);
  const fs::path folder = checkpoints / name;
  fs::path aside = folder;
  aside += unfinished;
  fs::remove_all(aside);
  try {
    fs::create_directory(aside);
    write_trainer(aside / tensors_file, snapshot);
    write_file_atomically(aside / state_file, state_json(state));
    write_file_atomically(aside / config_file, options.config_toml);
    // z-lab's form where it can say all: it knows no draft vocabulary.
    const bool whole = snapshot.config.draft_ids.empty();
    write_drafter_files(aside,
                        snapshot.config,
                        snapshot.exported,
                        {.form = whole ? drafter_form::zlab : drafter_form::speculators,
                         .dtype = options.export_dtype,
                         .extras = options.extras,
                         .head = whole ? at::Tensor() : snapshot.head});
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
  point_link(checkpoints, "latest", state.steps);
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
    DFLASH_CHECK(tensor.is_contiguous(), "a master or moment in one piece", name);
    const auto bytes = file.bytes(stored);
    const at::Tensor here = tensor.is_cpu() ? tensor : at::empty_like(tensor, at::kCPU);
    std::memcpy(here.mutable_data_ptr(), bytes.data(), bytes.size());
    if (!tensor.is_cpu()) tensor.copy_(here);
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
  wait_for(trainer.flat_masters().device());
}

std::optional<checkpoint_state> load_newest_checkpoint(const fs::path& checkpoints,
                                                       drafter_trainer& trainer) {
  const checkpoint_scan scan = find_checkpoint(checkpoints);
  if (!scan.newest) return std::nullopt;
  load_checkpoint(*scan.newest, scan.state, trainer);
  return scan.state;
}

}  // namespace dflash
