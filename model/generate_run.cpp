// The whole set of prompts: groups, the work folder that makes a run restartable, the output shard.
#include <ATen/Parallel.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "config/error.hpp"
#include "data/files.hpp"
#include "data/safetensors.hpp"
#include "device/lane_streams.hpp"
#include "model/generate.hpp"

namespace dflash {
namespace {

constexpr const char* answers_format = "dflash answers 1";

// All that decides the answers' bits, one a line: compared when a work folder is found.
std::string options_text(const target& model,
                         const token_documents& prompts,
                         const generate_options& o) {
  const auto raw = [](const auto& vector) {
    return std::as_bytes(std::span(vector.data(), vector.size()));
  };
  char sampling[160];
  std::snprintf(sampling,
                sizeof sampling,
                "temperature = %.17g\ntop_p = %.17g\ntop_k = %lld\nseed = %llu\n",
                o.sampling.temperature,
                o.sampling.top_p,
                static_cast<long long>(o.sampling.top_k),
                static_cast<unsigned long long>(o.sampling.seed));
  std::string text = "target = " + model.content_hash() + "\n";
  text += "prompts = " + sha256(raw(prompts.input_ids)).substr(0, 16) +
          sha256(raw(prompts.doc_offsets)).substr(0, 16) + "\n";
  text += "dtype = " + std::string(name_of(model.dtype())) + "\n";
  // Of one kind all give the same bits; another kind adds up in another order.
  text += "device = " + c10::DeviceTypeName(model.device().type(), true) + "\n";
  text += "threads_per_group = " + std::to_string(o.threads_per_group) + "\n";
  text += "max_new_tokens = " + std::to_string(o.max_new_tokens) + "\n";
  text += "ignore_eos = " + std::string(o.ignore_eos ? "true" : "false") + "\n";
  text += "slots = " + std::to_string(o.slots) + "\n";
  text += "group = " + std::to_string(o.group) + "\n";
  return text + sampling;
}

// Names of the lines that differ.
std::string differences(const std::string& a, const std::string& b) {
  std::string names;
  size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    const auto line = [](const std::string& text, size_t& at) {
      const auto end = std::min(text.find('\n', at), text.size());
      const auto out = text.substr(std::min(at, text.size()), end - std::min(at, text.size()));
      at = std::min(end + 1, text.size());
      return out;
    };
    const auto x = line(a, i), y = line(b, j);
    if (x != y) names += (names.empty() ? "" : ", ") + y.substr(0, y.find(' '));
  }
  return names;
}

class work_folder {
public:
  work_folder(std::filesystem::path path, const std::string& options) : path_(std::move(path)) {
    std::error_code problem;
    std::filesystem::create_directories(path_, problem);
    if (problem)
      throw error("the work folder cannot be made: " + problem.message(),
                  path_.string(),
                  "choose an output in a folder that can be written");
    const auto file = path_ / "options.txt";
    if (!std::filesystem::exists(file)) {
      write_file_atomically(file, options);
    } else if (const auto found = read_file(file, 1 << 20); found != options) {
      throw error("unfinished answers were made with other options: " + differences(options, found),
                  path_.string(),
                  "run with the same options to go on, or remove that folder");
    }
  }

  std::filesystem::path file_of(int64_t group) const {
    char name[48];
    std::snprintf(name, sizeof name, "group-%06lld.safetensors", static_cast<long long>(group));
    return path_ / name;
  }

  void write(int64_t group, const std::vector<answer>& answers) const {
    std::vector<int32_t> ids;
    std::vector<int64_t> offsets = {0};
    std::vector<uint8_t> ends;
    for (const auto& a : answers) {
      ids.insert(ids.end(), a.ids.begin(), a.ids.end());
      offsets.push_back(static_cast<int64_t>(ids.size()));
      ends.push_back(static_cast<uint8_t>(a.end));
    }
    const auto view = [](const char* name, st_dtype dtype, const auto& vector) {
      return st_view{name,
                     dtype,
                     {static_cast<int64_t>(vector.size())},
                     std::as_bytes(std::span(vector.data(), vector.size()))};
    };
    const st_view views[] = {view("ids", st_dtype::i32, ids),
                             view("offsets", st_dtype::i64, offsets),
                             view("ends", st_dtype::u8, ends)};
    write_safetensors(file_of(group),
                      views,
                      {{"format", answers_format}, {"checksum", checksum(ids, offsets, ends)}});
  }

