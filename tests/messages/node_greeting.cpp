#include "messages/node_greeting.hpp"

#include <catch2/catch.hpp>
#include <string>

namespace dflash {

namespace {

node_greeting someone() {
  node_greeting g;
  g.version = "0.1.0";
  g.agreement = "0badcafe";
  g.cpu = "ATen AVX2";
  g.name = "nodeB";
  g.lanes = {"cpu:0", "cpu:1"};
  return g;
}

}  // namespace

TEST_CASE("greetings, requests and answers of nodes survive the way through text") {
  const node_greeting g = parse_greeting(to_json(someone()));
  CHECK(g.version == "0.1.0");
  CHECK(g.protocol == node_protocol);
  CHECK(g.agreement == "0badcafe");
  CHECK(g.cpu == "ATen AVX2");
  CHECK(g.name == "nodeB");
  CHECK(g.lanes == std::vector<std::string>{"cpu:0", "cpu:1"});
  const lend_request r = parse_lend_request(to_json(lend_request{someone(), "cpu:1", "drafter"}));
  CHECK(r.borrower.name == "nodeB");
  CHECK(r.lane == "cpu:1");
  CHECK(r.purpose == "drafter");
  const lend_answer a = parse_lend_answer(to_json(lend_answer{"", 4242, "secret"}));
  CHECK(a.refused.empty());
  CHECK(a.port == 4242);
  CHECK(a.token == "secret");
}

TEST_CASE("peers of another version, protocol or reading of the configuration do not fit") {
  CHECK(disagreement(someone(), someone()).empty());
  node_greeting other = someone();
  other.cpu = "ATen AVX512";  // named elsewhere, no reason to refuse
  other.name = "x";
  CHECK(disagreement(someone(), other).empty());
  other.version = "0.2.0";
  const std::string why = disagreement(someone(), other);
  CHECK(why.find("0.1.0") != std::string::npos);
  CHECK(why.find("0.2.0") != std::string::npos);
  other = someone();
  other.protocol = node_protocol + 1;
  CHECK_FALSE(disagreement(someone(), other).empty());
  other = someone();
  other.agreement = "0badbabe";
  CHECK_FALSE(disagreement(someone(), other).empty());
  // Whoever says nothing of himself is of another version.
  CHECK(disagreement(someone(), parse_greeting("{}")).find("unknown") != std::string::npos);
}

TEST_CASE("what is no greeting is refused, whatever it is") {
  for (const std::string text : {"",
                                 "[]",
                                 "{",
                                 "\xff\xff",
                                 R"({"dflash": 1})",
                                 R"({"protocol": -1})",
                                 R"({"protocol": 4294967296})",
                                 R"({"lanes": "cpu:0"})",
                                 R"({"lanes": [1]})"})
    CHECK_THROWS(parse_greeting(text));
  CHECK_THROWS(parse_greeting("{\"name\": \"" + std::string(max_greeting_bytes, 'x') + "\"}"));
  CHECK_THROWS(parse_greeting("{\"name\": \"" + std::string(5000, 'x') + "\"}"));
  CHECK_THROWS(parse_lend_request("{}"));
  CHECK_THROWS(parse_lend_answer(R"({"port": 65536})"));
}

}  // namespace dflash
