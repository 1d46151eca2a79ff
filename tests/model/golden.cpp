// Published trainers' values for a tiny drafter (tests/data/golden/README.md). Bounds are fp32
// rounding: forward values pass some ten products of 64 to 128 terms (2e-5 relative to the largest
// element covers sums in another order), gradients twice as many (5e-5). Where two conventions
// differ, the comment says how ours maps.
#include <algorithm>
#include <cmath>

#include "exactness.hpp"
#include "golden_fixture.hpp"

using namespace dflash;
using namespace dflash::test;

namespace {

golden_case load(const std::string& name) {
  golden_case g(name + ".safetensors");
  g.read_batch(g.values);
  return g;
}

// speculators divides by the number of supervised slots + 1e-5, not by their weight (dflash.md 4.7,
// peers).
void compare_losses(golden_case& g, const loss_section& loss, const std::string& name) {
  CAPTURE(name);
  drafter_trainer t = g.trainer(loss);
  const step_sums sums = t.accumulate(g.input());
  const double count = static_cast<double>(sums.supervised) + 1e-5;
  const double loss_error = std::abs(sums.loss / count / g.values.scalar("spec.loss." + name) - 1);
  CHECK(loss_error < 1e-5);
  const drafter_weights gradient = view_drafter_weights(g.shape, t.gradient() / count);
  int compared = 0;
  double worst = 0;
  for (const auto& [tensor_name, tensor] : named_tensors(gradient)) {
    const std::string key = "spec.grad." + name + "." + tensor_name;
    if (!g.values.has(key)) continue;
    CAPTURE(tensor_name);
    const double found = difference(*tensor, g.values[key]);
    CHECK(found < 5e-5);
    worst = std::max(worst, found);
    ++compared;
  }
  exactness_row("drafter's loss " + name, "speculators 0.9", loss_error, 1e-5);
  exactness_row("drafter's gradient of " + name, "speculators 0.9", worst, 5e-5);
  CHECK(compared > 0);
}

}  // namespace

TEST_CASE("drafter forward equals speculators and z-lab: context feature, layers, hidden, logits",
          "[exact]") {
  for (const std::string name : {"case1", "case2"}) {
    CAPTURE(name);
    golden_case g = load(name);
    drafter_trainer t = g.trainer("ce", 4.0);
    auto values = t.inspect(g.input());
    const at::Tensor context = values.at("ctx_feature");
    CHECK(difference(context, g.values["spec.ctx_feature"].narrow(0, 0, context.size(0))) < 2e-5);
    CHECK(difference(values.at("layer.0"), g.values["spec.layer0_out"]) < 2e-5);
    CHECK(difference(values.at("layer.1"), golden_case::slots(g.values["spec.layer1_out"])) < 2e-5);
    for (const std::string who : {"spec", "zlab"}) {
      CHECK(difference(values.at("hidden"), golden_case::slots(g.values[who + ".hidden"])) < 2e-5);
      CHECK(difference(values.at("logits"), golden_case::slots(g.values[who + ".logits"])) < 2e-5);
    }
  }
}

TEST_CASE("every loss and its gradients equal speculators'", "[exact]") {
  for (const std::string name : {"case1", "case2"}) {
    CAPTURE(name);
    golden_case g = load(name);
    g.label_by_target();
    compare_losses(g, golden_case::loss_of("ce", 4.0), "ce_g4");
    loss_section dpace;
    dpace.weighting = "dpace";
    compare_losses(g, dpace, "ce_dpace");
    if (name == "case2") continue;
    compare_losses(g, golden_case::loss_of("ce", 7.0), "ce_g7");
    for (const std::string term : {"kl", "rkl", "jsd", "tv", "nla"})
      compare_losses(g, golden_case::loss_of(term, 4.0), term + "_g4");
    compare_losses(g, golden_case::loss_of("lk_hybrid", 4.0), "lk_g4");
  }
}

TEST_CASE("kl over packed documents equals speculators'", "[exact]") {
  golden_case g = load("case2");
  drafter_trainer t = g.trainer("kl", 4.0);
  const step_sums sums = t.accumulate(g.input());
  CHECK(sums.loss / (static_cast<double>(sums.supervised) + 1e-5) ==
        Approx(g.values.scalar("spec.loss.kl_g4")).epsilon(1e-5));
}

TEST_CASE("losses on data tokens equal SpecForge's and AutoModel's, divided by the weight sum",
          "[exact]") {
  golden_case g = load("case1");
  drafter_trainer t = g.trainer("ce", 4.0);
  const step_sums sums = t.accumulate(g.input());
  CHECK(sums.mean_loss() == Approx(g.values.scalar("sf.loss.ce_g4")).epsilon(1e-5));
  CHECK(sums.mean_loss() == Approx(g.values.scalar("am.loss.ce_g4")).epsilon(1e-5));
  const drafter_weights gradient = view_drafter_weights(g.shape, t.gradient() / sums.weight_sum);
  int compared = 0;
  for (const auto& [name, tensor] : named_tensors(gradient)) {
    if (!g.values.has("sf.grad.ce_g4." + name)) continue;
    CAPTURE(name);
    CHECK(difference(*tensor, g.values["sf.grad.ce_g4." + name]) < 5e-5);
    ++compared;
  }
  CHECK(compared == 5);
  // Without decay: a gamma so large that every weight is 1 to seven digits.
  drafter_trainer flat = g.trainer("ce", 1e9);
  CHECK(flat.accumulate(g.input()).mean_loss() ==
        Approx(g.values.scalar("sf.loss.ce_none")).epsilon(1e-5));
  loss_section uniform;
  uniform.weighting = "uniform";
  CHECK(g.trainer(uniform).accumulate(g.input()).mean_loss() ==
        Approx(g.values.scalar("sf.loss.ce_none")).epsilon(1e-5));
}

TEST_CASE("sliding layers equal z-lab and SpecForge: causal by default, non-causal when told",
          "[exact]") {
  const golden_file inputs("case1.safetensors");
  for (const bool causal : {true, false}) {
    drafter_config shape = golden_config();
    shape.sliding = {true, false};
    shape.sliding_window = 6;
    if (!causal) shape.causal = false;
    golden_case g("case3_swa.safetensors", shape);
    g.read_batch(inputs);
    drafter_trainer t = g.trainer("ce", 4.0);
    const at::Tensor hidden = t.inspect(g.input()).at("hidden");
    const std::string tag = causal ? "swa_causal" : "swa_noncausal";
    CHECK(difference(hidden, golden_case::slots(g.values["zlab." + tag + ".hidden"])) < 2e-5);
    if (causal)
      CHECK(difference(hidden, golden_case::slots(g.values["sf." + tag + ".hidden"])) < 2e-5);
    // speculators' window starts at anchor - W for every slot: k + 1 keys more (dflash.md 2.3)
    CHECK(difference(hidden, golden_case::slots(g.values["spec." + tag + ".hidden"])) > 1e-3);
  }
}
