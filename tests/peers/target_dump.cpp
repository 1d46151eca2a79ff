// What the target computes in fp32 for the row in IN (input_ids, doc_offsets: int32), written to
// OUT: tap.J [T, H] for all layers, logits [T, V]. For the comparison with transformers.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "data/safetensors.hpp"
#include "model/target.hpp"

namespace {

std::vector<int32_t> values_of(const dflash::safetensors_file& file, const char* name) {
  const auto bytes = file.bytes(file.at(name));
  std::vector<int32_t> out(bytes.size() / sizeof(int32_t));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

int dump(const char* model_folder, const char* in, const char* out) {
  at::set_num_threads(2);
  const auto model = dflash::target::load(model_folder, dflash::compute_dtype::fp32);
  const auto file = dflash::safetensors_file::open(in);
  std::vector<int> layers(static_cast<size_t>(model->config().layers));
  std::iota(layers.begin(), layers.end(), 0);
  const auto found =
      model->capture(values_of(file, "input_ids"), values_of(file, "doc_offsets"), layers, true);
  std::vector<at::Tensor> kept;
  std::vector<dflash::st_view> views;
  const auto add = [&](std::string name, const at::Tensor& tensor) {
    kept.push_back(tensor.contiguous());
    const auto* data = static_cast<const std::byte*>(kept.back().const_data_ptr());
    views.push_back({std::move(name),
                     dflash::st_dtype::f32,
                     tensor.sizes().vec(),
                     {data, static_cast<size_t>(kept.back().nbytes())}});
  };
  for (size_t j = 0; j < layers.size(); ++j) add("tap." + std::to_string(j), found.taps[j]);
  add("logits", model->logits(found.last_hidden));
  dflash::write_safetensors(out, views);
  return 0;
}

}  // namespace

int main(int count, char** values) {
  if (count != 4) {
    std::fprintf(stderr, "usage: peers_target_dump MODEL IN OUT\n");
    return 2;
  }
  try {
    return dump(values[1], values[2], values[3]);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "error: %s\n", problem.what());
    return 2;
  }
}
