#include "tests/twin/twin_device.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace dflash::test {

namespace {

using stream_key = std::pair<c10::DeviceIndex, c10::StreamId>;
using moments = std::map<stream_key, uint64_t>;  // how far each stream has come

void join(moments& into, const moments& other) {
  for (const auto& [stream, tick] : other) into[stream] = std::max(into[stream], tick);
}

struct memory_block {
  void* memory = nullptr;
  size_t bytes = 0;
  stream_key home;       // current stream when it was allocated: who gets it next
  stream_key writer;     // last
  uint64_t written = 0;  // 0: never
  moments read;          // last by each stream
};

// What this thread gives to twins while it records, to be done again; null: it does not record.
thread_local std::vector<std::function<void()>>* recorded = nullptr;

struct world {
  std::mutex mutex;
  std::map<stream_key, moments> clocks;
  moments host;  // what the host has waited for
  c10::StreamId next_stream = 1;
  std::set<const void*> pinned;
  twin_counts counts;

  static world& get() {
    static world* const w = new world;  // outlives what static tensors release
    return *w;
  }

  // ---- with the mutex held
  void fault(const std::string& what) {
    if (counts.faults.size() < 20) counts.faults.push_back(what);
  }
  void not_in_a_recording(const std::string& what) {
    if (recorded != nullptr) fault(what + " in a recording");
  }
  static std::string name(stream_key s) {
    return "stream " + std::to_string(s.second) + " of twin " + std::to_string(s.first);
  }
  // A new moment of the stream, after all that it and the host know of.
  moments& step(stream_key s) {
    moments& clock = clocks[s];
    join(clock, host);
    ++clock[s];
    return clock;
  }
  bool knows(const moments& clock, stream_key s, uint64_t tick) const {
    const auto found = clock.find(s);
    return tick == 0 || (found != clock.end() && found->second >= tick);
  }
  void wait_for(const moments& clock) {
    not_in_a_recording("a wait of the host");
    join(host, clock);
    ++counts.host_waits;
  }
  void read(memory_block& b, stream_key s, const moments& clock, const std::string& by) {
    if (!knows(clock, b.writer, b.written))
      fault(by + " in " + name(s) + " reads what " + name(b.writer) +
            " has perhaps not written yet");
    b.read[s] = clock.at(s);
  }
  void write(memory_block& b, stream_key s, const moments& clock, const std::string& by) {
    if (!knows(clock, b.writer, b.written))
      fault(by + " in " + name(s) + " writes over what " + name(b.writer) +
            " has perhaps not written yet");
    for (const auto& [reader, tick] : b.read)
      if (!knows(clock, reader, tick))
        fault(by + " in " + name(s) + " writes over what " + name(reader) + " perhaps still reads");
    b.read.clear();
    b.writer = s;
    b.written = clock.at(s);
  }
  // The allocator hands it to the next who asks on its home stream.
  void release(const memory_block& b) {
    moments clock = clocks[b.home];
    join(clock, host);
    if (!knows(clock, b.writer, b.written))
      fault("memory of " + name(b.home) + " is released while " + name(b.writer) +
            " perhaps still writes it");
    for (const auto& [reader, tick] : b.read)
      if (!knows(clock, reader, tick))
        fault("memory of " + name(b.home) + " is released while " + name(reader) +
              " perhaps still reads it");
  }
};

// ---- devices and streams of a thread ------------------------------------------------------------

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, twin_count> current_stream{};

stream_key stream_of(c10::DeviceIndex device) {
  return {device, current_stream.at(static_cast<size_t>(device))};
}

void check(c10::Device device) {
  TORCH_CHECK(device.type() == c10::DeviceType::PrivateUse1 && device.index() < twin_count,
              "no such twin: ",
              device.str());
}

struct guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device before = getDevice();
    setDevice(d);
    return before;
  }
  c10::Device getDevice() const override { return twin(current_device); }
  void setDevice(c10::Device d) const override {
    check(d);
    uncheckedSetDevice(d);
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0) current_device = d.index();
  }
  c10::Stream getStream(c10::Device d) const override {
    const c10::DeviceIndex index = d.index() < 0 ? current_device : d.index();
    return c10::Stream(c10::Stream::UNSAFE, twin(index), stream_of(index).second);
  }
  c10::Stream getDefaultStream(c10::Device d) const override {
    return c10::Stream(c10::Stream::UNSAFE, d, 0);
  }
  c10::Stream getNewStream(c10::Device d, int) const override {
    world& w = world::get();
    const std::lock_guard lock(w.mutex);
    return c10::Stream(c10::Stream::UNSAFE, d, w.next_stream++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override {
    return getNewStream(d, 0);
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    const c10::Stream before = getStream(s.device());
    current_stream.at(static_cast<size_t>(s.device_index())) = s.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return twin_count; }

  void record(void** event, const c10::Stream& s, c10::DeviceIndex, c10::EventFlag) const override {
    world& w = world::get();
    const std::lock_guard lock(w.mutex);
    if (*event == nullptr) *event = new moments;
    *static_cast<moments*>(*event) = w.step({s.device_index(), s.id()});
    ++w.counts.events;
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event == nullptr) return;
    world& w = world::get();
    const std::lock_guard lock(w.mutex);
    join(w.clocks[{s.device_index(), s.id()}], *static_cast<const moments*>(event));
  }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<moments*>(event);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& s) const override {
    world& w = world::get();
    const std::lock_guard lock(w.mutex);
    w.wait_for(w.clocks[{s.device_index(), s.id()}]);
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    world& w = world::get();
    const std::lock_guard lock(w.mutex);
    w.wait_for(*static_cast<const moments*>(event));
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    world& w = world::get();
    const std::lock_guard lock(w.mutex);
    moments all;
    for (const auto& [stream, clock] : w.clocks)
      if (stream.first == index) join(all, clock);
    w.wait_for(all);
  }
};

