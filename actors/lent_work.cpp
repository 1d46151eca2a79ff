#include "actors/lent_work.hpp"

#include <ATen/ops/empty.h>

#include <stdexcept>
#include <utility>

#include "actors/lane_protocol.hpp"

namespace dflash {

namespace {

class drafter_lane {
public:
  explicit drafter_lane(drafter_work work) : work_(std::move(work)) {}

  wire_message answer(wire_message m) {
    if (m.method == lane_call::load) {
      work_.load_state(decode_state(std::move(m)));
      has_state_ = true;
      return {};
    }
    if (!has_state_) throw std::runtime_error("the drafter has no state yet");
    if (m.method == lane_call::accumulate) return accumulate(std::move(m));
    if (m.method == lane_call::gradient) return {{}, {}, {work_.gradient()}};
    if (m.method == lane_call::update) return update(m);
    if (m.method == lane_call::state) return encode_state(work_.state());
    throw std::runtime_error("a drafter knows no call " + m.method);
  }

private:
  wire_message accumulate(wire_message m) {
    accumulate_request r = decode_accumulate(std::move(m));
    drafter_input input;
    input.tokens = &r.tokens;
    input.taps = std::move(r.hidden);
    if (r.has_last) {
      input.last_hidden = input.taps.back();
      input.taps.pop_back();
    }
    return {{}, encode_sums(work_.accumulate(input, r.measured)), {}};
  }

  wire_message update(const wire_message& m) {
    const update_call call = decode_update(m.body);
    if (!call.own && m.tensors.size() != 1) throw std::runtime_error("the gradient is missing");
    const at::Tensor reduced = call.own ? work_.gradient() : m.tensors[0];
    if (reduced.sizes() != work_.gradient().sizes() || reduced.scalar_type() != at::kFloat)
      throw std::runtime_error("the gradient is of another shape or type");
    return {{}, encode_report(work_.update(reduced, call.weight_sum, call.step, call.skip)), {}};
  }

  drafter_work work_;
  bool has_state_ = false;
};

}  // namespace

lane_answers lent_target(capture_function capture) {
  return [capture = std::move(capture)](const wire_message& m) -> wire_message {
    if (m.method != lane_call::capture)
      throw std::runtime_error("a target knows no call " + m.method);
    return {{}, {}, capture(batch_of_capture(m))};
  };
}

lane_answers lent_drafter(drafter_work work) {
  return [lane = std::make_shared<drafter_lane>(std::move(work))](wire_message m) {
    return lane->answer(std::move(m));
  };
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
