#include "actors/remote_work.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "actors/lane_protocol.hpp"
#include "actors/sim_lanes.hpp"
#include "device/collective.hpp"

namespace dflash {

namespace {

[[noreturn]] void refuse(const remote_lane& lane, const std::string& what) {
  throw std::runtime_error(lane.place()->name() + " answers with " + what);
}

// Refuses an announcement of other tensors than these before memory is taken for them.
void expect(const remote_lane& lane,
            const wire_announcement& m,
            size_t count,
            const std::function<wire_shape(size_t)>& shape) {
  if (m.tensors.size() != count)
    refuse(lane, fmt::format("{} tensors instead of {}", m.tensors.size(), count));
  for (size_t i = 0; i < count; ++i)
    if (!(m.tensors[i] == shape(i)))
      refuse(lane, m.tensors[i].text() + " instead of " + shape(i).text());
}

class remote_trainer {
public:
  explicit remote_trainer(remote_drafter_options options) : options_(std::move(options)) {}

  step_sums accumulate(const drafter_input& input, bool measured) {
    gradient_is_fresh_ = false;
    std::vector<at::Tensor> hidden;
    if (!options_.simulated) {
      hidden = input.taps;
      if (input.last_hidden.defined()) hidden.push_back(input.last_hidden);
    }
    const bool has_last = !options_.simulated && input.last_hidden.defined();
    return decode_sums(
        call(encode_accumulate(*input.tokens, std::move(hidden), has_last, measured)).body);
  }

  // Fetched once an attempt; other replicas read it until the go. From the end, as the backward
  // pass writes it: each bucket comes as soon as it is final there.
  const at::Tensor& gradient() {
    if (gradient_is_fresh_) return gradient_;
    if (!gradient_.defined() || gradient_.use_count() > 1)
      gradient_ = at::empty({options_.parameters}, at::TensorOptions().dtype(at::kFloat));
    for (int64_t end = options_.alone ? 0 : options_.parameters; end > 0;) {
      const int64_t begin = std::max<int64_t>(0, end - options_.bucket);
      const at::Tensor bucket = gradient_.narrow(0, begin, end - begin);
      call({lane_call::gradient, encode_range({begin, end - begin}), {}},
           [&](const wire_announcement& m) {
             expect(*options_.lane, m, 1, [&](size_t) { return shape_of(bucket); });
             return std::vector<at::Tensor>{bucket};
           });
      end = begin;
    }
    gradient_is_fresh_ = true;
    return gradient_;
  }

  update_report update(const at::Tensor& reduced, double weight_sum, uint64_t step, bool skip) {
    const bool own = reduced.is_same(gradient_) && gradient_is_fresh_;
    wire_message m{lane_call::update, encode_update({weight_sum, step, skip, own}), {}};
    if (!own) m.tensors.push_back(reduced);
    gradient_is_fresh_ = false;
    return decode_report(call(m).body);
  }

  replica_state state() {
    std::vector<at::Tensor> into;
    for (const auto& [name, sizes] : options_.state)
      into.push_back(at::empty(sizes, at::TensorOptions().dtype(at::kFloat)));
    return fetch(into);
  }

  void load(const replica_state& from) {
    gradient_is_fresh_ = false;
    wire_message m = encode_state(from);
    m.method = lane_call::load;
    call(m);
  }

  uint64_t restore() {
    const auto [trainer, steps] = options_.restore();
    load(trainer ? state_of(*trainer) : replica_state{});
    return steps;
  }

  // As a snapshot of a trainer here: the buffers are used again unless somebody still holds them.
  std::shared_ptr<const trainer_snapshot> snapshot() {
    if (!kept_ || kept_.use_count() > 1)
      kept_ = std::make_shared<trainer_snapshot>(options_.blank());
    std::vector<at::Tensor> into;
    for (const auto& [name, tensor] : kept_->tensors) into.push_back(tensor);
    kept_->updates = fetch(into).updates;
    return kept_;
  }

  const remote_drafter_options& options() const { return options_; }

private:
  wire_message call(const wire_message& m, const tensor_places& into = {}) {
    return options_.lane->call(m, into);
  }

  replica_state fetch(const std::vector<at::Tensor>& into) {
    replica_state state =
        decode_state(call({lane_call::state, {}, {}}, [&](const wire_announcement& m) {
          expect(*options_.lane, m, into.size(), [&](size_t i) { return shape_of(into[i]); });
          return into;
        }));
    for (size_t i = 0; i < state.tensors.size(); ++i)
      if (state.tensors[i].first != options_.state[i].first)
        refuse(*options_.lane,
               state.tensors[i].first + " where " + options_.state[i].first + " should stand");
    return state;
  }

  remote_drafter_options options_;
  at::Tensor gradient_;  // [P] fp32
  bool gradient_is_fresh_ = false;
  std::shared_ptr<trainer_snapshot> kept_;
};

}  // namespace

capture_function remote_capture(std::shared_ptr<remote_lane> lane,
                                hidden_shape shape,
                                bool simulated) {
  return [lane = std::move(lane), shape, simulated](const batch& b) -> std::vector<at::Tensor> {
    const wire_shape one{shape.dtype, {shape.row_tokens, shape.width}};
    const size_t count = simulated ? 0 : static_cast<size_t>(shape.tensors());
    wire_message answer = lane->call(capture_request(b), [&](const wire_announcement& m) {
      expect(*lane, m, count, [&](size_t) { return one; });
      return simulated ? std::vector<at::Tensor>() : empty_hidden(shape);
    });
    if (simulated) return reserved_hidden(shape);
    return std::move(answer.tensors);
  };
}

drafter_work remote_drafter(remote_drafter_options options) {
  const auto trainer = std::make_shared<remote_trainer>(std::move(options));
  drafter_work work;
  work.accumulate = [trainer](const drafter_input& input, bool measured, const accumulate_watch&) {
    return trainer->accumulate(input, measured);
  };
  work.gradient = [trainer]() -> const at::Tensor& { return trainer->gradient(); };
  work.update = [trainer](const at::Tensor& reduced, double weight_sum, uint64_t step, bool skip) {
    return trainer->update(reduced, weight_sum, step, skip);
  };
  work.state = [trainer] { return trainer->state(); };
  work.load_state = [trainer](const replica_state& from) { trainer->load(from); };
  work.restore = [trainer] { return trainer->restore(); };
  if (trainer->options().simulated)
    work.snapshot = [](const save_request&) { return [] {}; };
  else if (trainer->options().write)
    work.snapshot = [trainer](const save_request& request) {
      return [request, write = trainer->options().write, copy = trainer->snapshot()] {
        write(request, *copy);
      };
    };
  return work;
}

}  // namespace dflash
