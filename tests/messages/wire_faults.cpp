// Peers that vanish, freeze, dribble or lie in the middle of a call.
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <future>

#include "wire_fixture.hpp"
#include "wire_proxy.hpp"

using namespace dflash;
using namespace std::chrono_literals;

namespace {

constexpr uint64_t mib = 1 << 20;

wire_proxy::toucher flip_byte(bool to_server, uint64_t at) {
  return [=](bool direction, std::span<std::byte> bytes, uint64_t offset) {
    if (direction == to_server && at >= offset && at < offset + bytes.size())
      bytes[at - offset] ^= std::byte{4};
    return true;
  };
}

wire_proxy::toucher cut_after(bool to_server, uint64_t at) {
  return [=](bool direction, std::span<std::byte> bytes, uint64_t offset) {
    return direction != to_server || offset + bytes.size() < at;
  };
}

// Echoes 4 MB through a proxy; gives what the client heard of its end.
std::string echo_through(wire_proxy::toucher touch, const wire_server& server) {
  const wire_proxy proxy(server.port(), std::move(touch));
  auto client = wire_client::connect(local(proxy.port()), {}, {}, "");
  const std::string what = what_of([&] { client.call({"", "", {at::ones({1'000'000})}}); });
  CHECK_FALSE(client.is_open());
  return what;
}

// A client of this peer with little patience; how long until it gave up.
struct outcome {
  std::string what;
  std::chrono::nanoseconds after{};
};
outcome call_of(uint16_t port, const wire_message& request, const wire_limits& limits) {
  auto client = wire_client::connect(local(port), {}, limits, "");
  const auto begin = wire_clock::now();
  CHECK_THROWS_AS(client.call(request), wire_lost);
  const auto after = wire_clock::now() - begin;
  return {what_of([&] { client.call(request); }), after};
}

struct lost_sessions {
  std::promise<std::string> first;
  std::function<void(const std::string&)> notice() {
    return [this](const std::string& line) { first.set_value(line); };
  }
  std::string wait() {
    auto future = first.get_future();
    REQUIRE(future.wait_for(20s) == std::future_status::ready);
    return future.get();
  }
};

}  // namespace

TEST_CASE("a changed byte of a tensor is seen by whoever receives it", "[distributed]") {
  const wire_server server(local(0), {}, {}, always(echo()));
  CHECK_THAT(echo_through(flip_byte(true, 2 * mib), server), Catch::Contains("damaged (checksum)"));
  CHECK(server.counts().lost == 1);
  CHECK_THAT(echo_through(flip_byte(false, 2 * mib), server),
             Catch::Contains("damaged (checksum)"));
  // Of headers: that of the request, that of the welcome's successor.
  CHECK_THAT(echo_through(flip_byte(true, 36 + 20), server), Catch::Contains("damaged"));
  CHECK_THAT(echo_through(flip_byte(false, 32 + 9), server), Catch::Contains("damaged"));
  // Of an announcement.
  CHECK_THAT(echo_through(flip_byte(true, 36 + 32 + 13), server), Catch::Contains("damaged"));
}

TEST_CASE("a peer lost in the middle of a chunk is noticed at once, on both sides",
          "[distributed]") {
  lost_sessions lost;
  const wire_server server(local(0), {}, {}, always(echo()), lost.notice());
  echo_through(cut_after(true, 2 * mib), server);
  CHECK_THAT(lost.wait(), Catch::Contains("lost: "));
  CHECK(server.counts().lost == 1);
}

TEST_CASE("a server lost in the middle of its answer is noticed at once", "[distributed]") {
  const wire_server server(local(0), {}, {}, always(echo()));
  CHECK_THAT(echo_through(cut_after(false, 2 * mib), server),
             Catch::Contains("lost the data connection to 127.0.0.1:"));
}

TEST_CASE("a frozen peer is lost after the timeout: after the request", "[distributed]") {
  const raw_server frozen([](wire_stream& s) {
    welcome(s);
    take_request(s);
    drain(s);
  });
  const auto [what, after] = call_of(frozen.port(), {"x", "", {}}, impatient());
  CHECK(after >= 400ms);
  CHECK(after < 4s);
  CHECK_THAT(what, Catch::Contains("closed before"));
}

TEST_CASE("a frozen peer is lost after the timeout: while it should read", "[distributed]") {
  std::promise<void> over;
  const raw_server frozen([&](wire_stream& s) {
    welcome(s);
    over.get_future().wait();
  });
  const auto after = call_of(frozen.port(), {"", "", {at::ones({8 << 20})}}, impatient()).after;
  over.set_value();
  CHECK(after < 4s);
}

