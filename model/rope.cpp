#include "model/rope.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>

#include "config/error.hpp"

namespace dflash {
namespace {

constexpr std::array<std::string_view, 16> known_keys = {"rope_type",
                                                         "type",
                                                         "rope_theta",
                                                         "factor",
                                                         "low_freq_factor",
                                                         "high_freq_factor",
                                                         "beta_fast",
                                                         "beta_slow",
                                                         "attention_factor",
                                                         "original_max_position_embeddings",
                                                         "mscale",
                                                         "mscale_all_dim",
                                                         "truncate",
                                                         "partial_rotary_factor",
                                                         "mrope_section",
                                                         "mrope_interleaved"};

double positive(const config_reader& r, const std::string& key, double value) {
  if (!(value > 0) || !std::isfinite(value))
    throw error(fmt::format("{} is {}, expected a number above 0", r.key(key), value),
                r.where(key),
                "take the file that belongs to this model");
  return value;
}

rope_type type_of(const config_reader& r, const std::string& block) {
  const std::string newer = block + ".rope_type", older = block + ".type";
  // For text, the three positions of m-rope are one number: plain frequencies.
  const auto plain = [](const std::string& name) { return name == "mrope" ? "default" : name; };
  const std::string given = plain(r.text(older, "default"));
  const std::string name = plain(r.text(newer, given));
  if (r.has(newer) && r.has(older) && name != given)
    throw error(
        fmt::format("{} is \"{}\" and {} is \"{}\"", r.key(newer), name, r.key(older), given),
        r.where(older),
        "keep the one that the model was trained with");
  if (name == "default") return rope_type::plain;
  if (name == "linear") return rope_type::linear;
  if (name == "llama3") return rope_type::llama3;
  if (name == "yarn") return rope_type::yarn;
  r.refuse(r.has(newer) ? newer : older,
           fmt::format("rotary positions of type \"{}\" are not supported (known: default, linear, "
                       "llama3, yarn)",
                       name));
}

double magnitude(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

// arXiv 2309.00071, 3.4; the pair of mscale keys as DeepSeek's files use it.
double yarn_attention(const config_reader& r, const std::string& block, double factor) {
  if (r.has(block + ".attention_factor"))
    return positive(r, block + ".attention_factor", r.real(block + ".attention_factor", 1));
  const double one = r.real(block + ".mscale", 0), all = r.real(block + ".mscale_all_dim", 0);
  if (one != 0 && all != 0) return magnitude(factor, one) / magnitude(factor, all);
  return magnitude(factor, 1);
}

void read_scaling(const config_reader& r,
                  const std::string& block,
                  int64_t max_positions,
                  rope_config& out) {
  const auto at = [&](const char* name) { return block + "." + name; };
  if (out.type == rope_type::plain) return;
  if (!r.has(at("factor")))
    throw error(fmt::format("{} is missing", r.key(at("factor"))),
                r.where(block),
                "take the file that belongs to this model");
  out.factor = positive(r, at("factor"), r.real(at("factor"), 1));
  if (out.type == rope_type::linear) return;
  const char* original = "original_max_position_embeddings";
  out.original_positions =
      positive(r, at(original), r.real(at(original), static_cast<double>(max_positions)));
  if (out.type == rope_type::llama3) {
    out.low_frequency = positive(r, at("low_freq_factor"), r.real(at("low_freq_factor"), 1));
    out.high_frequency = positive(r, at("high_freq_factor"), r.real(at("high_freq_factor"), 4));
    if (out.high_frequency <= out.low_frequency)
      throw error(fmt::format("{} must be above low_freq_factor", r.key(at("high_freq_factor"))),
                  r.where(at("high_freq_factor")));
    return;
  }
  const auto or_default = [&](const char* name, double value) {
    const double given = r.real(at(name), 0);
    return given == 0 ? value : positive(r, at(name), given);
  };
  out.beta_fast = or_default("beta_fast", 32);
  out.beta_slow = or_default("beta_slow", 1);
  out.truncate = r.flag(at("truncate"), true);
  out.attention_factor = yarn_attention(r, block, out.factor);
}

void note_unknown_keys(const config_reader& r,
                       const std::string& block,
                       std::vector<std::string>& notes) {
  const auto* object = r.file().find(r.key(block));
  if (!object) return;
  if (!object->is_object())
    throw error(fmt::format("\"{}\" is not an object", r.key(block)), r.where(block));
  for (const auto& [name, value] : object->items())
    if (!value.is_object() &&
        std::find(known_keys.begin(), known_keys.end(), name) == known_keys.end())
      notes.push_back(fmt::format("{}: this key is not known and changes nothing",
                                  r.where(block + "." + name)));
}

bool is_filled(const config_reader& r, const std::string& block) {
  const auto* object = r.file().find(r.key(block));
  return object && !(object->is_object() && object->empty());
}

[[noreturn]] void differ(const config_reader& r, const std::string& a, const std::string& b) {
  throw error(fmt::format("{} and {} differ: {} and {}",
                          r.key(a),
                          r.key(b),
                          r.file().find(r.key(a))->dump(),
                          r.file().find(r.key(b))->dump()),
              r.where(a),
              "keep the one that the model was trained with");
}

std::vector<float> plain_frequencies(double theta, int64_t dims) {
  std::vector<float> out;
  for (int64_t i = 0; i < dims / 2; ++i)
    out.push_back(static_cast<float>(
        1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(dims))));
  return out;
}

double llama3_frequency(double frequency, const rope_config& rope) {
  const double turns = rope.original_positions * frequency / (2 * std::numbers::pi);
  if (turns > rope.high_frequency) return frequency;
  if (turns < rope.low_frequency) return frequency / rope.factor;
  const double smooth = (turns - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// The dimension whose wave turns so many times within the original positions.
double yarn_dimension(double turns, const rope_config& rope, int64_t dims) {
  return static_cast<double>(dims) *
         std::log(rope.original_positions / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

}  // namespace

rope_frequencies make_rope(const rope_config& rope, int64_t dims) {
  rope_frequencies out{plain_frequencies(rope.theta, dims),
                       static_cast<float>(rope.attention_factor)};
  double low = 0, high = 0;
  if (rope.type == rope_type::yarn) {
    low = yarn_dimension(rope.beta_fast, rope, dims);
    high = yarn_dimension(rope.beta_slow, rope, dims);
    if (rope.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(dims - 1));
    if (low == high) high += 0.001;
  }
  for (size_t i = 0; i < out.inverse.size(); ++i) {
    const double frequency =
        1.0 / std::pow(rope.theta, 2.0 * static_cast<double>(i) / static_cast<double>(dims));
    if (rope.type == rope_type::linear)
      out.inverse[i] = static_cast<float>(frequency / rope.factor);
    if (rope.type == rope_type::llama3)
      out.inverse[i] = static_cast<float>(llama3_frequency(frequency, rope));
    if (rope.type == rope_type::yarn) {
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      out.inverse[i] = static_cast<float>(frequency / rope.factor * ramp + frequency * (1 - ramp));
    }
  }
  return out;
}

rope_config read_rope_block(const config_reader& r,
                            const std::string& block,
                            double theta,
                            int64_t max_positions,
                            std::vector<std::string>& notes) {
  note_unknown_keys(r, block, notes);
  rope_config out;
  out.theta = positive(r, block + ".rope_theta", r.real(block + ".rope_theta", theta));
  out.type = type_of(r, block);
  read_scaling(r, block, max_positions, out);
  return out;
}

rope_config read_rope(const config_reader& r,
                      const rope_defaults& defaults,
                      int64_t max_positions,
                      std::vector<std::string>& notes) {
  const std::string newer = "rope_parameters", older = "rope_scaling";
  const bool has_newer = is_filled(r, newer), has_older = is_filled(r, older);
  if (has_newer && has_older && *r.file().find(r.key(newer)) != *r.file().find(r.key(older)))
    differ(r, older, newer);
  const std::string& block = has_newer ? newer : older;
  const double top = positive(r, "rope_theta", r.real("rope_theta", defaults.theta));
  rope_config out = read_rope_block(r, block, top, max_positions, notes);
  const std::string nested = block + ".rope_theta";
  if (r.has(nested) && r.has("rope_theta") && top != out.theta) differ(r, "rope_theta", nested);
  if (!r.has(nested) && !r.has("rope_theta"))
    notes.push_back(fmt::format("{}: rope_theta is absent, the base is {:g}, the default of {}",
                                r.file().path().string(),
                                out.theta,
                                r.text("model_type", "its class")));
  const std::string partial = block + ".partial_rotary_factor";
  const double top_partial = r.real("partial_rotary_factor", defaults.partial);
  out.partial = r.real(partial, top_partial);
  if (r.has(partial) && r.has("partial_rotary_factor") && out.partial != top_partial)
    differ(r, "partial_rotary_factor", partial);
  const std::string& stated = r.has(partial) ? partial : "partial_rotary_factor";
  if (!(out.partial > 0 && out.partial <= 1))
    r.refuse(stated, fmt::format("a share of {} of a head cannot be rotated", out.partial));
  if (out.partial != 1 && !defaults.may_be_partial)
    r.refuse(stated, "partly rotated heads are not supported in this family");
  return out;
}

}  // namespace dflash
