#include "actors/remote_lane.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <set>
#include <stdexcept>
#include <utility>

namespace dflash {

namespace {

// One text asked, one answered, in a finite time.
template <class Atom>
std::string ask(caf::scoped_actor& self,
                const node_actor& node,
                const network_settings& network,
                Atom question,
                const std::string& text) {
  std::string answer, problem;
  self->request(node, caf::duration{network.timeout}, question, text)
      .receive([&](const std::string& m) { answer = m; },
               [&](const caf::error& e) { problem = self->system().render(e); });
  if (!problem.empty()) throw std::runtime_error("the node does not answer: " + problem);
  return answer;
}

node_actor node_at(caf::scoped_actor& self,
                   const node_contact& contact,
                   const network_settings& network) {
  if (contact.joined) return contact.joined;
  std::set<std::string> types;
  const auto found = find_published(self, contact.address, network, types);
  // Other interfaces are of other versions: whoever it is, he can still say which one.
  return caf::actor_cast<node_actor>(found);
}

}  // namespace

node_actor greet_node(caf::scoped_actor& self,
                      const node_contact& contact,
                      const network_settings& network,
                      const node_greeting& here,
                      node_greeting& there) {
  const node_actor node = node_at(self, contact, network);
  // A handle of CAF's is worth something only once it has answered.
  there = parse_greeting(ask(self, node, network, hello_atom_v, to_json(here)));
  if (const std::string why = disagreement(here, there); !why.empty())
    throw std::runtime_error(why);
  return node;
}

remote_lane::remote_lane(remote_lane_options options)
    : options_(std::move(options)),
      place_(std::make_shared<lane_place>(options_.node + "/" + options_.lane)) {}

remote_lane::~remote_lane() {
  close();
}

void remote_lane::close() {
  data_.reset();
  borrower_.reset();
  if (place_->now() == lane_place::condition::connected) place_->set(lane_place::condition::apart);
}

void remote_lane::lose(const std::string& why) {
  const bool was_connected = place_->now() == lane_place::condition::connected;
  close();
  place_->set(lane_place::condition::lost);
  throw std::runtime_error(
      fmt::format("{}{}: {}", place_->name(), was_connected ? " is lost" : "", why));
}

void remote_lane::connect() {
  if (data_ && data_->is_open()) return;
  data_.reset();
  borrower_.reset();
  try {
    const auto contact = options_.nodes->find(options_.node);
    if (!contact) throw std::runtime_error("this node has not joined, or has left");
    borrower_ = std::make_unique<caf::scoped_actor>(*options_.system);
    const node_actor node =
        greet_node(*borrower_, *contact, options_.network, options_.self, there_);
    const lend_answer lent = parse_lend_answer(
        ask(*borrower_,
            node,
            options_.network,
            lend_atom_v,
            to_json(lend_request{options_.self, options_.lane, options_.purpose})));
    if (!lent.refused.empty()) throw std::runtime_error(lent.refused);
    data_.emplace(wire_client::connect({contact->address.host, lent.port},
                                       options_.network.security,
                                       options_.network.data_limits(),
                                       lent.token));
    if (options_.prepare) options_.prepare(*data_);
  } catch (const std::exception& e) {
    lose(e.what());
  }
  if (place_->now() == lane_place::condition::lost)
    spdlog::info("{} answers again", place_->name());
  place_->set(lane_place::condition::connected);
}

wire_message remote_lane::call(const wire_message& request, const tensor_places& into) {
  connect();
  try {
    return data_->call(request, into);
  } catch (const wire_lost& e) {
    lose(e.what());
  } catch (const wire_refused& e) {
    throw std::runtime_error(place_->name() + " refuses " + request.method + ": " + e.what());
  }
}

}  // namespace dflash