  // Nothing if the group is not done, or its file is damaged (then it is made again).
  std::optional<std::vector<answer>> read(int64_t group, int64_t count) const {
    const auto path = file_of(group);
    if (!std::filesystem::exists(path)) return std::nullopt;
    try {
      const auto file = safetensors_file::open(path);
      const auto ids = values<int32_t>(file, "ids", st_dtype::i32);
      const auto offsets = values<int64_t>(file, "offsets", st_dtype::i64);
      const auto ends = values<uint8_t>(file, "ends", st_dtype::u8);
      const auto found = file.metadata().find("checksum");
      if (found == file.metadata().end() || found->second != checksum(ids, offsets, ends) ||
          static_cast<int64_t>(ends.size()) != count || offsets.size() != ends.size() + 1)
        throw error("checksum or length is wrong", path.string());
      std::vector<answer> answers(count);
      for (int64_t i = 0; i < count; ++i) {
        answers[i].ids.assign(ids.begin() + offsets[i], ids.begin() + offsets[i + 1]);
        answers[i].end = static_cast<answer_end>(ends[i]);
      }
      return answers;
    } catch (const error& problem) {
      spdlog::warn("{}: damaged, the group is made again ({})", path.string(), problem.what_);
      return std::nullopt;
    }
  }

  void remove() const {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

private:
  template <class T>
  static std::vector<T> values(const safetensors_file& file, const char* name, st_dtype dtype) {
    const auto& tensor = file.at(name);
    if (tensor.dtype != dtype || tensor.shape.size() != 1)
      throw error(std::string(name) + " has another type", file.path().string());
    const auto bytes = file.bytes(tensor);
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

  static std::string checksum(const std::vector<int32_t>& ids,
                              const std::vector<int64_t>& offsets,
                              const std::vector<uint8_t>& ends) {
    auto sum = crc32c(std::as_bytes(std::span(ids)));
    sum = crc32c(std::as_bytes(std::span(offsets)), sum);
    return std::to_string(crc32c(std::as_bytes(std::span(ends)), sum));
  }

  std::filesystem::path path_;
};

using group_results = std::vector<std::optional<std::vector<answer>>>;  // nothing: not done

struct group_range {
  int64_t first, count;  // prompts
};

group_range group_at(const token_documents& prompts, const generate_options& options, int64_t g) {
  const int64_t first = g * options.group;
  return {first, std::min(options.group, prompts.size() - first)};
}

// What the workers share; touched under `lock` only.
struct shared_progress {
  std::mutex lock;
  int64_t next = 0;  // group
  bool stop = false;
  std::exception_ptr failure;
  generate_progress told;
  double share_of_prompts = 0;  // prompts done, those of unfinished groups in parts
};

// Fills the missing results, several groups at once, and writes each to the work folder when it is
// done. Returns the number of tokens made. What a worker throws is thrown here once all have ended.
int64_t work_on_groups(const target& model,
                       const token_documents& prompts,
                       const generate_options& options,
                       const work_folder& work,
                       const std::function<bool(const generate_progress&)>& go_on,
                       group_results& results) {
  shared_progress shared;
  shared.told.prompts_total = prompts.size();
  for (int64_t g = 0; g < static_cast<int64_t>(results.size()); ++g)
    if (results[g]) shared.told.prompts_done += group_at(prompts, options, g).count;
  shared.share_of_prompts = static_cast<double>(shared.told.prompts_done);
  const auto take = [&]() -> int64_t {  // -1: nothing left
    const std::lock_guard guard(shared.lock);
    while (shared.next < static_cast<int64_t>(results.size()) && results[shared.next])
      ++shared.next;
    return shared.stop || shared.next == static_cast<int64_t>(results.size()) ? -1 : shared.next++;
  };
  const auto make = [&](int64_t g) {
    const group_range group = group_at(prompts, options, g);
    const int64_t first = group.first, count = group.count;
    double counted = 0;  // share of this group that the progress knows, in prompts
    const auto count_up = [&](double prompts_worth) {
      shared.share_of_prompts += prompts_worth - counted;
      counted = prompts_worth;
      shared.told.share = shared.share_of_prompts / static_cast<double>(prompts.size());
    };
    int64_t made = 0;
    auto answers = generate_group(model, prompts, first, count, options, [&](int64_t tokens) {
      const std::lock_guard guard(shared.lock);
      made += tokens;
      shared.told.made_tokens += tokens;
      // Answers end early, so the bound count · max_new_tokens is approached from below.
      count_up(std::min(static_cast<double>(count),
                        static_cast<double>(made) / static_cast<double>(options.max_new_tokens)));
      if (!shared.stop && go_on && !go_on(shared.told)) shared.stop = true;
      return !shared.stop;
    });
    if (!answers) return;
    work.write(g, *answers);
    const std::lock_guard guard(shared.lock);
    results[g] = std::move(answers);
    shared.told.prompts_done += count;
    count_up(static_cast<double>(count));
  };
  const auto run_worker = [&] {
    at::set_num_threads(static_cast<int>(options.threads_per_group));
    try {
      use_devices(std::array{model.device()});
      for (int64_t g = take(); g >= 0; g = take()) make(g);
    } catch (...) {
      const std::lock_guard guard(shared.lock);
      if (!shared.failure) shared.failure = std::current_exception();
      shared.stop = true;
    }
  };
  std::vector<std::jthread> workers;
  for (int64_t i = 0; i < std::min<int64_t>(options.workers, std::ssize(results)); ++i)
    workers.emplace_back(run_worker);
  workers.clear();  // waits
  if (shared.failure) std::rethrow_exception(shared.failure);
  return shared.told.made_tokens;
}

void check_prompts(const token_documents& prompts, int64_t max_positions) {
  for (int64_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<int64_t>(prompts.ids(i).size());
    if (length == 0) throw error("prompt " + std::to_string(i) + " is empty", "--prompts");
    if (length > max_positions)
      throw error("prompt " + std::to_string(i) + " has " + std::to_string(length) +
                      " tokens, the target's context holds " + std::to_string(max_positions),
                  "--prompts",
                  "leave it out or shorten it (tools/prompts.py --max-tokens)");
  }
}

}  // namespace

std::filesystem::path work_folder_of(const std::filesystem::path& out) {
  return out.string() + ".work";
}

generate_report generate(const target& model,
                         const token_documents& prompts,
                         const std::filesystem::path& out,
                         const generate_options& options,
                         const std::function<bool(const generate_progress&)>& go_on) {
  check_generate(options);
  check_prompts(prompts, model.config().max_positions);
  const work_folder work(work_folder_of(out), options_text(model, prompts, options));
  generate_report report;
  report.prompts = prompts.size();
  report.groups = (prompts.size() + options.group - 1) / options.group;
  group_results results(static_cast<size_t>(report.groups));
  for (int64_t g = 0; g < report.groups; ++g) {
    results[g] = work.read(g, group_at(prompts, options, g).count);
    report.groups_resumed += results[g].has_value();
  }
  const auto start = std::chrono::steady_clock::now();
  report.made_tokens = work_on_groups(model, prompts, options, work, go_on, results);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const auto& result : results) report.groups_done += result.has_value();
  if (report.groups_done < report.groups) return report;