// ---- memory -------------------------------------------------------------------------------------

constexpr size_t alignment = 64;

void* take(size_t bytes) {
  return std::aligned_alloc(alignment,
                            (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment);
}

void release_block(void* context) {
  const std::unique_ptr<memory_block> b(static_cast<memory_block*>(context));
  world& w = world::get();
  {
    const std::lock_guard lock(w.mutex);
    w.release(*b);
  }
  std::free(b->memory);
}

struct device_memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto b = std::make_unique<memory_block>();
    b->memory = take(bytes);
    b->bytes = bytes;
    b->home = stream_of(current_device);
    world& w = world::get();
    {
      const std::lock_guard lock(w.mutex);
      ++w.counts.allocations;
    }
    void* const memory = b->memory;
    return {memory, b.release(), &release_block, twin(current_device)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

void release_pinned(void* memory) {
  world& w = world::get();
  {
    const std::lock_guard lock(w.mutex);
    w.pinned.erase(memory);
  }
  std::free(memory);
}

struct pinned_memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* const memory = take(bytes);
    world& w = world::get();
    const std::lock_guard lock(w.mutex);
    w.pinned.insert(memory);
    return {memory, memory, &release_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

device_memory& device_allocator() {
  static auto* const a = new device_memory;
  return *a;
}

struct hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override {
    world& w = world::get();
    const std::lock_guard lock(w.mutex);
    return w.pinned.count(data) > 0;
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static auto* const a = new pinned_memory;
    return a;
  }
  c10::Device getDeviceFromPtr(void*) const override { return twin(current_device); }
};

bool is_twin(const at::Tensor& t) {
  return t.defined() && t.device().type() == c10::DeviceType::PrivateUse1;
}

memory_block& block_of(const at::Tensor& t) {
  return *static_cast<memory_block*>(t.storage().data_ptr().get_context());
}

// The same memory as a tensor of the CPU.
at::Tensor as_cpu(const at::Tensor& t) {
  if (!is_twin(t)) return t;
  char* const base = static_cast<char*>(block_of(t).memory);
  return at::from_blob(base + static_cast<size_t>(t.storage_offset()) * t.element_size(),
                       t.sizes(),
                       t.strides(),
                       at::TensorOptions().dtype(t.dtype()));
}

// ---- operators ----------------------------------------------------------------------------------

at::Tensor empty(c10::SymIntArrayRef size,
                 std::optional<at::ScalarType> type,
                 std::optional<at::Layout>,
                 std::optional<at::Device> device,
                 std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard in(device.value_or(twin(current_device)));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size),
                                   &device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   type.value_or(at::kFloat),
                                   format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> type,
                         std::optional<at::Layout>,
                         std::optional<at::Device> device,
                         std::optional<bool>) {
  const c10::DeviceGuard in(device.value_or(twin(current_device)));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride),
                                           &device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           type.value_or(at::kFloat));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool async) {
  world& w = world::get();
  {
    const std::lock_guard lock(w.mutex);
    const bool there = is_twin(to), here = is_twin(from);
    const stream_key s = stream_of(here ? from.device().index() : to.device().index());
    ++w.counts.operators;
    if (here && there && from.device() != to.device()) {
      // As CUDA does: on the source's stream, in the order of both current streams.
      const stream_key other = stream_of(to.device().index());
      w.step(other);
      join(w.clocks[s], w.clocks[other]);
      const moments& clock = w.step(s);
      w.read(block_of(from), s, clock, "a copy");
      w.write(block_of(to), s, clock, "a copy");
      join(w.clocks[other], clock);
    } else {
      const moments& clock = w.step(s);
      if (here) w.read(block_of(from), s, clock, "a copy");
      if (there) w.write(block_of(to), s, clock, "a copy");
      if (here != there) w.not_in_a_recording("a copy from or to the host");
      const at::Tensor& host = here ? to : from;
      const bool pinned = here && there ? false : w.pinned.count(host.storage().data()) > 0;
      if (here != there && (!async || (here && !pinned))) {
        w.wait_for(clock);
        ++(here ? w.counts.downloads : w.counts.uploads);
      }
    }
  }
  as_cpu(to).copy_(as_cpu(from));
  if (recorded != nullptr) recorded->push_back([=] { copy_from(from, to, async); });
  return to;
}