TEST_CASE("a frozen peer is lost after the timeout: in the middle of its answer", "[distributed]") {
  const raw_server frozen([](wire_stream& s) {
    welcome(s);
    const frame_header request = take_request(s);
    send_frame(s,
               frame_kind::answer,
               request.id,
               encode_announcement({"", "", {{at::kByte, {1000}}}}),
               {});
    std::array<std::byte, frame_header_bytes> head;
    encode_header({frame_kind::chunk, request.id, 1000, 0, 0}, head);
    s.write(head, std::vector<std::byte>(999), raw_server::in_time());
    drain(s);
  });
  CHECK(call_of(frozen.port(), {}, impatient()).after < 4s);
}

TEST_CASE("single bytes now and then are no sign of life", "[distributed]") {
  const raw_server dribbling([](wire_stream& s) {
    welcome(s);
    take_request(s);
    std::array<std::byte, frame_header_bytes> head;
    encode_header({frame_kind::heartbeat, 1, 0, 0, 0}, head);
    for (const std::byte byte : head) {
      s.write({}, std::array{byte}, raw_server::in_time());
      if (s.wait_readable(wire_clock::now() + 100ms)) return;  // the client has hung up
    }
  });
  const auto after = call_of(dribbling.port(), {}, impatient()).after;
  CHECK(after >= 400ms);
  CHECK(after < 2s);
}

TEST_CASE("a client that takes no answer is dropped", "[distributed]") {
  lost_sessions lost;
  const wire_server server(local(0),
                           {},
                           impatient(),
                           always({[](wire_message) {
                                     return wire_message{"", "", {at::zeros({8 << 20})}};
                                   },
                                   {}}),
                           lost.notice());
  const auto frozen = greeted_client(server.port());
  send_message(*frozen, frame_kind::request, 1, {}, {});
  CHECK_THAT(lost.wait(), Catch::Contains("no sign of life"));
}

TEST_CASE("a client that stops in the middle of a request is dropped", "[distributed]") {
  lost_sessions lost;
  const wire_server server(local(0), {}, impatient(), always(echo()), lost.notice());
  const auto frozen = greeted_client(server.port());
  send_frame(
      *frozen, frame_kind::request, 1, encode_announcement({"", "", {{at::kByte, {100}}}}), {});
  CHECK_THAT(lost.wait(), Catch::Contains("no sign of life"));
}

TEST_CASE("heartbeats are sent while a handler runs, as often as the client needs",
          "[distributed]") {
  std::promise<void> enough;
  auto done = enough.get_future().share();
  wire_limits slow;
  slow.heartbeat = 1h;  // the client asks for more
  const wire_server server(local(0),
                           {},
                           slow,
                           always({[done](wire_message m) {
                                     done.wait();
                                     return m;
                                   },
                                   {}}));
  const auto client = greeted_client(server.port(), {}, 40);
  send_message(*client, frame_kind::request, 7, {"x", "", {}}, {});
  for (int i = 0; i < 3; ++i) {
    const auto header = receive_header(*client, {}, raw_server::in_time());
    REQUIRE(header.kind == frame_kind::heartbeat);
    CHECK(header.id == 7);
  }
  enough.set_value();
  for (;;) {
    const auto header = receive_header(*client, {}, raw_server::in_time());
    if (header.kind == frame_kind::heartbeat) continue;
    CHECK(header.kind == frame_kind::answer);
    break;
  }
}

TEST_CASE("heartbeats keep a call alive beyond the timeout, but not beyond the limit of a call",
          "[distributed]") {
  const auto beat = [](wire_stream& s, int times) {
    for (int i = 0; i < times; ++i) {
      send_frame(s, frame_kind::heartbeat, 1, {}, {});
      if (s.wait_readable(wire_clock::now() + 50ms)) return;
    }
  };
  wire_limits limits = impatient();
  limits.timeout = 1500ms;
  {
    const raw_server slow([&](wire_stream& s) {
      welcome(s);
      take_request(s);
      beat(s, 34);  // 1.7 s
      send_message(s, frame_kind::answer, 1, {"", "late", {}}, {});
      drain(s);
    });
    auto client = wire_client::connect(local(slow.port()), {}, limits, "");
    CHECK(client.call({}).body == "late");
  }
  limits.call = 200ms;
  const raw_server endless([&](wire_stream& s) {
    welcome(s);
    take_request(s);
    beat(s, 100);
  });
  auto client = wire_client::connect(local(endless.port()), {}, limits, "");
  CHECK_THROWS_WITH(client.call({}), Catch::EndsWith("no answer after 200 ms"));
}

TEST_CASE("closing from another thread ends a call", "[distributed]") {
  std::promise<void> asked;
  const raw_server silent([&](wire_stream& s) {
    welcome(s);
    take_request(s);
    asked.set_value();
    drain(s);
  });
  auto client = wire_client::connect(local(silent.port()), {}, {}, "");
  std::thread closer([&] {
    asked.get_future().wait();
    client.close();
  });
  CHECK_THROWS_AS(client.call({}), wire_lost);
  closer.join();
  CHECK_FALSE(client.is_open());
  client.close();
}

