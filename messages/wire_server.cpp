#include "messages/wire_server.hpp"

#include <openssl/crypto.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "config/error.hpp"
#include "messages/wire_exchange.hpp"
#include "messages/wire_heartbeats.hpp"

namespace dflash {

namespace {

// Connections without a session: each costs a thread for limits.timeout at most.
constexpr size_t max_strangers = 64;
// After a refusal: so long the peer may take to read it.
constexpr std::chrono::milliseconds farewell{250};

// One of the sessions that a server may have at once.
class open_slot {
public:
  open_slot(std::atomic<uint64_t>& open, uint64_t limit) : open_(open) {
    if (++open_ <= limit) return;
    --open_;
    throw wire_refused("all " + std::to_string(limit) + " data connections of this node are taken");
  }
  open_slot(const open_slot&) = delete;
  open_slot& operator=(const open_slot&) = delete;
  ~open_slot() { --open_; }

private:
  std::atomic<uint64_t>& open_;
};

}  // namespace

bool same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

struct wire_server::state {
  struct connection {
    connection(file_descriptor socket, endpoint from)
        : stream(std::move(socket)), from(from.text()) {}
    wire_stream stream;
    std::string from;
    std::atomic<bool> stranger{true};
    std::atomic<bool> finished{false};
    std::thread thread;
  };

  state(const wire_address& listen,
        wire_security security,
        wire_limits limits,
        wire_sessions sessions,
        std::function<void(const std::string&)> notice)
      : limits(limits), sessions(std::move(sessions)), notice(std::move(notice)) {
    if (security.tls()) tls = make_tls_context(security, true);
    if (!security.tls() && !security.insecure)
      for (const endpoint& e : resolve(listen)) check_may_use(e, security);
    socket = listen_on(listen, bound);
    thread = std::thread([this] { accept_all(); });
  }
  ~state() {
    {
      const std::lock_guard lock(mutex);
      stopped = true;
      for (connection& c : connections) c.stream.shut();
    }
    changed.notify_all();
    ::shutdown(socket.get(), SHUT_RDWR);
    thread.join();
    for (connection& c : connections) c.thread.join();
  }

  void accept_all();
  void add(file_descriptor socket, const endpoint& from);
  void forget_finished();
  void make_room(std::unique_lock<std::mutex>& lock);
  void serve(connection& c);
  wire_hello meet(connection& c, wire_peer& peer);
  void lend(connection& c, const wire_hello& hello, const wire_peer& peer);
  void answer_one(connection& c,
                  const frame_header& header,
                  wire_session& session,
                  wire_heartbeats& beats);
  void say_goodbye(connection& c, const std::string& why);
  void tell(const connection& c, const std::string& what) const {
    if (notice) notice("data connection from " + c.from + ": " + what);
  }

