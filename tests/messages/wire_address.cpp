#include "messages/wire_address.hpp"

#include "config/error.hpp"
#include "wire_fixture.hpp"

using namespace dflash;
using namespace std::chrono_literals;

namespace {

endpoint endpoint_of(const std::string& host, uint16_t port) {
  return resolve({host, port}).at(0);
}

// A port of this host that nobody listens on.
uint16_t free_port(const std::string& host) {
  endpoint bound;
  const auto socket = listen_on({host, 0}, bound);
  return bound.port();
}

wire_security insecure() {
  wire_security security;
  security.insecure = true;
  return security;
}

bool has_v6() {
  endpoint bound;
  try {
    listen_on({"::1", 0}, bound);
    return true;
  } catch (const error&) {
    return false;
  }
}

}  // namespace

TEST_CASE("addresses are read as people write them", "[distributed]") {
  const auto parsed = [](std::string_view text) { return parse_wire_address(text, "net.listen"); };
  CHECK(parsed("127.0.0.1:7000") == wire_address{"127.0.0.1", 7000});
  CHECK(parsed("[::1]:7000") == wire_address{"::1", 7000});
  CHECK(parsed("node-a:0") == wire_address{"node-a", 0});
  CHECK(parsed("[fe80::1%lo]:65535") == wire_address{"fe80::1%lo", 65535});
  for (const std::string text : {"127.0.0.1:7000", "[::1]:7000", "node-a:0"})
    CHECK(parsed(text).text() == text);
  CHECK(parse_wire_address("node-a", "", 5) == wire_address{"node-a", 5});
  CHECK(parse_wire_address("::1", "", 5) == wire_address{"::1", 5});
  CHECK(parse_wire_address("[::1]", "", 5) == wire_address{"::1", 5});
  CHECK(parse_wire_address("fe80::1%lo", "", 5) == wire_address{"fe80::1%lo", 5});
  CHECK(parse_wire_address("node-a:6", "", 5) == wire_address{"node-a", 6});
}

TEST_CASE("what is no address is refused with its text and the key", "[distributed]") {
  for (const std::string text : {"node-a",
                                 "::1",
                                 "fe80::1%lo",
                                 "node-a:70000",
                                 "[::1",
                                 "[::1]",
                                 "[::1]7000",
                                 ":7000",
                                 "",
                                 "node-a:",
                                 "node-a:x",
                                 "node-a:-1",
                                 "node-a: 7000",
                                 "a b:1",
                                 "[node-a]:1",
                                 "node-a:7000 ",
                                 "a/b:1",
                                 "[::1]:+5",
                                 "[]:1"}) {
    INFO(text);
    try {
      parse_wire_address(text, "net.listen");
      FAIL("it was taken");
    } catch (const error& e) {
      CHECK(e.what_.find("\"" + text + "\" is no address") == 0);
      CHECK(e.where == "net.listen");
      CHECK(!e.hint.empty());
    }
  }
}

TEST_CASE("an address that refuses is passed over at once; the next one is taken",
          "[distributed]") {
  const wire_server server({"127.0.0.2", 0}, {}, {}, always(echo()));
  const std::array both{endpoint_of("127.0.0.3", server.port()),
                        endpoint_of("127.0.0.2", server.port())};
  endpoint connected;
  const auto begin = wire_clock::now();
  CHECK(connect_to_any(both, begin + 10s, connected));
  CHECK(wire_clock::now() - begin < 1s);
  CHECK(connected.text() == "127.0.0.2:" + std::to_string(server.port()));
}

TEST_CASE("where none answers, each address that was tried is named", "[distributed]") {
  const uint16_t port = free_port("127.0.0.1");
  const std::array both{endpoint_of("127.0.0.3", port), endpoint_of("127.0.0.2", port)};
  endpoint connected;
  const std::string number = std::to_string(port);
  CHECK_THROWS_WITH(connect_to_any(both, wire_clock::now() + 10s, connected),
                    "cannot connect to 127.0.0.3:" + number +
                        " (Connection refused), 127.0.0.2:" + number + " (Connection refused)");
}

TEST_CASE("an address that does not answer leaves time for the next one", "[distributed]") {
  // A listener whose queue is full answers nobody: the kernel drops what comes.
  endpoint bound;
  const auto full = listen_on({"127.0.0.3", 0}, bound);
  REQUIRE(::listen(full.get(), 0) == 0);
  std::vector<file_descriptor> waiting;
  endpoint connected;
  const std::array deaf{bound};
  bool is_full = false;
  for (int i = 0; i < 8 && !is_full; ++i) try {
      waiting.push_back(connect_to_any(deaf, wire_clock::now() + 100ms, connected));
    } catch (const wire_lost& lost) {
      is_full = true;
      CHECK_THAT(lost.what(), Catch::Contains("no answer"));
    }
  REQUIRE(is_full);
  const wire_server server({"127.0.0.2", bound.port()}, {}, {}, always(echo()));
  const std::array both{bound, endpoint_of("127.0.0.2", bound.port())};
  const auto begin = wire_clock::now();
  CHECK(connect_to_any(both, begin + 400ms, connected));
  CHECK(wire_clock::now() - begin >= 200ms);
  CHECK(connected.text() == endpoint_of("127.0.0.2", bound.port()).text());
}

