#include "actors/sim_lanes.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "actors/pipeline.hpp"
#include "config/error.hpp"
#include "data/random.hpp"

namespace dflash {

namespace {

// The kernel may wake a thread 50 us late unless it is told not to.
void sleep_for(double seconds) {
  if (seconds <= 0) return;
  ::prctl(PR_SET_TIMERSLACK, 1UL);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

double service_time::of(uint64_t k) const {
  if (law == service_law::constant || seconds <= 0) return seconds;
  const double drawn = random_stream{seed, random_domain::service, k}.uniform(part);
  if (law == service_law::exponential) return -seconds * std::log1p(-drawn);
  return seconds * (1 + spread * (2 * drawn - 1));
}

sim_times sim_times_of(service_law law, uint64_t seed, double spread) {
  const auto time = [&](uint64_t part) { return service_time{0, law, seed, spread, part}; };
  return {time(0), time(1), time(2), time(3), time(4)};
}

flow_times flow_times_of(const sim_times& times) {
  const auto time = [](const service_time& t) { return [t](uint64_t k) { return t.of(k); }; };
  return {time(times.target),
          time(times.postprocess),
          time(times.drafter),
          time(times.reduction),
          time(times.update)};
}

std::vector<at::Tensor> reserved_hidden(const hidden_shape& shape) {
  const size_t bytes = shape.bytes();
  void* const at =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    throw error(std::string("no address space for hidden states of a simulated lane: ") +
                    std::strerror(errno),
                std::to_string(bytes) + " bytes",
                "fewer lanes or smaller rows; `ulimit -v` may be in the way");
  const std::shared_ptr<void> mapping(at, [bytes](void* p) { ::munmap(p, bytes); });
  std::vector<at::Tensor> tensors;
  const size_t one = bytes / static_cast<size_t>(shape.tensors());
  for (int64_t i = 0; i < shape.tensors(); ++i)
    tensors.push_back(at::from_blob(
        static_cast<char*>(at) + static_cast<size_t>(i) * one,
        {shape.row_tokens, shape.width},
        [mapping](void*) {},
        at::TensorOptions().dtype(shape.dtype)));
  return tensors;
}

capture_function sim_capture(service_time service, hidden_shape shape) {
  return [service, shape](const batch& b) {
    sleep_for(service.of(b.k));
    return reserved_hidden(shape);
  };
}

std::function<bool(const std::vector<at::Tensor>&)> sim_hand_over(service_time service) {
  auto number = std::make_shared<std::atomic<uint64_t>>(0);  // of hand-overs, not of batches
  return [service, number](const std::vector<at::Tensor>&) {
    sleep_for(service.of(number->fetch_add(1)));
    return true;
  };
}

drafter_work sim_drafter(const sim_times& times, std::function<void(uint64_t)> on_update) {
  drafter_work work;
  auto gradient = std::make_shared<at::Tensor>(at::zeros({1}));
  auto step = std::make_shared<uint64_t>(0);  // the open one
  work.accumulate = [batch = times.drafter](
                        const drafter_input& input, bool, const accumulate_watch&) {
    sleep_for(batch.of(input.tokens->k));
    step_sums sums;
    sums.weight_sum = 1;
    return sums;
  };
  work.gradient = [gradient]() -> const at::Tensor& { return *gradient; };
  work.sum = [reduction = times.reduction, step](std::span<const at::Tensor>, at::Tensor&) {
    sleep_for(reduction.of(*step));
  };
  work.update = [update = times.update, step, done = std::move(on_update)](
                    const at::Tensor&, double, uint64_t s, bool) {
    sleep_for(update.of(s));
    *step = s + 1;
    if (done) done(s);
    return update_report{};
  };
  work.snapshot = [](const save_request&) { return [] {}; };
  work.state = [] { return replica_state{}; };
  work.load_state = [](const replica_state&) {};
  work.restore = [] { return uint64_t{0}; };
  return work;
}

void add_sim_lanes(pipeline_parts& parts, const sim_times& times) {
  parts.targets.assign(parts.limits.targets, sim_capture(times.target, parts.shape));
  parts.drafters.clear();
  for (uint32_t i = 0; i < parts.limits.drafters; ++i) parts.drafters.push_back(sim_drafter(times));
  parts.finite = sim_hand_over(times.postprocess);
}

}  // namespace dflash
