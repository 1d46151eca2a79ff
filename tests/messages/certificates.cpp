#include "messages/certificates.hpp"

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "certificates_fixture.hpp"
#include "config/error.hpp"

using namespace dflash;

namespace {

certificate_pair node_of(const certificate_pair& ca, const std::vector<std::string>& hosts) {
  return make_node_certificate(ca, "n", hosts, valid_for(std::chrono::days(1)));
}

}  // namespace

TEST_CASE("each certificate has a key of its own") {
  const auto a = node_of(test_ca(), {"h"}), b = node_of(test_ca(), {"h"});
  CHECK(a.key != b.key);
  CHECK(a.certificate != b.certificate);
  CHECK(a.key.find("-----BEGIN PRIVATE KEY-----") == 0);
}

TEST_CASE("names and hosts that could smuggle something in are refused") {
  for (const std::string host : {"", "a,DNS:evil", "a b", "10.0.0.2:7000", "[::1]", "*", "ü"}) {
    INFO(host);
    CHECK_THROWS_AS(node_of(test_ca(), {host}), error);
  }
  for (const std::string name : {"", "a/CN=b", "a b", "a\n"})
    CHECK_THROWS_AS(
        make_node_certificate(
            test_ca(), name, std::vector<std::string>{"h"}, valid_for(std::chrono::days(1))),
        error);
  CHECK_THROWS_AS(node_of(test_ca(), {}), error);
  CHECK_NOTHROW(node_of(test_ca(), {"10.0.0.2", "::1", "fe80::1", "node-b.example", "node_b"}));
}

TEST_CASE("only a CA with its own key signs") {
  const auto node = node_of(test_ca(), {"h"});
  CHECK_THROWS_WITH(node_of(node, {"h"}), "this certificate is not that of a CA");
  CHECK_THROWS_AS(node_of({test_ca().certificate, node.key}, {"h"}), error);
  CHECK_THROWS_AS(node_of({"", ""}, {"h"}), error);
  CHECK_THROWS_AS(node_of({"garbage", test_ca().key}, {"h"}), error);
  const auto now = std::chrono::system_clock::now();
  const auto old = make_ca("old", {now - std::chrono::hours(2), now - std::chrono::hours(1)});
  CHECK_THROWS_WITH(node_of(old, {"h"}), Catch::Contains("the CA is out of date"));
}

TEST_CASE("a secret file is of its owner alone from the start, and old content goes at once") {
  certificate_folder folder;
  const auto path = folder.path() / "key";
  for (const std::string text : {"first", "second, longer"}) {
    write_secret_file(path, text);
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == 0600);
    CHECK(read_file(path) == text);
  }
  CHECK_THROWS_AS(write_secret_file(folder.path() / "none" / "key", "x"), error);
}
