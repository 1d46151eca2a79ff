#include "messages/wire_client.hpp"

#include <algorithm>
#include <atomic>
#include <optional>

#include "config/error.hpp"
#include "messages/wire_exchange.hpp"

namespace dflash {

struct wire_client::connection {
  connection(file_descriptor socket, std::string to, const wire_limits& limits)
      : stream(std::move(socket)), to(std::move(to)), limits(limits) {}

  wire_stream stream;
  std::string to;  // for messages
  wire_limits limits;
  wire_counts counts;
  uint64_t last_id = 0;
  std::atomic<bool> open{true};

  wire_clock::time_point in_time() const { return wire_clock::now() + limits.timeout; }
  [[noreturn]] void lose(const std::string& why) {
    open = false;
    stream.shut();
    throw wire_lost("lost the data connection to " + to + ": " + why);
  }
  // Where the peer has hung up, it may have said why before.
  std::string last_words(const std::string& otherwise) noexcept {
    try {
      const auto soon = wire_clock::now() + std::chrono::milliseconds(250);
      for (;;) {
        const frame_header header = receive_header(stream, limits, soon);
        if (header.kind == frame_kind::refusal) return receive_text(stream, header, in_time());
        if (header.payload_bytes > 0) return otherwise;
      }
    } catch (const std::exception&) {
      return otherwise;
    }
  }
  void greet(std::string_view token);
  void send(uint64_t id, const wire_message& request);
  frame_header next_header(wire_clock::time_point end);
  // Sets `failure` where the handler threw.
  wire_message receive(uint64_t id, const tensor_places& into, std::optional<std::string>& failure);
};

namespace {

uint32_t milliseconds_of(std::chrono::milliseconds time) {
  return static_cast<uint32_t>(std::clamp<int64_t>(time.count(), 1, 3'600'000));
}

}  // namespace

void wire_client::connection::greet(std::string_view token) {
  const auto hello = encode_hello({milliseconds_of(limits.timeout), std::string(token)});
  try {
    send_frame(stream, frame_kind::hello, 0, hello, limits);
  } catch (const wire_lost& lost) {
    receive_header(stream, limits, wire_clock::now() + std::chrono::milliseconds(250));
    throw;
  }
  for (;;) {
    const frame_header header = receive_header(stream, limits, in_time());
    if (header.kind == frame_kind::welcome) return;
    if (header.kind == frame_kind::heartbeat) continue;
    if (header.kind == frame_kind::refusal)
      throw wire_refused(receive_text(stream, header, in_time()));
    throw wire_lost("an unexpected greeting");
  }
}

void wire_client::connection::send(uint64_t id, const wire_message& request) {
  try {
    counts.sent_bytes += send_message(stream, frame_kind::request, id, request, limits);
  } catch (const wire_lost& lost) {
    lose(last_words(lost.what()));
  }
}

// Of a frame that has to be there before `end`.
frame_header wire_client::connection::next_header(wire_clock::time_point end) {
  const auto too_late = [&] {
    return wire_lost("no answer after " + std::to_string(limits.call.count()) + " ms");
  };
  try {
    const frame_header header = receive_header(stream, limits, std::min(end, in_time()));
    if (header.kind == frame_kind::heartbeat && wire_clock::now() >= end) throw too_late();
    return header;
  } catch (const wire_lost&) {
    if (wire_clock::now() >= end) throw too_late();
    throw;
  }
}

wire_message wire_client::connection::receive(uint64_t id,
                                              const tensor_places& into,
                                              std::optional<std::string>& failure) {
  const auto end = wire_clock::now() + limits.call;
  for (;;) {
    const frame_header header = next_header(end);
    if (header.kind == frame_kind::heartbeat) continue;
    if (header.kind == frame_kind::refusal)
      throw wire_lost(receive_text(stream, header, in_time()));
    if (header.id != id) throw wire_lost("an answer to another call");
    if (header.kind == frame_kind::failure) {
      failure = receive_text(stream, header, in_time());
      return {};
    }
    if (header.kind != frame_kind::answer) throw wire_lost("a frame where an answer was due");
    wire_announcement announcement =
        decode_announcement(receive_payload(stream, header, in_time()), limits);
    received_tensors received = receive_tensors(stream, id, announcement, into, limits);
    if (!received.refusal.empty()) throw wire_lost("the answer: " + received.refusal);
    counts.received_bytes += received.bytes;
    ++counts.calls;
    return {
        std::move(announcement.method), std::move(announcement.body), std::move(received.tensors)};
  }
}

wire_client::wire_client(std::unique_ptr<connection> connection)
    : connection_(std::move(connection)) {}
wire_client::wire_client(wire_client&&) noexcept = default;
wire_client& wire_client::operator=(wire_client&&) noexcept = default;
wire_client::~wire_client() = default;

wire_client wire_client::connect(const wire_address& address,
                                 const wire_security& security,
                                 const wire_limits& limits,
                                 std::string_view token) {
  DFLASH_CHECK(token.size() <= max_token_bytes, "a token is short", token.size());
  const tls_context context = security.tls() ? make_tls_context(security, false) : nullptr;
  const auto found = resolve(address);
  for (const endpoint& e : found) check_may_use(e, security);
  endpoint to;
  file_descriptor socket = connect_to_any(found, wire_clock::now() + limits.connect, to);
  set_connection_options(socket.get(), limits);
  auto made = std::make_unique<connection>(std::move(socket), address.text(), limits);
  const auto say = [&](const std::exception& problem) {
    return address.text() + ": " + problem.what();
  };
  const char* hint = context ? "" : " (does it ask for TLS?)";
  try {
    if (context)
      made->stream.start_tls_client(context, address.host, wire_clock::now() + limits.timeout);
    made->greet(token);
  } catch (const wire_refused& refused) {
    throw wire_refused(say(refused));
  } catch (const wire_lost& lost) {
    throw wire_lost(say(lost) + hint);
  }
  return wire_client(std::move(made));
}

wire_message wire_client::call(const wire_message& request, const tensor_places& into) {
  connection& c = *connection_;
  if (!c.open) c.lose("it was closed before");
  const uint64_t id = ++c.last_id;
  c.send(id, request);
  wire_message answer;
  std::optional<std::string> failure;
  try {
    answer = c.receive(id, into, failure);
  } catch (const std::exception& problem) {  // also: no memory for the answer
    c.lose(problem.what());
  }
  if (failure) throw wire_refused(*failure);
  return answer;
}

void wire_client::close() noexcept {
  if (!connection_) return;
  connection_->open = false;
  connection_->stream.shut();
}

bool wire_client::is_open() const noexcept {
  return connection_ && connection_->open;
}

const wire_counts& wire_client::counts() const {
  return connection_->counts;
}

}  // namespace dflash
