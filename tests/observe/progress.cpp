#include "observe/progress.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>

namespace dflash {

namespace {

using namespace std::chrono_literals;

// A stream in memory and a clock that stands still until it is told to move on.
struct screen {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = ::open_memstream(&text, &size);
  std::chrono::steady_clock::time_point time{};

  screen() = default;
  screen(const screen&) = delete;
  screen& operator=(const screen&) = delete;
  ~screen() {
    std::fclose(stream);
    std::free(text);
  }

  progress_options options(bool terminal) {
    return {.stream = stream,
            .terminal = terminal,
            .redraw_every = 1s,
            .line_every = 10s,
            .now = [this] { return time; }};
  }
  std::string shown() {
    std::fflush(stream);
    return {text, size};
  }
};

}  // namespace

TEST_CASE("on a terminal the line is drawn over, at most once per period") {
  screen s;
  progress_line line(s.options(true));
  line.show("one");
  line.show("two");
  CHECK(s.shown() == "\rone\x1b[K");
  s.time += 1s;
  line.show("three");
  CHECK(s.shown() == "\rone\x1b[K\rthree\x1b[K");
  line.show("four");
  line.finish();
  CHECK(s.shown() == "\rone\x1b[K\rthree\x1b[K\rfour\x1b[K\n");
  line.finish();
  CHECK(s.shown() == "\rone\x1b[K\rthree\x1b[K\rfour\x1b[K\n");
}

TEST_CASE("the last line stands below what a message has wiped away") {
  screen s;
  progress_line line(s.options(true));
  line.show("one");
  std::fputs("\r\x1b[Ka message\n", s.stream);
  line.finish();
  CHECK(s.shown() == "\rone\x1b[K\r\x1b[Ka message\n\rone\x1b[K\n");
}

TEST_CASE("a line longer than the terminal is cut, so that it does not wrap") {
  screen s;
  progress_line line(s.options(true));
  line.show(std::string(500, 'x'));
  CHECK(s.shown() == "\r" + std::string(79, 'x') + "\x1b[K");
}

TEST_CASE("elsewhere whole lines come at a rhythm, and the last one always") {
  screen s;
  {
    progress_line line(s.options(false));
    line.show("one");
    s.time += 9s;
    CHECK_FALSE(line.due());
    line.show("two");
    s.time += 1s;
    CHECK(line.due());
    line.show("three");
    line.show("four");
  }
  CHECK(s.shown() == "one\nthree\nfour\n");
}

TEST_CASE("the line of a training run says who waits for whom") {
  train_progress p{.step = 120,
                   .total_steps = 1500,
                   .loss = 3.2141,
                   .accept_len = 1.518,
                   .tokens_per_second = 8412.0,
                   .drafters_wait = 0.354,
                   .targets_wait = 0.01,
                   .bytes_in_flight = 12'300'000,
                   .time_left = 247s,
                   .skipped_steps = 0,
                   .restarts = 0};
  CHECK(progress_text(p) ==
        "step 120/1500  loss 3.214  accept_len 1.52  8.41k tokens/s  drafters wait for targets "
        "35 %  12.3 MB in flight  left 4 min 07 s");
  p.skipped_steps = 2;
  p.restarts = 1;
  CHECK(progress_text(p).find("skipped 2  restarts 1") != std::string::npos);
  CHECK(progress_text(train_progress{.total_steps = 9}) == "step 0/9  nobody waits  0 B in flight");
  CHECK(waiting_text(0.1, 0.2) == "targets wait for drafters 20 %");
  CHECK(waiting_text(0.3, 0, true) == "drafters wait for the disk 30 %");
}

TEST_CASE("a task of under two seconds says nothing") {
  screen s;
  {
    task_progress task("reading", "bytes", 10, s.options(false));
    s.time += 1900ms;
    task.update(10);
  }
  CHECK(s.shown().empty());
}

TEST_CASE("a longer task shows rate and time left") {
  screen s;
  task_progress task("generating", "prompts", 200, s.options(false));
  s.time += 4s;
  task.update(20);
  CHECK(s.shown() == "generating 20/200 prompts  5 prompts/s  left 36.0 s\n");
  s.time += 36s;
  task.update(200);
  task.finish();
  CHECK(s.shown() ==
        "generating 20/200 prompts  5 prompts/s  left 36.0 s\n"
        "generating 200/200 prompts  5 prompts/s  in 40.0 s\n");
}

TEST_CASE("sizes of a task have units, and an unknown total is left out") {
  screen s;
  task_progress task("reading", "bytes", 0, s.options(false));
  s.time += 2s;
  task.update(3'000'000);
  CHECK(task.text() == "reading 3.00 MB  1.50 MB/s  in 2.00 s");
}

}  // namespace dflash
