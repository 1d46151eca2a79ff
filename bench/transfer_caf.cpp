#include "bench/transfer_caf.hpp"

#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <type_traits>

#include "config/error.hpp"

namespace dflash {

struct bench_chunk {
  std::shared_ptr<char[]> bytes;
  uint64_t size = 0;
};

// Raw bytes both ways, as CAF does them best.
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, bench_chunk& x) {
  if constexpr (std::is_base_of_v<caf::serializer, Inspector>) {
    if (auto problem = f(x.size)) return problem;
    return f.apply_raw(x.size, x.bytes.get());
  } else if constexpr (std::is_base_of_v<caf::deserializer, Inspector>) {
    if (auto problem = f(x.size)) return problem;
    if (x.size > (uint64_t{1} << 20)) return caf::make_error(caf::sec::invalid_argument);
    x.bytes.reset(new char[x.size]);
    return f.apply_raw(x.size, x.bytes.get());
  } else {
    return f(caf::meta::type_name("bench_chunk"), x.size);
  }
}

}  // namespace dflash

CAF_BEGIN_TYPE_ID_BLOCK(dflash_bench, first_custom_type_id)
CAF_ADD_TYPE_ID(dflash_bench, (dflash::bench_chunk))
CAF_END_TYPE_ID_BLOCK(dflash_bench)

namespace dflash {

namespace {

using sink_actor = caf::typed_actor<caf::replies_to<bench_chunk>::with<uint64_t>>;

struct bench_config : caf::actor_system_config {
  bench_config() {
    set("scheduler.policy", caf::atom("sharing"));
    set("scheduler.max-threads", int64_t{2});
    add_message_types<caf::id_block::dflash_bench>();
    load<caf::io::middleman>();
  }
};

}  // namespace

struct caf_sink::state {
  bench_config config;
  caf::actor_system system{config};
  uint16_t port = 0;
};

caf_sink::caf_sink() : state_(std::make_unique<state>()) {
  const auto sink = state_->system.spawn([]() -> sink_actor::behavior_type {
    return {[](const bench_chunk& chunk) { return chunk.size; }};
  });
  const auto port = state_->system.middleman().publish(sink, 0, "127.0.0.1");
  if (!port) throw std::runtime_error("CAF cannot publish: " + state_->system.render(port.error()));
  state_->port = *port;
}
caf_sink::~caf_sink() = default;
uint16_t caf_sink::port() const {
  return state_->port;
}

struct caf_source::state {
  bench_config config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  sink_actor sink;
};

caf_source::caf_source(uint16_t port) : state_(std::make_unique<state>()) {
  const auto sink = state_->system.middleman().remote_actor<sink_actor>("127.0.0.1", port);
  if (!sink) throw std::runtime_error("CAF cannot connect: " + state_->system.render(sink.error()));
  state_->sink = *sink;
}
caf_source::~caf_source() = default;

void caf_source::send(uint64_t bytes, uint64_t chunk_bytes, uint64_t window) {
  auto& self = state_->self;
  bench_chunk chunk{std::shared_ptr<char[]>(new char[chunk_bytes]), chunk_bytes};
  std::memset(chunk.bytes.get(), 7, chunk_bytes);
  const caf::duration patience{std::chrono::seconds(20)};
  uint64_t asked = 0, answered = 0;
  const auto ask = [&] {
    chunk.size = std::min(chunk_bytes, bytes - asked);
    asked += chunk.size;
    return self->request(state_->sink, patience, chunk);
  };
  std::deque<decltype(ask())> under_way;
  while (answered < bytes) {
    while (asked < bytes && under_way.size() < window) under_way.push_back(ask());
    under_way.front().receive(
        [&](uint64_t n) { answered += n; },
        [&](const caf::error& e) { throw std::runtime_error(state_->system.render(e)); });
    under_way.pop_front();
  }
}

}  // namespace dflash
