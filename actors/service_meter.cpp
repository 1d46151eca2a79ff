#include "actors/service_meter.hpp"

#include <string>
#include <utility>

#include "actors/pipeline.hpp"
#include "actors/runtime/mailbox_stats.hpp"

namespace dflash {

namespace {

constexpr uint64_t first_calls = 2;  // of each lane

}  // namespace

template <class Work>
auto service_meter::timed(std::shared_ptr<service_meter> meter,
                          stage service_meter::*which,
                          Work work,
                          uint64_t calls_of_one) {
  auto calls = std::make_shared<std::atomic<uint64_t>>(0);
  return [meter = std::move(meter), which, work = std::move(work), calls_of_one, calls](
             auto&&... arguments) -> decltype(auto) {
    struct reading {
      stage* into;
      uint64_t calls;
      int64_t began;
      ~reading() {
        if (into == nullptr) return;
        into->ns += now_ns() - began;
        into->count += calls;
      }
    };
    const bool counts = calls->fetch_add(1) >= first_calls;
    const reading r{counts ? &((*meter).*which) : nullptr, calls_of_one, now_ns()};
    return work(std::forward<decltype(arguments)>(arguments)...);
  };
}

std::shared_ptr<service_meter> service_meter::attach(pipeline_parts& parts) {
  auto meter = std::make_shared<service_meter>();
  meter->drafters_ = static_cast<uint32_t>(parts.drafters.size());
  for (capture_function& target : parts.targets)
    target = timed(meter, &service_meter::target_, std::move(target));
  for (drafter_work& drafter : parts.drafters) {
    drafter.accumulate = timed(meter, &service_meter::drafter_, std::move(drafter.accumulate));
    // Where accumulate returns after the forward pass, the rest of it is in here.
    drafter.gradient = timed(meter, &service_meter::drafter_, std::move(drafter.gradient), 0);
    drafter.sum = timed(meter, &service_meter::reduction_, std::move(drafter.sum));
    drafter.update = timed(meter, &service_meter::update_, std::move(drafter.update));
  }
  return meter;
}

service_mean service_meter::mean_of(const stage& s) const {
  const uint64_t count = s.count;
  if (count == 0) return {};
  return {static_cast<double>(s.ns) * 1e-9 / static_cast<double>(count), count};
}

service_means service_meter::means(const std::vector<mailbox_report>& mailboxes) const {
  service_means m;
  m.target = mean_of(target_);
  m.drafter = mean_of(drafter_);
  m.reduction = mean_of(reduction_);
  m.update = mean_of(update_);
  m.drafters = drafters_;
  for (const mailbox_report& row : mailboxes)
    if (row.actor.rfind("postprocess", 0) == 0 && row.handled > 1) {
      m.postprocess.seconds += static_cast<double>(row.service_ns) * 1e-9;
      m.postprocess.count += row.handled - 1;  // without the start
    }
  if (m.postprocess.count > 0) m.postprocess.seconds /= static_cast<double>(m.postprocess.count);
  return m;
}

}  // namespace dflash
