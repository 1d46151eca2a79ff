// How fast tensors go from process to process: calls over a data connection (plain and with TLS)
// against plain send and recv of the same bytes in the same run, and against CAF's own connection.
// The kinds take turns; medians count. The last line is JSON.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ops/empty.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/cpu_time.hpp"
#include "bench/transfer_caf.hpp"
#include "bench/transfer_gradient.hpp"
#include "data/files.hpp"
#include "messages/certificates.hpp"
#include "messages/wire_client.hpp"
#include "messages/wire_server.hpp"
#include "messages/wire_socket.hpp"
#include "observe/jsonl.hpp"
#include "observe/table.hpp"

namespace {

using namespace dflash;
using bench::cpu_seconds;

struct options {
  int64_t tensor_mib = 64;
  int times = 1;  // tensors a segment: a machine changes its pace from second to second
  int rounds = 60;
  int64_t chunk_kib = wire_limits().chunk_bytes >> 10;
  int64_t caf_window = 16;
};

const wire_address loopback{"127.0.0.1", 0};

// ---- memory -------------------------------------------------------------------------------------

uint64_t status_kib(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return std::stoull(line.substr(key.size()));
  throw std::runtime_error("no " + key + " in /proc/self/status");
}
uint64_t peak_kib() {
  return status_kib("VmHWM:");
}
// From here on peak_kib counts anew; gives what is resident now.
uint64_t reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
  return status_kib("VmRSS:");
}

// ---- raw TCP ------------------------------------------------------------------------------------

void make_blocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

void send_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = ::send(fd, data, size, MSG_NOSIGNAL);
    if (n <= 0) throw std::runtime_error("send");
    data += n;
    size -= static_cast<size_t>(n);
  }
}

// False at the end of the stream.
bool receive_all(int fd, char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = ::recv(fd, data, size, 0);
    if (n <= 0) return false;
    data += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

// Receives tensors into the same memory, in pieces, and answers each with a byte.
void serve_raw(int listener, char* memory, size_t bytes, size_t piece) {
  pollfd p{listener, POLLIN, 0};
  while (::poll(&p, 1, -1) > 0) {
    const file_descriptor fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) return;
    for (;;) {
      for (size_t done = 0; done < bytes; done += piece)
        if (!receive_all(fd.get(), memory + done, std::min(piece, bytes - done))) goto closed;
      send_all(fd.get(), "!", 1);
    }
  closed:;
  }
}

// ---- the other process --------------------------------------------------------------------------

struct ports {
  uint16_t raw = 0, plain = 0, tls = 0, caf = 0, drafter = 0;
};

wire_session session_of(const at::Tensor& slot) {
  return {[slot](wire_message m) -> wire_message {
            if (m.method == "reset") return {"", std::to_string(reset_peak()), {}};
            if (m.method == "cpu") return {"", std::to_string(cpu_seconds()), {}};
            if (m.method == "peak") return {"", std::to_string(peak_kib()), {}};
            if (m.method == "fetch") return {"", "", {slot}};
            return {};
          },
          [slot](const wire_announcement& a) { return std::vector(a.tensors.size(), slot); }};
}

// Serves all kinds until its parent closes the pipe.
[[noreturn]] void serve(const options& o, const wire_security& tls, int tell, int wait) {
  const int64_t bytes = o.tensor_mib << 20;
  at::Tensor slot = at::empty({bytes / 2}, at::kBFloat16);
  std::memset(slot.data_ptr(), 1, static_cast<size_t>(bytes));
  wire_limits limits;
  limits.chunk_bytes = static_cast<uint32_t>(o.chunk_kib << 10);
  const auto sessions = [&](const wire_peer&) { return session_of(slot); };
  const wire_server plain(loopback, {}, limits, sessions), secure(loopback, tls, limits, sessions);
  const wire_server drafter(
      loopback, {}, limits, [](const wire_peer&) { return bench::paced_drafter(); });
  endpoint bound;
  const file_descriptor listener = listen_on(loopback, bound);
  std::thread raw([&] {
    serve_raw(listener.get(),
              static_cast<char*>(slot.data_ptr()),
              static_cast<size_t>(bytes),
              static_cast<size_t>(o.chunk_kib << 10));
  });
  const caf_sink sink;
  const ports all{bound.port(), plain.port(), secure.port(), sink.port(), drafter.port()};
  if (::write(tell, &all, sizeof all) != sizeof all) ::_exit(1);
  char end = 0;
  while (::read(wait, &end, 1) > 0) {
  }
  ::_exit(0);
}

