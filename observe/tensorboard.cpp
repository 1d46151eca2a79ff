#include "observe/tensorboard.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <system_error>

namespace dflash {

namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  constexpr std::uint32_t castagnoli = 0x82f63b78U;  // reflected
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1U) != 0 ? (c >> 1) ^ castagnoli : c >> 1;
    table[i] = c;
  }
  return table;
}

template <class T>
void put_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff);
}

// TFRecord masks its checksums, since checksums of data with checksums inside are weak.
std::uint32_t masked(std::uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8U;
}

// Protobuf: varint, 64-bit, length-delimited, 32-bit.
enum wire : std::uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>((value & 0x7f) | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

void put_key(std::string& out, std::uint32_t field, wire type) {
  put_varint(out, field << 3 | type);
}

void put_bytes(std::string& out, std::uint32_t field, std::string_view value) {
  put_key(out, field, wire::bytes);
  put_varint(out, value.size());
  out += value;
}

// Field numbers of event.proto and summary.proto.
constexpr std::uint32_t event_wall_time = 1, event_step = 2, event_file_version = 3,
                        event_summary = 5, event_session_log = 7, session_status = 1,
                        session_start = 1, summary_value = 1, value_tag = 1, value_simple = 2;

std::string event(double unix_time, std::uint64_t step) {
  std::string out;
  put_key(out, event_wall_time, wire::fixed64);
  put_little_endian(out, std::bit_cast<std::uint64_t>(unix_time));
  put_key(out, event_step, wire::varint);
  put_varint(out, step);
  return out;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "host";
}

std::system_error failure(const std::filesystem::path& path) {
  return {errno, std::system_category(), path.string()};
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto table = crc_table();
  std::uint32_t crc = 0xffffffffU;
  for (const char c : bytes) crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::string tf_record(std::string_view payload) {
  std::string out;
  put_little_endian(out, static_cast<std::uint64_t>(payload.size()));
  put_little_endian(out, masked(crc32c(out)));
  out += payload;
  put_little_endian(out, masked(crc32c(payload)));
  return out;
}

tensorboard_writer::tensorboard_writer(const std::filesystem::path& folder,
                                       double unix_time,
                                       std::uint64_t first_step) {
  std::filesystem::create_directories(folder);
  const std::string stem = "events.out.tfevents." +
                           std::to_string(static_cast<std::int64_t>(unix_time)) + "." +
                           host_name() + "." + std::to_string(::getpid());
  int file = -1;
  for (int i = 0; file < 0; ++i) {  // a name that no earlier file has
    path_ = folder / (stem + "." + std::to_string(i));
    file = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 && errno != EEXIST) throw failure(path_);
  }
  file_.reset(::fdopen(file, "wb"));
  if (!file_) throw failure(path_);
  std::string version = event(unix_time, 0);
  put_bytes(version, event_file_version, "brain.Event:2");
  append(version);
  if (first_step == 0) return;
  std::string start, session;
  start = event(unix_time, first_step + 1);
  put_key(session, session_status, wire::varint);
  put_varint(session, session_start);
  put_bytes(start, event_session_log, session);
  append(start);
}

void tensorboard_writer::write(std::uint64_t step,
                               double unix_time,
                               std::span<const scalar> scalars) {
  std::string summary;
  for (const scalar& s : scalars) {
    std::string value;
    const bool grouped = s.name.find('/') != std::string::npos;
    put_bytes(value, value_tag, grouped ? s.name : "train/" + s.name);
    put_key(value, value_simple, wire::fixed32);
    put_little_endian(value, std::bit_cast<std::uint32_t>(static_cast<float>(s.value)));
    put_bytes(summary, summary_value, value);
  }
  std::string out = event(unix_time, step);
  put_bytes(out, event_summary, summary);
  append(out);
}

void tensorboard_writer::append(const std::string& text) {
  const std::string record = tf_record(text);
  const bool written = std::fwrite(record.data(), 1, record.size(), file_.get()) == record.size();
  if (!written || std::fflush(file_.get()) != 0) throw failure(path_);
}

}  // namespace dflash
