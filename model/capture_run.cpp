#include "model/capture_run.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "config/error.hpp"
#include "data/arrow_stream.hpp"
#include "data/files.hpp"
#include "data/hidden_store.hpp"
#include "data/safetensors.hpp"
#include "device/lane_streams.hpp"
#include "model/captured_states.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

constexpr const char* arrow_name = "data-00000-of-00001.arrow";

// Where rows go. `put` may be called by several threads for different rows.
struct capture_sink {
  std::function<bool(const batch&)> has;
  std::function<void(const batch&, const std::vector<at::Tensor>&)> put;
  std::function<void()> finish;
};

fs::path part_of(const fs::path& path) {
  return path.string() + ".part";
}

void make_folder(const fs::path& folder) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure || !fs::is_directory(folder))
    throw error("the folder cannot be made: " +
                    (failure ? failure.message() : std::string("a file has its name")),
                "--out " + folder.string(),
                "choose a folder that can be written");
}

// Nothing, or an earlier part of the same capture.
void check_same_capture(const fs::path& out, const capture_manifest& wanted) {
  const auto found = read_manifest(out);
  if (!found) {
    if (!fs::is_empty(out))
      throw error("the folder is not empty and holds no capture",
                  "--out " + out.string(),
                  "choose another folder");
    return;
  }
  std::string why;
  if (found->form != wanted.form)
    why = fmt::format("their form is {}, wanted is {}", found->form, wanted.form);
  else
    why = manifest_difference(*found, wanted);
  if (why.empty() && found->last != wanted.last)
    why = fmt::format("they are {} the last hidden state", found->last ? "with" : "without");
  if (why.empty() && (found->threads != wanted.threads || found->row_tokens != wanted.row_tokens))
    why = fmt::format("they were made with {} threads in rows of {} tokens, wanted are {} and {}",
                      found->threads,
                      found->row_tokens,
                      wanted.threads,
                      wanted.row_tokens);
  if (why.empty() && found->device != wanted.device)
    why = fmt::format("they were made on {}, wanted is {}", found->device, wanted.device);
  if (!why.empty())
    throw error("the folder holds other hidden states: " + why,
                (out / "capture.json").string(),
                "choose another --out, or remove that folder");
}

std::unique_ptr<hidden_store> open_part(const fs::path& out, const capture_manifest& wanted) {
  // Stopped between its last row and its manifest.
  if (fs::exists(rows_file(out)) && !fs::exists(part_of(rows_file(out))))
    fs::rename(rows_file(out), part_of(rows_file(out)));
  return std::make_unique<hidden_store>(
      part_of(rows_file(out)),
      wanted.record_bytes(),
      wanted.rows,
      hidden_store::file_bytes(wanted.record_bytes(), wanted.rows),
      wanted.fingerprint());
}

capture_sink sink_of_rows(const fs::path& out, const capture_manifest& wanted) {
  const std::shared_ptr<hidden_store> store = open_part(out, wanted);
  // After a crash a record may be torn although its entry is there.
  for (const int64_t row : store->verify())
    spdlog::warn("{}: row {} is damaged: made again", rows_file(out).string(), row);
  capture_sink sink;
  sink.has = [store](const batch& b) { return store->has(b.row); };
  sink.put = [store, out](const batch& b, const std::vector<at::Tensor>& tensors) {
    std::vector<std::span<const std::byte>> parts;
    for (const at::Tensor& t : tensors)
      parts.emplace_back(static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes());
    if (!store->put(b.row, parts))
      throw error("the hidden states cannot be written: " + store->count().last_error,
                  part_of(rows_file(out)).string(),
                  "make room and run the same command again: it goes on where it stopped");
  };
  sink.finish = [store, out] {
    store->sync();
    fs::rename(part_of(rows_file(out)), rows_file(out));
    fsync_directory(out);
  };
  return sink;
}

fs::path samples_of(const fs::path& out) {
  return out / "hidden_states";
}

bool sample_is_there(const fs::path& path,
                     std::span<const int32_t> ids,
                     const capture_manifest& wanted) {
  if (!fs::exists(path)) return false;
  try {
    detail::sample_states(path, ids, wanted);
    return true;
  } catch (const error& problem) {
    spdlog::warn("{}: made again", problem.what());
    return false;
  }
}

