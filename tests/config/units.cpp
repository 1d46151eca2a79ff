#include <catch2/catch.hpp>

#include "config/error.hpp"
#include "config/run_config.hpp"

namespace dflash {

TEST_CASE("sizes take units of 1000 and of 1024") {
  CHECK(parse_bytes("0") == 0u);
  CHECK(parse_bytes("4096") == 4096u);
  CHECK(parse_bytes("1 kB") == 1000u);
  CHECK(parse_bytes("8 GB") == 8'000'000'000u);
  CHECK(parse_bytes("8GB") == 8'000'000'000u);
  CHECK(parse_bytes("1.5 GiB") == 3u << 29);
  CHECK(parse_bytes("512 MiB") == 512u << 20);
  CHECK(parse_bytes("2 TiB") == std::uint64_t{2} << 40);
}

TEST_CASE("what is not a size is refused") {
  for (const char* text : {"",
                           "GB",
                           "8  GB",
                           "8 gb",
                           "8 Gb",
                           "8 GB ",
                           "-1 GB",
                           "1e3",
                           "nan",
                           "inf",
                           "0x10",
                           "8 G",
                           "0.3 B",
                           "99999999999999999999 TB",
                           "1,5 GB"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_bytes(text));
  }
}

TEST_CASE("lanes are a kind and an index") {
  CHECK_FALSE(parse_lane("cpu:0").cuda);
  CHECK(parse_lane("cpu:12").index == 12);
  CHECK(parse_lane("cuda:3").cuda);
  CHECK(parse_lane("sim:2").sim);
  CHECK(parse_lane("sim:2").index == 2);
  CHECK_FALSE(parse_lane("cuda:3").sim);
  for (const char* text : {"",
                           "cpu",
                           "cpu:",
                           "gpu:0",
                           "cuda:-1",
                           "cuda:+1",
                           "cuda:01",
                           "cuda:1x",
                           "cpu:0:1",
                           ":0",
                           "cuda:99999999999",
                           " cpu:0",
                           "/cpu:0",
                           "a/",
                           "a/b/cpu:0",
                           "-a/cpu:0",
                           "a b/cpu:0",
                           "a/gpu:0"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_lane(text), error);
  }
}

TEST_CASE("a lane of another host has that host's name before it") {
  const lane_name lane = parse_lane("node-B.2/cpu:7");
  CHECK(lane.node == "node-B.2");
  CHECK(lane.local() == "cpu:7");
  CHECK(lane.index == 7);
  CHECK(parse_lane("n/sim:1").sim);
  CHECK(parse_lane("sim:1").node.empty());
  CHECK(is_node_name(std::string(63, 'a')));
  CHECK_FALSE(is_node_name(std::string(64, 'a')));
  CHECK_FALSE(is_node_name(""));
}

}  // namespace dflash