class other_process {
public:
  other_process(const options& o, const wire_security& tls) {
    int up[2], down[2];
    if (::pipe(up) != 0 || ::pipe(down) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(up[0]);
      ::close(down[1]);
      try {
        serve(o, tls, up[1], down[0]);
      } catch (const std::exception& problem) {
        std::fprintf(stderr, "error: %s\n", problem.what());
        ::_exit(1);
      }
    }
    ::close(up[1]);
    ::close(down[0]);
    keep_ = file_descriptor(down[1]);
    const file_descriptor hear(up[0]);
    if (::read(hear.get(), &all_, sizeof all_) != sizeof all_)
      throw std::runtime_error("the other process does not start");
  }
  ~other_process() {
    keep_.close();
    ::waitpid(pid_, nullptr, 0);
  }
  const ports& all() const { return all_; }

private:
  pid_t pid_ = -1;
  file_descriptor keep_;
  ports all_;
};

// ---- measured -----------------------------------------------------------------------------------

struct kind {
  std::string name;
  std::function<void()> transfer;  // one tensor, there or back
  std::vector<double> rates = {};  // GB/s, one a round
  std::vector<double> cpu = {};    // seconds of both processes a GB
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

struct clients {
  explicit clients(const ports& all, const wire_security& tls, const wire_limits& limits)
      : plain(wire_client::connect({"127.0.0.1", all.plain}, {}, limits, "")),
        secure(wire_client::connect({"127.0.0.1", all.tls}, tls, limits, "")),
        caf(all.caf) {
    endpoint to;
    raw = connect_to_any(
        resolve({"127.0.0.1", all.raw}), wire_clock::now() + std::chrono::seconds(5), to);
    make_blocking(raw.get());
    set_connection_options(raw.get(), limits);
  }
  file_descriptor raw;
  wire_client plain, secure;
  caf_source caf;
};

uint64_t number_of(const wire_message& answer) {
  return std::stoull(answer.body);
}

// Most that the first transfer of a kind takes beside the tensors, of the larger of both processes.
double peak_mib(clients& c, const std::function<void()>& transfer) {
  const uint64_t theirs = number_of(c.plain.call({"reset", "", {}})), ours = reset_peak();
  transfer();
  const uint64_t their_peak = number_of(c.plain.call({"peak", "", {}})), our_peak = peak_kib();
  return static_cast<double>(std::max(their_peak - theirs, our_peak - ours)) / 1024;
}

void measure_round(kind& k, clients& c, int times, int64_t bytes) {
  const auto cpu = [&] { return cpu_seconds() + std::stod(c.plain.call({"cpu", "", {}}).body); };
  const double cpu_before = cpu();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) k.transfer();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  const double gb = static_cast<double>(bytes) * times * 1e-9;
  k.rates.push_back(gb / passed.count());
  k.cpu.push_back((cpu() - cpu_before) / gb);
}

// Milliseconds that one byte over CAF takes there and back while `transfer` keeps a data connection
// full: how long whoever inspects a node waits.
std::vector<double> control_ms(uint16_t port, int looks, const std::function<void()>& transfer) {
  std::atomic<bool> done{false};
  std::thread full([&] {
    while (!done) transfer();
  });
  std::vector<double> times;
  try {
    caf_source control(port);
    control.send(1, 1, 1);  // connects
    for (int i = 0; i < looks; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      control.send(1, 1, 1);
      times.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
              .count());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  } catch (...) {
    done = true;
    full.join();
    throw;
  }
  done = true;
  full.join();
  std::sort(times.begin(), times.end());
  return times;
}

