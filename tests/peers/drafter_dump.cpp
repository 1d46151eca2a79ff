// What the drafter computes for the problems in IN (tests/peers/drafter_cases.py), written to OUT:
// case.I.hidden [A (B-1), H], case.I.loss, case.I.weight_sum, case.I.grad.NAME; and for batch.I,
// two a step, steps.loss and steps.grad_norm under the optimizer settings in "optim". For the
// comparison with the published packages.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <cstdio>
#include <deque>
#include <string>

#include "../model/drafter_case.hpp"

namespace {

using namespace dflash;

class tensor_writer {
public:
  void add(std::string name, const at::Tensor& tensor) {
    kept_.push_back(tensor.to(at::kFloat).contiguous().clone());
    const at::Tensor& t = kept_.back();
    const auto* data = static_cast<const std::byte*>(t.const_data_ptr());
    views_.push_back(
        {std::move(name), st_dtype::f32, t.sizes().vec(), {data, static_cast<size_t>(t.nbytes())}});
  }
  void add(std::string name, double value) { add(std::move(name), at::full({1}, value)); }
  void write(const char* file) const { write_safetensors(file, views_); }

private:
  std::deque<at::Tensor> kept_;
  std::vector<st_view> views_;
};

void dump_case(const test::case_file& in, const std::string& prefix, tensor_writer& out) {
  const test::drafter_case c(in, prefix);
  drafter_trainer t = c.trainer();
  out.add(prefix + ".hidden", t.inspect(c.input()).at("hidden"));
  const step_sums sums = t.accumulate(c.input());
  out.add(prefix + ".loss", sums.loss);
  out.add(prefix + ".weight_sum", sums.weight_sum);
  const drafter_weights views = view_drafter_weights(c.shape, t.gradient());
  for (const auto& [name, tensor] : named_tensors(views))
    out.add(prefix + ".grad." + name, *tensor);
}

// optim: [lr, beta1, beta2, weight decay, clip].
void dump_steps(const test::case_file& in, tensor_writer& out) {
  const at::Tensor given = in["optim"];
  const auto number = [&](int64_t i) { return given[i].item().toDouble(); };
  optim_section optim;
  optim.lr = number(0);
  optim.betas = {number(1), number(2)};
  optim.weight_decay = number(3);
  optim.clip = number(4);
  optim.schedule = "constant";
  optim.warmup = {.share = 0, .steps = 0};
  const test::drafter_case start(in, "batch.0");
  drafter_trainer t = start.trainer(optim);
  for (uint64_t step = 0; in.has("batch." + std::to_string(2 * step) + ".shape"); ++step) {
    step_sums sums;
    for (const uint64_t i : {2 * step, 2 * step + 1}) {
      const test::drafter_case c(in, "batch." + std::to_string(i));
      sums += t.accumulate(c.input());
    }
    const update_report report = t.apply(t.gradient(), sums.weight_sum, step);
    out.add("steps.loss." + std::to_string(step), sums.mean_loss());
    out.add("steps.grad_norm." + std::to_string(step), report.grad_norm);
  }
}

int dump(const char* from, const char* to) {
  at::set_num_threads(1);
  const test::case_file in(from);
  tensor_writer out;
  for (int i = 0; in.has("case." + std::to_string(i) + ".shape"); ++i)
    dump_case(in, "case." + std::to_string(i), out);
  if (in.has("batch.0.shape")) dump_steps(in, out);
  out.write(to);
  return 0;
}

}  // namespace

int main(int count, char** values) {
  if (count != 3) {
    std::fprintf(stderr, "usage: peers_drafter_dump IN OUT\n");
    return 2;
  }
  try {
    return dump(values[1], values[2]);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "error: %s\n", problem.what());
    return 2;
  }
}