// One document of a row: [tokens, tensors, Ht], tokens outermost.
void write_sample(const fs::path& path,
                  std::span<const int32_t> ids,
                  int64_t begin,
                  const std::vector<at::Tensor>& tensors,
                  const capture_manifest& wanted) {
  const auto tokens = static_cast<int64_t>(ids.size());
  const uint64_t row_bytes = static_cast<uint64_t>(wanted.width) * wanted.element_bytes();
  std::vector<std::byte> states(static_cast<uint64_t>(tokens) * wanted.token_bytes());
  std::byte* to = states.data();
  for (int64_t i = begin; i < begin + tokens; ++i)
    for (const at::Tensor& t : tensors) {
      std::memcpy(
          to,
          static_cast<const std::byte*>(t.const_data_ptr()) + static_cast<uint64_t>(i) * row_bytes,
          row_bytes);
      to += row_bytes;
    }
  const std::vector<int64_t> wide(ids.begin(), ids.end());
  const st_view views[] = {{"hidden_states",
                            wanted.dtype == "bf16" ? st_dtype::bf16 : st_dtype::f32,
                            {tokens, wanted.tensors(), wanted.width},
                            states},
                           {"token_ids", st_dtype::i64, {tokens}, std::as_bytes(std::span(wide))}};
  write_safetensors(path, views, {{"format", "pt"}});
}

// What `datasets` calls a dataset on disk: the table, its columns, its state.
void write_dataset(const fs::path& out, const token_set& documents, const capture_manifest& m) {
  write_arrow_documents(out / arrow_name, documents);
  const char* list = R"({"feature": {"dtype": "int64", "_type": "Value"}, "_type": "Sequence"})";
  write_file_atomically(
      out / "dataset_info.json",
      fmt::format("{{\"citation\": \"\", \"description\": \"\", \"homepage\": \"\", \"license\": "
                  "\"\", \"features\": {{\"input_ids\": {}, \"loss_mask\": {}, \"seq_len\": "
                  "{{\"dtype\": \"int64\", \"_type\": \"Value\"}}}}}}\n",
                  list,
                  list));
  write_file_atomically(
      out / "state.json",
      fmt::format("{{\"_data_files\": [{{\"filename\": \"{}\"}}], \"_fingerprint\": \"{}{}\", "
                  "\"_format_columns\": null, \"_format_kwargs\": {{}}, \"_format_type\": "
                  "\"torch\", \"_output_all_columns\": false, \"_split\": null}}\n",
                  arrow_name,
                  m.target_hash.substr(0, 8),
                  m.data_hash));
}

capture_sink sink_of_samples(const fs::path& out,
                             const capture_manifest& wanted,
                             const batch_source& source) {
  const token_set& documents = source.documents();
  make_folder(samples_of(out));
  capture_sink sink;
  sink.has = [=, &documents](const batch& b) {
    return std::all_of(b.documents.begin(), b.documents.end(), [&](int64_t d) {
      return sample_is_there(sample_file(samples_of(out), d), documents.ids(d), wanted);
    });
  };
  sink.put = [=, &documents](const batch& b, const std::vector<at::Tensor>& tensors) {
    for (size_t d = 0; d < b.documents.size(); ++d)
      write_sample(sample_file(samples_of(out), b.documents[d]),
                   documents.ids(b.documents[d]),
                   b.doc_offsets[d],
                   tensors,
                   wanted);
  };
  sink.finish = [=, &documents] { write_dataset(out, documents, wanted); };
  return sink;
}

// Several threads take rows in order; the first failure stops all.
class row_workers {
public:
  row_workers(std::vector<int64_t> rows,
              const batch_source& source,
              const capture_sink& sink,
              const row_maker& make,
              const std::function<bool(int64_t)>& made)
      : rows_(std::move(rows)), source_(source), sink_(sink), make_(make), made_(made) {}

