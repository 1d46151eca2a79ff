// Captures the hidden states of all packed rows into a folder, in either form. What is finished
// stays: a stopped or failed capture goes on where it was, and nothing that is half written is
// taken for whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "data/batches.hpp"
#include "model/capture_manifest.hpp"

namespace dflash {

struct capture_progress {
  int64_t rows_done = 0;  // found rows included
  int64_t rows = 0;
  int64_t tokens_made = 0;  // by this run, padding included
};

struct capture_report {
  bool complete = false;  // false: stopped
  int64_t rows = 0;
  int64_t rows_found = 0;  // of an earlier run
  int64_t rows_made = 0;
  uint64_t bytes = 0;  // of the whole capture
  double seconds = 0;  // of this run's rows
};

using row_maker = std::function<std::vector<at::Tensor>(const batch&, at::Device)>;

/// Bytes that the folder still has to take: all of them, less what an earlier run left. Throws
/// error if the folder holds another capture or cannot be made.
uint64_t missing_capture_bytes(const std::filesystem::path& out,
                               const capture_manifest& wanted,
                               const batch_source& source);

/// Throws error naming the folder if its disk has less room than that.
void check_capture_room(const std::filesystem::path& out, uint64_t bytes);

/// `make` gives the tensors of one row, taps then the last hidden state, [T, Ht] on the CPU. There
/// is a thread for each lane, with wanted.threads ATen threads and, if its device is not the CPU, a
/// stream of its own there; make gets that device. All lanes are of one kind, so that it does not
/// matter which of them makes a row.
/// go_on is asked after each row, by one thread at a time: false stops in order. Rethrows what
/// `make` throws; what is finished stays.
capture_report run_capture(const std::filesystem::path& out,
                           const capture_manifest& wanted,
                           const batch_source& source,
                           const row_maker& make,
                           const std::vector<at::Device>& lanes,
                           const std::function<bool(const capture_progress&)>& go_on);

}  // namespace dflash
