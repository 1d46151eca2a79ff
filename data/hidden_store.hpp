// Kept hidden states: the bytes of whole rows as they were shipped, so that later epochs need not
// run the target again. One file of fixed records under a byte budget; what is missing or damaged
// is simply made again by the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/files.hpp"

namespace dflash {

/// Rows are kept first come, first served until the budget is used. Each record has a CRC-32C, each
/// entry of the index too, so a crash at any moment leaves records that are whole or counted as
/// missing; nothing is synced. Any thread may call anything, at the same time for different rows;
/// of two puts of one row at the same time one does nothing. put and get block on the disk.
class hidden_store {
public:
  struct counters {
    uint64_t stored = 0;     // rows present
    uint64_t hits = 0;       // get that returned a row
    uint64_t misses = 0;     // get of an absent row
    uint64_t damaged = 0;    // records that failed their check
    uint64_t failed = 0;     // puts refused by the disk
    uint64_t refused = 0;    // puts beyond the budget
    std::string last_error;  // what the system said at the last failed put
  };

  /// Opens the file and takes over its records if it was written with the same record_bytes, rows,
  /// budget and fingerprint (a name for all that decides the bytes: data, target, taps, dtype);
  /// else starts an empty one in its place. A budget below one record keeps nothing.
  /// Throws error if the file cannot be made.
  hidden_store(std::filesystem::path path,
               uint64_t record_bytes,
               int64_t rows,
               uint64_t budget_bytes,
               std::string_view fingerprint = {});
  /// For readers: a finished file in which every row stands, opened for reading only; put() must
  /// not be called. Throws error naming the file and what is wrong: missing, cut short, written for
  /// other rows, record size or fingerprint, or without some row. Contents are checked by verify().
  static std::unique_ptr<hidden_store> open_complete(std::filesystem::path path,
                                                     uint64_t record_bytes,
                                                     int64_t rows,
                                                     std::string_view fingerprint);
  hidden_store(const hidden_store&) = delete;
  hidden_store& operator=(const hidden_store&) = delete;
  ~hidden_store();

  /// The parts follow each other in the record and add up to record_bytes. True if the row is kept
  /// now; false if the budget is used, the disk refuses (counted), or another put is at work on it.
  bool put(int64_t row, std::span<const std::span<const std::byte>> parts);
  /// True if the row was there and whole; else the parts hold rubbish, and a damaged row is absent
  /// from now on.
  bool get(int64_t row, std::span<const std::span<std::byte>> parts) const;
  bool has(int64_t row) const;

  /// Reads every row that is there and forgets those that fail their check; their numbers. Blocks.
  std::vector<int64_t> verify() const;
  /// Bytes are on the disk when it returns. Throws error if the disk refuses.
  void sync() const;
  /// Size of a file that holds `rows` records: the least budget that keeps them all.
  static uint64_t file_bytes(uint64_t record_bytes, int64_t rows);

  /// Records that fit into the budget, at most rows.
  int64_t capacity() const { return capacity_; }
  counters count() const;
  /// Removes the file's name (the owner's last act); open readers go on.
  void remove();

private:
  struct state;
  hidden_store(std::filesystem::path path, uint64_t record_bytes, int64_t rows);
  void set_capacity(int64_t capacity);
  void open_file(std::span<const std::byte> head);
  void open_for_reading(std::string_view fingerprint);
  void take_over();

  std::filesystem::path path_;
  uint64_t record_bytes_;
  int64_t rows_;
  int64_t capacity_ = 0;
  std::unique_ptr<state> state_;
};

}  // namespace dflash
