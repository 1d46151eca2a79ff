#include "bin/node_lanes.hpp"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "actors/lane_protocol.hpp"
#include "actors/lent_work.hpp"
#include "actors/runtime/lane_thread.hpp"
#include "actors/sim_lanes.hpp"
#include "bin/lane_order.hpp"
#include "bin/lane_work.hpp"
#include "bin/model_stream.hpp"
#include "bin/sim_setup.hpp"
#include "config/error.hpp"
#include "model/drafter.hpp"
#include "model/target.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

// The weights that lanes of this process share. Any thread; a load holds the others up.
class shared_models {
public:
  explicit shared_models(node_lanes_options options) : options_(std::move(options)) {}

  // Null: no folder here has the content that the run's target has.
  std::shared_ptr<const target> find(const lane_order& order, target_parts parts) {
    const std::lock_guard guard(mutex_);
    if (!options_.model.empty()) {
      auto model = load(options_.model, order, parts);
      if (model) return model;
      throw std::runtime_error(
          fmt::format("the model in {} (--model) is another one than the run's, "
                      "whose content hash is {}",
                      options_.model.string(),
                      order.target_hash));
    }
    for (const fs::path& folder :
         {fs::path(order.config.target.path), options_.cache / order.target_hash})
      if (fs::exists(folder / "config.json"))
        if (auto model = load(folder, order, parts)) return model;
    return nullptr;
  }

  const fs::path& cache() const { return options_.cache; }

private:
  std::shared_ptr<const target> load(const fs::path& folder,
                                     const lane_order& order,
                                     target_parts parts) {
    const auto key = [&](target_parts p) {
      return fmt::format("{} {} {}",
                         order.target_hash,
                         name_of(order.dtype),
                         p == target_parts::all ? "all" : "borrowed");
    };
    for (const target_parts enough : {target_parts::all, parts})
      if (auto model = loaded_[key(enough)].lock()) return model;
    auto model = target::load(folder, order.dtype, at::kCPU, parts);
    if (model->content_hash() != order.target_hash) {
      spdlog::warn("{} holds another model than the run's: content hash {} instead of {}",
                   folder.string(),
                   model->content_hash(),
                   order.target_hash);
      return nullptr;
    }
    loaded_[key(parts)] = model;
    return model;
  }

  const node_lanes_options options_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const target>> loaded_;
};

// What the models take for granted; batches come from another host.
void check_tokens(const batch& b, int64_t vocab) {
  for (const int32_t id : b.input_ids)
    if (id >= vocab)
      throw std::runtime_error(
          fmt::format("token {} of a vocabulary of {}, counted from 0", id, vocab));
}

void check_hidden(const drafter_input& input,
                  const drafter_config& config,
                  bool last,
                  at::ScalarType dtype) {
  const auto fits = [&](const at::Tensor& t) {
    return t.dim() == 2 && t.size(1) == config.target_hidden && t.scalar_type() == dtype;
  };
  if (input.taps.size() != config.taps.size() || input.last_hidden.defined() != last ||
      !std::all_of(input.taps.begin(), input.taps.end(), fits) ||
      (last && !fits(input.last_hidden)))
    throw std::runtime_error("hidden states of another number, width or type");
}

// One lane from its first call on.
class node_lane {
public:
  node_lane(std::shared_ptr<shared_models> models, lend_request request)
      : models_(std::move(models)), request_(std::move(request)) {}

  wire_message answer(wire_message m) {
    if (m.method == lane_call::build) return build(decode_order(m));
    if (m.method == lane_call::file) {
      if (!receiver_) throw std::runtime_error("no model was asked for");
      receiver_->take(m);
      return {};
    }
    if (!work_) throw std::runtime_error("the lane has not been built");
    return work_(std::move(m));
  }

