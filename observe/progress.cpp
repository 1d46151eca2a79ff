#include "observe/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "observe/format.hpp"

namespace dflash {

namespace {

constexpr std::chrono::seconds shortest_task(2);

std::size_t columns_of(std::FILE* stream) {
  winsize size{};
  if (::ioctl(::fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

void append(std::string& text, const std::string& part) {
  if (!text.empty()) text += "  ";
  text += part;
}

std::string fixed(double value, int decimals) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", decimals, value);
  return buffer;
}

}  // namespace

bool is_terminal(std::FILE* stream) {
  const char* kind = std::getenv("TERM");
  return ::isatty(::fileno(stream)) == 1 && (kind == nullptr || std::strcmp(kind, "dumb") != 0);
}

progress_line::progress_line(progress_options options)
    : options_(std::move(options)),
      terminal_(options_.terminal ? *options_.terminal : is_terminal(options_.stream)) {}

progress_line::~progress_line() {
  finish();
}

bool progress_line::due() const {
  return !last_ ||
         options_.now() - *last_ >= (terminal_ ? options_.redraw_every : options_.line_every);
}

void progress_line::show(std::string text) {
  // The same line twice tells nothing; on a terminal a log message may have wiped it away.
  if (!terminal_ && printed_ && text == text_) return;
  const bool now = due();
  text_ = std::move(text);
  printed_ = false;
  if (now) print(false);
}

void progress_line::finish() {
  if (!printed_ || open_) print(true);
  std::fflush(options_.stream);
}

void progress_line::print(bool last) {
  if (terminal_) {
    // A line that wraps could not be drawn over: cut it one column short. Its end goes out with it:
    // a message between the two would wipe the line away.
    const std::string shown = text_.substr(0, columns_of(options_.stream) - 1);
    std::fprintf(options_.stream, "\r%s\x1b[K%s", shown.c_str(), last ? "\n" : "");
    open_ = !last;
  } else {
    std::fprintf(options_.stream, "%s\n", text_.c_str());
  }
  std::fflush(options_.stream);
  last_ = options_.now();
  printed_ = true;
}

std::string waiting_text(double drafters_wait, double targets_wait, bool from_disk) {
  constexpr double worth_saying = 0.02;
  if (drafters_wait < worth_saying && targets_wait < worth_saying) return "nobody waits";
  if (drafters_wait >= targets_wait)
    return std::string("drafters wait for ") + (from_disk ? "the disk " : "targets ") +
           share_text(drafters_wait);
  return "targets wait for drafters " + share_text(targets_wait);
}

std::string progress_text(const train_progress& p) {
  std::string text = "step " + std::to_string(p.step) + "/" + std::to_string(p.total_steps);
  if (p.loss) append(text, "loss " + fixed(*p.loss, 3));
  if (p.accuracy) append(text, "acc " + share_text(*p.accuracy));
  if (p.accept_len) append(text, "accept_len " + fixed(*p.accept_len, 2));
  if (p.tau) append(text, "held-out tau " + fixed(*p.tau, 3));
  if (p.held_out_loss) append(text, "held-out loss " + fixed(*p.held_out_loss, 3));
  if (p.tokens_per_second) append(text, rate_text(*p.tokens_per_second, "tokens"));
  append(text, waiting_text(p.drafters_wait, p.targets_wait, p.from_disk));
  append(text, bytes_text(p.bytes_in_flight) + " in flight");
  if (p.skipped_steps > 0) append(text, "skipped " + std::to_string(p.skipped_steps));
  if (p.dropped_batches > 0) append(text, "dropped " + std::to_string(p.dropped_batches));
  if (p.restarts > 0) append(text, "restarts " + std::to_string(p.restarts));
  if (p.failed_saves > 0) append(text, "FAILED SAVES " + std::to_string(p.failed_saves));
  if (p.time_left) append(text, "left " + duration_text(*p.time_left));
  return text;
}

task_progress::task_progress(std::string label,
                             std::string unit,
                             std::uint64_t total,
                             progress_options options)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      now_(options.now),
      start_(now_()),
      line_(std::move(options)) {}

std::string task_progress::amount(std::uint64_t count) const {
  return unit_ == "bytes" ? bytes_text(count) : std::to_string(count);
}

void task_progress::update(std::uint64_t done) {
  done_ = done;
  if (now_() - start_ >= shortest_task && line_.due()) line_.show(text());
}

void task_progress::finish() {
  if (now_() - start_ >= shortest_task) line_.show(text());
  line_.finish();
}

std::string task_progress::text() const {
  std::string text = label_ + " " + amount(done_);
  if (total_ > 0) text += "/" + amount(total_);
  if (unit_ != "bytes") text += " " + unit_;
  const double seconds = std::chrono::duration<double>(now_() - start_).count();
  if (done_ == 0 || seconds <= 0.0) return text;
  const double rate = static_cast<double>(done_) / seconds;
  append(text,
         unit_ == "bytes" ? bytes_text(static_cast<std::uint64_t>(rate)) + "/s"
                          : rate_text(rate, unit_));
  if (done_ < total_) {
    const double left = static_cast<double>(total_ - done_) / rate;
    if (left < 1e9)  // some thirty years: not known
      append(text,
             "left " + duration_text(std::chrono::duration_cast<std::chrono::nanoseconds>(
                           std::chrono::duration<double>(left))));
  } else {
    append(text, "in " + duration_text(now_() - start_));
  }
  return text;
}

}  // namespace dflash
