// Calls with tensors that go well.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <future>
#include <mutex>
#include <set>

#include "config/error.hpp"
#include "wire_fixture.hpp"

using namespace dflash;

namespace {

// Any bytes, those of NaNs and denormals too.
at::Tensor patterned(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  at::Tensor t = at::empty(sizes, at::TensorOptions().dtype(dtype));
  auto* bytes = static_cast<uint8_t*>(t.data_ptr());
  for (size_t i = 0; i < t.nbytes(); ++i)
    bytes[i] = dtype == at::kBool ? i % 3 == 0 : static_cast<uint8_t>(i * 151 + i / 256);
  return t;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

}  // namespace

TEST_CASE("tensors of every type come back bit for bit", "[distributed]") {
  const wire_server server(local(0), {}, {}, always(echo()));
  auto client = client_of(server);
  wire_message sent{"echo", "{\"a\": 1}", {}};
  for (const auto dtype : {at::kBool,
                           at::kByte,
                           at::kChar,
                           at::kShort,
                           at::kInt,
                           at::kLong,
                           at::kHalf,
                           at::kBFloat16,
                           at::kFloat,
                           at::kDouble,
                           at::kFloat8_e4m3fn,
                           at::kFloat8_e5m2}) {
    sent.tensors.push_back(patterned({3, 5}, dtype));
    sent.tensors.push_back(patterned({}, dtype));
    sent.tensors.push_back(patterned({0, 7}, dtype));
  }
  const wire_message got = client.call(sent);
  CHECK(got.method == "echo");
  CHECK(got.body == sent.body);
  REQUIRE(got.tensors.size() == sent.tensors.size());
  for (size_t i = 0; i < sent.tensors.size(); ++i)
    CHECK(same_bytes(got.tensors[i], sent.tensors[i]));
}

TEST_CASE("tensors around the size of a chunk and of all ranks come back", "[distributed]") {
  wire_limits limits;
  limits.chunk_bytes = 1000;
  const wire_server server(local(0), {}, limits, always(echo()));
  wire_limits larger;
  larger.chunk_bytes = 1 << 20;
  for (const wire_limits& own : {limits, larger, wire_limits()}) {
    auto client = client_of(server, own);
    for (const int64_t n : {1, 999, 1000, 1001, 2000, 3'000'001}) {
      const auto t = patterned({n}, at::kByte);
      const auto got = client.call({"", "", {t}});
      REQUIRE(got.tensors.size() == 1);
      CHECK(same_bytes(got.tensors[0], t));
    }
    const auto deep = patterned({1, 2, 1, 3, 1, 2, 1, 2}, at::kFloat);
    CHECK(same_bytes(client.call({"", "", {deep}}).tensors.at(0), deep));
  }
}

TEST_CASE("a tensor that is not contiguous arrives as its values", "[distributed]") {
  const wire_server server(local(0), {}, {}, always(echo()));
  auto client = client_of(server);
  const at::Tensor t = at::arange(12, at::kFloat).view({3, 4}).t();
  CHECK(at::equal(client.call({"", "", {t}}).tensors.at(0), t));
}

TEST_CASE("many calls on one connection, with and without tensors", "[distributed]") {
  std::atomic<int> sum{0};
  const wire_server server(local(0),
                           {},
                           {},
                           always({[&](wire_message m) {
                                     sum += std::stoi(m.body);
                                     return wire_message{"", m.body, m.tensors};
                                   },
                                   {}}));
  auto client = client_of(server);
  for (int i = 0; i < 500; ++i) {
    wire_message request{"add", std::to_string(i), {}};
    if (i % 2) request.tensors.push_back(at::ones({i}));
    const auto got = client.call(request);
    REQUIRE(got.body == request.body);
    REQUIRE(got.tensors.size() == request.tensors.size());
  }
  CHECK(sum == 500 * 499 / 2);
  CHECK(client.counts().calls == 500);
  CHECK(client.counts().sent_bytes == 250 * 250 * 4);
  CHECK(client.counts().received_bytes == client.counts().sent_bytes);
  CHECK(server.counts().calls == 500);
}

TEST_CASE("what comes is received straight into the memory that is given", "[distributed]") {
  const at::Tensor slot = at::zeros({4, 8}, at::kBFloat16),
                   place = at::zeros({4, 8}, at::kBFloat16);
  void* seen = nullptr;
  wire_session session{[&](wire_message m) {
                         seen = m.tensors.at(0).data_ptr();
                         return wire_message{"", "", {m.tensors.at(0), at::ones({2})}};
                       },
                       [&](const wire_announcement& a) {
                         CHECK(a.method == "train");
                         CHECK(a.tensors.at(0) == shape_of(slot));
                         return std::vector<at::Tensor>{slot};
                       }};
  const wire_server server(local(0), {}, {}, always(session));
  auto client = client_of(server);
  const auto t = patterned({4, 8}, at::kBFloat16);
  const auto got =
      client.call({"train", "", {t}}, [&](const wire_announcement&) { return std::vector{place}; });
  CHECK(seen == slot.data_ptr());
  CHECK(got.tensors.at(0).data_ptr() == place.data_ptr());
  CHECK(same_bytes(slot, t));
  CHECK(same_bytes(place, t));
  CHECK(at::equal(got.tensors.at(1), at::ones({2})));  // the second has no place: allocated
}

TEST_CASE("what a handler throws reaches the caller, and the connection stays good",
          "[distributed]") {
  const wire_server server(local(0),
                           {},
                           {},
                           always({[](wire_message m) -> wire_message {
                                     if (m.method == "bad") throw std::runtime_error("out of luck");
                                     if (m.method == "lost") throw wire_lost("its own peer");
                                     if (m.method == "mute") throw std::runtime_error("");
                                     return m;
                                   },
                                   {}}));
  auto client = client_of(server);
  for (int i = 0; i < 3; ++i) {
    CHECK_THROWS_AS(client.call({"bad", "", {at::ones({1000})}}), wire_refused);
    CHECK_THROWS_WITH(client.call({"bad", "", {}}), "out of luck");
    CHECK_THROWS_WITH(client.call({"lost", "", {}}), "its own peer");
    CHECK_THROWS_AS(client.call({"lost", "", {}}), wire_refused);
    CHECK_THROWS_WITH(client.call({"mute", "", {}}), "the handler threw");
    CHECK(client.call({"good", "x", {}}).body == "x");
  }
  CHECK(client.is_open());
  CHECK(server.counts().lost == 0);
}

TEST_CASE("a request whose tensors are not wanted is passed over and refused", "[distributed]") {
  const at::Tensor slot = at::zeros({4});
  const wire_server server(local(0),
                           {},
                           {},
                           always({[](wire_message m) { return m; },
                                   [&](const wire_announcement& a) -> std::vector<at::Tensor> {
                                     if (a.method == "no") throw error("not in this state");
                                     return {slot};
                                   }}));
  auto client = client_of(server);
  CHECK_THROWS_WITH(client.call({"no", "", {at::ones({300'000})}}), "not in this state");
  CHECK_THROWS_WITH(client.call({"", "", {at::ones({5})}}),
                    "tensor 0 is Float [5], wanted is Float [4]");
  CHECK_THROWS_WITH(client.call({"", "", {}}), "0 tensors come, wanted are 1");
  CHECK_THROWS_WITH(client.call({"", "", {at::ones({4}, at::kInt)}}),
                    "tensor 0 is Int [4], wanted is Float [4]");
  CHECK(client.call({"", "", {at::ones({4})}}).tensors.size() == 1);
}

TEST_CASE("an answer whose tensors are not wanted ends the connection", "[distributed]") {
  const wire_server server(local(0), {}, {}, always(echo()));
  auto client = client_of(server);
  const at::Tensor place = at::zeros({4});
  CHECK_THROWS_WITH(client.call({"", "", {at::ones({5})}},
                                [&](const wire_announcement&) { return std::vector{place}; }),
                    Catch::EndsWith("the answer: tensor 0 is Float [5], wanted is Float [4]"));
  CHECK_FALSE(client.is_open());
  CHECK_THROWS_AS(client.call({"", "", {}}), wire_lost);
}

TEST_CASE("messages above the limits are errors, on either side, and nothing is lost",
          "[distributed]") {
  wire_limits small;
  small.max_bytes = 1000;
  const wire_server server(local(0),
                           {},
                           small,
                           always({[](wire_message) -> wire_message {
                                     return {"", "", {at::ones({251})}};
                                   },
                                   {}}));
  auto client = client_of(server, small);
  CHECK_THROWS_AS(client.call({"m", "", {at::ones({251})}}), error);
  CHECK_THROWS_AS(client.call({"m", "", {at::ones({10})}}), wire_refused);
  CHECK_THROWS_WITH(client.call({"m", "", {}}), Catch::Contains("1004 bytes, the limit is 1000"));
  CHECK(client.is_open());
}

TEST_CASE("each connection has a session and a thread of its own", "[distributed]") {
  std::set<std::thread::id> threads;
  std::mutex mutex;
  const wire_server server(local(0), {}, {}, [&](const wire_peer& peer) {
    return wire_session{[&, name = peer.token, made = std::this_thread::get_id()](wire_message) {
                          const std::lock_guard lock(mutex);
                          threads.insert(std::this_thread::get_id());
                          if (made != std::this_thread::get_id()) throw error("another thread");
                          return wire_message{"", name, {}};
                        },
                        {}};
  });
  auto a = wire_client::connect(local(server.port()), {}, {}, "a");
  auto b = wire_client::connect(local(server.port()), {}, {}, "b");
  for (int i = 0; i < 3; ++i) {
    CHECK(a.call({}).body == "a");
    CHECK(b.call({}).body == "b");
  }
  CHECK(threads.size() == 2);
  CHECK(server.counts().open == 2);
}

TEST_CASE("a session ends with its connection", "[distributed]") {
  struct told {
    std::promise<void> ended;
    ~told() { ended.set_value(); }
  };
  std::promise<std::future<void>> made;
  const wire_server server(local(0), {}, {}, [&](const wire_peer&) {
    auto guard = std::make_shared<told>();
    made.set_value(guard->ended.get_future());
    return wire_session{[guard](wire_message m) { return m; }, {}};
  });
  std::future<void> ended;
  {
    auto client = client_of(server);
    ended = made.get_future().get();
    client.call({"x", "", {}});
  }
  CHECK(ended.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  CHECK(server.counts().lost == 0);
}

TEST_CASE("the token decides, and the refusal says why", "[distributed]") {
  const wire_server server(local(0), {}, {}, [](const wire_peer& peer) {
    if (!same_secret(peer.token, "right")) throw error("this token is not known here");
    return echo();
  });
  CHECK_THROWS_AS(wire_client::connect(local(server.port()), {}, {}, "wrong"), wire_refused);
  CHECK_THROWS_WITH(wire_client::connect(local(server.port()), {}, {}, ""),
                    Catch::EndsWith("this token is not known here"));
  CHECK(wire_client::connect(local(server.port()), {}, {}, "right").call({"a", "", {}}).method ==
        "a");
  CHECK(server.counts().refused == 2);
  CHECK_FALSE(same_secret("a", "ab"));
  CHECK_FALSE(same_secret("a", "b"));
  CHECK(same_secret("", ""));
}

TEST_CASE("a full server says so", "[distributed]") {
  wire_limits one;
  one.max_connections = 1;
  const wire_server server(local(0), {}, one, always(echo()));
  auto first = client_of(server);
  CHECK_THROWS_WITH(client_of(server), Catch::Contains("are taken"));
  CHECK(first.call({"still", "", {}}).method == "still");
}
