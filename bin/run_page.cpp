#include "bin/run_page.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <optional>
#include <utility>

#include "config/error.hpp"
#include "observe/tensorboard.hpp"

namespace dflash {

namespace {

constexpr const char* key = "metrics.listen";

}  // namespace

void check_page(const run_config& config) {
  if (config.metrics.listen.empty()) return;
  const network_address address = parse_address(config.metrics.listen, key);
  if (!is_loopback(address.host) && !config.metrics.insecure)
    throw error(
        "other machines could reach " + config.metrics.listen + ", and there is no password",
        key,
        "--metrics.insecure=true if that is wanted; else 127.0.0.1 with `ssh -L`");
  check_can_listen(address, key);
}

std::unique_ptr<page_server> serve_page(const run_config& config,
                                        const run_folder& folder,
                                        const std::shared_ptr<run_watch>& watch) {
  if (config.metrics.listen.empty()) return nullptr;
  const network_address address = parse_address(config.metrics.listen, key);
  if (!is_loopback(address.host))
    spdlog::warn("INSECURE: everybody who reaches {} can read how this run goes",
                 config.metrics.listen);
  auto server = std::make_unique<page_server>(
      address.host,
      address.port,
      key,
      page_sources{[watch] { return status_json(watch->view()); },
                   [watch] { return prometheus_text(watch->view()); }});
  const std::string where = fmt::format("{}:{}", address.host, server->port());
  write_file_atomically(folder.metrics_address(), where + "\n");
  fmt::print("  {:<11} http://{}/\n", "page", where);
  return server;
}

std::vector<metrics_sink> make_sinks(const run_config& config,
                                     const run_folder& folder,
                                     uint64_t first_step) {
  std::vector<metrics_sink> sinks;
  if (config.metrics.tensorboard) {
    // Made with the first line, by the sink's thread: a slow disk holds nobody up.
    const auto writer = std::make_shared<std::optional<tensorboard_writer>>();
    sinks.push_back({"tensorboard",
                     [writer, first_step, path = folder.tensorboard()](const metrics_line& line) {
                       if (!*writer) writer->emplace(path, line.unix_time, first_step);
                       (*writer)->write(line.step, line.unix_time, scalars_of(line.json));
                     }});
  }
  return sinks;
}

}  // namespace dflash
