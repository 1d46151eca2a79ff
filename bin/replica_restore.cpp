#include "bin/replica_restore.hpp"

#include <stdexcept>

#include "model/checkpoint.hpp"
#include "model/replica_state.hpp"

namespace dflash {

checkpoint_restorer restorer(const training_setup& setup,
                             const std::filesystem::path& checkpoints) {
  return [drafter = setup.drafter,
          model = setup.model,
          config = setup.config,
          first_step = setup.parts.first_step,
          checkpoints](drafter_trainer& trainer) -> uint64_t {
    if (const auto state = load_newest_checkpoint(checkpoints, trainer)) {
      trainer.clear_gradient();
      return state->steps;
    }
    if (first_step > 0)
      throw std::runtime_error("no good checkpoint is left in " + checkpoints.string());
    restart_from(init_drafter(drafter,
                              config.draft.init,
                              *model,
                              config.run.seed,
                              config.draft.norm_scale,
                              config.target.path),
                 trainer);
    return 0;
  };
}

}  // namespace dflash
