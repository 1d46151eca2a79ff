#include "device/cuda/stage_clock.hpp"

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <cmath>
#include <memory>
#include <type_traits>
#include <vector>

#include "device/cuda/check.hpp"

namespace dflash::cuda {

namespace {

struct event_end {
  void operator()(cudaEvent_t event) const { (void)cudaEventDestroy(event); }
};
using owned_event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, event_end>;

class stage_events {
public:
  stage_events() : last_(record_one()) {
    DFLASH_CUDA_CHECK(cudaEventSynchronize(last_.get()));
    last_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
                   .count();
  }

  void record() { waiting_.push_back(record_one()); }

  // From event to event: the time since the first one would lose its digits, being a float.
  std::optional<int64_t> read() {
    if (waiting_.empty()) return std::nullopt;
    cudaEvent_t next = waiting_.front().get();
    const cudaError_t status = cudaEventQuery(next);
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();  // it is no error
      return std::nullopt;
    }
    DFLASH_CUDA_CHECK(status);
    float milliseconds = 0;
    DFLASH_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, last_.get(), next));
    last_ns_ += std::llround(static_cast<double>(milliseconds) * 1e6);
    free_.push_back(std::exchange(last_, std::move(waiting_.front())));
    waiting_.pop_front();
    return last_ns_;
  }

private:
  owned_event record_one() {
    owned_event event;
    if (free_.empty()) {
      cudaEvent_t made = nullptr;
      DFLASH_CUDA_CHECK(cudaEventCreate(&made));
      event.reset(made);
    } else {
      event = std::move(free_.back());
      free_.pop_back();
    }
    DFLASH_CUDA_CHECK(cudaEventRecord(event.get(), c10::cuda::getCurrentCUDAStream().stream()));
    return event;
  }

  std::vector<owned_event> free_;
  owned_event last_;  // the newest that was read
  int64_t last_ns_ = 0;
  std::deque<owned_event> waiting_;
};

// The group of layers as payload: names are literals.
nvtxEventAttributes_t attributes_of(const char* name, int32_t group) {
  nvtxEventAttributes_t a = {};
  a.version = NVTX_VERSION;
  a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  a.messageType = NVTX_MESSAGE_TYPE_ASCII;
  a.message.ascii = name;
  if (group >= 0) {
    a.payloadType = NVTX_PAYLOAD_TYPE_INT32;
    a.payload.iValue = group;
  }
  return a;
}

}  // namespace

device_clock make_stage_clock() {
  const auto events = std::make_shared<stage_events>();
  return {.record = [events] { events->record(); },
          .read = [events] { return events->read(); },
          .begin_range =
              [](const char* name, int32_t group) {
                const nvtxEventAttributes_t a = attributes_of(name, group);
                nvtxRangePushEx(&a);
              },
          .end_range = [] { nvtxRangePop(); },
          .mark =
              [](const char* name, int32_t group) {
                const nvtxEventAttributes_t a = attributes_of(name, group);
                nvtxMarkEx(&a);
              }};
}

}  // namespace dflash::cuda