TEST_CASE("a name is looked up, and one that is none is named", "[distributed]") {
  CHECK_THROWS_WITH(resolve({"no-such-host.invalid", 1}),
                    Catch::Contains("cannot find the host \"no-such-host.invalid\""));
  const wire_server server({"localhost", 0}, {}, {}, always(echo()));
  auto client = wire_client::connect({"localhost", server.port()}, {}, {}, "");
  CHECK(client.call({"by name", "", {}}).method == "by name");
  CHECK_THAT(server.address(), Catch::EndsWith(":" + std::to_string(server.port())));
}

TEST_CASE("IPv6 is as good as IPv4", "[distributed]") {
  if (!has_v6()) {
    WARN("left out: this machine has no IPv6");
    return;
  }
  const wire_server server({"::1", 0}, {}, {}, always(echo()));
  CHECK(server.address() == "[::1]:" + std::to_string(server.port()));
  auto client =
      wire_client::connect(parse_wire_address(server.address(), "the server's own"), {}, {}, "");
  CHECK(client.call({"v6", "", {}}).method == "v6");
}

TEST_CASE("addresses of this machine alone are told from others", "[distributed]") {
  CHECK(is_loopback({"127.0.0.1", 0}));
  CHECK(is_loopback({"127.8.9.1", 0}));
  CHECK(is_loopback({"::1", 0}));
  CHECK(is_loopback({"localhost", 0}));
  for (const std::string host :
       {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "::2", "no-such.invalid"})
    CHECK_FALSE(is_loopback({host, 0}));
}

TEST_CASE("without TLS other machines are neither let in nor connected to, unless that is wanted",
          "[distributed]") {
  CHECK_THROWS_AS(wire_server({"0.0.0.0", 0}, {}, {}, always(echo())), error);
  CHECK_THROWS_AS(wire_client::connect({"198.51.100.1", 9}, {}, {}, ""), error);
  const wire_server server({"0.0.0.0", 0}, insecure(), {}, always(echo()));
  CHECK(client_of(server).call({"x", "", {}}).method == "x");
}

TEST_CASE("a port that is taken is an error that says so; it is free again at once",
          "[distributed]") {
  uint16_t port = 0;
  {
    const wire_server server(local(0), {}, {}, always(echo()));
    port = server.port();
    CHECK_THROWS_WITH(wire_server(local(port), {}, {}, always(echo())),
                      Catch::Contains("cannot listen on 127.0.0.1:" + std::to_string(port) +
                                      ": Address already in use") &&
                          Catch::Contains("port 0 takes a free one"));
    client_of(server).call({});
  }
  const wire_server again(local(port), {}, {}, always(echo()));
  CHECK(again.port() == port);
  CHECK_THROWS_WITH(wire_server({"192.0.2.7", 0}, insecure(), {}, always(echo())),
                    Catch::Contains("not one of this machine"));
}

// With a hosts file of their own: tests/bin/test_names.py runs these.

TEST_CASE("names, two addresses: the one that listens is found at once", "[.names-two]") {
  const wire_server server({"127.0.0.2", 0}, {}, {}, always(echo()));
  const auto begin = wire_clock::now();
  auto client = wire_client::connect({"node-a", server.port()}, {}, {}, "");
  CHECK(wire_clock::now() - begin < 1s);
  CHECK(client.call({"x", "", {}}).method == "x");
  const std::string what = what_of([] {
    wire_client::connect({"node-a", free_port("127.0.0.1")}, {}, {}, "");
  });
  CHECK_THAT(what, Catch::Contains("127.0.0.3:") && Catch::Contains("127.0.0.2:"));
}

TEST_CASE("names, IPv6 first: a server that has IPv4 alone is found at once", "[.names-v6-first]") {
  const wire_server server({"127.0.0.1", 0}, {}, {}, always(echo()));
  const auto begin = wire_clock::now();
  auto client = wire_client::connect({"localhost", server.port()}, {}, {}, "");
  CHECK(wire_clock::now() - begin < 1s);
  CHECK(client.call({"x", "", {}}).method == "x");
  CHECK(resolve({"localhost", 1}).at(0).text() == "[::1]:1");
  const wire_server named({"localhost", 0}, {}, {}, always(echo()));
  CHECK(named.address() == "[::1]:" + std::to_string(named.port()));
}

TEST_CASE("names, the host's own: it is of this machine alone", "[.names-debian]") {
  const wire_server server({"node-a", 0}, {}, {}, always(echo()));
  CHECK(server.address() == "127.0.1.1:" + std::to_string(server.port()));
  CHECK(is_loopback({"node-a", 0}));
}

TEST_CASE("names, no IPv6 on this machine", "[.names-no-v6]") {
  REQUIRE_FALSE(has_v6());
  const wire_server server({"localhost", 0}, {}, {}, always(echo()));
  CHECK(server.address() == "127.0.0.1:" + std::to_string(server.port()));
  auto client = wire_client::connect({"localhost", server.port()}, {}, {}, "");
  CHECK(client.call({"x", "", {}}).method == "x");
}