at::Scalar to_number(const at::Tensor& t) {
  world& w = world::get();
  {
    const std::lock_guard lock(w.mutex);
    const stream_key s = stream_of(t.device().index());
    const moments& clock = w.step(s);
    w.read(block_of(t), s, clock, "item");
    w.wait_for(clock);
    ++w.counts.downloads;
  }
  return as_cpu(t).item();
}

// Which tensors of a call lie on a twin, and whether they are written.
struct operand {
  at::Tensor tensor;
  bool written = false;
};

// By the CPU's operator, in place.
void call_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string name = schema.name();
  const size_t count = schema.arguments().size();
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(count);
  std::vector<c10::IValue> given(first, stack->end());
  std::vector<operand> operands;
  std::optional<c10::Device> device;
  const auto convert = [&](const at::Tensor& t, bool written) {
    if (is_twin(t)) {
      TORCH_CHECK(!device || *device == t.device(), name, ": tensors on two devices");
      device = t.device();
      operands.push_back({t, written});
      // An empty result that the operator is going to resize.
      if (written && t.numel() == 0) return at::empty({0}, at::TensorOptions().dtype(t.dtype()));
    }
    return as_cpu(t);
  };
  std::vector<c10::IValue> converted = given;
  bool host_tensor = false;
  for (size_t i = 0; i < count; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    if (given[i].isTensor()) {
      const at::Tensor t = given[i].toTensor();
      host_tensor = host_tensor || (t.defined() && !is_twin(t) && t.dim() > 0);
      converted[i] = convert(t, written);
    } else if (given[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : given[i].toTensorVector()) list.push_back(convert(t, written));
      converted[i] = list;
    } else if (given[i].isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor> t : given[i].toOptionalTensorList())
        list.push_back(t ? std::optional(convert(*t, written)) : std::nullopt);
      converted[i] = list;
    } else if (given[i].isDevice()) {
      converted[i] = c10::Device(c10::DeviceType::CPU);
    }
  }
  TORCH_CHECK(device, name, ": no tensor on a twin");
  TORCH_CHECK(!host_tensor, name, ": a tensor of the host among those of a device");
  world& w = world::get();
  const stream_key s = stream_of(device->index());
  {
    const std::lock_guard lock(w.mutex);
    ++w.counts.operators;
    const moments& clock = w.step(s);
    for (const operand& o : operands)
      if (!o.written) w.read(block_of(o.tensor), s, clock, name);
    for (const operand& o : operands)
      if (o.written) w.write(block_of(o.tensor), s, clock, name);
  }
  torch::jit::Stack inner(converted.begin(), converted.end());
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &inner);
  } catch (const c10::Error& e) {
    TORCH_CHECK(false, name, ": ", e.what_without_backtrace());
  }

  stack->erase(first, stack->end());
  const auto back = [&](const at::Tensor& t) {
    if (!t.defined()) return t;
    const c10::DeviceGuard in(*device);
    const at::Tensor out = at::empty_strided(t.sizes(), t.strides(), t.options().device(*device));
    {
      const std::lock_guard lock(w.mutex);
      w.write(block_of(out), s, w.clocks[s], name);
    }
    as_cpu(out).copy_(t);
    return out;
  };
  for (size_t r = 0; r < inner.size(); ++r) {
    const auto* alias = schema.returns()[r].alias_info();
    if (inner[r].isTensor() && alias != nullptr) {
      TORCH_CHECK(alias->isWrite(), name, ": a view that the twin does not know");
      for (size_t i = 0; i < count; ++i) {
        const auto* of = schema.arguments()[i].alias_info();
        if (of == nullptr || !(*of == *alias)) continue;
        const at::Tensor result = given[i].toTensor();
        if (is_twin(result) && result.sizes() != inner[r].toTensor().sizes())
          result.unsafeGetTensorImpl()->shallow_copy_from(
              back(inner[r].toTensor()).getIntrusivePtr());
        stack->push_back(result);
        break;
      }
    } else if (inner[r].isTensor()) {
      stack->push_back(back(inner[r].toTensor()));
    } else if (inner[r].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : inner[r].toTensorVector()) list.push_back(back(t));
      stack->push_back(list);
    } else {  // a number: the host has waited for it
      const std::lock_guard lock(w.mutex);
      w.wait_for(w.clocks[s]);
      ++w.counts.downloads;
      stack->push_back(inner[r]);
    }
  }
}

