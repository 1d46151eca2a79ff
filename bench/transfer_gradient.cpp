#include "bench/transfer_gradient.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "actors/lane_protocol.hpp"
#include "actors/lent_work.hpp"
#include "actors/remote_work.hpp"

namespace dflash::bench {

namespace {

using steady = std::chrono::steady_clock;

double seconds_since(steady::time_point begin) {
  return std::chrono::duration<double>(steady::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void begin_pass(wire_client& lane) {
  batch b;
  b.input_ids = {1};
  b.doc_offsets = {0, 1};
  b.loss_mask = {1};
  lane.call(encode_accumulate(b, {}, false, false));
}

void fetch(wire_client& lane, const at::Tensor& into, int64_t bucket) {
  for (int64_t end = into.numel(); end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - bucket);
    const at::Tensor place = into.narrow(0, begin, end - begin);
    lane.call({lane_call::gradient, encode_range({begin, end - begin}), {}},
              [&](const wire_announcement&) { return std::vector{place}; });
    end = begin;
  }
}

}  // namespace

wire_session paced_drafter() {
  const auto gradient = std::make_shared<at::Tensor>(at::zeros({gradient_parameters}));
  drafter_work work;
  work.accumulate = [gradient](const drafter_input&, bool, const accumulate_watch& watch) {
    const step_sums sums;
    watch.summed(sums);
    for (int64_t layer = gradient_layers; layer-- > 0;) {
      std::this_thread::sleep_for(std::chrono::duration<double>(layer_seconds));
      watch.final_from(*gradient, gradient_parameters / gradient_layers * layer);
    }
    return sums;
  };
  work.gradient = [gradient]() -> const at::Tensor& { return *gradient; };
  work.load_state = [](const replica_state&) {};
  return {lent_drafter(std::move(work))};
}

gradient_seconds measure_gradient(wire_client& lane, int rounds) {
  wire_message load = encode_state({});
  load.method = lane_call::load;
  lane.call(load);
  const at::Tensor into = at::zeros({gradient_parameters});
  const int64_t bucket = remote_drafter_options().bucket;
  std::vector<double> alone, whole, buckets;
  for (int round = 0; round < rounds; ++round) {
    for (const int64_t size : {gradient_parameters, bucket}) {
      begin_pass(lane);
      const auto begin = steady::now();
      fetch(lane, into, size);
      (size == bucket ? buckets : whole).push_back(seconds_since(begin));
    }
    const auto begin = steady::now();
    fetch(lane, into, gradient_parameters);
    alone.push_back(seconds_since(begin));
  }
  return {gradient_layers * layer_seconds, median(alone), median(whole), median(buckets)};
}

}  // namespace dflash::bench
