// A replica that takes over another one's state goes on with its bits.
#include "model/replica_state.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>

#include <catch2/catch.hpp>
#include <limits>
#include <memory>

#include "config/error.hpp"
#include "tests/model/decode_fixture.hpp"

using namespace dflash;

namespace {

struct kind {
  const char* optimizer = "adamw";
  double ema = 0;
  compute_dtype dtype = compute_dtype::fp32;
};

std::unique_ptr<drafter_trainer> replica(const kind& k) {
  const auto config = decode_test::tiny_drafter_config(4);
  optim_section optim;
  optim.name = k.optimizer;
  optim.ema = k.ema;
  return std::make_unique<drafter_trainer>(config,
                                           loss_section{},
                                           optim,
                                           decode_test::tiny_drafter(config),
                                           decode_test::tiny_target(k.dtype),
                                           k.dtype,
                                           2000);
}

void update(drafter_trainer& t, double value, uint64_t step) {
  t.apply(at::full_like(t.gradient(), value), 2.0, step);
}

void spoil(drafter_trainer& t) {
  for (auto& [name, tensor] : state_of(t).tensors)
    tensor.fill_(std::numeric_limits<float>::quiet_NaN());
  t.state().set_updates(99);
  t.refresh_compute();
  t.gradient();
}

bool same(drafter_trainer& a, drafter_trainer& b) {
  const replica_state x = state_of(a), y = state_of(b);
  if (x.updates != y.updates || x.tensors.size() != y.tensors.size()) return false;
  for (size_t i = 0; i < x.tensors.size(); ++i)
    if (!at::equal(x.tensors[i].second, y.tensors[i].second)) return false;
  const auto p = named_tensors(a.compute()), q = named_tensors(b.compute());
  for (size_t i = 0; i < p.size(); ++i)
    if (!at::equal(*p[i].second, *q[i].second)) return false;
  return true;
}

const kind kinds[] = {{"adamw", 0, compute_dtype::fp32},
                      {"muon", 0.9, compute_dtype::fp32},
                      {"adamw", 0.9, compute_dtype::bf16}};

}  // namespace

TEST_CASE("a replica with another one's state goes on with the same bits") {
  for (const kind& k : kinds) {
    const auto one = replica(k), other = replica(k);
    for (uint64_t step = 0; step < 3; ++step) update(*one, 0.5 + static_cast<double>(step), step);
    spoil(*other);
    copy_state(state_of(*one), *other);
    CHECK(same(*one, *other));
    for (uint64_t step = 3; step < 5; ++step) {
      update(*one, -0.25, step);
      update(*other, -0.25, step);
    }
    CHECK(same(*one, *other));
  }
}

TEST_CASE("a replica that begins again is as it was built") {
  for (const kind& k : kinds) {
    const auto fresh = replica(k), used = replica(k);
    update(*used, 1, 0);
    spoil(*used);
    restart_from(decode_test::tiny_drafter(used->config()), *used);
    CHECK(same(*fresh, *used));
    update(*fresh, 0.5, 0);
    update(*used, 0.5, 0);
    CHECK(same(*fresh, *used));
  }
}

TEST_CASE("a state of another kind of replica is refused") {
  const auto plain = replica({"adamw", 0}), averaged = replica({"adamw", 0.9});
  const auto muon = replica({"muon", 0});
  CHECK_THROWS_AS(copy_state(state_of(*plain), *averaged), error);
  CHECK_THROWS_AS(copy_state(state_of(*plain), *muon), error);
}
