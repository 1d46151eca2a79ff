#include "messages/actors.hpp"

#include <ATen/ops/zeros.h>

#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "messages/tensor_block.hpp"

using namespace dflash;

namespace {

struct config : caf::actor_system_config {
  config() {
    set("scheduler.max-threads", int64_t{1});
    add_message_types<caf::id_block::dflash>();
  }
};

system_report sample() {
  system_report report;
  report.run = "runs/x";
  report.uptime_ns = -1;
  report.steps = std::numeric_limits<uint64_t>::max();
  report.rows.resize(2);
  report.rows[0].actor = "drafter_train 0";
  report.rows[0].bytes = 7;
  report.rows[0].held = {3, 4};
  report.rows[0].spent_ns = {-5};
  report.rows[1].state = "";
  return report;
}

}  // namespace

TEST_CASE("doubles travel by their bits") {
  for (const double value : {-0.0,
                             std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::denorm_min(),
                             1.5}) {
    const f64_bits bits = value;
    CHECK(static_cast<double>(bits) == value);
    CHECK(std::signbit(static_cast<double>(bits)) == std::signbit(value));
  }
  CHECK(std::isnan(static_cast<double>(f64_bits(std::nan("")))));
}

TEST_CASE("the report of the inspector survives the wire") {
  config c;
  caf::actor_system system{c};
  std::vector<char> buffer;
  caf::binary_serializer out{system, buffer};
  system_report sent = sample();
  REQUIRE_FALSE(out(sent));
  caf::binary_deserializer in{system, buffer};
  system_report received;
  REQUIRE_FALSE(in(received));
  CHECK(received.run == sent.run);
  CHECK(received.uptime_ns == sent.uptime_ns);
  CHECK(received.steps == sent.steps);
  REQUIRE(received.rows.size() == 2);
  CHECK(received.rows[0].actor == "drafter_train 0");
  CHECK(received.rows[0].bytes == 7);
  CHECK(received.rows[0].held == sent.rows[0].held);
  CHECK(received.rows[0].spent_ns == sent.rows[0].spent_ns);

  SECTION("cut short, it is an error") {
    buffer.resize(buffer.size() - 3);
    caf::binary_deserializer cut{system, buffer};
    CHECK(cut(received));
  }
}

TEST_CASE("a claimed number of rows is no allocation") {
  config c;
  caf::actor_system system{c};
  std::vector<char> buffer;
  caf::binary_serializer out{system, buffer};
  std::string run, node;
  int64_t uptime = 0;
  uint64_t steps = 0, total = 0, rows = uint64_t{1} << 60;
  REQUIRE_FALSE(out(run, node, uptime, steps, total, rows));
  caf::binary_deserializer in{system, buffer};
  system_report received;
  CHECK(in(received));
  CHECK(received.rows.empty());
}

TEST_CASE("a released handle holds neither bytes nor its slot, whoever has copies") {
  const auto pool = slot_pool::make(1, 64);
  const tensor_handle handle = make_tensor_handle(
      {at::zeros({4, 2}), at::zeros({4, 2})}, true, std::move(*pool->try_acquire()));
  const tensor_handle copy = handle;  // as in a message that is still queued elsewhere
  CHECK(handle.bytes() == 64);
  CHECK(pool->in_use() == 1);
  handle.release();
  CHECK(copy.bytes() == 0);
  CHECK(copy->tensors.empty());
  CHECK(pool->in_use() == 0);
}
