#include "observe/page_server.hpp"

#include <httplib.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "config/error.hpp"

namespace dflash {

namespace {

constexpr std::size_t answer_threads = 4;
constexpr time_t patience_s = 5;  // with a client that does not send or read
constexpr std::size_t longest_request = 1 << 16;

// A page of another site that had its name point here must not read what only this machine may.
bool names_this_machine(const httplib::Request& request) {
  std::string host = request.get_header_value("Host");
  const auto colon = host.rfind(':');
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos) host.resize(colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return is_loopback(host);
}

}  // namespace

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
}

struct page_server::implementation {
  httplib::Server server;
  std::thread thread;
  std::atomic<bool> ended{false};
  int port = 0;
};

page_server::page_server(const std::string& host,
                         std::uint16_t port,
                         const std::string& where,
                         page_sources sources)
    : impl_(std::make_unique<implementation>()) {
  httplib::Server& s = impl_->server;
  s.new_task_queue = [] { return new httplib::ThreadPool(answer_threads); };
  s.set_read_timeout(patience_s, 0);
  s.set_write_timeout(patience_s, 0);
  s.set_keep_alive_timeout(patience_s);
  s.set_payload_max_length(longest_request);
  s.set_default_headers({{"X-Content-Type-Options", "nosniff"},
                         {"Cache-Control", "no-store"},
                         {"Content-Security-Policy",
                          "default-src 'none'; script-src 'unsafe-inline'; style-src "
                          "'unsafe-inline'; img-src data:; connect-src 'self'; frame-ancestors "
                          "'none'"}});
  if (is_loopback(host))
    s.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
      if (names_this_machine(request)) return httplib::Server::HandlerResponse::Unhandled;
      response.status = 403;
      response.set_content("this run is for its own machine only\n", "text/plain");
      return httplib::Server::HandlerResponse::Handled;
    });
  s.Get("/", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(page_html(), "text/html; charset=utf-8");
  });
  s.Get("/status.json",
        [get = std::move(sources.status)](const httplib::Request&, httplib::Response& response) {
          response.set_content(get(), "application/json");
        });
  s.Get("/metrics",
        [get = std::move(sources.metrics)](const httplib::Request&, httplib::Response& response) {
          response.set_content(get(), "text/plain; version=0.0.4; charset=utf-8");
        });
  // Without SO_REUSEPORT, which httplib sets: two runs must not share a port.
  s.set_socket_options([](socket_t socket) {
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
  impl_->port = port == 0 ? s.bind_to_any_port(host) : s.bind_to_port(host, port) ? port : -1;
  if (impl_->port < 0)
    throw error(
        "cannot listen on " + host + ":" + std::to_string(port) + ": " + std::strerror(errno),
        where,
        "another process has the port? port 0 takes a free one, an empty address none");
  impl_->thread = std::thread([this] {
    impl_->server.listen_after_bind();
    impl_->ended = true;
  });
  // A stop before it listens would be missed.
  while (!s.is_running() && !impl_->ended) std::this_thread::yield();
}

page_server::~page_server() {
  impl_->server.stop();
  impl_->thread.join();
}

std::uint16_t page_server::port() const {
  return static_cast<std::uint16_t>(impl_->port);
}

}  // namespace dflash