  token_documents shard;
  std::vector<uint8_t> mask;
  for (int64_t g = 0; g < report.groups; ++g) {
    const int64_t first = group_at(prompts, options, g).first;
    for (int64_t i = 0; i < static_cast<int64_t>(results[g]->size()); ++i) {
      const auto& answer = (*results[g])[i];
      ++report.ended[static_cast<int>(answer.end)];
      if (answer.ids.empty() || answer.end == answer_end::bad_logits) continue;
      report.new_tokens += static_cast<int64_t>(answer.ids.size());
      auto ids = std::vector<int32_t>(prompts.ids(first + i).begin(), prompts.ids(first + i).end());
      mask.assign(ids.size(), 0);
      mask.resize(ids.size() + answer.ids.size(), 1);
      ids.insert(ids.end(), answer.ids.begin(), answer.ids.end());
      shard.append(ids, mask);
    }
  }
  if (shard.size() == 0)
    throw error("no prompt got an answer",
                out.string(),
                "all prompts fill the context, or the target gives no finite logits");
  write_token_shard(out,
                    shard,
                    {{"made_by", "dflash generate"},
                     {"target", model.content_hash()},
                     {"dtype", name_of(model.dtype())},
                     {"seed", std::to_string(options.sampling.seed)}});
  work.remove();
  report.complete = true;
  return report;
}

}  // namespace dflash
