// The models on another device than the CPU: the same values, and how often the host waits.
#include <ATen/TensorOperators.h>

#include <catch2/catch.hpp>

#include "tests/model/decode_fixture.hpp"
#include "tests/model/step_fixture.hpp"
#include "tests/twin/twin_device.hpp"

using namespace dflash;
using namespace dflash::test;

namespace {

problem on(c10::Device device) {
  problem p;
  p.frozen.embedding = p.frozen.embedding.to(device);
  p.frozen.head = packed_linear(p.frozen.head.weight().to(device));
  p.frozen.final_norm = p.frozen.final_norm.to(device);
  for (at::Tensor& t : p.taps) t = t.to(device);
  p.last_hidden = p.last_hidden.to(device);
  return p;
}

// Sums in fp32 are added up in another order, and in one that depends on the number of threads: as
// a share of the largest value.
void same(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-5) {
  const double gap = a.to(at::kCPU).sub(b).abs().max().item<double>(),
               largest = b.abs().max().item<double>();
  CAPTURE(gap, largest);
  CHECK(gap <= tolerance * largest);
}

}  // namespace

TEST_CASE("a drafter trains on another device as on the CPU", "[twin]") {
  problem here, there = on(twin(1));
  drafter_trainer a = here.trainer(), b = there.trainer();
  CHECK(b.flat_masters().device() == twin(1));
  for (uint64_t step = 0; step < 3; ++step) {
    CAPTURE(step);
    reset_twins();
    const step_sums sa = a.accumulate(here.input()), sb = b.accumulate(there.input());
    const twin_counts pass = twins();
    CHECK(pass.faults == std::vector<std::string>{});
    CHECK(sb.loss == Approx(sa.loss).epsilon(1e-5));
    CHECK(sb.hits_at == sa.hits_at);
    same(b.gradient(), a.gradient());
    reset_twins();
    const update_report ra = a.apply(a.gradient(), sa.weight_sum, step),
                        rb = b.apply(b.gradient(), sb.weight_sum, step);
    const twin_counts update = twins();
    CHECK(rb.grad_norm == Approx(ra.grad_norm).epsilon(1e-5));
    CHECK(rb.update_norm == Approx(ra.update_norm).epsilon(1e-4));
    same(b.flat_masters(), a.flat_masters(), 1e-4);  // Adam divides by small numbers
    // One wait for the sums of the loss (the first batch uploads the table of positions too), two
    // for the norms of gradient and update.
    CHECK(pass.host_waits == (step == 0 ? 3 : 1));
    CHECK(pass.downloads == 1);
    CHECK(update.host_waits == 2);
    CHECK(update.faults == std::vector<std::string>{});
  }
}

TEST_CASE("a target captures on another device as on the CPU", "[twin]") {
  const auto here = decode_test::tiny_target(),
             there = decode_test::tiny_target(
                 compute_dtype::fp32, -1, decode_test::tiny_vocab, twin(2));
  const std::vector<int32_t> ids = decode_test::tiny_prompt(20), offsets = {0, 12, 20};
  const std::vector<int> taps = {1, 2};
  const auto a = here->capture(ids, offsets, taps, true);
  reset_twins();
  const auto b = there->capture(ids, offsets, taps, true);
  const twin_counts c = twins();
  CHECK(c.host_waits == 0);
  CHECK(c.faults == std::vector<std::string>{});
  // The CPU's kernels add up in another order.
  for (size_t i = 0; i < taps.size(); ++i) same(b.taps[i], a.taps[i], 1e-4);
  same(b.last_hidden, a.last_hidden, 1e-4);
  same(there->logits(b.last_hidden), here->logits(a.last_hidden), 1e-4);
}