  wire_limits limits;
  wire_sessions sessions;
  std::function<void(const std::string&)> notice;
  tls_context tls;
  endpoint bound;
  file_descriptor socket;
  std::mutex mutex;                 // of the list and `stopped`
  std::condition_variable changed;  // a connection has finished
  std::list<connection> connections;
  bool stopped = false;
  std::atomic<uint64_t> accepted{0}, refused{0}, lost{0}, open{0}, calls{0};
  std::thread thread;
};

void wire_server::state::accept_all() {
  for (;;) {
    wait_for(socket.get(), POLLIN, wire_clock::time_point::max());
    endpoint from;
    from.length = sizeof from.address;
    file_descriptor fd(::accept4(socket.get(),
                                 reinterpret_cast<sockaddr*>(&from.address),
                                 &from.length,
                                 SOCK_CLOEXEC | SOCK_NONBLOCK));
    const int problem = errno;
    {
      std::unique_lock lock(mutex);
      if (stopped) return;
      forget_finished();
      if (fd) make_room(lock);
      // No descriptors or memory left: what is open goes on, and some of it will end.
      if (!fd && problem != EAGAIN && problem != ECONNABORTED && problem != EINTR)
        changed.wait_for(lock, limits.heartbeat);
      if (stopped) return;
    }
    if (fd) add(std::move(fd), from);
  }
}

void wire_server::state::add(file_descriptor fd, const endpoint& from) {
  ++accepted;
  set_connection_options(fd.get(), limits);
  const std::lock_guard lock(mutex);
  connection& c = connections.emplace_back(std::move(fd), from);
  if (stopped) c.stream.shut();
  try {
    c.thread = std::thread([this, &c] { serve(c); });
  } catch (const std::system_error& none) {
    ++refused;
    tell(c, std::string("no thread for it: ") + none.what());
    connections.pop_back();
  }
}

void wire_server::state::forget_finished() {
  for (auto c = connections.begin(); c != connections.end();)
    if (c->finished) {
      c->thread.join();
      c = connections.erase(c);
    } else {
      ++c;
    }
}

// Of too many strangers the one that has waited longest goes: an honest one is greeted in
// milliseconds.
void wire_server::state::make_room(std::unique_lock<std::mutex>& lock) {
  const auto is_stranger = [](const connection& c) { return c.stranger && !c.finished; };
  while (!stopped && static_cast<size_t>(std::count_if(
                         connections.begin(), connections.end(), is_stranger)) >= max_strangers) {
    std::find_if(connections.begin(), connections.end(), is_stranger)->stream.shut();
    changed.wait(lock);
  }
  forget_finished();
}

void wire_server::state::serve(connection& c) {
  try {
    wire_peer peer{c.from, {}, {}};
    lend(c, meet(c, peer), peer);
  } catch (const std::exception& problem) {
    ++(c.stranger ? refused : lost);
    tell(c, (c.stranger ? "refused: " : "lost: ") + std::string(problem.what()));
    // Whoever does not speak this protocol is told nothing.
    const bool told = !c.stranger || dynamic_cast<const wire_refused*>(&problem) != nullptr;
    if (told || tls) say_goodbye(c, told ? problem.what() : "");
  }
  c.stream.shut();
  // Under the lock, so that nobody who waits misses it.
  const std::lock_guard lock(mutex);
  c.finished = true;
  changed.notify_all();
}

// Gives the peer the time to read why it is refused: closing at once would throw away what is under
// way.
void wire_server::state::say_goodbye(connection& c, const std::string& why) {
  try {
    wire_limits brief = limits;
    brief.timeout = farewell;
    if (!why.empty()) send_text(c.stream, frame_kind::refusal, 0, why, brief);
  } catch (const std::exception&) {  // it does not listen, or TLS has told it
  }
  c.stream.finish(wire_clock::now() + farewell);
}

// A stranger has limits.timeout for all of it, and gets no answer unless it speaks this protocol.
wire_hello wire_server::state::meet(connection& c, wire_peer& peer) {
  const auto deadline = wire_clock::now() + limits.timeout;
  if (tls) {
    c.stream.start_tls_server(tls, deadline);
    peer.name = c.stream.peer_name();
  }
  const frame_header header = receive_header(c.stream, limits, deadline);
  if (header.kind != frame_kind::hello) throw wire_lost("no greeting");
  wire_hello hello = decode_hello(receive_payload(c.stream, header, deadline));
  peer.token = hello.token;
  return hello;
}

// Answers calls until the peer hangs up. Throws wire_lost for a fault, wire_refused for what the
// peer shall be told before this side hangs up.
void wire_server::state::lend(connection& c, const wire_hello& hello, const wire_peer& peer) {
  const std::chrono::milliseconds patience(std::max(4U, hello.timeout_ms));
  wire_heartbeats beats(c.stream, limits, std::min(limits.heartbeat, patience / 4));
  const open_slot slot(open, limits.max_connections);
  wire_session session = beats.run(0, [&] {
    try {
      return sessions(peer);
    } catch (const std::exception& problem) {
      throw wire_refused(problem.what());
    }
  });
  c.stranger = false;
  send_frame(c.stream, frame_kind::welcome, 0, {}, limits);
  std::array<std::byte, frame_header_bytes> head;
  for (;;) {
    c.stream.wait_readable(wire_clock::time_point::max());
    if (!c.stream.read_unless_closed(head, wire_clock::now() + limits.timeout)) return;
    answer_one(c, decode_header(head, limits), session, beats);
  }
}

void wire_server::state::answer_one(connection& c,
                                    const frame_header& header,
                                    wire_session& session,
                                    wire_heartbeats& beats) {
  if (header.kind != frame_kind::request || header.id == 0)
    throw wire_lost("a frame where a request was due");
  const auto deadline = wire_clock::now() + limits.timeout;
  wire_announcement announcement =
      decode_announcement(receive_payload(c.stream, header, deadline), limits);
  received_tensors received =
      receive_tensors(c.stream, header.id, announcement, session.places, limits);
  std::string failure = std::move(received.refusal);
  wire_message answer;
  if (failure.empty())
    answer = beats.run(header.id, [&]() -> wire_message {
      try {
        return session.answer({std::move(announcement.method),
                               std::move(announcement.body),
                               std::move(received.tensors)});
      } catch (const std::exception& problem) {
        failure = problem.what();
        if (failure.empty()) failure = "the handler threw";
        return {};
      }
    });
  ++calls;
  if (failure.empty()) {
    try {
      send_message(c.stream, frame_kind::answer, header.id, answer, limits);
      return;
    } catch (const error& problem) {  // it is above the limits: nothing was sent
      failure = problem.what();
    }
  }
  send_text(c.stream, frame_kind::failure, header.id, failure, limits);
}

wire_server::wire_server(const wire_address& listen,
                         wire_security security,
                         wire_limits limits,
                         wire_sessions sessions,
                         std::function<void(const std::string&)> notice)
    : state_(std::make_unique<state>(
          listen, std::move(security), limits, std::move(sessions), std::move(notice))) {}

wire_server::~wire_server() = default;

uint16_t wire_server::port() const {
  return state_->bound.port();
}

std::string wire_server::address() const {
  return state_->bound.text();
}

wire_server_counts wire_server::counts() const {
  const state& s = *state_;
  return {s.accepted, s.refused, s.lost, s.open, s.calls};
}

}  // namespace dflash
