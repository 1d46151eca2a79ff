// What a lent lane answers, made of the same functions that a lane of this process would call.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/drafter_work.hpp"
#include "actors/target_forward.hpp"
#include "messages/wire_message.hpp"

namespace dflash {

using lane_answers = std::function<wire_message(wire_message)>;

// Answers capture. A simulated target sends no tensors.
lane_answers lent_target(capture_function capture);

// Answers accumulate, gradient, update, state and load; refuses work before a state was loaded.
// Computes in a thread of its own, which begins with `set_up`: accumulate is answered after its
// forward pass, and ranges of the gradient as soon as the backward pass is through with them, so
// that they travel while it goes on. Whatever else is asked waits for its end; what it throws then,
// all calls throw until a state is loaded. Calls the work's accumulate, gradient, update, state and
// load_state.
lane_answers lent_drafter(drafter_work work, std::function<void()> set_up = {});

// Memory for tensors that come again and again: those of the last message with the same number,
// types and shapes are filled again, once nobody else holds them.
class tensor_room {
public:
  std::vector<at::Tensor> places(const wire_announcement& m);

private:
  std::vector<at::Tensor> kept_;
};

}  // namespace dflash
