// How long the lanes of a pipeline take for their work: sums taken around the functions that a
// lane calls, two readings of the clock each. What a forecast of other layouts is made of.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "messages/messages.hpp"

namespace dflash {

struct pipeline_parts;

struct service_mean {
  double seconds = 0;
  uint64_t count = 0;  // 0: not measured
};

// Per batch; reduction and update per step and drafter.
struct service_means {
  service_mean target, postprocess, drafter, reduction, update;
  uint32_t drafters = 1;  // that the reduction was of
};

class service_meter {
public:
  // Wraps the work of all lanes. The first calls of a lane compile kernels and touch memory: they
  // are left out.
  static std::shared_ptr<service_meter> attach(pipeline_parts& parts);

  // At any time. Of postprocess the mailboxes know more than its check: it also keeps, casts, adds
  // noise.
  service_means means(const std::vector<mailbox_report>& mailboxes) const;

private:
  struct stage {
    std::atomic<int64_t> ns{0};
    std::atomic<uint64_t> count{0};
  };
  service_mean mean_of(const stage& s) const;

  stage target_, drafter_, reduction_, update_;
  uint32_t drafters_ = 1;

  // calls_of_one: what a call adds to the count.
  template <class Work>
  static auto timed(std::shared_ptr<service_meter> meter,
                    stage service_meter::*which,
                    Work work,
                    uint64_t calls_of_one = 1);
};

}  // namespace dflash
