// Decoding with a temperature: plain and speculative decoding draw the same text, and its
// distribution is the target's own.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <numeric>

#include "model/decode.hpp"
#include "model/drafter_decode.hpp"
#include "model/generate.hpp"
#include "model/lookup.hpp"
#include "tests/model/decode_fixture.hpp"

namespace dflash {
namespace {

using text = std::vector<int32_t>;

constexpr int64_t small_vocab = 5;
constexpr size_t joint_tokens =
    3;  // the first comes from the prefill, the others from verify passes
constexpr size_t draws = 4000;
const text small_prompt = {1, 3, 2, 0, 2, 3};

std::shared_ptr<const target> small_target() {
  static const auto model = decode_test::tiny_target(compute_dtype::fp32, -1, small_vocab);
  return model;
}

drafter_proposer small_drafter(int64_t block_size) {
  auto config = decode_test::tiny_drafter_config(block_size);
  config.vocab = small_vocab;
  config.mask_token_id = small_vocab - 1;
  return drafter_proposer{std::make_shared<const draft_model>(
      config, decode_test::tiny_drafter(config), small_target())};
}

std::vector<decoded> decode_many(const target& model,
                                 const text& prompt,
                                 size_t count,
                                 proposer* drafts,
                                 const sampling_options& sampling,
                                 int64_t new_tokens,
                                 int64_t slots = 64) {
  const std::vector<std::span<const int32_t>> prompts(count, prompt);
  decode_options options;
  options.max_new_tokens = new_tokens;
  options.max_slots = slots;
  options.sampling = sampling;
  return decode_prompts(model, prompts, drafts, options);
}

// softmax(logits / temperature), then top-k, then top-p, by the book.
std::vector<double> probabilities(const at::Tensor& logits, const sampling_options& sampling) {
  const auto row = logits.to(at::kDouble).contiguous();
  std::vector<double> p(row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel());
  for (double& x : p) x = std::exp(x / sampling.temperature);
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  if (sampling.top_k > 0)
    for (size_t i = static_cast<size_t>(sampling.top_k); i < order.size(); ++i) p[order[i]] = 0;
  const double all = std::accumulate(p.begin(), p.end(), 0.0);
  double before = 0;
  for (const size_t i : order) {
    const double mine = p[i];
    if (before >= sampling.top_p * all) p[i] = 0;
    before += mine;
  }
  const double kept = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= kept;
  return p;
}

// The target's distribution of the next token behind every text that is asked for.
class exact_target {
public:
  explicit exact_target(sampling_options sampling) : sampling_{sampling} {}
  const std::vector<double>& next(const text& answer) {
    auto& known = known_[answer];
    if (known.empty()) {
      text all = small_prompt;
      all.insert(all.end(), answer.begin(), answer.end());
      const std::vector<int32_t> offsets = {0, static_cast<int32_t>(all.size())};
      const auto out = small_target()->capture(all, offsets, {}, true);
      const auto last = out.last_hidden.narrow(0, out.last_hidden.size(0) - 1, 1);
      known = probabilities(small_target()->logits(last).reshape({-1}), sampling_);
    }
    return known;
  }
  double joint(const text& answer) {
    double p = 1;
    for (size_t i = 0; i < answer.size(); ++i)
      p *= next({answer.begin(),
                 answer.begin() + static_cast<std::ptrdiff_t>(i)})[static_cast<size_t>(answer[i])];
    return p;
  }

private:
  sampling_options sampling_;
  std::map<text, std::vector<double>> known_;
};

struct chi_square {
  double statistic = 0;
  double freedom = -1;
  // Standard normal of the statistic (Wilson and Hilferty): above 3.1 in one of 1000 right samples.
  double z() const {
    const double k = 2 / (9 * freedom);
    return (std::cbrt(statistic / freedom) - (1 - k)) / std::sqrt(k);
  }
};

// Observed answers against the exact joint distribution of their first tokens. Cells below five
// expected answers go together; one that cannot happen makes the statistic infinite.
chi_square compare(const std::vector<text>& answers, exact_target& exact) {
  std::map<text, double> seen;
  for (const auto& answer : answers)
    seen[{answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(joint_tokens)}] += 1;
  chi_square out;
  double rare_expected = 0, rare_seen = 0;
  const auto add = [&](double expected, double observed) {
    out.statistic += (observed - expected) * (observed - expected) / expected;
    out.freedom += 1;
  };
  text cell(joint_tokens, 0);
  const auto cells = static_cast<int64_t>(std::pow(small_vocab, joint_tokens));
  for (int64_t i = 0; i < cells; ++i) {
    int64_t rest = i;
    for (auto& token : cell) {
      token = static_cast<int32_t>(rest % small_vocab);
      rest /= small_vocab;
    }
    const double expected = static_cast<double>(answers.size()) * exact.joint(cell);
    if (expected == 0 && seen[cell] > 0) out.statistic = INFINITY;
    if (expected >= 5) {
      add(expected, seen[cell]);
    } else {
      rare_expected += expected;
      rare_seen += seen[cell];
    }
  }
  if (rare_expected > 0) add(rare_expected, rare_seen);
  return out;
}

size_t pick(const std::vector<double>& p, double u) {
  double passed = 0;
  for (size_t i = 0; i < p.size(); ++i)
    if ((passed += p[i]) > u) return i;
  return p.size() - 1;
}

// Speculative sampling by the book on the exact distributions, one draft at a time: the draft is
// accepted with its probability; else a token is drawn from what is left, or, in the wrong variant,
// from all once more.
std::vector<text> by_the_book(exact_target& exact, bool remove_the_draft) {
  std::vector<text> answers(draws);
  for (size_t i = 0; i < draws; ++i) {
    const random_stream random{.seed = 11, .domain = random_domain::sampling, .key = i};
    for (size_t n = 0; n < joint_tokens; ++n) {
      auto p = exact.next(answers[i]);
      const size_t draft = (n + 1) % small_vocab;
      if (n > 0 && random.uniform(2 * n) < p[draft]) {
        answers[i].push_back(static_cast<int32_t>(draft));
        continue;
      }
      if (n > 0 && remove_the_draft) {
        const double left = 1 - p[draft];
        p[draft] = 0;
        for (double& x : p) x /= left;
      }
      answers[i].push_back(static_cast<int32_t>(pick(p, random.uniform(2 * n + 1))));
    }
  }
  return answers;
}

const sampling_options kinds[] = {
    {.temperature = 1.5, .seed = 3},
    {.temperature = 4, .top_k = 3, .seed = 3},
    {.temperature = 3, .top_p = 0.8, .seed = 3},
};

}  // namespace

TEST_CASE("speculative sampling keeps the target's distribution", "[decode][sampling]") {
  auto drafts = small_drafter(4);
  for (const auto& sampling : kinds) {
    INFO("temperature " << sampling.temperature << ", top-k " << sampling.top_k << ", top-p "
                        << sampling.top_p);
    exact_target exact{sampling};
    std::vector<text> answers;
    decode_stats stats;
    for (const auto& answer :
         decode_many(*small_target(), small_prompt, draws, &drafts, sampling, joint_tokens + 1)) {
      answers.push_back(answer.tokens);
      stats.add(answer.stats);
    }
    const auto found = compare(answers, exact);
    INFO("chi-square " << found.statistic << " with " << found.freedom << " degrees");
    CHECK(found.freedom >= 8);
    CHECK(found.z() < 3.1);
    // Both outcomes of the rule are among them.
    CHECK(stats.accepted_at.at(0) > static_cast<int64_t>(draws) / 50);
    CHECK(stats.accepted_at.at(0) < stats.offered_at.at(0));
  }
}

TEST_CASE("the comparison tells a wrong rule from the right one", "[decode][sampling]") {
  for (const auto& sampling : kinds) {
    exact_target exact{sampling};
    CHECK(compare(by_the_book(exact, true), exact).z() < 3.1);
    CHECK(compare(by_the_book(exact, false), exact).z() > 8);
  }
}

TEST_CASE("plain and speculative decoding draw the same text, as generate does",
          "[decode][sampling]") {
  const auto model = decode_test::tiny_target();
  const auto prompt = decode_test::tiny_prompt(9);
  const sampling_options sampling{.temperature = 1, .top_p = 0.9, .seed = 8};
  const auto plain = decode_many(*model, prompt, 6, nullptr, sampling, 30);
  CHECK(plain[0].tokens != plain[1].tokens);
  const auto config = decode_test::tiny_drafter_config(6);
  drafter_proposer drafts{
      std::make_shared<const draft_model>(config, decode_test::tiny_drafter(config), model)};
  lookup_proposer lookup;
  std::vector<text> texts;
  for (const auto& answer : plain) {
    texts.push_back(prompt);
    texts.back().insert(texts.back().end(), answer.tokens.begin(), answer.tokens.end());
  }
  decode_test::scripted_proposer scripted{texts, 5, 4};
  for (proposer* source : std::initializer_list<proposer*>{&drafts, &lookup, &scripted})
    for (const int64_t slots : {1, 4}) {
      const auto answers = decode_many(*model, prompt, 6, source, sampling, 30, slots);
      for (size_t i = 0; i < answers.size(); ++i) CHECK(answers[i].tokens == plain[i].tokens);
    }
  token_documents prompts;
  for (int i = 0; i < 6; ++i) prompts.append(prompt, {});
  generate_options options;
  options.max_new_tokens = 30;
  options.sampling = sampling;
  const auto generated = generate_group(*model, prompts, 0, 6, options, {});
  REQUIRE(generated);
  for (size_t i = 0; i < generated->size(); ++i) CHECK((*generated)[i].ids == plain[i].tokens);
}

}  // namespace dflash
