// Recordings: the same values from a replay as from the work itself, and what cannot be recorded.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>

#include "device/recording.hpp"
#include "tests/twin/twin_device.hpp"

using namespace dflash;
using namespace dflash::test;

namespace {

at::Tensor filled(double value) {
  return at::full({3, 3}, value).to(twin(0));
}

}  // namespace

TEST_CASE("a recording does again what it has seen, with the values that are there then",
          "[twin]") {
  const at::Tensor in = filled(1), sum = filled(0);
  at::Tensor out;
  int ran = 0;
  recordings all(twin_recorder());
  CHECK(all.records());
  const auto work = [&] {
    ++ran;
    out = at::mm(in, in) + 1;
    sum.add_(out);
  };
  double expected = 0;
  reset_twins();
  for (const double value : {1.0, 2.0, 3.0, 4.0}) {
    in.fill_(value);
    all.run("work", work);
    const double made = 3 * value * value + 1;
    expected += made;
    CHECK(at::equal(out.to(at::kCPU), at::full({3, 3}, made)));
    CHECK(at::equal(sum.to(at::kCPU), at::full({3, 3}, expected)));
  }
  CHECK(ran == 2);
  all.run("other work", work);
  CHECK(ran == 3);
  CHECK(twins().faults == std::vector<std::string>{});
}

TEST_CASE("without a recorder work is run as it is", "[twin]") {
  recordings none;
  CHECK_FALSE(none.records());
  int ran = 0;
  for (int i = 0; i < 3; ++i) none.run("work", [&] { ++ran; });
  CHECK(ran == 3);
}

TEST_CASE("work that throws while it is recorded may be tried again", "[twin]") {
  recordings all(twin_recorder());
  int ran = 0;
  const auto work = [&] {
    if (++ran == 2) throw std::runtime_error("no memory");
  };
  all.run("work", work);
  CHECK_THROWS_WITH(all.run("work", work), "no memory");
  all.run("work", work);
  all.run("work", work);
  CHECK(ran == 3);
}

TEST_CASE("what a recording cannot hold is a fault", "[twin]") {
  const auto faults_of = [](const std::function<void()>& work) {
    reset_twins();
    twin_recorder()(work);
    return twins().faults.size();
  };
  const at::Tensor here = at::zeros({3, 3}), there = filled(1);
  CHECK(faults_of([&] { there.add_(1); }) == 0);
  CHECK(faults_of([&] { there.copy_(here); }) > 0);
  CHECK(faults_of([&] { here.copy_(there); }) > 0);
  CHECK(faults_of([&] { (void)there.sum().item<double>(); }) > 0);
  reset_twins();
}
