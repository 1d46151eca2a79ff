#include "bin/remote_setup.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>

#include "actors/lane_protocol.hpp"
#include "actors/remote_lane.hpp"
#include "actors/remote_work.hpp"
#include "actors/run_watch.hpp"
#include "bin/checkpoint_saver.hpp"
#include "bin/lane_order.hpp"
#include "bin/lane_work.hpp"
#include "bin/model_stream.hpp"
#include "bin/replica_restore.hpp"
#include "config/error.hpp"
#include "model/draft_vocab.hpp"
#include "model/drafter.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

using steady = std::chrono::steady_clock;

constexpr std::chrono::milliseconds try_again{500};

std::vector<lane_name> lanes_of(const std::vector<std::string>& layout) {
  std::vector<lane_name> lanes;
  for (const std::string& lane : layout) lanes.push_back(parse_lane(lane));
  return lanes;
}

// The run's own watch of signals has not begun: they are blocked.
void pause() {
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  if (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1)
    throw std::runtime_error("stopped before it began: it waited for nodes");
  std::this_thread::sleep_for(try_again);
}

// Makes the lanes of one run.
class remote_setup {
public:
  remote_setup(caf::actor_system& system,
               const training_setup& setup,
               const network_settings& network,
               std::shared_ptr<node_directory> nodes,
               const fs::path& checkpoints)
      : system_(system),
        setup_(setup),
        network_(network),
        nodes_(std::move(nodes)),
        checkpoints_(checkpoints),
        until_(steady::now() +
               std::chrono::milliseconds(static_cast<int64_t>(setup.config.net.wait * 1000))),
        self_(own_greeting()) {
    self_.name = setup.config.run.dir + " of " + node_name();
  }

  void add_targets(pipeline_parts& parts) {
    const auto lanes = lanes_of(setup_.config.layout.targets);
    parts.targets_away.resize(parts.targets.size());
    for (size_t i = 0; i < parts.targets.size(); ++i) {
      if (lanes[i].node.empty()) continue;
      const auto lane = borrow(lanes[i], "target", nullptr);
      parts.targets[i] = remote_capture(lane, setup_.parts.shape, is_simulated(setup_.config));
      parts.targets_away[i] = {lane->place(), [lane] { lane->connect(); }};
    }
  }

  void add_drafters(pipeline_parts& parts) {
    const auto lanes = lanes_of(setup_.config.layout.drafters);
    parts.drafters_away.resize(lanes.size());
    std::shared_ptr<drafter_trainer> start;  // whose state the first lives have
    for (size_t i = 0; i < lanes.size(); ++i) {
      if (lanes[i].node.empty()) continue;
      const auto state = std::make_shared<order_answer>();
      remote_drafter_options o;
      o.lane = borrow(lanes[i], "drafter", state);
      o.simulated = is_simulated(setup_.config);
      o.state = state->state;
      o.parameters = o.simulated ? 1 : drafter_parameter_count(setup_.drafter);
      o.alone = lanes.size() == 1;
      o.restore = restore();
      if (i == 0 && !o.simulated) {
        o.write = checkpoint_saver(setup_, checkpoints_);
        o.blank = blank(o.state);
      }
      const auto place = o.lane->place();
      parts.drafters[i] = remote_drafter(std::move(o));
      parts.drafters_away[i] = {place, {}};
      if (is_simulated(setup_.config)) {
        parts.drafters[i].load_state({});
      } else {
        if (!start) start = start_trainer(setup_, start_weights(setup_), setup_.model);
        parts.drafters[i].load_state(state_of(*start));
      }
    }
  }

  void say_what_differs() const {
    for (const auto& [name, there] : greeted_)
      if (there.cpu != self_.cpu)
        spdlog::warn(
            "node {} has another kind of processor ({}) than this host ({}): weights equal to the "
            "bit are promised only for one kind",
            name,
            there.cpu,
            self_.cpu);
  }

private:
  // Waits for the node, then borrows and builds; what the node says no to is the user's mistake.
  std::shared_ptr<remote_lane> borrow(const lane_name& name,
                                      const std::string& purpose,
                                      const std::shared_ptr<order_answer>& answer) {
    wait_for(name.node);
    remote_lane_options o;
    o.system = &system_;
    o.network = network_;
    o.nodes = nodes_;
    o.self = self_;
    o.node = name.node;
    o.lane = name.local();
    o.purpose = purpose;
    o.prepare = [this_setup = &setup_, purpose, answer](wire_client& to) {
      const order_answer got = build(*this_setup, purpose, to);
      if (answer) *answer = got;
    };
    auto lane = std::make_shared<remote_lane>(std::move(o));
    for (std::string said;;) {
      try {
        lane->connect();
        break;
      } catch (const std::exception& e) {
        // A run that just died may still have it.
        const bool passes = std::string(e.what()).find(" has lent ") != std::string::npos;
        if (!passes || steady::now() >= until_)
          throw error(e.what(), key_of(purpose), "see the log of that node");
        if (said != e.what()) spdlog::info("waiting: {}", said = e.what());
        pause();
      }
    }
    return lane;
  }

  static std::string key_of(const std::string& purpose) {
    return purpose == "target" ? "layout.targets" : "layout.drafters";
  }

