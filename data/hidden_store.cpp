#include "data/hidden_store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "config/error.hpp"

namespace dflash {

namespace {

constexpr uint64_t page = 4096;
constexpr std::array<char, 8> store_magic = {'d', 'f', 'l', 'h', 'i', 'd', '0', '1'};

// The first page of the file. Little-endian, as everything in it.
struct file_head {
  std::array<char, 8> magic{};
  uint64_t record_bytes = 0;
  int64_t rows = 0;
  int64_t capacity = 0;
  std::array<char, 64> fingerprint{};  // SHA-256 of the owner's text, hex
  uint32_t crc = 0;                    // of all before it
  uint32_t padding = 0;
};
static_assert(sizeof(file_head) == 104 && std::endian::native == std::endian::little);

// One entry of the index that follows: entry i describes record i. Written after the record's
// bytes.
struct index_entry {
  int64_t row = -1;
  uint32_t record_crc = 0;
  uint32_t entry_crc = 0;  // of the two before it; an entry of zeros is not valid
};
static_assert(sizeof(index_entry) == 16);

uint64_t round_to_pages(uint64_t bytes) {
  return (bytes + page - 1) / page * page;
}

template <class T>
uint32_t crc_of(const T& value, size_t bytes) {
  return crc32c(std::as_bytes(std::span(&value, 1)).first(bytes));
}

uint32_t entry_crc(const index_entry& entry) {
  return crc_of(entry, offsetof(index_entry, entry_crc)) ^ 0x5bd1e995u;
}

file_head make_head(uint64_t record_bytes,
                    int64_t rows,
                    int64_t capacity,
                    std::string_view fingerprint) {
  file_head head;
  head.magic = store_magic;
  head.record_bytes = record_bytes;
  head.rows = rows;
  head.capacity = capacity;
  std::ranges::copy(sha256(fingerprint), head.fingerprint.begin());
  head.crc = crc_of(head, offsetof(file_head, crc));
  return head;
}

// The whole range or false; errno says why (0 = end of file).
template <bool write>
bool transfer(int fd, std::vector<iovec> parts, uint64_t offset) {
  size_t first = 0;
  while (first < parts.size()) {
    if (parts[first].iov_len == 0) {
      ++first;
      continue;
    }
    const int count = static_cast<int>(std::min<size_t>(parts.size() - first, 64));
    const ssize_t n = write ? ::pwritev(fd, &parts[first], count, static_cast<off_t>(offset))
                            : ::preadv(fd, &parts[first], count, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0) errno = 0;
      return false;
    }
    offset += static_cast<uint64_t>(n);
    auto done = static_cast<size_t>(n);
    for (; first < parts.size() && done >= parts[first].iov_len; ++first)
      done -= parts[first].iov_len;
    if (done > 0) {
      parts[first].iov_base = static_cast<std::byte*>(parts[first].iov_base) + done;
      parts[first].iov_len -= done;
    }
  }
  return true;
}

template <bool write, class Byte>
bool transfer(int fd, std::span<Byte> bytes, uint64_t offset) {
  return transfer<write>(fd, {{const_cast<std::byte*>(bytes.data()), bytes.size()}}, offset);
}

template <class Byte>
std::vector<iovec> vectors_of(std::span<const std::span<Byte>> parts) {
  std::vector<iovec> vectors;
  vectors.reserve(parts.size());
  for (const auto& part : parts)
    vectors.push_back({const_cast<std::byte*>(part.data()), part.size()});
  return vectors;
}

template <class Byte>
uint32_t crc_of_parts(std::span<const std::span<Byte>> parts) {
  uint32_t crc = 0;
  for (const auto& part : parts) crc = crc32c(part, crc);
  return crc;
}

template <class Byte>
uint64_t size_of_parts(std::span<const std::span<Byte>> parts) {
  uint64_t size = 0;
  for (const auto& part : parts) size += part.size();
  return size;
}

}  // namespace

// Per row one atomic word tells where it is: a record number, or one of these.
struct hidden_store::state {
  static constexpr int64_t absent = -1;
  static constexpr int64_t busy = -2;  // a put is at work

  struct row_state {
    std::atomic<int64_t> record{absent};
    // The record that the row owns once it got one, also while it is absent (damaged) or busy.
    // Touched only by the put that holds `busy`.
    int64_t owned = -1;
    std::atomic<uint32_t> crc{0};  // of the record; written before `record` is published
  };

  explicit state(int64_t rows) : rows_(static_cast<size_t>(rows)) {}

  uint64_t index_offset(int64_t record) const {
    return page + static_cast<uint64_t>(record) * sizeof(index_entry);
  }
  uint64_t record_offset(int64_t record) const {
    return data_begin + static_cast<uint64_t>(record) * stride;
  }

