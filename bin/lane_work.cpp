#include "bin/lane_work.hpp"

#include <utility>

namespace dflash {

at::Device device_of_lane(const lane_name& lane) {
  if (!lane.cuda || !lane.node.empty()) return at::kCPU;
  return {at::kCUDA, static_cast<c10::DeviceIndex>(lane.index)};
}

capture_function capture_by(std::shared_ptr<const target> model,
                            std::vector<int> taps,
                            bool last,
                            std::shared_ptr<stage_timer> stages) {
  return [model = std::move(model), taps = std::move(taps), last, stages = std::move(stages)](
             const batch& b) {
    target::captured c = model->capture(b.input_ids, b.doc_offsets, taps, last, stages.get());
    if (last) c.taps.push_back(std::move(c.last_hidden));
    return std::move(c.taps);
  };
}

std::shared_ptr<drafter_trainer> make_trainer(const run_config& config,
                                              const drafter_config& drafter,
                                              const drafter_weights& start,
                                              const std::shared_ptr<const target>& model,
                                              compute_dtype dtype,
                                              uint64_t total_steps) {
  return std::make_shared<drafter_trainer>(
      drafter, config.loss, config.optim, start, model, dtype, total_steps);
}

}  // namespace dflash
