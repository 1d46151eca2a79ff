// The work of bench/peers: the rows and prompts that its make_work.py wrote, read so that both
// sides do the same; resident memory; one line of JSON for the runner.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/batches.hpp"

namespace dflash::bench {

struct work_row {
  batch tokens;                  // anchors: 64, all valid
  std::vector<at::Tensor> taps;  // nT x [T, Ht] bf16
};

// Copies in memory, so that nothing is paged in later. Throws dflash::error if the file is not the
// work.
std::vector<work_row> read_rows(const std::filesystem::path& work_folder);

// Resident peak from now on, less what is resident now.
class peak_memory {
public:
  peak_memory();  // resets the peak of the process
  int64_t bytes() const;

private:
  int64_t start_;
};

double seconds_since(std::chrono::steady_clock::time_point start);
double median(std::vector<double> values);

// --model FOLDER, --work FOLDER, --threads N: what each program is told.
struct arguments {
  std::string what;  // the first argument without dashes, if any
  std::filesystem::path model = ".deps/models/SmolLM2-135M-Instruct";
  std::filesystem::path work = "build/peers";
  int threads = 2;
};
// Also sets the number of ATen's threads.
arguments parse_arguments(int count, char** values);

}  // namespace dflash::bench
