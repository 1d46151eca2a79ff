#include "bin/model_stream.hpp"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <system_error>

#include "config/error.hpp"
#include "data/files.hpp"
#include "model/folder.hpp"
#include "observe/format.hpp"

namespace dflash {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t piece_bytes = 8 << 20;
constexpr const char* index_name = "model.safetensors.index.json";
constexpr uint64_t max_index_bytes = 64 << 20;

bool is_model_file(const std::string& name) {
  return !name.empty() && name.size() < 256 && name.front() != '.' &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos &&
         (name.ends_with(".json") || name.ends_with(".safetensors"));
}

void sync(const fs::path& path, int flags) {
  const file_descriptor file(::open(path.c_str(), flags | O_CLOEXEC));
  if (!file || ::fsync(file.get()) != 0)
    throw std::runtime_error("cannot be written out: " + path.string());
}

}  // namespace

std::vector<std::string> model_files(const fs::path& folder) {
  std::set<std::string> names = {"config.json"};
  if (fs::exists(folder / index_name)) {
    names.insert(index_name);
    const json index = json::parse(read_file(folder / index_name, max_index_bytes));
    for (const auto& [tensor, file] : index.at("weight_map").items())
      names.insert(file.get<std::string>());
  } else {
    names.insert("model.safetensors");
  }
  for (const std::string& name : names)
    if (!is_model_file(name))
      throw error("a file of the model that cannot be sent: " + name, folder.string());
  return {names.begin(), names.end()};
}

void send_model(wire_client& to, const fs::path& folder) {
  const std::vector<std::string> names = model_files(folder);
  at::Tensor room = at::empty({piece_bytes}, at::TensorOptions().dtype(at::kByte));
  for (const std::string& name : names) {
    const bool last_file = name == names.back();
    std::ifstream in(folder / name, std::ios::binary);
    if (!in) throw error("cannot be read", (folder / name).string());
    const uint64_t size = fs::file_size(folder / name);
    uint64_t offset = 0;
    do {
      const auto want = static_cast<int64_t>(std::min<uint64_t>(piece_bytes, size - offset));
      in.read(static_cast<char*>(room.mutable_data_ptr()), want);
      if (in.gcount() != want)
        throw error("it changed while it was sent", (folder / name).string());
      const uint64_t end = offset + static_cast<uint64_t>(want);
      to.call({lane_call::file,
               json{{"name", name},
                    {"offset", offset},
                    {"file_ends", end == size},
                    {"model_ends", last_file && end == size}}
                   .dump(),
               {room.narrow(0, 0, want)}});
      offset = end;
    } while (offset < size);
  }
}

model_receiver::model_receiver(fs::path cache, std::string hash) : hash_(std::move(hash)) {
  if (hash_.empty() || hash_.size() > 64 ||
      hash_.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw std::runtime_error("a model without a content hash");
  static std::atomic<uint64_t> number{0};
  final_ = cache / hash_;
  partial_ = cache / fmt::format("{}.partial-{}-{}", hash_, ::getpid(), ++number);
  std::error_code problem;
  fs::create_directories(partial_, problem);
  if (problem)
    throw std::runtime_error("the cache " + cache.string() + " cannot be written: " +
                             problem.message() + "; --cache DIR chooses another one");
}

model_receiver::~model_receiver() {
  open_.reset();
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

void model_receiver::take(const wire_message& m) {
  const json body = json::parse(m.body, nullptr, false);
  std::string name;
  uint64_t offset = 0;
  bool file_ends = false, model_ends = false;
  try {
    name = body.at("name").get<std::string>();
    offset = body.at("offset").get<uint64_t>();
    file_ends = body.at("file_ends").get<bool>();
    model_ends = body.at("model_ends").get<bool>();
  } catch (const json::exception& e) {
    throw std::runtime_error(std::string("a piece of a model that cannot be read: ") + e.what());
  }
  if (!is_model_file(name)) throw std::runtime_error("no file of a model: " + name);
  if (m.tensors.size() != 1 || m.tensors[0].scalar_type() != at::kByte ||
      m.tensors[0].numel() > piece_bytes)
    throw std::runtime_error("a piece of another type or size");
  if (!open_) {
    open_name_ = name;
    open_ = std::make_unique<std::ofstream>(partial_ / name, std::ios::binary | std::ios::trunc);
    written_ = 0;
  }
  if (name != open_name_ || offset != written_) throw std::runtime_error("a piece out of order");
  const auto bytes = static_cast<std::streamsize>(m.tensors[0].numel());
  open_->write(static_cast<const char*>(m.tensors[0].const_data_ptr()), bytes);
  written_ += static_cast<uint64_t>(bytes);
  if (file_ends) {
    open_->close();
    if (!*open_) throw std::runtime_error("cannot write " + (partial_ / name).string());
    open_.reset();
    sync(partial_ / name, O_RDONLY);
  }
  if (!model_ends) return;
  if (open_) throw std::runtime_error("the last file does not end");
  const std::string found = model_folder::open(partial_).content_hash();
  if (found != hash_)
    throw std::runtime_error("the model that came has the content hash " + found + " instead of " +
                             hash_);
  sync(partial_, O_RDONLY | O_DIRECTORY);
  // What is there already is damaged, or another lane was faster: of two copies one is as good as
  // the other.
  const fs::path old = partial_.string() + "-old";
  std::error_code problem;
  fs::rename(final_, old, problem);
  fs::rename(partial_, final_, problem);
  if (problem && !fs::exists(final_ / "config.json"))
    throw std::runtime_error("cannot rename " + partial_.string() + ": " + problem.message());
  fs::remove_all(old, problem);
  spdlog::info("the model {} is in {}", hash_, final_.string());
}

fs::path default_model_cache() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return fs::path(cache) / "dflash" / "models";
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr && *home != '\0' ? home : "/tmp") / ".cache" / "dflash" /
         "models";
}

}  // namespace dflash