TEST_CASE("a server ends with connections open, silent, and at work", "[distributed]") {
  std::promise<void> inside, go_on;
  auto going = go_on.get_future().share();
  auto server = std::make_unique<wire_server>(local(0),
                                              wire_security{},
                                              wire_limits{},
                                              always({[&, going](wire_message m) {
                                                        inside.set_value();
                                                        going.wait();
                                                        return m;
                                                      },
                                                      {}}));
  const auto stranger = raw_client(server->port());
  auto idle = client_of(*server), busy = client_of(*server);
  std::thread caller([&] { CHECK_THROWS_AS(busy.call({"work", "", {}}), wire_lost); });
  inside.get_future().wait();
  std::thread ender([&] { server.reset(); });
  caller.join();  // hung up on at once, though its handler still runs
  go_on.set_value();
  ender.join();
  CHECK_THROWS_AS(idle.call({}), wire_lost);
}

TEST_CASE("frames that do not belong there end the session", "[distributed]") {
  const auto heard = [](const std::function<void(wire_stream&)>& speak) {
    lost_sessions lost;
    const wire_server server(local(0), {}, {}, always(echo()), lost.notice());
    const auto client = greeted_client(server.port());
    speak(*client);
    return lost.wait();
  };
  const auto chunk = [](wire_stream& s, uint64_t id, uint32_t index, size_t size) {
    const std::vector<std::byte> bytes(size);
    std::array<std::byte, frame_header_bytes> head;
    encode_header({frame_kind::chunk, id, static_cast<uint32_t>(size), index, crc32c(bytes)}, head);
    s.write(head, bytes, raw_server::in_time());
  };
  const auto announce = [](wire_stream& s, uint64_t id) {
    send_frame(s, frame_kind::request, id, encode_announcement({"", "", {{at::kByte, {9}}}}), {});
  };
  const auto expects = Catch::Contains("lost: ");
  CHECK_THAT(heard([&](wire_stream& s) { chunk(s, 1, 0, 4); }), expects);
  CHECK_THAT(heard([&](wire_stream& s) { send_frame(s, frame_kind::hello, 1, {}, {}); }), expects);
  CHECK_THAT(heard([&](wire_stream& s) { announce(s, 0); }), expects);
  CHECK_THAT(heard([&](wire_stream& s) {
               announce(s, 1);
               chunk(s, 2, 0, 9);
             }),
             Catch::Contains("where chunk 0 was due"));
  CHECK_THAT(heard([&](wire_stream& s) {
               announce(s, 1);
               chunk(s, 1, 1, 9);
             }),
             Catch::Contains("where chunk 0 was due"));
  CHECK_THAT(heard([&](wire_stream& s) {
               announce(s, 1);
               chunk(s, 1, 0, 10);
             }),
             Catch::Contains("10 bytes, its tensor lacks 9"));
  CHECK_THAT(heard([&](wire_stream& s) {
               announce(s, 1);
               chunk(s, 1, 0, 0);
             }),
             Catch::Contains("0 bytes, its tensor lacks 9"));
  CHECK_THAT(heard([&](wire_stream& s) {
               send_frame(s,
                          frame_kind::request,
                          1,
                          encode_announcement({"", "", {{at::kByte, {int64_t{1} << 50}}}}),
                          {});
             }),
             Catch::Contains("above the limit"));
  CHECK_THAT(
      heard([&](wire_stream& s) {
        send_frame(
            s, frame_kind::request, 1, encode_announcement({"", "", {{at::kBool, {4}}}}), {});
        const std::array bytes{std::byte{0}, std::byte{1}, std::byte{2}, std::byte{1}};
        std::array<std::byte, frame_header_bytes> head;
        encode_header({frame_kind::chunk, 1, 4, 0, crc32c(bytes)}, head);
        s.write(head, bytes, raw_server::in_time());
      }),
      Catch::Contains("neither 0 nor 1"));
}

TEST_CASE("answers that do not belong there end the connection", "[distributed]") {
  const auto heard = [](const std::function<void(wire_stream&, uint64_t)>& speak) {
    const raw_server liar([&](wire_stream& s) {
      welcome(s);
      speak(s, take_request(s).id);
      drain(s);
    });
    auto client = wire_client::connect(local(liar.port()), {}, {}, "");
    const std::string what = what_of([&] { client.call({}); });
    CHECK_FALSE(client.is_open());
    return what;
  };
  CHECK_THAT(heard([](wire_stream& s, uint64_t id) {
               send_message(s, frame_kind::answer, id + 1, {}, {});
             }),
             Catch::Contains("an answer to another call"));
  CHECK_THAT(
      heard([](wire_stream& s, uint64_t id) { send_message(s, frame_kind::request, id, {}, {}); }),
      Catch::Contains("where an answer was due"));
  CHECK_THAT(
      heard([](wire_stream& s, uint64_t) { send_text(s, frame_kind::refusal, 0, "I stop", {}); }),
      Catch::EndsWith("I stop"));
}
