#include "device/cuda/graph_recorder.hpp"

#include <ATen/cuda/CUDAGraph.h>

#include <memory>

namespace dflash::cuda {

record_function make_graph_recorder() {
  const at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
  return [pool](const std::function<void()>& work) -> std::function<void()> {
    const auto graph = std::make_shared<at::cuda::CUDAGraph>();
    // Other lanes' threads go on allocating meanwhile: only what this thread does is in the way.
    graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph->capture_end();
      } catch (...) {  // the first error says more
      }
      throw;
    }
    graph->capture_end();
    graph->replay();  // recording has only written it down
    return [graph] { graph->replay(); };
  };
}

}  // namespace dflash::cuda
