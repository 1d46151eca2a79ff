// Control travels by CAF: its OpenSSL module with the certificates of `dflash cert`.
#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <caf/openssl/all.hpp>

#include <memory>

#include "certificates_fixture.hpp"
#include "wire_fixture.hpp"

using namespace dflash;

namespace {

using echo_actor = caf::typed_actor<caf::replies_to<std::string>::with<std::string>>;

struct secure_config : caf::actor_system_config {
  explicit secure_config(const wire_security& files) {
    set("scheduler.policy", caf::atom("sharing"));
    set("scheduler.max-threads", int64_t{1});
    // A handshake that is not over at the next tick is dropped.
    set("middleman.heartbeat-interval", caf::timespan{std::chrono::seconds(2)});
    set("middleman.connection-timeout", caf::timespan{std::chrono::seconds(20)});
    load<caf::io::middleman>();
    load<caf::openssl::manager>();
    openssl_cafile = files.ca.string();
    openssl_certificate = files.certificate.string();
    openssl_key = files.key.string();
  }
};

struct secure_system {
  explicit secure_system(const wire_security& files) : config(files) {}
  secure_config config;
  caf::actor_system system{config};
};

}  // namespace

TEST_CASE("CAF's OpenSSL module takes the certificates, and lets in nobody else", "[distributed]") {
  certificate_folder folder;
  const certificate_pair other = make_ca("test-ca", valid_for(std::chrono::days(2)));
  secure_system node(folder.node(test_ca(), "nodeB", {"127.0.0.1"}));
  REQUIRE(node.system.openssl_manager().authentication_enabled());
  const auto actor = node.system.spawn(
      []() -> echo_actor::behavior_type { return {[](const std::string& text) { return text; }}; });
  const auto port = caf::openssl::publish(actor, 0, "127.0.0.1");
  REQUIRE(port);
  const auto ask = [&](const wire_security& files) -> std::string {
    secure_system hub(files);
    const auto remote = caf::openssl::remote_actor<echo_actor>(hub.system, "127.0.0.1", *port);
    if (!remote) return "refused";
    caf::scoped_actor self{hub.system};
    std::string answer = "no answer";
    self->request(*remote, caf::duration{std::chrono::seconds(20)}, std::string("hello"))
        .receive([&](const std::string& text) { answer = text; }, [](const caf::error&) {});
    return answer;
  };
  CHECK(ask(folder.node(test_ca(), "hub", {"h"})) == "hello");
  CHECK(ask(folder.write(
            test_ca().certificate,
            make_node_certificate(
                other, "hub", std::vector<std::string>{"h"}, valid_for(std::chrono::days(1))))) ==
        "refused");
  CHECK(ask(folder.node(other, "hub", {"h"})) == "refused");
  // In plain text.
  caf::actor_system_config plain_config;
  plain_config.load<caf::io::middleman>();
  plain_config.set("scheduler.max-threads", int64_t{1});
  plain_config.set("middleman.heartbeat-interval", caf::timespan{std::chrono::seconds(2)});
  plain_config.set("middleman.connection-timeout", caf::timespan{std::chrono::seconds(2)});
  caf::actor_system plain{plain_config};
  CHECK_FALSE(plain.middleman().remote_actor<echo_actor>("127.0.0.1", *port));
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
}
