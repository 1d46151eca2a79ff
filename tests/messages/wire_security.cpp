// TLS of data connections: who is let in, and who is not.
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>

#include <cstdlib>
#include <future>

#include "certificates_fixture.hpp"
#include "config/error.hpp"
#include "wire_fixture.hpp"

using namespace dflash;
using namespace std::chrono_literals;

namespace {

// What a client hears that wants in with these files.
std::string refused_client(const wire_server& server,
                           const wire_security& files,
                           const std::string& host = "127.0.0.1") {
  const uint64_t open = server.counts().open;
  const std::string what = what_of([&] {
    wire_client::connect({host, server.port()}, files, {}, "");
  });
  CHECK(server.counts().open == open);
  return what;
}

}  // namespace

TEST_CASE("with certificates of one CA on both sides tensors travel, and each knows who is there",
          "[distributed]") {
  certificate_folder folder;
  std::string name;
  const wire_server server(local(0),
                           folder.node(test_ca(), "nodeB", {"127.0.0.1", "localhost"}),
                           {},
                           [&](const wire_peer& peer) {
                             name = peer.name;
                             return echo();
                           });
  const wire_security hub = folder.node(test_ca(), "hub", {"10.0.0.1"});
  for (const std::string host : {"127.0.0.1", "localhost"}) {
    auto client = wire_client::connect({host, server.port()}, hub, {}, "");
    const at::Tensor t = at::rand({1'000'003});
    const wire_message got = client.call({"echo", "{}", {t, t.narrow(0, 0, 5), t}});
    REQUIRE(got.tensors.size() == 3);
    CHECK(at::equal(got.tensors[0], t));
    CHECK(at::equal(got.tensors[1], t.narrow(0, 0, 5)));
    CHECK(at::equal(got.tensors[2], t));
    for (int i = 0; i < 50; ++i)
      CHECK(client.call({"", std::to_string(i), {}}).body == std::to_string(i));
  }
  CHECK(name == "hub");
}

TEST_CASE("a client without a good certificate gets nothing", "[distributed]") {
  certificate_folder folder;
  const certificate_pair other = make_ca("test-ca", valid_for(std::chrono::days(2)));
  const auto now = std::chrono::system_clock::now();
  const wire_server server(
      local(0), folder.node(test_ca(), "nodeB", {"127.0.0.1"}), {}, [](const wire_peer&) {
        FAIL_CHECK("a stranger came as far as the token");
        return echo();
      });
  // Of another CA of the same name; it would trust this server.
  const auto foreign = make_node_certificate(
      other, "hub", std::vector<std::string>{"h"}, valid_for(std::chrono::days(1)));
  CHECK_THAT(refused_client(server, folder.write(test_ca().certificate, foreign)),
             Catch::Contains("refuses this side's certificate"));
  // In plain text.
  CHECK_THAT(refused_client(server, {}), Catch::Contains("does it ask for TLS?"));
  // Encrypted, but with no certificate at all.
  const std::string none = "openssl s_client -connect 127.0.0.1:" + std::to_string(server.port()) +
                           " -quiet </dev/null >/dev/null 2>&1";
  CHECK(std::system(none.c_str()) != 0);
  // Signed by the CA's key, but out of date: the client itself says so.
  const auto late = folder.node(test_ca(), "hub", {"h"}, {now - 48h, now - 1h});
  CHECK_THROWS_WITH(wire_client::connect(local(server.port()), late, {}, ""),
                    Catch::Contains("this certificate is out of date"));
  CHECK(server.counts().refused == 3);
}

TEST_CASE("a client of an expired certificate is refused by the server too", "[distributed]") {
  certificate_folder folder;
  const auto now = std::chrono::system_clock::now();
  const wire_server server(
      local(0), folder.node(test_ca(), "nodeB", {"127.0.0.1"}), {}, always(echo()));
  const auto late = folder.node(test_ca(), "hub", {"h"}, {now - 48h, now - 1h});
  const auto status =
      std::system(("openssl s_client -connect 127.0.0.1:" + std::to_string(server.port()) +
                   " -CAfile " + late.ca.string() + " -cert " + late.certificate.string() +
                   " -key " + late.key.string() + " -quiet </dev/null >/dev/null 2>&1")
                      .c_str());
  CHECK(status != 0);
  CHECK(server.counts().open == 0);
  CHECK(server.counts().refused == 1);
}

TEST_CASE("a client talks to no server that the CA has not signed for that host", "[distributed]") {
  certificate_folder folder;
  const certificate_pair other = make_ca("test-ca", valid_for(std::chrono::days(2)));
  const wire_security hub = folder.node(test_ca(), "hub", {"h"});
  const auto says = [&](const wire_security& of_server, const std::string& host) {
    const wire_server server(local(0), of_server, {}, always(echo()));
    return refused_client(server, hub, host);
  };
  CHECK_THAT(says(folder.node(other, "nodeB", {"127.0.0.1"}), "127.0.0.1"),
             Catch::Contains("the peer's certificate is refused"));
  CHECK_THAT(says(folder.node(test_ca(), "nodeB", {"127.0.0.2"}), "127.0.0.1"),
             Catch::Contains("IP address mismatch"));
  CHECK_THAT(says(folder.node(test_ca(), "localhost", {"127.0.0.1"}), "localhost"),
             Catch::Contains("mismatch"));  // the common name is no host
  CHECK_THROWS_AS(wire_client::connect(
                      local(wire_server(local(0), {}, {}, always(echo())).port()), hub, {}, ""),
                  wire_lost);
}

TEST_CASE("a client with certificates says that the server speaks plain text", "[distributed]") {
  certificate_folder folder;
  const wire_server server(local(0), {}, {}, always(echo()));
  CHECK_THROWS_AS(
      wire_client::connect(local(server.port()), folder.node(test_ca(), "hub", {"h"}), {}, ""),
      wire_lost);
  CHECK(server.counts().open == 0);
}

TEST_CASE("a silent stranger at a port with TLS is dropped within the timeout", "[distributed]") {
  certificate_folder folder;
  std::promise<std::string> told;
  const wire_server server(local(0),
                           folder.node(test_ca(), "nodeB", {"127.0.0.1"}),
                           impatient(),
                           always(echo()),
                           [&](const std::string& line) { told.set_value(line); });
  const auto silent = raw_client(server.port());
  CHECK_THAT(told.get_future().get(), Catch::Contains("no sign of life"));
}

TEST_CASE("files that are no good are errors that name them", "[distributed]") {
  certificate_folder folder;
  const wire_security good = folder.node(test_ca(), "nodeB", {"127.0.0.1"});
  const auto says = [&](wire_security files) {
    return what_of([&] { wire_server(local(0), files, {}, always(echo())); });
  };
  wire_security bad = good;
  bad.ca = folder.path() / "missing.pem";
  CHECK_THAT(says(bad), Catch::Contains("missing.pem"));
  bad = good;
  bad.certificate = good.key;
  CHECK_THAT(says(bad), Catch::Contains("cannot read the certificate of this node"));
  bad = good;
  bad.key = folder.node(test_ca(), "nodeC", {"127.0.0.1"}).key;
  CHECK_THAT(says(bad), Catch::Contains("not that of the certificate"));
  bad = good;
  bad.key.clear();
  CHECK_THAT(says(bad), Catch::Contains("three files"));
  bad = good;
  bad.key = folder.path() / "garbage";
  write_file_atomically(bad.key, "-----BEGIN PRIVATE KEY-----\nAAAA\n");
  CHECK_THAT(says(bad), Catch::Contains("garbage"));
}
