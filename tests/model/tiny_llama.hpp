// A random Llama with a handful of weights, written as a Hugging Face folder, and the plainest
// forward pass that can be written down: loops in double over one document.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "data/safetensors.hpp"

namespace dflash::test {

struct tiny_shape {
  int64_t vocab = 97, hidden = 48, intermediate = 80, layers = 3, heads = 6, kv_heads = 2;
  int64_t head_dim = 16, max_positions = 512;
  double theta = 10000, eps = 1e-5;
  bool tied = false;
};

// Names -> fp32 values and shapes; what a test changes before write() decides what the folder
// holds.
struct tiny_weights {
  struct tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::string, tensor> tensors;
  const std::vector<float>& of(const std::string& name) const { return tensors.at(name).values; }
};

tiny_weights random_llama(const tiny_shape& shape, uint64_t seed);
// bf16 rounds the values in place, so that every reader sees the same numbers.
void round_to_bf16(tiny_weights& weights);
std::string config_text(const tiny_shape& shape, const std::string& more = "");
void write_folder(const std::filesystem::path& folder,
                  const tiny_shape& shape,
                  const tiny_weights& weights);

struct naive_states {
  std::vector<std::vector<double>> layers;  // [layer] -> [n, H] after it
  std::vector<double> logits;               // [n, V]
};
naive_states naive_forward(const tiny_shape& shape,
                           const tiny_weights& weights,
                           const std::vector<int32_t>& ids);

// A folder of this test's own, removed at the end of the scope.
class scratch_folder {
public:
  scratch_folder();
  ~scratch_folder();
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
};

std::vector<int32_t> random_ids(int64_t n, int64_t vocab, uint64_t seed);

}  // namespace dflash::test
