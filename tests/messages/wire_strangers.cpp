// What comes to a port without being a peer: other protocols, silence, other versions, floods.
#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>

#include "data/files.hpp"
#include "wire_fixture.hpp"

using namespace dflash;
using namespace std::chrono_literals;

namespace {

// Counts what a server refuses and lets a test wait for it.
struct refusals {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> lines;

  std::function<void(const std::string&)> notice() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex);
      lines.push_back(line);
      changed.notify_all();
    };
  }
  std::vector<std::string> wait(size_t count) {
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, 20s, [&] { return lines.size() >= count; }));
    return lines;
  }
};

void send_raw(wire_stream& stream, std::string_view text) {
  try {
    stream.write({}, std::as_bytes(std::span(text)), raw_server::in_time());
  } catch (const wire_lost&) {  // refused before all was sent
  }
}

void check_serves(const wire_server& server) {
  CHECK(client_of(server).call({"fine", "", {}}).method == "fine");
}

[[maybe_unused]] uint64_t resident_bytes() {
  uint64_t pages = 0, resident = 0;
  const std::string text = [] {
    std::string all(256, '\0');
    const file_descriptor file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
    all.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(file.get(), all.data(), 256))));
    return all;
  }();
  REQUIRE(std::sscanf(text.c_str(), "%lu %lu", &pages, &resident) == 2);
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST_CASE("other protocols and noise are dropped, counted, and answered with nothing",
          "[distributed]") {
  refusals heard;
  const wire_server server(local(0), {}, impatient(), always(echo()), heard.notice());
  size_t sent = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(DFLASH_TEST_DATA "/cases/32-ports-and-garbage")) {
    INFO(entry.path());
    const auto stream = raw_client(server.port());
    send_raw(*stream, read_file(entry.path()));
    std::array<std::byte, 1> answer;
    CHECK_THROWS_AS(stream->read(answer, raw_server::in_time()), wire_lost);
    ++sent;
    CHECK(heard.wait(sent).back().find("refused: ") != std::string::npos);
  }
  CHECK(sent == 8);
  CHECK(server.counts().refused == sent);
  CHECK(server.counts().open == 0);
  check_serves(server);
}

TEST_CASE("silence, a half greeting and a reset are dropped within the timeout", "[distributed]") {
  refusals heard;
  const wire_server server(local(0), {}, impatient(), always(echo()), heard.notice());
  std::array<std::byte, frame_header_bytes> head;
  const auto hello = encode_hello({1000, ""});
  encode_header({frame_kind::hello, 0, static_cast<uint32_t>(hello.size()), 0, crc32c(hello)},
                head);
  const auto silent = raw_client(server.port());
  const auto half = raw_client(server.port());
  half->write(std::span(head).first(16), {}, raw_server::in_time());
  const auto no_payload = raw_client(server.port());
  no_payload->write(head, {}, raw_server::in_time());
  raw_client(server.port());  // hangs up at once
  const auto wrong = raw_client(server.port());
  wrong->write(head, std::vector<std::byte>(hello.size(), std::byte{1}), raw_server::in_time());
  heard.wait(5);
  CHECK(server.counts().refused == 5);
  check_serves(server);
}

TEST_CASE("a greeting byte by byte ends with the timeout", "[distributed]") {
  refusals heard;
  const wire_server server(local(0), {}, impatient(), always(echo()), heard.notice());
  const auto stream = raw_client(server.port());
  std::array<std::byte, frame_header_bytes> head;
  encode_header({frame_kind::hello, 0, 4, 0, 0}, head);
  const auto begin = wire_clock::now();
  for (size_t i = 0; i < head.size(); ++i) {
    send_raw(*stream, {reinterpret_cast<const char*>(&head[i]), 1});
    if (stream->wait_readable(wire_clock::now() + 100ms)) break;
  }
  CHECK(wire_clock::now() - begin < 2s);
  CHECK_THAT(heard.wait(1).front(), Catch::Contains("no sign of life"));
}

TEST_CASE("hundreds of silent connections neither shut others out nor take memory",
          "[distributed]") {
  refusals heard;
  const wire_server server(local(0), {}, {}, always(echo()), heard.notice());
  check_serves(server);
  [[maybe_unused]] const uint64_t before = resident_bytes();
  std::vector<std::unique_ptr<wire_stream>> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(raw_client(server.port()));
    if (i % 50 == 49) check_serves(server);
  }
  heard.wait(200 - 64);  // those that waited longest had to go, long before the timeout
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose threads take more
  CHECK(resident_bytes() - before < 16 << 20);
#endif
  check_serves(server);
}

TEST_CASE("a peer of another version hears which versions meet", "[distributed]") {
  const std::string ours_first =
      "this side speaks data protocol 1, the peer 2: install the same "
      "version of dflash on both";
  refusals heard;
  const wire_server server(local(0), {}, {}, always(echo()), heard.notice());
  const auto other = raw_client(server.port());
  std::array<std::byte, frame_header_bytes> head;
  const auto hello = encode_hello({1000, ""});
  encode_header(
      {frame_kind::hello, 0, static_cast<uint32_t>(hello.size()), 0, crc32c(hello)}, head, 2);
  other->write(head, hello, raw_server::in_time());
  const auto header = receive_header(*other, {}, raw_server::in_time());
  CHECK(header.kind == frame_kind::refusal);
  CHECK(receive_text(*other, header, raw_server::in_time()) == ours_first);

  const raw_server newer([](wire_stream& s) {
    std::array<std::byte, frame_header_bytes> answer;
    encode_header({frame_kind::welcome, 0, 0, 0, 0}, answer, 2);
    receive_payload(s, receive_header(s, {}, raw_server::in_time()), raw_server::in_time());
    s.write(answer, {}, raw_server::in_time());
  });
  CHECK_THROWS_AS(wire_client::connect(local(newer.port()), {}, {}, ""), wire_refused);
}

TEST_CASE("a client that meets something else says what it met", "[distributed]") {
  const auto met = [](std::string_view text) {
    const raw_server other([&](wire_stream& s) {
      send_raw(s, text);
      drain(s);
    });
    return what_of([&] { wire_client::connect(local(other.port()), {}, impatient(), ""); });
  };
  CHECK_THAT(met("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
             Catch::Contains("no frame of dflash"));
  CHECK_THAT(met(""), Catch::Contains("no sign of life"));
  const raw_server closes([](wire_stream&) {});
  CHECK_THAT(what_of([&] { wire_client::connect(local(closes.port()), {}, {}, ""); }),
             Catch::Contains("127.0.0.1:" + std::to_string(closes.port())));
}