// The operator once more, into the results that it had the first time.
void call_again(const c10::OperatorHandle& op,
                const std::vector<c10::IValue>& given,
                const std::vector<c10::IValue>& results) {
  torch::jit::Stack stack(given.begin(), given.end());
  call_cpu(op, &stack);
  const auto renew = [](const at::Tensor& old, const at::Tensor& fresh) {
    if (is_twin(old) && !old.is_same(fresh)) copy_from(fresh, old, true);
  };
  for (size_t r = 0; r < results.size(); ++r) {
    if (results[r].isTensor()) renew(results[r].toTensor(), stack[r].toTensor());
    if (!results[r].isTensorList()) continue;
    const auto old = results[r].toTensorVector(), fresh = stack[r].toTensorVector();
    for (size_t i = 0; i < old.size(); ++i) renew(old[i], fresh[i]);
  }
}

// Every operator that is not registered below.
void by_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (recorded == nullptr) {
    call_cpu(op, stack);
    return;
  }
  const std::vector<c10::IValue> given(
      stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()), stack->end());
  call_cpu(op, stack);
  const std::vector<c10::IValue> results(
      stack->end() - static_cast<std::ptrdiff_t>(op.schema().returns().size()), stack->end());
  recorded->push_back([=] { call_again(op, given, results); });
}

const bool registered = [] {
  c10::register_privateuse1_backend("twin");
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &device_allocator());
  at::RegisterPrivateUse1HooksInterface(new hooks);
  return true;
}();

C10_REGISTER_GUARD_IMPL(PrivateUse1, guard)

}  // namespace

twin_counts twins() {
  world& w = world::get();
  const std::lock_guard lock(w.mutex);
  return w.counts;
}

void reset_twins() {
  world& w = world::get();
  const std::lock_guard lock(w.mutex);
  w.counts = {};
}

record_function twin_recorder() {
  return [](const std::function<void()>& work) -> std::function<void()> {
    auto calls = std::make_shared<std::vector<std::function<void()>>>();
    recorded = calls.get();
    try {
      work();
    } catch (...) {
      recorded = nullptr;
      throw;
    }
    recorded = nullptr;
    return [calls] {
      for (const auto& call : *calls) call();
    };
  };
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_local_scalar_dense", &to_number);
  m.impl(
      "as_strided",
      [](const at::Tensor& t,
         c10::SymIntArrayRef size,
         c10::SymIntArrayRef stride,
         std::optional<c10::SymInt> offset) {
        return at::native::as_strided_tensorimpl(
            t,
            C10_AS_INTARRAYREF_SLOW(size),
            C10_AS_INTARRAYREF_SLOW(stride),
            offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
      });
  m.impl("_reshape_alias",
         [](const at::Tensor& t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
           return at::native::as_strided_tensorimpl(
               t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
         });
  m.impl("view", [](const at::Tensor& t, c10::SymIntArrayRef size) {
    return at::native::view(t, C10_AS_INTARRAYREF_SLOW(size));
  });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_cpu>());
}

}  // namespace dflash::test
