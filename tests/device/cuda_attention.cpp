// The CUDA kernels of the drafter's attention, run on the CPU for every block and thread, phase by
// phase, in memory cut as on the device, against the ATen form. Bounds: fp32 sums in another order;
// in bf16 the probabilities are rounded once more (2^-8) before they meet the values.
#include "device/cuda/attention.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "device/kernels/block_attention.hpp"

namespace dflash::cuda {
namespace {

using kernel::attention_gradients;
using kernel::attention_input;
using kernel::attention_layout;
using kernel::attention_output;

// All threads of a block do a phase before any begins the next, in this order or backwards: a
// thread that reads what another one writes in the same phase gives other values in one of them.
struct all_threads {
  bool backwards = false;
  template <class Phase>
  void operator()(const Phase& phase) const {
    for (uint32_t t = 0; t < attention_threads; ++t)
      phase(backwards ? attention_threads - 1 - t : t);
  }
};

struct shared_memory {
  explicit shared_memory(int64_t bytes)
      : data(static_cast<char*>(std::aligned_alloc(128, static_cast<size_t>(bytes))), &std::free) {
    // What nobody has written must not be read: NaN as fp32 and as bf16.
    std::fill_n(data.get(), bytes, static_cast<char>(0xff));
  }
  std::unique_ptr<char, decltype(&std::free)> data;
};

struct problem {
  attention_layout layout;
  attention_input in;
  at::Tensor d_out;
};

at::Tensor noise(std::vector<int64_t> shape, uint64_t seed, at::ScalarType type) {
  auto g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, g, at::TensorOptions().dtype(at::kFloat)).to(type);
}

// Documents [0, 40) and [40, T); one block without context among the others.
problem make(attention_layout l, int64_t context, at::ScalarType type) {
  problem p;
  l.begin = {0, 0, 0, 40, 40};
  l.anchor = {1, 35, 0, 40, static_cast<int32_t>(context)};
  const int64_t a = l.blocks(), b = l.block_size;
  // Keys and values are parts of wider rows, as the projections leave them.
  const at::Tensor kv = noise({context, 2 * l.kv_heads, l.head_dim}, 2, type);
  p.in = {.q = noise({a * l.queries(), l.heads, l.head_dim}, 1, type),
          .context_k = kv.narrow(1, 0, l.kv_heads),
          .context_v = kv.narrow(1, l.kv_heads, l.kv_heads),
          .block_k = noise({a * b, l.kv_heads, l.head_dim}, 3, type),
          .block_v = noise({a * b, l.kv_heads, l.head_dim}, 4, type)};
  p.d_out = noise({a * l.queries(), l.heads, l.head_dim}, 5, type);
  p.layout = std::move(l);
  return p;
}

attention_shape shape_of(const problem& p) {
  const attention_layout& l = p.layout;
  attention_shape s;
  s.blocks = l.blocks();
  s.context = p.in.context_k.size(0);
  s.heads = static_cast<int>(l.heads);
  s.kv_heads = static_cast<int>(l.kv_heads);
  s.head_dim = static_cast<int>(l.head_dim);
  s.block_size = static_cast<int>(l.block_size);
  s.first_slot = static_cast<int>(l.first_slot);
  s.window = l.window;
  s.causal = l.causal;
  s.begin = l.begin.data();
  s.anchor = l.anchor.data();
  s.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(l.head_dim)));
  return s;
}

template <class T>
head_rows<const T> read(const at::Tensor& t) {
  return {t.const_data_ptr<T>(), t.stride(0), t.stride(1)};
}
template <class T>
head_rows<T> written(const at::Tensor& t) {
  return {t.mutable_data_ptr<T>(), t.stride(0), t.stride(1)};
}
// Filled with NaN, so that what is not written shows.
at::Tensor unwritten(const at::Tensor& like, at::ScalarType type) {
  return at::full(
      like.sizes(), std::numeric_limits<double>::quiet_NaN(), at::TensorOptions().dtype(type));
}