  std::vector<at::Tensor> places(const wire_announcement& m) { return room_.places(m); }

private:
  wire_message build(lane_order order) {
    if (order.purpose != request_.purpose)
      throw std::runtime_error("the lane was lent as " + request_.purpose);
    work_ = nullptr;
    const bool is_target = order.purpose == "target";
    const layout_section& layout = order.config.layout;
    const auto set_up = [name = fmt::format("{} {}", order.purpose, request_.lane),
                         threads = is_target ? layout.target_threads : layout.drafter_threads] {
      set_up_lane_thread(name, threads);
    };
    set_up();
    order_answer answer;
    if (is_simulated(order.config)) {
      simulate(order, set_up);
    } else if (const auto model =
                   models_->find(order, is_target ? target_parts::all : target_parts::borrowed)) {
      receiver_.reset();
      check_drafter_config(order.drafter, "the run's drafter");
      check_drafter_fits(order.drafter, model->config(), "the run's drafter");
      if (is_target)
        work_ = lent_target([capture = capture_by(model, order.drafter.taps, order.last, nullptr),
                             vocab = model->config().vocab](const batch& b) {
          check_tokens(b, vocab);
          return capture(b);
        });
      else
        answer.state = make_drafter(order, model, set_up);
    } else {
      receiver_ = std::make_unique<model_receiver>(models_->cache(), order.target_hash);
      answer.wants_model = true;
    }
    return {{}, encode_answer(answer), {}};
  }

  void simulate(const lane_order& order, std::function<void()> set_up) {
    const sim_times times = sim_times_of(order.config.sim);
    if (order.purpose == "drafter") {
      work_ = lent_drafter(sim_drafter(times), std::move(set_up));
      return;
    }
    // The run has the address space that stands for hidden states; none travel.
    const capture_function sleep = sim_capture(times.target, {1, 1, 1, false, at::kFloat});
    work_ = lent_target([sleep](const batch& b) {
      sleep(b);
      return std::vector<at::Tensor>();
    });
  }

  // Its weights come with the first state.
  std::vector<std::pair<std::string, std::vector<int64_t>>> make_drafter(
      const lane_order& order,
      const std::shared_ptr<const target>& model,
      std::function<void()> set_up) {
    const drafter_weights empty = view_drafter_weights(
        order.drafter,
        at::zeros({drafter_parameter_count(order.drafter)}, at::TensorOptions().dtype(at::kFloat)));
    const auto trainer =
        make_trainer(order.config, order.drafter, empty, model, order.dtype, order.total_steps);
    std::vector<std::pair<std::string, std::vector<int64_t>>> state;
    for (const auto& [name, tensor] : state_of(*trainer).tensors)
      state.emplace_back(name, tensor.sizes().vec());
    drafter_work work = work_of(trainer, [](drafter_trainer&) -> uint64_t {
      throw std::runtime_error("a lent drafter has no checkpoint to go back to");
    });
    work.accumulate = [accumulate = std::move(work.accumulate),
                       vocab = model->config().vocab,
                       config = order.drafter,
                       last = order.last,
                       dtype = scalar_type(order.dtype)](const drafter_input& input,
                                                         bool measured,
                                                         const accumulate_watch& watch) {
      check_tokens(*input.tokens, vocab);
      check_hidden(input, config, last, dtype);
      return accumulate(input, measured, watch);
    };
    work_ = lent_drafter(std::move(work), std::move(set_up));
    return state;
  }

  std::shared_ptr<shared_models> models_;
  lend_request request_;
  std::unique_ptr<model_receiver> receiver_;
  lane_answers work_;
  tensor_room room_;
};

}  // namespace

lane_maker make_node_lanes(node_lanes_options options) {
  return
      [models = std::make_shared<shared_models>(std::move(options))](const lend_request& request) {
        const auto lane = std::make_shared<node_lane>(models, request);
        return wire_session{[lane](wire_message m) { return lane->answer(std::move(m)); },
                            [lane](const wire_announcement& m) { return lane->places(m); }};
      };
}

}  // namespace dflash
