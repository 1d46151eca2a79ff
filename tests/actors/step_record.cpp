#include "actors/step_record.hpp"

#include <catch2/catch.hpp>
#include <string>

namespace dflash {

TEST_CASE("a step's line names each loss term in use, divided by the weights, and cap's coverage") {
  step_total total;
  total.all.weight_sum = 4;
  total.all.loss = 10;
  const double sums[] = {8, 6, 1, 1, 2, 1, 1, 3};
  for (size_t t = 0; t < kernel::loss_term_count; ++t) total.all.terms[t] = sums[t];
  total.all.cap_weight = 1;
  const auto line = [&](const loss_terms& terms) { return step_record({}, total, terms).text(); };
  using Catch::Contains;
  const std::string plain = line({.factor = {1.0}});
  CHECK_THAT(plain, Contains("\"loss\":2.5,\"ce\":2,\"weight_sum\":4"));
  const std::string mixed = line({.factor = {0.0, 0.5, 0.0, 0.0, 1.0, 0.0, 0.0, 0.25}});
  CHECK_THAT(mixed,
             Contains("\"loss\":2.5,\"ce\":2,\"kl\":1.5,\"tv\":0.5,\"cap\":0.75,"
                      "\"cap_coverage\":0.25,\"weight_sum\":4"));
}

}  // namespace dflash
