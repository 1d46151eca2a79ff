// The sweep of mailbox limits as a small drawing: throughput against the factor on the limits.
#pragma once

#include <string>
#include <vector>

namespace dflash::bench {

struct sweep_point {
  double factor = 1;  // on the default limits
  double ratio = 0;   // throughput, of what the slowest stage allows
};

struct sweep_curve {
  std::string name;
  std::vector<sweep_point> points;  // by rising factor
};

/// Two curves at most; factors from 1/8 to 16.
std::string sweep_svg(const std::vector<sweep_curve>& curves);

}  // namespace dflash::bench
