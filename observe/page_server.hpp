// The web server of a run: /metrics for Prometheus, / and /status.json for people. Read only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace dflash {

struct page_sources {
  std::function<std::string()> status;   // JSON; called in the server's threads
  std::function<std::string()> metrics;  // Prometheus' text form; likewise
};

/// Whether an address is this machine's own: 127.0.0.0/8, ::1, localhost.
bool is_loopback(const std::string& host);

class page_server {
public:
  /// Binds and answers in threads of its own. Port 0: a free one. Throws error, naming `where`, if
  /// the address cannot be bound.
  page_server(const std::string& host,
              std::uint16_t port,
              const std::string& where,
              page_sources sources);
  ~page_server();  // answers what it is answering, then ends
  page_server(const page_server&) = delete;
  page_server& operator=(const page_server&) = delete;

  std::uint16_t port() const;

private:
  struct implementation;
  std::unique_ptr<implementation> impl_;
};

/// The page itself, one file of HTML with its style and script.
const char* page_html();

}  // namespace dflash
