// Progress for people, on stderr: one line that is redrawn on a terminal, plain lines at a rhythm
// elsewhere. Used by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace dflash {

using progress_clock = std::function<std::chrono::steady_clock::time_point()>;

/// Whether a line can be drawn over there: not into a file, nor on a terminal that cannot.
bool is_terminal(std::FILE* stream);

struct progress_options {
  std::FILE* stream = stderr;         // not owned
  std::optional<bool> terminal = {};  // unset: asked of the stream
  std::chrono::nanoseconds redraw_every = std::chrono::milliseconds(200);  // on a terminal
  std::chrono::nanoseconds line_every = std::chrono::seconds(10);          // elsewhere
  progress_clock now = std::chrono::steady_clock::now;
};

/// The line itself. Whatever is shown last before finish() stays on the screen or in the log.
class progress_line {
public:
  explicit progress_line(progress_options options = {});
  ~progress_line();  // as finish()
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;

  /// Prints if it is time to; the text is kept for finish() in any case.
  void show(std::string text);

  /// Prints what was shown last, if it is not on the screen yet or a message may have wiped it
  /// away, and ends the line. May be called again; a later show() starts a new line.
  void finish();

  bool due() const;  // whether show() would print now: saves building the text

private:
  void print(bool last);

  progress_options options_;
  bool terminal_;
  bool open_ = false;    // a line without its end is on the terminal
  bool printed_ = true;  // text_ has been printed
  std::string text_;
  std::optional<std::chrono::steady_clock::time_point> last_;
};

/// What the line of `train` shows. Values that are not known yet are unset.
struct train_progress {
  std::uint64_t step = 0;
  std::uint64_t total_steps = 0;
  std::optional<double> loss = {};
  std::optional<double> accuracy = {};
  std::optional<double> accept_len = {};
  std::optional<double> tau = {};            // of the last evaluation
  std::optional<double> held_out_loss = {};  // likewise
  std::optional<double> tokens_per_second = {};
  double drafters_wait = 0.0;  // share of the time in which drafters wait for hidden states
  double targets_wait = 0.0;   // share of the time in which targets wait for room
  bool from_disk = false;      // no targets: hidden states are read
  std::uint64_t bytes_in_flight = 0;
  std::optional<std::chrono::nanoseconds> time_left = {};
  std::uint64_t skipped_steps = 0;
  std::uint64_t dropped_batches = 0;
  std::uint64_t restarts = 0;
  std::uint64_t failed_saves = 0;
};

/// "step 120/1500  loss 3.214  acc 31 %  accept_len 1.52  8.41k tokens/s  drafters wait for targets
/// 35 % 12.3 MB in flight  left 4 min 07 s"
std::string progress_text(const train_progress& p);

/// "drafters wait for targets 35 %" (for the disk if the states come from there), "targets wait for
/// drafters 12 %", "nobody waits"
std::string waiting_text(double drafters_wait, double targets_wait, bool from_disk = false);

/// Any long task: label, done of total, rate, time left; silent for tasks under two seconds.
class task_progress {
public:
  /// `unit` is what is counted: "prompts", "bytes" (shown as sizes). total 0: not known.
  task_progress(std::string label,
                std::string unit,
                std::uint64_t total,
                progress_options options = {});

  void update(std::uint64_t done);  // cheap when nothing is due
  void finish();                    // also done by the destructor

  std::string text() const;

private:
  std::string amount(std::uint64_t count) const;

  std::string label_;
  std::string unit_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
  progress_clock now_;
  std::chrono::steady_clock::time_point start_;
  progress_line line_;
};

}  // namespace dflash