int measure(const options& o) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("dflash-bench-transfer-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const certificate_pair ca = make_ca("bench", valid_for(std::chrono::days(1)));
  const certificate_pair node = make_node_certificate(
      ca, "bench", std::vector<std::string>{"127.0.0.1"}, valid_for(std::chrono::days(1)));
  const wire_security tls = node_folder(folder);
  write_file_atomically(tls.ca, ca.certificate);
  write_file_atomically(tls.certificate, node.certificate);
  write_secret_file(tls.key, node.key);
  const other_process other(o, tls);

  const int64_t bytes = o.tensor_mib << 20;
  at::Tensor tensor = at::empty({bytes / 2}, at::kBFloat16);
  std::memset(tensor.data_ptr(), 1, static_cast<size_t>(bytes));
  wire_limits limits;
  limits.chunk_bytes = static_cast<uint32_t>(o.chunk_kib << 10);
  clients c(other.all(), tls, limits);
  std::filesystem::remove_all(folder);

  const auto there = [&](wire_client& by) { by.call({"store", "", {tensor}}); };
  const auto back = [&](wire_client& by) {
    by.call({"fetch", "", {}}, [&](const wire_announcement&) { return std::vector{tensor}; });
  };
  std::vector<kind> kinds = {
      {"raw TCP, send and recv",
       [&] {
         const char* data = static_cast<const char*>(tensor.data_ptr());
         const auto piece = static_cast<size_t>(o.chunk_kib << 10);
         for (size_t done = 0; done < static_cast<size_t>(bytes); done += piece)
           send_all(c.raw.get(), data + done, std::min(piece, static_cast<size_t>(bytes) - done));
         char answer = 0;
         if (!receive_all(c.raw.get(), &answer, 1)) throw std::runtime_error("no answer");
       }},
      {"data connection, request", [&] { there(c.plain); }},
      {"data connection, answer", [&] { back(c.plain); }},
      {"with TLS, request", [&] { there(c.secure); }},
      {"with TLS, answer", [&] { back(c.secure); }},
      {"CAF, chunks of 1 MiB",
       [&] {
         c.caf.send(static_cast<uint64_t>(bytes), 1 << 20, static_cast<uint64_t>(o.caf_window));
       }},
  };
  std::vector<double> peaks;
  for (const kind& k : kinds) peaks.push_back(peak_mib(c, k.transfer));
  for (int round = 0; round < o.rounds; ++round)
    for (kind& k : kinds) measure_round(k, c, o.times, bytes);
  const std::vector<double> control = control_ms(other.all().caf, 100, kinds[1].transfer);
  wire_client lane = wire_client::connect({"127.0.0.1", other.all().drafter}, {}, limits, "");
  const bench::gradient_seconds g = bench::measure_gradient(lane, std::max(1, o.rounds / 6));
  // Shares of the raw stream of the same round: the machine is not equally busy in all.
  const auto share = [&](const kind& k) {
    std::vector<double> shares;
    for (size_t i = 0; i < k.rates.size(); ++i) shares.push_back(k.rates[i] / kinds[0].rates[i]);
    return median(shares);
  };
  text_table table({{"transfer", align::left},
                    {"GB/s"},
                    {"of raw TCP"},
                    {"CPU s/GB"},
                    {"peak beside the tensors"}});
  for (size_t i = 0; i < kinds.size(); ++i) {
    const kind& k = kinds[i];
    char rate[32], of[32], cpu[32], peak[32];
    std::snprintf(rate, sizeof rate, "%.2f", median(k.rates));
    std::snprintf(of, sizeof of, "%.3f", share(k));
    std::snprintf(cpu, sizeof cpu, "%.2f", median(k.cpu));
    std::snprintf(peak, sizeof peak, "%.1f MiB", peaks[i]);
    table.add_row({k.name, rate, of, cpu, peak});
  }
  json_object json;
  json.add("tensor_mib", o.tensor_mib).add("chunk_kib", o.chunk_kib);
  json.add("gb_per_s_tcp", median(kinds[0].rates));
  json.add("ratio_to_tcp", std::min(share(kinds[1]), share(kinds[2])));
  json.add("ratio_request", share(kinds[1])).add("ratio_answer", share(kinds[2]));
  json.add("ratio_tls", std::min(share(kinds[3]), share(kinds[4])));
  json.add("ratio_caf", share(kinds[5]));
  json.add("cpu_s_per_gb_tcp", median(kinds[0].cpu));
  json.add("cpu_s_per_gb", std::max(median(kinds[1].cpu), median(kinds[2].cpu)));
  json.add("cpu_s_per_gb_tls", std::max(median(kinds[3].cpu), median(kinds[4].cpu)));
  json.add("cpu_s_per_gb_caf", median(kinds[5].cpu));
  json.add("peak_mib", std::max(peaks[1], peaks[2]));
  json.add("peak_tls_mib", std::max(peaks[3], peaks[4])).add("peak_caf_mib", peaks[5]);
  json.add("control_ms_median", median(control)).add("control_ms_worst", control.back());
  json.add("gradient_pass_s", g.pass).add("gradient_fetch_s", g.fetch);
  json.add("gradient_whole_s", g.whole).add("gradient_buckets_s", g.buckets);
  std::printf("%scontrol by CAF meanwhile: %.1f ms, at worst %.1f ms\n",
              table.text().c_str(),
              median(control),
              control.back());
  std::printf(
      "a gradient of %.0f MiB, backward pass of %.0f ms: whole after it %.0f ms, in buckets "
      "meanwhile %.0f ms (the way alone %.0f ms)\n%s\n",
      static_cast<double>(bench::gradient_parameters) * 4 / (1 << 20),
      g.pass * 1e3,
      g.whole * 1e3,
      g.buckets * 1e3,
      g.fetch * 1e3,
      json.text().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app("Speed of tensor transfer between two processes on this machine.");
  app.add_option("--tensor-mib", o.tensor_mib, "Size of the tensor")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--times", o.times, "Transfers a segment")->capture_default_str();
  app.add_option("--rounds", o.rounds, "Segments of each kind")->capture_default_str();
  app.add_option("--chunk-kib", o.chunk_kib, "Chunks of data connections, pieces of raw TCP")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--caf-window", o.caf_window, "Chunks under way over CAF")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return measure(o);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "error: %s\n", problem.what());
    return 1;
  }
}