  file_descriptor file;
  uint64_t stride = 0, data_begin = 0;
  std::vector<row_state> rows_;  // [row]
  std::atomic<int64_t> next_record{0};
  std::atomic<uint64_t> stored{0}, hits{0}, misses{0}, damaged{0}, failed{0}, refused{0};
  std::atomic<int> last_errno{0};
};

hidden_store::hidden_store(std::filesystem::path path, uint64_t record_bytes, int64_t rows)
    : path_(std::move(path)),
      record_bytes_(record_bytes),
      rows_(rows),
      state_(std::make_unique<state>(rows)) {
  DFLASH_CHECK(record_bytes > 0 && rows > 0, "a store has rows", record_bytes, rows);
  DFLASH_CHECK(record_bytes < uint64_t{1} << 46, "a record has a sane size", record_bytes);
  state_->stride = round_to_pages(record_bytes);
}

hidden_store::hidden_store(std::filesystem::path path,
                           uint64_t record_bytes,
                           int64_t rows,
                           uint64_t budget_bytes,
                           std::string_view fingerprint)
    : hidden_store(std::move(path), record_bytes, rows) {
  int64_t capacity = std::min(rows, narrow<int64_t>(budget_bytes / state_->stride));
  while (capacity > 0 && file_bytes(record_bytes, capacity) > budget_bytes) --capacity;
  set_capacity(capacity);
  const file_head head = make_head(record_bytes_, rows_, capacity_, fingerprint);
  open_file(std::as_bytes(std::span(&head, 1)));
}

std::unique_ptr<hidden_store> hidden_store::open_complete(std::filesystem::path path,
                                                          uint64_t record_bytes,
                                                          int64_t rows,
                                                          std::string_view fingerprint) {
  std::unique_ptr<hidden_store> store(new hidden_store(std::move(path), record_bytes, rows));
  store->set_capacity(rows);
  store->open_for_reading(fingerprint);
  return store;
}

void hidden_store::set_capacity(int64_t capacity) {
  capacity_ = capacity;
  state_->data_begin = page + round_to_pages(static_cast<uint64_t>(capacity) * sizeof(index_entry));
}

uint64_t hidden_store::file_bytes(uint64_t record_bytes, int64_t rows) {
  const auto n = static_cast<uint64_t>(rows);
  return page + round_to_pages(n * sizeof(index_entry)) + n * round_to_pages(record_bytes);
}

hidden_store::~hidden_store() = default;

void hidden_store::open_file(std::span<const std::byte> head) {
  const auto fail = [&](const char* what) {
    throw error(std::string(what) + ": " + std::generic_category().message(errno),
                path_.string(),
                "choose a run folder that can be written, or set data.keep_hidden_states = 0");
  };
  state_->file =
      file_descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!state_->file) fail("cannot open the file of kept hidden states");
  const int fd = state_->file.get();
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail("cannot read the file of kept hidden states");
  if (!S_ISREG(status.st_mode)) throw error("not a regular file", path_.string());
  std::vector<std::byte> found(head.size());
  if (transfer<false>(fd, std::span(found), 0) && std::ranges::equal(found, head)) {
    take_over();
    return;
  }
  // Another run's file, an older layout, a torn head or nothing at all: begin anew. The old records
  // go first, so that a crash in between cannot pair them with the new head.
  if (::ftruncate(fd, 0) != 0 || ::ftruncate(fd, static_cast<off_t>(state_->data_begin)) != 0 ||
      !transfer<true>(fd, head, 0))
    fail("cannot write the file of kept hidden states");
}

void hidden_store::open_for_reading(std::string_view fingerprint) {
  const auto refuse = [&](const std::string& what) {
    throw error(what, path_.string(), "capture the hidden states again");
  };
  uint64_t size = 0;
  state_->file = open_regular_file(path_, size);
  file_head found;
  if (!transfer<false>(state_->file.get(), std::as_writable_bytes(std::span(&found, 1)), 0) ||
      found.magic != store_magic || found.crc != crc_of(found, offsetof(file_head, crc)))
    refuse("not a file of hidden states, or its head is damaged");
  const file_head wanted = make_head(record_bytes_, rows_, capacity_, fingerprint);
  if (std::memcmp(&found, &wanted, sizeof found) != 0)
    refuse("the file holds hidden states of another capture: " + std::to_string(found.rows) +
           " rows of " + std::to_string(found.record_bytes) + " bytes, wanted are " +
           std::to_string(rows_) + " of " + std::to_string(record_bytes_) +
           (found.fingerprint == wanted.fingerprint ? "" : ", and its fingerprint is another"));
  const uint64_t least =
      state_->record_offset(rows_ - 1) + record_bytes_;  // the last record has no padding
  if (size < least)
    refuse("the file has " + std::to_string(size) + " bytes instead of " + std::to_string(least) +
           ": it was cut short");
  take_over();
  if (state_->stored == static_cast<uint64_t>(rows_)) return;
  int64_t row = 0;
  while (has(row)) ++row;
  refuse("row " + std::to_string(row) + " is missing or its entry is damaged (" +
         std::to_string(state_->stored) + " of " + std::to_string(rows_) + " rows are there)");
}