template <class T>
attention_output forward(const problem& p, bool backwards) {
  const attention_shape s = shape_of(p);
  attention_output out{
      .out = unwritten(p.in.q, p.in.q.scalar_type()),
      .lse = at::full({p.in.q.size(0), s.heads}, std::numeric_limits<double>::quiet_NaN())};
  attention_tensors<T> t;
  t.q = read<T>(p.in.q);
  t.context_k = read<T>(p.in.context_k);
  t.context_v = read<T>(p.in.context_v);
  t.block_k = read<T>(p.in.block_k);
  t.block_v = read<T>(p.in.block_v);
  t.out = written<T>(out.out);
  t.lse = out.lse.mutable_data_ptr<float>();
  using room = forward_memory<T>;
  for (int64_t a = 0; a < s.blocks; ++a)
    for (int h = 0; h < s.kv_heads; ++h)
      for (int row0 = 0; row0 < s.rows(); row0 += room::rows) {
        const shared_memory memory(room::cut(nullptr, s.head_dim).bytes);
        attend_block<T>(
            s, t, room::cut(memory.data.get(), s.head_dim), a, h, row0, all_threads{backwards});
      }
  return out;
}

template <class T>
attention_gradients backward(const problem& p, const attention_output& output, bool backwards) {
  const attention_shape s = shape_of(p);
  attention_gradients g{.q = unwritten(p.in.q, at::kFloat),
                        .context_k = unwritten(p.in.context_k, at::kFloat),
                        .context_v = unwritten(p.in.context_v, at::kFloat),
                        .block_k = unwritten(p.in.block_k, at::kFloat),
                        .block_v = unwritten(p.in.block_v, at::kFloat)};
  attention_backward_tensors<T> t;
  t.q = read<T>(p.in.q);
  t.context_k = read<T>(p.in.context_k);
  t.context_v = read<T>(p.in.context_v);
  t.block_k = read<T>(p.in.block_k);
  t.block_v = read<T>(p.in.block_v);
  t.out = read<T>(output.out);
  t.d_out = read<T>(p.d_out);
  t.lse = output.lse.const_data_ptr<float>();
  t.d_q = written<float>(g.q);
  t.d_context_k = written<float>(g.context_k);
  t.d_context_v = written<float>(g.context_v);
  t.d_block_k = written<float>(g.block_k);
  t.d_block_v = written<float>(g.block_v);
  using room = backward_memory<T>;
  const int own = room::own_keys(s.block_size);
  const all_threads each{backwards};
  for (int h = 0; h < s.kv_heads; ++h) {
    for (int64_t a = 0; a < s.blocks; ++a) {
      const shared_memory memory(room::cut(nullptr, s.head_dim, own, true).bytes);
      query_gradients<T>(s, t, room::cut(memory.data.get(), s.head_dim, own, true), a, h, each);
    }
    for (int64_t first = 0; first < s.context; first += room::keys) {
      const shared_memory memory(room::cut(nullptr, s.head_dim, room::keys, false).bytes);
      context_gradients<T>(
          s, t, room::cut(memory.data.get(), s.head_dim, room::keys, false), first, h, each);
    }
  }
  return g;
}

void close(const at::Tensor& a, const at::Tensor& b, double bound) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  const double gap = (x - y).abs().max().item().toDouble(), size = y.abs().max().item().toDouble();
  CAPTURE(gap, size);
  CHECK(gap <= bound * (size + 1e-3));  // false for NaN
}

template <class T>
void compare(const problem& p, double bound) {
  const attention_output expected = kernel::block_attention_reference(p.layout, p.in);
  const attention_output out = forward<T>(p, false), again = forward<T>(p, true);
  close(out.out, expected.out, bound);
  close(out.lse, expected.lse, 1e-5);
  CHECK(at::equal(out.out, again.out));
  CHECK(at::equal(out.lse, again.lse));
  const attention_gradients wanted =
      kernel::block_attention_backward_reference(p.layout, p.in, expected, p.d_out);
  const attention_gradients g = backward<T>(p, expected, false), h = backward<T>(p, expected, true);
  const std::pair<const at::Tensor*, const at::Tensor*> pairs[] = {
      {&g.q, &wanted.q},
      {&g.context_k, &wanted.context_k},
      {&g.context_v, &wanted.context_v},
      {&g.block_k, &wanted.block_k},
      {&g.block_v, &wanted.block_v}};
  for (const auto& [mine, theirs] : pairs) close(*mine, *theirs, bound);
  CHECK(at::equal(g.q, h.q));
  CHECK(at::equal(g.context_k, h.context_k));
  CHECK(at::equal(g.context_v, h.context_v));
  CHECK(at::equal(g.block_k, h.block_k));
  CHECK(at::equal(g.block_v, h.block_v));
}

