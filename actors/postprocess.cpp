#include "actors/postprocess.hpp"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "actors/runtime/lane_thread.hpp"
#include "config/error.hpp"
#include "data/random.hpp"
#include "device/slot_memory.hpp"
#include "device/upload.hpp"
#include "messages/tensor_block.hpp"

namespace dflash {

namespace {

using self_ptr = metered_ptr<postprocess_actor, postprocess_state>;

template <class T>
void add_uniform(
    T* values, int64_t count, double amplitude, const random_stream& stream, int64_t at) {
  const auto scale = static_cast<float>(amplitude * 0x1p-31);
  const auto shift = static_cast<float>(amplitude);
  for (int64_t i = 0; i < count; i += 4) {
    const auto words = stream.block(static_cast<uint64_t>((at + i) / 4));
    for (int64_t j = 0; j < 4 && i + j < count; ++j)
      values[i + j] =
          static_cast<T>(static_cast<float>(values[i + j]) +
                         (static_cast<float>(words[static_cast<size_t>(j)]) * scale - shift));
  }
}

slot_credit credit_for(const captured& m) {
  return {m.job.tokens->k};
}

void return_slot(self_ptr self, const captured& m) {
  postprocess_state& s = self->state;
  const uint32_t lane = self->identity().index;
  if (lane < s.links->targets.size())
    self->send(s.links->targets[lane], credit_for(m));
  else
    self->send(s.links->loader, credit_for(m));
}

void keep(postprocess_state& s, const captured& m) {
  if (!s.options.store || m.job.kept || s.options.store->has(m.job.tokens->row)) return;
  std::vector<at::Tensor> here;
  for (const at::Tensor& t : m.hidden->tensors) here.push_back(t.to(at::kCPU));
  const auto parts = bytes_of(here);
  s.options.store->put(m.job.tokens->row, parts);
  s.stages.mark("keep");
}

// The same where the drafter's slots have memory of their own.
tensor_handle copy_to_drafter(postprocess_state& s, const captured& m, slot_memory& memory) {
  auto lease = m.job.room->try_acquire();
  DFLASH_CHECK(lease.has_value(), "no slot at a drafter that granted room", m.job.drafter);
  std::vector<at::Tensor> tensors =
      memory.fill(lease->slot(), m.hidden->tensors, s.options.shape.taps, s.options.drafter_dtype);
  m.hidden.release();
  s.stages.mark("copy to the drafter's slot");
  return make_tensor_handle(std::move(tensors), s.options.shape.last, std::move(*lease));
}

// Handle of the same tensors in a slot of the drafter; the capture slot is free afterwards.
tensor_handle move_to_drafter(postprocess_state& s, const captured& m) {
  if (slot_memory* const memory = m.job.room->memory()) return copy_to_drafter(s, m, *memory);
  std::vector<at::Tensor> tensors = std::move(m.hidden->tensors);
  // From a device to a drafter on the CPU: the slot keeps its memory, and the host waits.
  for (at::Tensor& t : tensors) t = t.to(at::kCPU);
  m.hidden.release();
  if (s.options.drafter_dtype != s.options.shape.dtype)
    for (int64_t tap = 0; tap < s.options.shape.taps; ++tap) {
      at::Tensor& t = tensors[static_cast<size_t>(tap)];
      t = t.to(s.options.drafter_dtype);
    }
  s.stages.mark("cast");
  auto lease = m.job.room->try_acquire();
  DFLASH_CHECK(lease.has_value(), "no slot at a drafter that granted room", m.job.drafter);
  return make_tensor_handle(std::move(tensors), s.options.shape.last, std::move(*lease));
}

// The drafter has died since the job was handed out; a later life has granted no room for it.
bool nobody_wants(const postprocess_state& s, const capture_job& job) {
  const uint32_t life = s.links->drafter_lives.at(job.drafter);
  DFLASH_CHECK(job.life <= life, "room of a drafter that nobody has told of", job.drafter);
  return !s.links->drafters.at(job.drafter) || life != job.life;
}

void process(self_ptr self, const captured& m) {
  postprocess_state& s = self->state;
  // The slot is free before this handler ends, so the bytes must leave the count before that.
  self->adopt_bytes();
  const uint64_t bytes = m.hidden.bytes();
  m.hidden->ready.wait();
  s.stages.mark("wait for the device");
  const bool finite = s.options.finite(m.hidden->tensors);
  s.stages.mark("check");
  if (!finite) {
    self->stats().release(bytes);
    m.hidden.release();
    return_slot(self, m);
    self->send(s.links->dispatcher, not_finite{m.job});
  } else {
    keep(s, m);
    self->fault("checked");
    if (nobody_wants(s, m.job)) {
      self->stats().release(bytes);
      m.hidden.release();
      return_slot(self, m);
      self->stats().set_activity(activity::wants_capture);
      return;
    }
    hidden_batch out;
    out.tokens = m.job.tokens;
    out.epoch = m.job.epoch;
    out.kept = m.job.kept;
    out.moved_bytes = visible_bytes(s.options, *m.job.tokens);
    out.whole_bytes = s.options.shape.bytes();
    self->stats().release(bytes);
    out.hidden = move_to_drafter(s, m);
    return_slot(self, m);
    s.stages.mark("copy to the drafter's slot");
    if (s.options.noise > 0) {
      std::vector<at::Tensor> taps(out.hidden->tensors.begin(),
                                   out.hidden->tensors.begin() + s.options.shape.taps);
      add_noise(taps, s.options.noise, s.options.seed, out.tokens->k);
      s.stages.mark("noise");
    }
    if (m.job.room->memory()) out.hidden->ready = mark(m.job.room->memory()->device());
    self->fault("moved");
    // From here on nothing throws: what the dispatcher takes for delivered reaches the drafter.
    self->stats().complete();
    self->send(s.links->dispatcher, delivered{m.job.tokens->k, m.job.epoch});
    self->send(s.links->drafters.at(m.job.drafter), std::move(out));
  }
}

void on_captured(self_ptr self, const captured& m) {
  self->stats().set_activity(activity::computing);
  {
    const auto stage = self->state.stages.within("postprocess");
    process(self, m);
  }
  self->state.stages.report(self->stats(), m.job.tokens->k);
  self->stats().let_go(m.job.tokens->k);
  self->stats().set_activity(activity::wants_capture);
}

}  // namespace

bool all_finite(const std::vector<at::Tensor>& tensors) {
  if (!tensors.empty() && !tensors[0].is_cpu()) {
    std::vector<at::Tensor> bounds;
    for (const at::Tensor& tensor : tensors) {
      const auto [low, high] = at::aminmax(tensor);
      bounds.push_back(low);
      bounds.push_back(high);
    }
    return at::isfinite(at::stack(bounds)).all().item<bool>();
  }
  for (const at::Tensor& tensor : tensors) {
    const auto [low, high] = at::aminmax(tensor);
    if (!std::isfinite(low.item<double>()) || !std::isfinite(high.item<double>())) return false;
  }
  return true;
}

void add_noise(std::vector<at::Tensor>& taps, double amplitude, uint64_t seed, uint64_t k) {
  const random_stream stream{seed, random_domain::noise, k};
  int64_t at = 0;
  for (at::Tensor& tap : taps) {
    const int64_t count = tap.numel();
    if (!tap.is_cpu()) {
      std::vector<float> noise(static_cast<size_t>(count));
      add_uniform(noise.data(), count, amplitude, stream, at);
      tap.copy_(tap.to(at::kFloat).add_(upload(noise, tap.device()).view(tap.sizes())));
    } else if (tap.scalar_type() == at::kBFloat16)
      add_uniform(tap.mutable_data_ptr<at::BFloat16>(), count, amplitude, stream, at);
    else
      add_uniform(tap.mutable_data_ptr<float>(), count, amplitude, stream, at);
    at += (count + 3) / 4 * 4;
  }
}

uint64_t visible_bytes(const postprocess_options& options, const batch& tokens) {
  const uint64_t row = options.shape.row_bytes();
  uint64_t bytes = visible_context(tokens, options.window).size() *
                   static_cast<uint64_t>(options.shape.taps) * row;
  if (options.shape.last) bytes += teacher_rows(tokens, options.block_size).size() * row;
  return bytes;
}

postprocess_actor spawn_postprocess(caf::actor_system& system,
                                    runs_as how,
                                    actor_identity identity,
                                    postprocess_options options) {
  return spawn_metered<postprocess_actor, postprocess_state>(
      system,
      how,
      std::move(identity),
      [how, options = std::move(options)](self_ptr self) -> postprocess_actor::behavior_type {
        if (how == runs_as::detached)
          set_up_lane_thread(fmt::format("post-{}", self->identity().index), 1, options.devices);
        self->state.options = options;
        self->state.stages = stage_sink(options.profile, self->stats());
        return {
            [=](const start_run& m) {
              self->state.links = m.links;
              self->state.stages.use(m.links->profiler);
              self->stats().set_activity(activity::wants_capture);
            },
            [=](const captured& m) { on_captured(self, m); },
            [=](const refused_batch& m) { self->send(self->state.links->dispatcher, m); },
        };
      });
}

}  // namespace dflash
