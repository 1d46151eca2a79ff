#include "actors/runtime/lane_thread.hpp"

#include <ATen/Parallel.h>
#include <pthread.h>

#include "device/lane_streams.hpp"

namespace dflash {

void set_up_lane_thread(const std::string& name,
                        int64_t threads,
                        std::span<const c10::Device> devices) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  use_devices(devices);
}

}  // namespace dflash
