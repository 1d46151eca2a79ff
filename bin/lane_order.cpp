#include "bin/lane_order.hpp"

#include <ATen/Version.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <hwy/targets.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "actors/lane_protocol.hpp"
#include "bin/version.hpp"
#include "config/error.hpp"
#include "data/files.hpp"
#include "device/packed_linear.hpp"

namespace dflash {

namespace {

using nlohmann::json;

constexpr int64_t max_draft_ids = int64_t{1} << 24;
constexpr size_t max_state = 65536;

// Both directions of the scalar members, by one list.
template <class Config, class Visit>
void each_member(Config& c, const Visit& visit) {
  visit("layers", c.layers);
  visit("hidden", c.hidden);
  visit("intermediate", c.intermediate);
  visit("heads", c.heads);
  visit("kv_heads", c.kv_heads);
  visit("head_dim", c.head_dim);
  visit("target_hidden", c.target_hidden);
  visit("vocab", c.vocab);
  visit("block_size", c.block_size);
  visit("mask_token_id", c.mask_token_id);
  visit("sliding_window", c.sliding_window);
  visit("num_target_layers", c.num_target_layers);
  visit("max_positions", c.max_positions);
  visit("rope_theta", c.rope_theta);
  visit("rms_eps", c.rms_eps);
  visit("taps", c.taps);
  visit("sliding", c.sliding);
}

json json_of(const drafter_config& c) {
  json out;
  each_member(c, [&](const char* name, const auto& value) { out[name] = value; });
  if (c.causal) out["causal"] = *c.causal;
  return out;
}

drafter_config config_of(const json& from) {
  drafter_config c;
  each_member(c, [&](const char* name, auto& value) { from.at(name).get_to(value); });
  if (from.contains("causal")) c.causal = from.at("causal").get<bool>();
  return c;
}

}  // namespace

wire_message encode_order(const lane_order& o) {
  wire_message m;
  m.method = lane_call::build;
  m.body = json{{"purpose", o.purpose},
                {"config", to_toml(o.config)},
                {"dtype", name_of(o.dtype)},
                {"drafter", json_of(o.drafter)},
                {"last", o.last},
                {"total_steps", o.total_steps},
                {"target_hash", o.target_hash}}
               .dump(-1, ' ', false, json::error_handler_t::replace);
  m.tensors = {at::from_blob(const_cast<int32_t*>(o.drafter.draft_ids.data()),
                             {static_cast<int64_t>(o.drafter.draft_ids.size())},
                             at::TensorOptions().dtype(at::kInt))};
  return m;
}

lane_order decode_order(const wire_message& m) {
  const json body = json::parse(m.body, nullptr, false);
  lane_order o;
  try {
    o.purpose = body.at("purpose").get<std::string>();
    o.config = parse_run_text(body.at("config").get<std::string>(), "the run's configuration");
    o.dtype = choose_compute_dtype(body.at("dtype").get<std::string>());
    o.drafter = config_of(body.at("drafter"));
    o.last = body.at("last").get<bool>();
    o.total_steps = body.at("total_steps").get<uint64_t>();
    o.target_hash = body.at("target_hash").get<std::string>();
  } catch (const json::exception& e) {
    throw std::runtime_error(std::string("the order of a lane cannot be read: ") + e.what());
  }
  validate(o.config);
  if (m.tensors.size() != 1 || m.tensors[0].dim() != 1 || m.tensors[0].scalar_type() != at::kInt ||
      !m.tensors[0].is_contiguous() || m.tensors[0].numel() > max_draft_ids)
    throw std::runtime_error("the draft vocabulary is of another type or shape");
  o.drafter.draft_ids.resize(static_cast<size_t>(m.tensors[0].numel()));
  if (!o.drafter.draft_ids.empty())
    std::memcpy(o.drafter.draft_ids.data(), m.tensors[0].const_data_ptr(), m.tensors[0].nbytes());
  for (size_t i = 0; i < o.drafter.draft_ids.size(); ++i)
    if (o.drafter.draft_ids[i] < 0 || o.drafter.draft_ids[i] >= o.drafter.vocab ||
        (i > 0 && o.drafter.draft_ids[i] <= o.drafter.draft_ids[i - 1]))
      throw std::runtime_error("the draft vocabulary does not rise within the target's");
  return o;
}

std::string encode_answer(const order_answer& answer) {
  json names = json::array();
  for (const auto& [name, sizes] : answer.state)
    names.push_back({{"name", name}, {"sizes", sizes}});
  return json{{"wants_model", answer.wants_model}, {"state", names}}.dump();
}

order_answer decode_answer(const std::string& text) {
  order_answer answer;
  try {
    const json body = json::parse(text);
    answer.wants_model = body.at("wants_model").get<bool>();
    if (body.at("state").size() > max_state)
      throw std::runtime_error("a state of too many tensors");
    for (const json& one : body.at("state")) {
      auto sizes = one.at("sizes").get<std::vector<int64_t>>();
      int64_t elements = 1;
      for (const int64_t size : sizes)
        if (size < 0 || __builtin_mul_overflow(elements, size, &elements))
          throw std::runtime_error("a state of impossible size");
      answer.state.emplace_back(one.at("name").get<std::string>(), std::move(sizes));
    }
  } catch (const json::exception& e) {
    throw std::runtime_error(std::string("the answer of a lane cannot be read: ") + e.what());
  }
  return answer;
}

node_greeting own_greeting() {
  node_greeting g;
  g.version = program_version();
  // Keys, their ranges and meanings: what a configuration says must be read alike.
  const std::string reference = reference_markdown();
  g.agreement =
      fmt::format("{:08x}", crc32c(std::as_bytes(std::span(reference.data(), reference.size()))));
  const int64_t targets = hwy::SupportedTargets();
  g.cpu = fmt::format("ATen {}, kernels {}{}",
                      at::get_cpu_capability(),
                      hwy::TargetName(targets & -targets),
                      cpu_has_bf16_product() ? ", bf16" : "");
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"})
    if (const char* value = std::getenv(name)) g.cpu += fmt::format(", {}={}", name, value);
  return g;
}

}  // namespace dflash
