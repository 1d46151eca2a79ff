#include "actors/drafter_work.hpp"

#include <utility>

namespace dflash {

drafter_work work_of(std::shared_ptr<drafter_trainer> trainer,
                     checkpoint_restorer restore,
                     checkpoint_writer write) {
  drafter_work work;
  work.accumulate = [trainer](
                        const drafter_input& input, bool measured, const accumulate_watch& watch) {
    return trainer->accumulate(input, measured, watch);
  };
  work.gradient = [trainer]() -> const at::Tensor& { return trainer->gradient(); };
  work.update = [trainer](const at::Tensor& reduced, double weight_sum, uint64_t step, bool skip) {
    return trainer->apply(reduced, weight_sum, step, skip);
  };
  work.stages = std::shared_ptr<stage_timer>(trainer, &trainer->stages());
  if (write)
    work.snapshot = [trainer,
                     write = std::move(write),
                     buffer = std::make_shared<snapshot_buffer>()](const save_request& request) {
      return [request, write, copy = buffer->take(*trainer)] { write(request, *copy); };
    };
  work.state = [trainer] { return state_of(*trainer); };
  work.load_state = [trainer](const replica_state& from) { copy_state(from, *trainer); };
  work.restore = [trainer, restore = std::move(restore)] { return restore(*trainer); };
  return work;
}

}  // namespace dflash