  // Until it answers, with the right version.
  void wait_for(const std::string& node) {
    if (greeted_.contains(node)) return;
    if (!nodes_->find(node))
      spdlog::info("waiting for node {} to join, {:.0f} s at most", node, setup_.config.net.wait);
    auto contact = nodes_->find(node);
    for (; !contact && steady::now() < until_; contact = nodes_->find(node)) pause();
    if (!contact)
      throw error(fmt::format("node {} is not in layout.nodes and has not joined", node),
                  "layout",
                  "give its address in layout.nodes, or start it with --join and --name " + node);
    for (std::string said;;) {
      try {
        caf::scoped_actor self{system_};
        node_greeting there;
        greet_node(self, nodes_->find(node).value_or(*contact), network_, self_, there);
        greeted_[node] = there;
        spdlog::info("node {} answers: {}", node, fmt::join(there.lanes, ", "));
        return;
      } catch (const std::exception& e) {
        const std::string why = e.what();
        const bool passes = why.find("versions differ") == std::string::npos;
        if (!passes || steady::now() >= until_)
          throw error(fmt::format("node {}: {}", node, why),
                      "layout.nodes, " + contact->address.text(),
                      "is `dflash node` running there?");
        if (said != why)
          spdlog::info("waiting for node {} at {}: {}", node, contact->address.text(), said = why);
        pause();
      }
    }
  }

  static order_answer build(const training_setup& setup,
                            const std::string& purpose,
                            wire_client& to) {
    lane_order order;
    order.purpose = purpose;
    order.config = setup.config;
    order.dtype = setup.dtype;
    order.drafter = setup.drafter;
    order.last = setup.parts.shape.last;
    order.total_steps = setup.parts.plan->total_steps();
    if (setup.model) order.target_hash = setup.model->content_hash();
    order_answer answer = decode_answer(to.call(encode_order(order)).body);
    if (answer.wants_model) {
      spdlog::info("the model is sent to a node that has no copy of it");
      send_model(to, setup.config.target.path);
      answer = decode_answer(to.call(encode_order(order)).body);
      if (answer.wants_model) throw std::runtime_error("the model does not arrive");
    }
    return answer;
  }

  std::function<std::pair<std::shared_ptr<drafter_trainer>, uint64_t>()> restore() const {
    using made = std::pair<std::shared_ptr<drafter_trainer>, uint64_t>;
    if (is_simulated(setup_.config)) return [] { return made{nullptr, 0}; };
    return [setup = &setup_, back = restorer(setup_, checkpoints_)] {
      auto trainer = start_trainer(*setup, start_weights(*setup), setup->model);
      const uint64_t steps = back(*trainer);
      return made{std::move(trainer), steps};
    };
  }

  std::function<trainer_snapshot()> blank(
      std::vector<std::pair<std::string, std::vector<int64_t>>> state) const {
    std::erase_if(state, [](const auto& one) {
      return one.first.starts_with("master.") || one.first.starts_with("ema.");
    });
    const at::Tensor head = setup_.drafter.draft_ids.empty()
                                ? at::Tensor()
                                : draft_head(setup_.model->head().weight(), setup_.drafter);
    return [config = setup_.drafter,
            head,
            average = setup_.config.optim.ema > 0,
            moments = std::move(state)] { return blank_snapshot(config, head, average, moments); };
  }

  caf::actor_system& system_;
  const training_setup& setup_;
  network_settings network_;
  std::shared_ptr<node_directory> nodes_;
  fs::path checkpoints_;
  steady::time_point until_;
  node_greeting self_;
  std::map<std::string, node_greeting> greeted_;
};

}  // namespace

bool has_remote_lanes(const run_config& config) {
  const auto away = [](const std::vector<std::string>& lanes) {
    return std::any_of(lanes.begin(), lanes.end(), [](const std::string& lane) {
      return !parse_lane(lane).node.empty();
    });
  };
  return (config.data.hidden_states.empty() && away(config.layout.targets)) ||
         away(config.layout.drafters);
}

std::shared_ptr<node_directory> nodes_of(const run_config& config,
                                         const network_settings& network) {
  auto nodes = std::make_shared<node_directory>();
  for (const auto& [name, text] : config.layout.nodes) {
    const std::string key = "layout.nodes." + name;
    const wire_address address = parse_wire_address(text, key);
    if (address.port == 0)
      throw error("a node has no port 0: " + text, key, "its --listen address");
    check_exposure(address, network, key);
    nodes->add(name, {address, {}});
  }
  return nodes;
}

void add_remote_lanes(caf::actor_system& system,
                      const training_setup& setup,
                      const network_settings& network,
                      const std::shared_ptr<node_directory>& nodes,
                      const fs::path& checkpoints,
                      pipeline_parts& parts) {
  remote_setup remote(system, setup, network, nodes, checkpoints);
  remote.add_targets(parts);
  remote.add_drafters(parts);
  remote.say_what_differs();
  parts.restart_away.longest_delay = std::chrono::seconds(2);
  parts.restart_away.patience =
      std::chrono::milliseconds(static_cast<int64_t>(setup.config.net.patience * 1000));
}

}  // namespace dflash
