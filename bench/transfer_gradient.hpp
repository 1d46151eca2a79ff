// What buckets hide of a gradient's way from a drafter's lane of another process: a backward pass
// that sleeps (as one on a device does to the host), layer by layer, and the data connection.
#pragma once

#include <cstdint>

#include "messages/wire_client.hpp"
#include "messages/wire_server.hpp"

namespace dflash::bench {

constexpr int64_t gradient_parameters = int64_t{32} << 20;  // 128 MiB in fp32
constexpr int gradient_layers = 12;
constexpr double layer_seconds = 0.01;

// A lent drafter of that size and pace.
wire_session paced_drafter();

struct gradient_seconds {
  double pass = 0;     // backward pass alone
  double fetch = 0;    // the gradient alone, after the pass
  double whole = 0;    // from the end of the forward pass: pass, then all at once
  double buckets = 0;  // pass, with buckets meanwhile
};
// Medians of `rounds`.
gradient_seconds measure_gradient(wire_client& lane, int rounds);

}  // namespace dflash::bench
