// Work of a fixed shape, asked of a device once and then again and again as a whole: a CUDA graph.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace dflash {

// Runs `work` once, effects included, and keeps what it asked of the device in the calling thread's
// current stream; the result does the same again, with the same memory, without `work`. So `work`
// must not wait for the device, bring anything from the host, or depend on what only the host
// knows. Tensors that it makes live in memory of the recording: what is read afterwards is valid
// until the next call. Blocks while it records; throws what `work` throws.
using record_function = std::function<std::function<void()>(const std::function<void()>& work)>;

// The recordings of one owner, by a key that says all that the host decides about the work.
class recordings {
public:
  // Empty: the device records nothing, work is run as it is.
  explicit recordings(record_function record = {}) : record_(std::move(record)) {}

  // Whether work is going to be recorded at all.
  bool records() const { return static_cast<bool>(record_); }

  // Plainly at first, since libraries make what they need then; recorded the second time, and from
  // then on without `work`.
  void run(const std::string& key, const std::function<void()>& work);

private:
  record_function record_;
  std::map<std::string, std::function<void()>> replays_;  // empty function: ran once
};

}  // namespace dflash
