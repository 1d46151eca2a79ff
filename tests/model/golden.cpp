// Published trainers' values for a tiny drafter (tests/data/golden/README.md). Bounds are fp32
// rounding: forward values pass some ten products of 64 to 128 terms (2e-5 relative to the largest
// element covers sums in another order), gradients twice as many (5e-5). Where two conventions
// differ, the comment says how ours maps.
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
void compare_losses(golden_case& g,
                    const std::string& term,
                    const std::string& name,
                    double gamma) {
  CAPTURE(name);
  drafter_trainer t = g.trainer(term, gamma);
  const step_sums sums = t.accumulate(g.input());
  const double count = static_cast<double>(sums.supervised) + 1e-5;
  CHECK(sums.loss / count == Approx(g.values.scalar("spec.loss." + name)).epsilon(1e-5));
  const drafter_weights gradient = view_drafter_weights(g.shape, t.gradient() / count);
  int compared = 0;
  for (const auto& [tensor_name, tensor] : named_tensors(gradient)) {
    const std::string key = "spec.grad." + name + "." + tensor_name;
    if (!g.values.has(key)) continue;
    CAPTURE(tensor_name);
    CHECK(difference(*tensor, g.values[key]) < 5e-5);
    ++compared;
  }
  CHECK(compared > 0);
}

}  // namespace

TEST_CASE("drafter forward equals speculators and z-lab: context feature, layers, hidden, logits") {
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

TEST_CASE("ce and kl losses and their gradients equal speculators'") {
  for (const std::string name : {"case1", "case2"}) {
    CAPTURE(name);
    golden_case g = load(name);
    g.label_by_target();
    compare_losses(g, "ce", "ce_g4", 4.0);
    if (name == "case2") continue;
    compare_losses(g, "ce", "ce_g7", 7.0);
    compare_losses(g, "kl", "kl_g4", 4.0);
  }
}

TEST_CASE("kl over packed documents equals speculators'") {
  golden_case g = load("case2");
  drafter_trainer t = g.trainer("kl", 4.0);
  const step_sums sums = t.accumulate(g.input());
  CHECK(sums.loss / (static_cast<double>(sums.supervised) + 1e-5) ==
        Approx(g.values.scalar("spec.loss.kl_g4")).epsilon(1e-5));
}

TEST_CASE("losses on data tokens equal SpecForge's and AutoModel's, divided by the weight sum") {
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
}

TEST_CASE("sliding layers equal z-lab and SpecForge: causal by default, non-causal when told") {
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