  // Number of rows made.
  int64_t run(const std::vector<at::Device>& lanes, int64_t threads) {
    std::vector<std::thread> workers;
    for (const at::Device& device : lanes)
      workers.emplace_back([this, device, threads] {
        at::set_num_threads(static_cast<int>(threads));
        work(device);
      });
    for (auto& worker : workers) worker.join();
    if (failure_) std::rethrow_exception(failure_);
    return done_;
  }

private:
  void work(at::Device device) {
    try {
      use_devices(std::array{device});
      while (!stop_) {
        const size_t i = next_++;
        if (i >= rows_.size()) return;
        const batch b = source_.make_row(rows_[i]);
        sink_.put(b, make_(b, device));
        const std::lock_guard lock(mutex_);
        ++done_;
        if (!made_(done_)) stop_ = true;
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      stop_ = true;
    }
  }

  std::vector<int64_t> rows_;
  const batch_source& source_;
  const capture_sink& sink_;
  const row_maker& make_;
  const std::function<bool(int64_t)>& made_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // of what follows, and of made_
  int64_t done_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

uint64_t missing_capture_bytes(const fs::path& out,
                               const capture_manifest& wanted,
                               const batch_source& source) {
  make_folder(out);
  check_same_capture(out, wanted);
  if (wanted.form == capture_form_rows) {
    const uint64_t all = hidden_store::file_bytes(wanted.record_bytes(), wanted.rows);
    std::error_code none;
    for (const fs::path& path : {rows_file(out), part_of(rows_file(out))}) {
      const auto there = fs::file_size(path, none);  // rows are appended: no holes
      if (!none) return all - std::min<uint64_t>(all, there);
    }
    return all;
  }
  // Header of a safetensors file and the entry of a file system, per document.
  constexpr uint64_t overhead = 4096;
  uint64_t missing = 0;
  for (int64_t d = 0; d < source.documents().size(); ++d) {
    const auto tokens = static_cast<uint64_t>(source.documents().ids(d).size());
    if (!fs::exists(sample_file(samples_of(out), d)))
      missing += tokens * (wanted.token_bytes() + 8) + overhead;
    missing += tokens * 16;  // the table of tokens and masks
  }
  return missing;
}

void check_capture_room(const fs::path& out, uint64_t bytes) {
  struct statvfs disk = {};
  if (::statvfs(out.c_str(), &disk) != 0)
    throw error("the free space cannot be read: " + std::string(std::strerror(errno)),
                "--out " + out.string());
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free >= bytes) return;
  throw error(fmt::format("the hidden states need {:.2f} GB, the disk has {:.2f} GB free",
                          static_cast<double>(bytes) * 1e-9,
                          static_cast<double>(free) * 1e-9),
              "--out " + out.string(),
              "choose another disk, fewer taps or fewer documents");
}

capture_report run_capture(const fs::path& out,
                           const capture_manifest& wanted,
                           const batch_source& source,
                           const row_maker& make,
                           const std::vector<at::Device>& lanes,
                           const std::function<bool(const capture_progress&)>& go_on) {
  make_folder(out);
  check_same_capture(out, wanted);
  capture_report report;
  report.rows = wanted.rows;
  report.bytes = wanted.form == capture_form_rows
                     ? static_cast<uint64_t>(wanted.rows) * wanted.record_bytes()
                     : static_cast<uint64_t>(wanted.tokens) * wanted.token_bytes();
  if (const auto found = read_manifest(out); found && found->complete) {
    open_captured_states(  // throws if it is not what it says
        out,
        wanted,
        std::make_shared<const batch_source>(source));
    report.complete = true;
    report.rows_found = wanted.rows;
    return report;
  }
  capture_manifest open = wanted;
  open.complete = false;
  write_manifest(out, open);
  const capture_sink sink = wanted.form == capture_form_rows ? sink_of_rows(out, wanted)
                                                             : sink_of_samples(out, wanted, source);
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < wanted.rows; ++row)
    if (!sink.has(source.make_row(row))) rows.push_back(row);
  report.rows_found = wanted.rows - static_cast<int64_t>(rows.size());
  const size_t to_make = rows.size();
  const auto started = std::chrono::steady_clock::now();
  const std::function<bool(int64_t)> made = [&](int64_t done) {
    return go_on({report.rows_found + done, wanted.rows, done * wanted.row_tokens});
  };
  report.rows_made =
      row_workers(std::move(rows), source, sink, make, made).run(lanes, wanted.threads);
  report.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  if (report.rows_made < static_cast<int64_t>(to_make)) return report;
  sink.finish();
  open.complete = true;
  write_manifest(out, open);
  report.complete = true;
  return report;
}

}  // namespace dflash
