#include "bench/work.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "config/error.hpp"
#include "data/safetensors.hpp"

namespace dflash::bench {

namespace {

template <class T>
std::vector<T> values_of(const safetensors_file& file, const std::string& name) {
  const auto bytes = file.bytes(file.at(name));
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  throw error("no " + key, "/proc/self/status");
}

}  // namespace

std::vector<work_row> read_rows(const std::filesystem::path& work_folder) {
  const auto file = safetensors_file::open(work_folder / "rows.safetensors");
  std::vector<work_row> rows;
  for (int64_t i = 0; file.find(std::to_string(i) + ".input_ids") != nullptr; ++i) {
    const std::string row = std::to_string(i) + ".";
    work_row out;
    batch& b = out.tokens;
    b.k = static_cast<uint64_t>(i);
    b.row = i;
    b.input_ids = values_of<int32_t>(file, row + "input_ids");
    b.doc_offsets = values_of<int32_t>(file, row + "doc_offsets");
    b.real_docs = static_cast<int32_t>(b.doc_offsets.size()) - 1;
    b.loss_mask = values_of<uint8_t>(file, row + "loss_mask");
    b.anchors = values_of<int32_t>(file, row + "anchors");
    b.anchor_valid.assign(b.anchors.size(), 1);
    for (int32_t d = 0; d < b.real_docs; ++d) b.documents.push_back(d);
    const st_tensor& taps = file.at(row + "taps");  // [nT, T, Ht]
    if (taps.dtype != st_dtype::bf16 || taps.shape.size() != 3)
      throw error("the taps are not bf16 [nT, T, Ht]", file.path().string(), "make the work again");
    const auto bytes = file.bytes(taps);
    const size_t one = bytes.size() / static_cast<size_t>(taps.shape[0]);
    for (int64_t j = 0; j < taps.shape[0]; ++j) {
      out.taps.push_back(at::empty({taps.shape[1], taps.shape[2]}, at::kBFloat16));
      std::memcpy(
          out.taps.back().mutable_data_ptr(), bytes.data() + static_cast<size_t>(j) * one, one);
    }
    rows.push_back(std::move(out));
  }
  if (rows.empty()) throw error("no rows", file.path().string(), "make the work again");
  return rows;
}

peak_memory::peak_memory() {
  std::ofstream("/proc/self/clear_refs") << "5";
  start_ = status_bytes("VmRSS");
}

int64_t peak_memory::bytes() const {
  return status_bytes("VmHWM") - start_;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

arguments parse_arguments(int count, char** values) {
  arguments out;
  for (int i = 1; i < count; ++i) {
    const std::string name = values[i];
    if (!name.starts_with("--")) {
      out.what = name;
      continue;
    }
    if (i + 1 == count) throw error(name + " wants a value", "command line");
    const std::string value = values[++i];
    if (name == "--model")
      out.model = value;
    else if (name == "--work")
      out.work = value;
    else if (name == "--threads")
      out.threads = std::stoi(value);
    else
      throw error("unknown option " + name, "command line", "--model, --work, --threads");
  }
  at::set_num_threads(out.threads);
  return out;
}

}  // namespace dflash::bench
