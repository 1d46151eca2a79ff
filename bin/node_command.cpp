// `dflash node`: lends lanes of this host to runs on others.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <caf/all.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/node.hpp"
#include "actors/pipeline.hpp"
#include "actors/run_watch.hpp"
#include "bin/commands.hpp"
#include "bin/lane_order.hpp"
#include "bin/model_stream.hpp"
#include "bin/net_setup.hpp"
#include "bin/node_lanes.hpp"
#include "bin/version.hpp"
#include "config/error.hpp"
#include "config/run_config.hpp"

namespace dflash {

namespace {

constexpr std::chrono::seconds end_deadline{10};

struct node_command_options {
  std::string listen = "127.0.0.1:0";
  std::vector<std::string> lanes = {"cpu:0"};
  std::string name;
  std::string join;
  std::string model;
  std::string cache;
  std::string tls;
  bool insecure = false;
};

std::vector<std::string> checked_lanes(const std::vector<std::string>& given) {
  std::set<std::string> seen;
  for (const std::string& lane : given) {
    const lane_name name = parse_lane(lane);
    if (!name.node.empty())
      throw error("\"" + lane + "\" names a node", "--lanes", "lanes of this host: cpu:0,cpu:1");
    if (name.cuda)
      throw error("lane " + lane + " needs a GPU, and nodes lend none",
                  "--lanes",
                  "use lanes cpu:0, cpu:1, ...");
    if (!seen.insert(lane).second) throw error("lane " + lane + " is listed twice", "--lanes");
  }
  return given;
}

std::string own_name(const node_command_options& o) {
  std::string name = o.name;
  if (name.empty()) {
    name = node_name();
    name.resize(name.rfind(':'));  // without the process
  }
  if (!is_node_name(name))
    throw error("\"" + name + "\" is no name for a node",
                "--name",
                "letters, digits, \".\", \"_\" and \"-\", at most 63 of them");
  return name;
}

// SIGINT and SIGTERM are blocked in all threads that begin later.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

void say_exposure(const wire_address& bound, const network_settings& network) {
  if (is_loopback(bound)) {
    spdlog::info("{} is an address of this host only: runs on others cannot reach it",
                 bound.text());
  } else if (!network.security.tls()) {
    spdlog::warn(
        "INSECURE: whoever reaches {} can use these lanes, and read and change what they compute",
        bound.text());
  }
}

int lend(const node_command_options& o) {
  node_options node;
  node.network = network_of(o.tls, o.insecure);
  node.self = own_greeting();
  node.self.name = own_name(o);
  node.self.lanes = checked_lanes(o.lanes);
  const wire_address listen = parse_wire_address(o.listen, "--listen");
  check_exposure(listen, node.network, "--listen");
  if (!o.join.empty()) {
    node.join = parse_wire_address(o.join, "--join");
    check_exposure(*node.join, node.network, "--join");
  }
  node.make = make_node_lanes(
      {o.model, o.cache.empty() ? default_model_cache() : std::filesystem::path(o.cache)});
  node.details = [] { return version_text() + "\n\n"; };

  const sigset_t signals = block_signals();
  pipeline_system_config config(node.network);
  caf::actor_system system(config);
  const auto registry = std::make_shared<mailbox_registry>();
  node.data = {listen.host, 0};
  node_actor actor = spawn_node(system, identify(registry, "node"), node);
  struct ender {
    node_actor& actor;
    ~ender() {
      if (actor) caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
      actor = nullptr;
    }
  };
  const ender end{actor};
  const wire_address bound = publish_actor(actor, listen, node.network, "--listen");
  say_exposure(bound, node.network);
  fmt::print(
      "node {} lends {} at {}\n", node.self.name, fmt::join(node.self.lanes, ", "), bound.text());
  std::fflush(stdout);
  int number = 0;
  sigwait(&signals, &number);
  fmt::print("node {} ends\n", node.self.name);
  std::fflush(stdout);
  // Lanes end when what they compute is done; a second signal does not wait for it.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  alarm(static_cast<unsigned>(end_deadline.count()));
  return 0;
}

}  // namespace

void add_node_command(CLI::App& app, std::function<int()>& action) {
  auto o = std::make_shared<node_command_options>();
  CLI::App* command =
      app.add_subcommand("node", "Lend lanes of this host to runs on other hosts; Ctrl-C ends it");
  command->add_option("--listen", o->listen, "HOST:PORT where runs find it; port 0: a free one")
      ->capture_default_str();
  command->add_option("--lanes", o->lanes, "Lanes that it lends: cpu:0,cpu:1")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--name", o->name, "Its name in layouts; default: the host's");
  command->add_option("--join",
                      o->join,
                      "HOST:PORT of a run (its net.listen) to offer the lanes to, again and again");
  command->add_option("--model",
                      o->model,
                      "Folder of the target here; default: the run's target.path, or a copy that "
                      "the run sends");
  command->add_option(
      "--cache", o->cache, "Folder for copies that runs send; default: ~/.cache/dflash/models");
  command->add_option("--tls", o->tls, "Folder of certificates that `dflash cert` made");
  command->add_flag("--insecure", o->insecure, "Listen in plaintext where other machines reach it");
  command->footer(
      "Two nodes on one machine:\n"
      "  dflash node --listen 127.0.0.1:7001 --lanes cpu:0 &\n"
      "  dflash node --listen 127.0.0.1:7002 --lanes cpu:0 &\n"
      "  dflash train my.toml --layout.nodes='{a=\"127.0.0.1:7001\", b=\"127.0.0.1:7002\"}' \\\n"
      "      --layout.targets=a/cpu:0,b/cpu:0\n"
      "A lane is free again as soon as its run has ended, or is lost. `dflash inspect HOST:PORT`\n"
      "shows what its lanes do. docs/nodes.md has the rest: certificates, Slurm, what to do when.");
  command->callback([o, &action] { action = [o] { return lend(*o); }; });
}

}  // namespace dflash