attention_layout layout(int64_t heads,
                        int64_t kv_heads,
                        int64_t hd,
                        int64_t block,
                        int64_t first,
                        int64_t window = 0,
                        bool causal = false) {
  attention_layout l;
  l.heads = heads;
  l.kv_heads = kv_heads;
  l.head_dim = hd;
  l.block_size = block;
  l.first_slot = first;
  l.window = window;
  l.causal = causal;
  return l;
}

}  // namespace

TEST_CASE("threads of the attention kernels find the outputs and gradients of the reference") {
  // Groups of 1 to 8, rows beyond one tile, windows shorter and longer than the context, causal
  // blocks, heads that are no power of two, a context that is no multiple of a tile.
  const attention_layout all[] = {layout(4, 2, 16, 8, 0),
                                  layout(4, 4, 16, 7, 1, 0, true),
                                  layout(8, 1, 16, 16, 0, 20),
                                  layout(2, 1, 48, 16, 1, 5, true),
                                  layout(8, 2, 16, 40, 1, 64),
                                  layout(2, 1, 144, 4, 0)};
  for (const attention_layout& l : all) {
    CAPTURE(l.heads, l.kv_heads, l.head_dim, l.block_size, l.first_slot, l.window, l.causal);
    compare<float>(make(l, 101, at::kFloat), 1e-5);
  }
}

TEST_CASE("threads of the attention kernels on bf16") {
  for (const attention_layout& l : {layout(4, 2, 32, 8, 0), layout(4, 1, 16, 16, 1, 20, true)}) {
    CAPTURE(l.heads, l.kv_heads, l.head_dim, l.block_size, l.first_slot, l.window, l.causal);
    compare<c10::BFloat16>(make(l, 101, at::kBFloat16), 1.0 / 64);
  }
}

TEST_CASE("every pair of query and visible key is in just one tile") {
  problem p = make(layout(2, 1, 16, 8, 1, 24), 101, at::kFloat);
  for (const int64_t window : {0, 5, 24, 1000})
    for (const bool causal : {false, true})
      for (const int width : {32, 64}) {
        p.layout.window = window;
        p.layout.causal = causal;
        const attention_shape s = shape_of(p);
        for (int64_t a = 0; a < s.blocks; ++a) {
          const key_tiles keys = keys_of(s, a, width);
          for (int r = 0; r < s.rows(); ++r) {
            std::vector<int> context(static_cast<size_t>(s.context)), slots(8);
            for (int i = 0; i < keys.count(); ++i)
              for (int j = 0; j < width; ++j)
                if (row_sees(s, keys, a, r, i, j))
                  ++(keys.is_own(i) ? slots : context)[static_cast<size_t>(keys.start(i) + j)];
            const int64_t k = s.slot(r), first = p.layout.first_key(a, k);
            for (int64_t t = 0; t < s.context; ++t)
              REQUIRE(context[static_cast<size_t>(t)] ==
                      (t >= first && t < p.layout.anchor[static_cast<size_t>(a)] ? 1 : 0));
            for (int64_t other = 0; other < 8; ++other)
              REQUIRE(slots[static_cast<size_t>(other)] == (p.layout.sees_slot(k, other) ? 1 : 0));
          }
        }
      }
}

TEST_CASE("the attention kernels fit the shared memory of their devices") {
  constexpr int64_t kb = 1024;
  CHECK(attention_memory<c10::BFloat16>(128, 16) <= 163 * kb);
  CHECK(attention_memory<c10::BFloat16>(64, 32) <= 163 * kb);
  CHECK(attention_memory<c10::BFloat16>(256, 16) <= 227 * kb);
  CHECK(attention_memory<float>(128, 16) <= 227 * kb);
}

}  // namespace dflash::cuda
