#include "messages/node_greeting.hpp"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace dflash {

namespace {

using nlohmann::json;

constexpr size_t max_lanes = 4096;
constexpr size_t max_text = 4096;

json read(std::string_view text) {
  if (text.size() > max_greeting_bytes) throw std::runtime_error("it is too long");
  json value = json::parse(text, nullptr, false);
  if (!value.is_object()) throw std::runtime_error("it is no JSON object");
  return value;
}

std::string text_of(const json& from, const char* key) {
  const auto found = from.find(key);
  if (found == from.end()) return {};
  if (!found->is_string()) throw std::runtime_error(std::string(key) + " is no text");
  std::string text = found->get<std::string>();
  if (text.size() > max_text) throw std::runtime_error(std::string(key) + " is too long");
  return text;
}

uint64_t number_of(const json& from, const char* key, uint64_t most) {
  const auto found = from.find(key);
  if (found == from.end()) return 0;
  if (!found->is_number_unsigned() || found->get<uint64_t>() > most)
    throw std::runtime_error(std::string(key) + " is no number up to " + std::to_string(most));
  return found->get<uint64_t>();
}

// Bytes of another encoding become question marks: names of folders may be anything.
std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

json json_of(const node_greeting& g) {
  return {{"dflash", g.version},
          {"protocol", g.protocol},
          {"agreement", g.agreement},
          {"cpu", g.cpu},
          {"name", g.name},
          {"lanes", g.lanes}};
}

node_greeting greeting_of(const json& from) {
  node_greeting g;
  g.version = text_of(from, "dflash");
  g.protocol = static_cast<uint32_t>(number_of(from, "protocol", UINT32_MAX));
  g.agreement = text_of(from, "agreement");
  g.cpu = text_of(from, "cpu");
  g.name = text_of(from, "name");
  if (const auto lanes = from.find("lanes"); lanes != from.end()) {
    if (!lanes->is_array() || lanes->size() > max_lanes)
      throw std::runtime_error("lanes are no list");
    for (const json& lane : *lanes) {
      if (!lane.is_string() || lane.get_ref<const std::string&>().size() > 64)
        throw std::runtime_error("a lane is no text");
      g.lanes.push_back(lane.get<std::string>());
    }
  }
  return g;
}

std::string who(const node_greeting& g) {
  return "dflash " + (g.version.empty() ? std::string("of an unknown version") : g.version) +
         " (protocol " + std::to_string(g.protocol) + ", agreement " + g.agreement + ")";
}

}  // namespace

std::string to_json(const node_greeting& greeting) {
  return dump(json_of(greeting));
}

node_greeting parse_greeting(std::string_view text) {
  return greeting_of(read(text));
}

std::string disagreement(const node_greeting& here, const node_greeting& there) {
  if (here.version == there.version && here.protocol == there.protocol &&
      here.agreement == there.agreement)
    return {};
  return "the versions differ: " + who(here) + " here, " + who(there) +
         " there; use one version on all hosts";
}

std::string to_json(const lend_request& request) {
  return dump(json{{"borrower", json_of(request.borrower)},
                   {"lane", request.lane},
                   {"purpose", request.purpose}});
}

lend_request parse_lend_request(std::string_view text) {
  const json from = read(text);
  lend_request request;
  const auto borrower = from.find("borrower");
  if (borrower == from.end() || !borrower->is_object())
    throw std::runtime_error("nobody is said to borrow");
  request.borrower = greeting_of(*borrower);
  request.lane = text_of(from, "lane");
  request.purpose = text_of(from, "purpose");
  return request;
}

std::string to_json(const lend_answer& answer) {
  return dump(json{{"refused", answer.refused}, {"port", answer.port}, {"token", answer.token}});
}

lend_answer parse_lend_answer(std::string_view text) {
  const json from = read(text);
  return {text_of(from, "refused"),
          static_cast<uint16_t>(number_of(from, "port", UINT16_MAX)),
          text_of(from, "token")};
}

}  // namespace dflash
