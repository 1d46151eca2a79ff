#include "bin/memory_plan.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <system_error>
#include <utility>

#include "actors/hidden_shape.hpp"
#include "actors/runtime/limits.hpp"
#include "config/error.hpp"
#include "model/drafter.hpp"
#include "model/loss.hpp"
#include "observe/format.hpp"

namespace dflash {

namespace {

// The program, LibTorch and CAF with what they touch in a run: code, tables, the kernels that
// oneDNN compiles, stacks and heaps of threads. Measured: runs of a target and a drafter of a few
// kilobytes take 164 to 179 MB.
constexpr uint64_t program_bytes = 165'000'000;
// Of a lane: its thread's heap, scratch of its products.
constexpr uint64_t lane_bytes = 3'000'000;
// Tensors that come and go leave holes behind: of activations, measured at 28 to 38 % with drafters
// of 5 and 8 layers.
constexpr double heap_share = 0.33;
// Of a GPU: the context of CUDA, its libraries' kernels and workspaces. Of documentation and
// forums, not measured.
constexpr uint64_t cuda_context_bytes = 1'200'000'000;

struct lane_count {
  uint64_t targets = 0, drafters = 0;
};

// Lanes by place: "" is the host.
std::map<std::string, lane_count> lanes_of(const run_config& c) {
  std::map<std::string, lane_count> places;
  const auto place = [](const std::string& lane) {
    return parse_lane(lane).cuda ? lane : std::string();
  };
  // Lanes of other hosts take their memory there.
  const auto is_here = [](const std::string& lane) { return parse_lane(lane).node.empty(); };
  if (c.data.hidden_states.empty())
    for (const auto& lane : c.layout.targets)
      if (is_here(lane)) ++places[place(lane)].targets;
  for (const auto& lane : c.layout.drafters)
    if (is_here(lane)) ++places[place(lane)].drafters;
  return places;
}

hidden_shape shape_of(const run_config& c, const memory_shapes& s) {
  return {c.data.row_tokens,
          s.target.hidden,
          static_cast<int64_t>(s.drafter.taps.size()),
          terms_of(c.loss).teacher() || !s.drafter.draft_ids.empty(),
          scalar_type(s.dtype)};
}

pipeline_limits limits_of(const run_config& c, const memory_shapes& s) {
  const bool from_disk = !c.data.hidden_states.empty();
  const bool later_epochs = c.data.epochs > 1 || c.optim.steps > 0;
  const bool keeps = c.data.keep_hidden_states > 0 && later_epochs;
  return derive_limits(from_disk ? 0 : static_cast<uint32_t>(c.layout.targets.size()),
                       keeps || from_disk ? 1 : 0,
                       static_cast<uint32_t>(c.layout.drafters.size()),
                       shape_of(c, s).bytes(),
                       c.layout.max_in_flight);
}

void add(memory_place& place, std::string name, uint64_t bytes, std::string note = {}) {
  if (bytes > 0) place.parts.push_back({std::move(name), bytes, std::move(note)});
}

void add_models(memory_place& place,
                const run_config& c,
                const memory_shapes& s,
                const lane_count& lanes,
                bool cpu) {
  const target_memory t = memory_of(
      s.target, s.dtype, c.data.row_tokens, cpu, lanes.targets > 0 || (cpu && c.eval.every > 0));
  const auto each = [](uint64_t n, const char* what) {
    return n == 1 ? fmt::format("1 {}", what) : fmt::format("{} {}s", n, what);
  };
  if (lanes.targets > 0 || lanes.drafters > 0) {
    add(place,
        "target weights",
        t.weights + t.embedding,
        cpu && lanes.targets > 1 ? "one copy for all targets" : "");
    add(place, "packed head", t.packed_head, "for the products with it");
  }
  add(place, "target activations", lanes.targets * t.activations, each(lanes.targets, "target"));
  if (lanes.drafters == 0) return;
  const drafter_memory d =
      memory_of(s.drafter, c.loss, c.optim, s.dtype, c.data.row_tokens, c.data.anchors, cpu);
  const uint64_t m = lanes.drafters;
  const std::string drafters = each(m, "drafter");
  add(place, "masters", m * d.masters, drafters);
  add(place, "moments", m * d.moments, drafters);
  add(place, "gradients", m * d.gradient, drafters);
  if (c.layout.drafters.size() > 1) add(place, "reduced gradient", m * d.gradient, drafters);
  add(place, "compute copies", m * d.compute, drafters);
  add(place, "moving average", m * d.average, drafters);
  add(place, "draft vocabulary", m * d.draft_head, drafters);
  const uint64_t activations = m * (d.passing() - std::min(d.passing(), d.head_chunk));
  add(place, "activations", activations, drafters);
  if (cpu)
    add(place,
        "holes in the heap",
        static_cast<uint64_t>(heap_share * static_cast<double>(activations)));
  add(place, "head chunk", m * d.head_chunk, "logits of a part of a batch");
}

// Of drafter 0, wherever it computes.
void add_snapshot(memory_place& host, const run_config& c, const memory_shapes& s) {
  const drafter_memory d =
      memory_of(s.drafter, c.loss, c.optim, s.dtype, c.data.row_tokens, c.data.anchors, true);
  add(host,
      "snapshot",
      d.masters + d.moments + d.average + d.parameters * 2,
      "of one drafter, while a checkpoint is written");
}

// Where all lanes are elsewhere, the program still reads what drafters borrow here.
void add_borrowed(memory_place& host, const run_config& c, const memory_shapes& s) {
  const target_memory t = memory_of(s.target, s.dtype, c.data.row_tokens, true, false);
  add(host, "target weights", t.embedding, "embedding and head, which drafters borrow");
  add(host, "packed head", t.packed_head, "for the products with it");
}

void add_evaluation(memory_place& host, const run_config& c, const memory_shapes& s) {
  if (c.eval.every == 0) return;
  const uint64_t element = c.checkpoint.export_dtype == "bf16" ? 2 : sizeof(float);
  const evaluation_memory e =
      memory_of(s.target,
                s.drafter,
                c.loss,
                s.dtype,
                c.data.row_tokens,
                c.data.anchors,
                static_cast<uint64_t>(drafter_parameter_count(s.drafter)) * element,
                s.evaluation);
  add(host, "evaluation's drafter", e.drafter, "as it decodes, and as it is scored");
  add(host, "evaluation at work", e.passing(), "a checkpoint is read, a row scored, answers made");
  add(host,
      "evaluation's states",
      s.evaluation.kept_bytes + s.evaluation.made_again_bytes,
      "hidden states of held-out text and answers");
}

// While the target is loaded its files are mapped beside the copies that are made of them, and one
// tensor is there twice. What comes later takes their place, or part of it.
void add_loading(memory_place& host, const run_config& c, const memory_shapes& s) {
  uint64_t kept = 0;
  for (const memory_part& p : host.parts)
    if (p.name == "program and libraries" || p.name == "target weights" || p.name == "packed head")
      kept += p.bytes;
  const uint64_t table = static_cast<uint64_t>(s.target.vocab) *
                         static_cast<uint64_t>(s.target.hidden) *
                         c10::elementSize(scalar_type(s.dtype));
  const uint64_t loading = kept + s.target_file_bytes + table, later = host.total();
  if (!c.target.path.empty() && loading > later)
    add(host,
        "loading",
        loading - later,
        "the target's files beside its weights, beyond what training takes later");
}

memory_place host_of(const run_config& c,
                     const memory_shapes& s,
                     const pipeline_limits& limits,
                     const std::map<std::string, lane_count>& places) {
  memory_place host{
      "host", {}, c.layout.host_memory > 0 ? c.layout.host_memory : host_memory_bytes()};
  const auto found = places.find("");
  const lane_count here = found == places.end() ? lane_count{} : found->second;
  add(host, "program and libraries", program_bytes);
  add(host,
      "lanes",
      lane_bytes * (here.targets + here.drafters + (c.eval.every > 0 ? 1 : 0)),
      "threads, scratch of products");
  if (here.targets + here.drafters > 0)
    add_models(host, c, s, here, true);
  else
    add_borrowed(host, c, s);
  add_snapshot(host, c, s);
  add_evaluation(host, c, s);
  lane_count gpus;  // their slots have memory of their own
  for (const auto& [name, lanes] : places) {
    if (name.empty()) continue;
    gpus.targets += lanes.targets;
    gpus.drafters += lanes.drafters;
  }
  add(host,
      "hidden states",
      limits.total_bytes() - gpus.targets * limits.postprocess_bytes() -
          gpus.drafters * limits.drafter_bytes(),
      fmt::format("{} x {} at drafters, {} x {} captures",
                  limits.drafters - gpus.drafters,
                  limits.drafter_batches,
                  limits.targets + limits.readers - gpus.targets,
                  limits.capture_slots));
  const uint64_t ahead = limits.targets + limits.readers + 2;
  const uint64_t batch =
      static_cast<uint64_t>(c.data.row_tokens) * 5 + static_cast<uint64_t>(c.data.anchors) * 9;
  add(host,
      "tokens",
      (ahead + limits.total_bytes() / std::max<uint64_t>(1, limits.batch_bytes)) * batch +
          s.shard_bytes,
      fmt::format("shards, {} batches read ahead", ahead));
  if (here.targets + here.drafters > 0) add_loading(host, c, s);
  return host;
}

memory_place gpu_of(const std::string& name,
                    const lane_count& lanes,
                    const run_config& c,
                    const memory_shapes& s,
                    const pipeline_limits& limits) {
  memory_place gpu{name, {}, c.layout.device_memory};
  add(gpu, "CUDA context", cuda_context_bytes, "libraries and workspaces, not measured");
  add_models(gpu, c, s, lanes, false);
  add(gpu,
      "hidden states",
      lanes.targets * limits.postprocess_bytes() + lanes.drafters * limits.drafter_bytes(),
      fmt::format("{} captures, {} batches at drafters",
                  lanes.targets * limits.capture_slots,
                  lanes.drafters * limits.drafter_batches));
  return gpu;
}

bool fits(const run_config& c, const memory_shapes& s) {
  const auto places = memory_plan(c, s);
  return std::all_of(places.begin(), places.end(), [](const auto& p) { return p.fits(); });
}

// The largest value in [least, most] in steps of `step` below `most` for which the layout fits.
std::optional<uint64_t> largest_that_fits(uint64_t least,
                                          uint64_t most,
                                          uint64_t step,
                                          const std::function<bool(uint64_t)>& good) {
  if (least > most || !good(least)) return std::nullopt;
  uint64_t low = 0, high = (most - least) / step;  // low fits
  while (low < high) {
    const uint64_t middle = (low + high + 1) / 2;
    if (good(least + middle * step))
      low = middle;
    else
      high = middle - 1;
  }
  return least + low * step;
}

}  // namespace

memory_shapes memory_shapes_of(const run_config& config,
                               const target_config& target,
                               const drafter_config& drafter,
                               compute_dtype dtype,
                               int64_t rows) {
  namespace fs = std::filesystem;
  memory_shapes s{target, drafter, dtype, 0, 0, rows, {}};
  std::error_code ignored;
  const auto add = [&](uint64_t& sum, const fs::path& file) {
    const auto size = fs::file_size(file, ignored);
    if (!ignored) sum += size;
  };
  for (const auto& file : fs::directory_iterator(config.target.path, ignored))
    if (file.path().extension() == ".safetensors") add(s.target_file_bytes, file.path());
  for (const auto& shard : config.data.train) add(s.shard_bytes, shard);
  return s;
}

uint64_t memory_place::total() const {
  uint64_t sum = 0;
  for (const memory_part& p : parts) sum += p.bytes;
  return sum;
}

std::vector<memory_place> memory_plan(const run_config& c, const memory_shapes& s) {
  const pipeline_limits limits = limits_of(c, s);
  const auto lanes = lanes_of(c);
  std::vector<memory_place> places = {host_of(c, s, limits, lanes)};
  for (const auto& [name, count] : lanes)
    if (!name.empty()) places.push_back(gpu_of(name, count, c, s, limits));
  return places;
}

std::string smallest_change(const run_config& config, const memory_shapes& s) {
  run_config c = config;
  // Room for hidden states costs nothing but speed: first.
  const pipeline_limits limits = limits_of(c, s);
  const uint64_t floor =
      (uint64_t{limits.drafters} + limits.targets + limits.readers) * limits.batch_bytes;
  const auto budget = largest_that_fits(
      floor, limits.total_bytes(), std::max<uint64_t>(1, limits.batch_bytes), [&](uint64_t bytes) {
        c.layout.max_in_flight = bytes;
        return fits(c, s);
      });
  if (budget) return fmt::format("layout.max_in_flight = \"{}\"", *budget);
  c = config;
  const auto targets = largest_that_fits(1, c.layout.targets.size() - 1, 1, [&](uint64_t n) {
    c.layout.targets.assign(config.layout.targets.begin(),
                            config.layout.targets.begin() + static_cast<ptrdiff_t>(n));
    return fits(c, s);
  });
  if (config.layout.targets.size() > 1 && config.data.hidden_states.empty() && targets)
    return fmt::format(
        "run {} of the {} targets (layout.targets)", *targets, config.layout.targets.size());
  c = config;
  const auto anchors =
      largest_that_fits(1, static_cast<uint64_t>(c.data.anchors), 1, [&](uint64_t n) {
        c.data.anchors = static_cast<int64_t>(n);
        return fits(c, s);
      });
  if (anchors) return fmt::format("data.anchors = {}", *anchors);
  c = config;
  const auto least_row = static_cast<uint64_t>(std::max<int64_t>(64, s.drafter.block_size));
  const auto tokens =
      largest_that_fits(least_row, static_cast<uint64_t>(c.data.row_tokens), 64, [&](uint64_t n) {
        c.data.row_tokens = static_cast<int64_t>(n);
        return fits(c, s);
      });
  if (tokens) return fmt::format("data.row_tokens = {}", *tokens);
  c = config;
  const auto drafters = largest_that_fits(1, c.layout.drafters.size() - 1, 1, [&](uint64_t n) {
    c.layout.drafters.assign(config.layout.drafters.begin(),
                             config.layout.drafters.begin() + static_cast<ptrdiff_t>(n));
    return fits(c, s);
  });
  if (config.layout.drafters.size() > 1 && drafters)
    return fmt::format(
        "run {} of the {} drafters (layout.drafters; another number of drafters is "
        "another run)",
        *drafters,
        config.layout.drafters.size());
  return {};
}

void check_memory(const run_config& config, const memory_shapes& shapes) {
  for (const memory_place& place : memory_plan(config, shapes)) {
    if (place.fits()) continue;
    const std::string change = smallest_change(config, shapes);
    const char* key = place.name == "host" ? "layout.host_memory" : "layout.device_memory";
    throw error(fmt::format("the layout needs {} of memory on {}, which has {}",
                            bytes_text(place.total()),
                            place.name == "host" ? "this host" : place.name,
                            bytes_text(place.limit_bytes)),
                key,
                (change.empty() ? std::string("no smaller row, layout or budget of this run fits")
                                : change + " is the smallest change that fits") +
                    "; dflash plan shows the parts");
  }
}

std::string memory_table(const std::vector<memory_place>& places) {
  std::string text;
  for (const memory_place& place : places) {
    const std::string limit =
        place.limit_bytes > 0
            ? fmt::format(
                  " of {}{}", bytes_text(place.limit_bytes), place.fits() ? "" : ": DOES NOT FIT")
            : "";
    text += fmt::format("  {:<24} {:>9}{}\n", place.name, bytes_text(place.total()), limit);
    for (const memory_part& p : place.parts)
      text += fmt::format("    {:<22} {:>9}{}{}\n",
                          p.name,
                          bytes_text(p.bytes),
                          p.note.empty() ? "" : "  ",
                          p.note);
  }
  return text;
}

uint64_t host_memory_bytes() {
  const auto pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  uint64_t bytes =
      pages > 0 && size > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(size) : 0;
  for (const char* file :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    uint64_t limit = 0;  // "max" is no number
    if (std::ifstream(file) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

uint64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

}  // namespace dflash