std::vector<int64_t> hidden_store::verify() const {
  std::vector<int64_t> damaged;
  std::vector<std::byte> record(record_bytes_);
  const std::span<std::byte> parts[] = {std::span(record)};
  for (int64_t row = 0; row < rows_; ++row)
    if (has(row) && !get(row, parts)) damaged.push_back(row);
  return damaged;
}

void hidden_store::sync() const {
  if (::fsync(state_->file.get()) != 0)
    throw error("cannot write the file: " + std::generic_category().message(errno), path_.string());
}

void hidden_store::take_over() {
  std::vector<index_entry> index(static_cast<size_t>(capacity_));
  if (index.empty()) return;
  if (!transfer<false>(state_->file.get(), std::as_writable_bytes(std::span(index)), page)) {
    ++state_->damaged;
    return;
  }
  int64_t used = 0;
  for (int64_t record = 0; record < capacity_; ++record) {
    const index_entry& entry = index[static_cast<size_t>(record)];
    if (entry.entry_crc != entry_crc(entry)) continue;
    used = record + 1;
    if (entry.row < 0 || entry.row >= rows_) continue;
    auto& row = state_->rows_[static_cast<size_t>(entry.row)];
    if (row.owned >= 0) continue;  // a row twice: the first stands
    row.owned = record;
    row.crc = entry.record_crc;
    row.record = record;
    ++state_->stored;
  }
  // Records below the last valid entry that belong to nobody stay unused: a crash leaves few.
  state_->next_record = used;
}

bool hidden_store::put(int64_t row, std::span<const std::span<const std::byte>> parts) {
  DFLASH_CHECK(row >= 0 && row < rows_, "the row exists", row, rows_);
  DFLASH_CHECK(size_of_parts(parts) == record_bytes_, "the parts fill a record", record_bytes_);
  auto& r = state_->rows_[static_cast<size_t>(row)];
  int64_t expected = state::absent;
  if (!r.record.compare_exchange_strong(expected, state::busy, std::memory_order_acquire))
    return expected >= 0;
  if (r.owned < 0) {
    // Never let the counter pass the capacity: it is asked for as long as the run lasts.
    int64_t next = state_->next_record.load();
    while (next < capacity_ && !state_->next_record.compare_exchange_weak(next, next + 1)) {
    }
    if (next >= capacity_) {
      ++state_->refused;
      r.record.store(state::absent, std::memory_order_release);
      return false;
    }
    r.owned = next;
  }
  index_entry entry{row, crc_of_parts(parts), 0};
  entry.entry_crc = entry_crc(entry);
  const int fd = state_->file.get();
  if (!transfer<true>(fd, vectors_of(parts), state_->record_offset(r.owned)) ||
      !transfer<true>(fd, std::as_bytes(std::span(&entry, 1)), state_->index_offset(r.owned))) {
    state_->last_errno = errno;
    ++state_->failed;
    r.record.store(state::absent, std::memory_order_release);
    return false;
  }
  r.crc.store(entry.record_crc, std::memory_order_relaxed);
  ++state_->stored;
  r.record.store(r.owned, std::memory_order_release);
  return true;
}

bool hidden_store::get(int64_t row, std::span<const std::span<std::byte>> parts) const {
  DFLASH_CHECK(row >= 0 && row < rows_, "the row exists", row, rows_);
  DFLASH_CHECK(size_of_parts(parts) == record_bytes_, "the parts fill a record", record_bytes_);
  auto& r = state_->rows_[static_cast<size_t>(row)];
  int64_t record = r.record.load(std::memory_order_acquire);
  if (record < 0) {
    ++state_->misses;
    return false;
  }
  const bool whole =
      transfer<false>(state_->file.get(), vectors_of(parts), state_->record_offset(record)) &&
      crc_of_parts(parts) == r.crc.load(std::memory_order_relaxed);
  if (whole) {
    ++state_->hits;
    return true;
  }
  if (r.record.compare_exchange_strong(record, state::absent, std::memory_order_acq_rel)) {
    ++state_->damaged;
    --state_->stored;
  }
  return false;
}

bool hidden_store::has(int64_t row) const {
  DFLASH_CHECK(row >= 0 && row < rows_, "the row exists", row, rows_);
  return state_->rows_[static_cast<size_t>(row)].record.load(std::memory_order_acquire) >= 0;
}

hidden_store::counters hidden_store::count() const {
  const auto& s = *state_;
  const int code = s.last_errno.load();
  return {s.stored,
          s.hits,
          s.misses,
          s.damaged,
          s.failed,
          s.refused,
          code == 0 ? std::string() : std::generic_category().message(code)};
}

void hidden_store::remove() {
  ::unlink(path_.c_str());
}

}  // namespace dflash
