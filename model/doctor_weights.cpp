// Checks on a drafter's model.safetensors.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "config/error.hpp"
#include "model/doctor.hpp"
#include "model/folder.hpp"

namespace dflash {

namespace {

finding of(const char* check,
           health level,
           std::string what,
           std::string why = {},
           std::string mend = {}) {
  return {.check = check,
          .level = level,
          .what = std::move(what),
          .why = std::move(why),
          .mend = std::move(mend)};
}

struct tensor_values {
  int64_t count = 0, not_finite = 0, zeros = 0;
  double mean = 0, deviation = 0;
};

template <class T>
tensor_values values_of(std::span<const std::byte> bytes) {
  tensor_values v;
  v.count = static_cast<int64_t>(bytes.size() / sizeof(T));
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < v.count; ++i) {
    T stored;
    std::memcpy(&stored, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    const auto x = static_cast<double>(static_cast<float>(stored));
    if (!std::isfinite(x)) {
      ++v.not_finite;
      continue;
    }
    v.zeros += x == 0 ? 1 : 0;
    sum += x;
    squares += x * x;
  }
  const auto n = static_cast<double>(std::max<int64_t>(1, v.count));
  v.mean = sum / n;
  v.deviation = std::sqrt(std::max(0.0, squares / n - v.mean * v.mean));
  return v;
}

tensor_values values_of(const safetensors_file& file, const st_tensor& t) {
  const auto bytes = file.bytes(t);
  switch (t.dtype) {
    case st_dtype::bf16:
      return values_of<c10::BFloat16>(bytes);
    case st_dtype::f16:
      return values_of<c10::Half>(bytes);
    case st_dtype::f32:
      return values_of<float>(bytes);
    case st_dtype::f64:
      return values_of<double>(bytes);
    default:
      return {};
  }
}

bool is_norm(const std::string& name) {
  return name.find("norm") != std::string::npos;
}

bool is_borrowed(const std::string& name) {
  return name == "embed_tokens.weight" || name == "lm_head.weight" || name == "d2t" ||
         name == "t2d";
}

finding check_tensors(const doctor_files& f) {
  drafter_config config;
  try {
    config = read_drafter_config(f.drafter_folder);
  } catch (const error& problem) {
    return of("tensors",
              health::warn,
              "names and shapes were not compared",
              "config.json does not say what they should be: " + problem.what_,
              "mend config.json first");
  }
  std::vector<std::string> wrong;
  std::set<std::string> known;
  for (const named_shape& expected : drafter_tensor_shapes(config)) {
    known.insert(expected.name);
    const st_tensor* found = f.weights.find(expected.name);
    if (found == nullptr)
      wrong.push_back(expected.name + " is missing");
    else if (found->shape != expected.shape)
      wrong.push_back(fmt::format("{} is {}, wanted is [{}]",
                                  expected.name,
                                  found->shape_text(),
                                  fmt::join(expected.shape, ", ")));
  }
  for (const st_tensor& t : f.weights.tensors())
    if (!known.contains(t.name) && !is_borrowed(t.name)) wrong.push_back(t.name + " is unknown");
  if (wrong.empty())
    return of(
        "tensors", health::ok, fmt::format("all {} of {} layers", known.size(), config.layers));
  const size_t shown = std::min<size_t>(wrong.size(), 3);
  return of("tensors",
            health::fail,
            fmt::format("{}{}",
                        fmt::join(std::span(wrong).first(shown), "; "),
                        wrong.size() > shown ? fmt::format(" and {} more", wrong.size() - shown)
                                             : std::string()),
            "engines drop what they do not know and leave at random what they do not find, without "
            "a word",
            "export the drafter again, or mend config.json if it describes another one");
}

finding check_dtype(const doctor_files& f) {
  std::set<std::string> stored;
  for (const st_tensor& t : f.weights.tensors())
    if (!is_borrowed(t.name)) stored.emplace(dtype_name(t.dtype));
  const auto list = fmt::format("{}", fmt::join(stored, ", "));
  std::set<std::string> good = {"BF16", "F32"};
  for (const auto& type : stored)
    if (!good.contains(type))
      return of("dtype",
                type == "F16" ? health::warn : health::fail,
                "weights are " + list,
                "bf16 values can lie outside of other small types",
                "export in bf16 or fp32");
  if (stored.size() > 1)
    return of("dtype",
              health::warn,
              "weights are " + list,
              "engines load all in one type",
              "export again: dflash export --dtype bf16");
  const std::map<std::string, std::string> names = {{"bfloat16", "BF16"}, {"float32", "F32"}};
  const std::string said =
      f.config.get_string("dtype", f.config.get_string("torch_dtype", std::string()));
  const auto known = names.find(said);
  if (known != names.end() && !stored.contains(known->second))
    return of("dtype",
              health::warn,
              "config.json says " + said + ", the weights are " + list,
              "engines convert at load, one of the two is a mistake",
              "export again");
  return of("dtype", health::ok, list);
}

finding check_values(const doctor_files& f) {
  bool norms_move = false, any_norm = false;
  for (const st_tensor& t : f.weights.tensors()) {
    if (is_borrowed(t.name)) continue;
    const tensor_values v = values_of(f.weights, t);
    if (v.count == 0) continue;
    if (v.not_finite > 0)
      return of(
          "weights",
          health::fail,
          fmt::format("{} has {} of {} values that are not finite", t.name, v.not_finite, v.count),
          is_norm(t.name) ? "a norm weight that went NaN in training: bf16 masters at a high "
                            "learning rate do that"
                          : "the training diverged, or the file was damaged",
          "take an earlier checkpoint; train with fp32 masters and a finite check of the "
          "gradient");
    if (v.zeros == v.count)
      return of("weights",
                health::fail,
                t.name + " is all zeros",
                "the tensor was never written, loaded or trained",
                "export again; compare the names of the tensors with those of the checkpoint");
    const bool constant = v.deviation <= 1e-6 * std::max(std::abs(v.mean), 1e-30);
    any_norm |= is_norm(t.name);
    norms_move |= is_norm(t.name) && !constant;
    if (!is_norm(t.name) && constant)
      return of("weights",
                health::fail,
                fmt::format("{} is {:.3g} everywhere", t.name, v.mean),
                "a matrix whose values are all the same carries nothing",
                "export again from a good checkpoint");
  }
  if (any_norm && !norms_move)
    return of("weights",
              health::warn,
              "every norm weight is constant, as at the start of training",
              "the drafter was hardly trained, or its norms were frozen",
              "train it");
  return of("weights", health::ok, "finite, none of them zero or constant");
}

finding check_head(const doctor_files& f) {
  const std::pair<const char*, const char*> parts[] = {
      {"embed_tokens.weight", "model.embed_tokens.weight"}, {"lm_head.weight", "lm_head.weight"}};
  if (f.weights.find("d2t") != nullptr || f.weights.find("t2d") != nullptr)
    return of("head",
              health::warn,
              "the drafter has a vocabulary of its own (d2t, t2d)",
              "its head is not the target's, and this program does not try it",
              "serve it with an engine that maps pruned vocabularies");
  const auto target = model_folder::open(f.target_folder);
  for (const auto& [mine, theirs] : parts) {
    const st_tensor* own = f.weights.find(mine);
    if (own == nullptr) continue;
    const bool tied = std::string_view(theirs) == "lm_head.weight" && !target.has(theirs);
    const std::string name = tied ? parts[0].second : theirs;
    if (!target.has(name)) continue;
    if (own->shape != target.info(name).shape)
      return of("head",
                health::fail,
                fmt::format("{} of the drafter is {}, the target's {}",
                            mine,
                            own->shape_text(),
                            target.info(name).shape_text()),
                "the head is not shared because (padded) sizes differ: acceptance is 0 although "
                "the weights are right",
                "remove the tensor: the target's own is used");
    return of("head",
              health::warn,
              fmt::format("the drafter carries a copy of {}", mine),
              "engines use the copy instead of the target's own: memory, and stale if the target "
              "was tuned",
              "remove the tensor, or export in z-lab's form");
  }
  return of("head", health::ok, "embedding and head are the target's");
}

}  // namespace

std::vector<finding> check_weights(const doctor_files& files) {
  return {check_tensors(files), check_dtype(files), check_values(files), check_head(files)};
}

finding check_target_hash(const doctor_files& files, const std::string& target_hash) {
  const auto& metadata = files.weights.metadata();
  const auto stored = metadata.find("target_hash");
  if (stored == metadata.end())
    return of("target",
              health::ok,
              "the drafter does not name its target: " + target_hash + " is not compared");
  if (stored->second == target_hash)
    return of("target", health::ok, "trained for this target, " + target_hash);
  return of("target",
            health::warn,
            fmt::format("trained for target {}, this one is {}", stored->second, target_hash),
            "a drafter of the base model often does badly on a tuned one",
            "believe the measured acceptance below; train on for this target if it is low");
}

doctor_files open_doctor_files(const std::filesystem::path& target_folder,
                               const std::filesystem::path& drafter_folder) {
  return {target_folder,
          drafter_folder,
          read_target_config(target_folder),
          json_file::open(drafter_folder / "config.json"),
          safetensors_file::open(drafter_folder / "model.safetensors")};
}

std::optional<drafter_config> triable_config(const doctor_files& f) {
  try {
    drafter_config c = read_drafter_config(f.drafter_folder);
    c.vocab = f.target.vocab;
    c.num_target_layers = f.target.layers;
    check_drafter_fits(c, f.target, f.drafter_folder.string());
    return c;
  } catch (const error&) {  // named by the other checks
    return std::nullopt;
  }
}

}  // namespace dflash
