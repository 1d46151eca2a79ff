#include "actors/drafter_work.hpp"

#include <utility>

namespace dflash {

drafter_work work_of(std::shared_ptr<drafter_trainer> trainer, checkpoint_writer save) {
  drafter_work work;
  work.accumulate = [trainer](const drafter_input& input, bool measured) {
    return trainer->accumulate(input, measured);
  };
  work.gradient = [trainer]() -> const at::Tensor& { return trainer->gradient(); };
  work.update = [trainer](const at::Tensor& reduced, double weight_sum, uint64_t step) {
    return trainer->apply(reduced, weight_sum, step);
  };
  work.stages = std::shared_ptr<stage_timer>(trainer, &trainer->stages());
  if (save)
    work.save = [trainer, save = std::move(save)](const save_request& request) {
      save(request, *trainer);
    };
  return work;
}

}  // namespace dflash
