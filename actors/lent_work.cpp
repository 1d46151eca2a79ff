#include "actors/lent_work.hpp"

#include <ATen/ops/empty.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "actors/lane_protocol.hpp"

namespace dflash {

namespace {

// One thread that does one thing after the other.
class work_thread {
public:
  explicit work_thread(std::function<void()> set_up)
      : thread_([this, set_up = std::move(set_up)] {
          if (set_up) set_up();
          do_all();
        }) {}
  work_thread(const work_thread&) = delete;
  work_thread& operator=(const work_thread&) = delete;
  // Waits for what is begun.
  ~work_thread() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  // In the thread, after what was asked before; what it throws, wait() throws.
  template <class Result>
  std::future<Result> begin(std::function<Result()> what) {
    std::packaged_task<Result()> task(std::move(what));
    auto result = task.get_future();
    {
      const std::lock_guard lock(mutex_);
      todo_.emplace_back(
          [task = std::make_shared<std::packaged_task<Result()>>(std::move(task))] { (*task)(); });
    }
    changed_.notify_one();
    return result;
  }

private:
  void do_all() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return over_ || !todo_.empty(); });
      if (over_) return;
      const std::function<void()> next = std::exchange(todo_.front(), nullptr);
      todo_.pop_front();
      lock.unlock();
      next();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> todo_;
  bool over_ = false;
  std::thread thread_;  // last: it uses the others
};

// How far a pass over one batch has come: told by the thread that computes, asked by the one that
// answers.
class batch_progress {
public:
  accumulate_watch watch() {
    return {[this](const step_sums& sums) { tell([&] { sums_ = sums; }); },
            [this](const at::Tensor& gradient, int64_t from) {
              tell([&] {
                gradient_ = gradient;
                from_ = from;
              });
            }};
  }
  // By the end of the pass, with or without what the watch has told.
  void done(const step_sums& sums, const at::Tensor& gradient) {
    tell([&] {
      sums_ = sums;
      gradient_ = gradient;
      from_ = 0;
    });
  }
  void failed(std::exception_ptr why) {
    tell([&] { failure_ = std::move(why); });
  }

  step_sums sums() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return sums_ || failure_; });
    if (!sums_) std::rethrow_exception(failure_);
    return *sums_;
  }
  // The whole gradient, once it is final from this element on.
  at::Tensor gradient(int64_t from) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return from_ <= from || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    return gradient_;
  }

private:
  template <class Change>
  void tell(Change&& change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<step_sums> sums_;
  at::Tensor gradient_;
  int64_t from_ = INT64_MAX;
  std::exception_ptr failure_;
};

class drafter_lane {
public:
  drafter_lane(drafter_work work, std::function<void()> set_up)
      : work_(std::move(work)), thread_(std::move(set_up)) {}

  wire_message answer(wire_message m) {
    if (m.method == lane_call::load) return load(std::move(m));
    if (!has_state_) throw std::runtime_error("the drafter has no state yet");
    if (m.method == lane_call::accumulate) return accumulate(decode_accumulate(std::move(m)));
    if (m.method == lane_call::gradient) return gradient(m);
    if (m.method == lane_call::update) return update(m);
    if (m.method == lane_call::state) return in_thread([&] { return encode_state(work_.state()); });
    throw std::runtime_error("a drafter knows no call " + m.method);
  }

private:
  // Waits for its end, and for that of the pass before it.
  template <class Work>
  auto in_thread(Work work) -> decltype(work()) {
    finish_pass();
    return thread_.begin(std::function<decltype(work())()>(std::move(work))).get();
  }

  // A pass that has failed fails all that comes after it, until a state is loaded.
  void finish_pass() {
    if (pass_) pass_->gradient(0);
    pass_ = nullptr;
  }

  wire_message load(wire_message m) {
    pass_ = nullptr;  // whatever came of it
    replica_state state = decode_state(std::move(m));
    parameters_ = in_thread([&] {
      work_.load_state(state);
      return work_.gradient().numel();
    });
    has_state_ = true;
    return {};
  }

  wire_message accumulate(accumulate_request request) {
    finish_pass();
    const auto pass = pass_ = std::make_shared<batch_progress>();
    thread_.begin(std::function<void()>(
        [this, pass, r = std::make_shared<accumulate_request>(std::move(request))] {
          try {
            const step_sums sums = compute(*r, pass->watch());
            pass->done(sums, work_.gradient());
          } catch (...) {
            pass->failed(std::current_exception());
          }
        }));
    try {
      return {{}, encode_sums(pass->sums()), {}};
    } catch (...) {  // refused: nothing of it counts
      pass_ = nullptr;
      throw;
    }
  }

  // The hidden states are dropped when it returns: their memory takes the next batch's.
  step_sums compute(accumulate_request& r, const accumulate_watch& watch) {
    drafter_input input;
    input.tokens = &r.tokens;
    input.taps = std::move(r.hidden);
    if (r.has_last) {
      input.last_hidden = input.taps.back();
      input.taps.pop_back();
    }
    return work_.accumulate(input, r.measured, watch);
  }

  wire_message gradient(const wire_message& m) {
    const gradient_range range = decode_range(m.body, parameters_);
    const at::Tensor whole =
        pass_ ? pass_->gradient(range.begin) : in_thread([&] { return work_.gradient(); });
    return {{}, {}, {whole.narrow(0, range.begin, range.count)}};
  }

  wire_message update(const wire_message& m) {
    const update_call call = decode_update(m.body);
    if (!call.own && m.tensors.size() != 1) throw std::runtime_error("the gradient is missing");
    if (!call.own && (m.tensors[0].dim() != 1 || m.tensors[0].numel() != parameters_ ||
                      m.tensors[0].scalar_type() != at::kFloat))
      throw std::runtime_error("the gradient is of another shape or type");
    return in_thread([&]() -> wire_message {
      const at::Tensor reduced = call.own ? work_.gradient() : m.tensors[0];
      return {{}, encode_report(work_.update(reduced, call.weight_sum, call.step, call.skip)), {}};
    });
  }

  drafter_work work_;                     // used by the thread alone
  std::shared_ptr<batch_progress> pass_;  // of the last batch, until it is known to be over
  bool has_state_ = false;
  int64_t parameters_ = 0;  // P
  work_thread thread_;      // last: it uses the others
};

}  // namespace

lane_answers lent_target(capture_function capture) {
  return [capture = std::move(capture)](const wire_message& m) -> wire_message {
    if (m.method != lane_call::capture)
      throw std::runtime_error("a target knows no call " + m.method);
    return {{}, {}, capture(batch_of_capture(m))};
  };
}

lane_answers lent_drafter(drafter_work work, std::function<void()> set_up) {
  return [lane = std::make_shared<drafter_lane>(std::move(work), std::move(set_up))](
             wire_message m) { return lane->answer(std::move(m)); };
}

std::vector<at::Tensor> tensor_room::places(const wire_announcement& m) {
  kept_.resize(m.tensors.size());
  for (size_t i = 0; i < kept_.size(); ++i) {
    const bool fits = kept_[i].defined() && shape_of(kept_[i]) == m.tensors[i];
    if (!fits || kept_[i].use_count() > 1)
      kept_[i] = at::empty(m.tensors[i].sizes, at::TensorOptions().dtype(m.tensors[i].dtype));
  }
  return kept_;
}

}  // namespace dflash
