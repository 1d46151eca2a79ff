#include "observe/format.hpp"

#include <catch2/catch.hpp>
#include <limits>

namespace dflash {

using namespace std::chrono_literals;

TEST_CASE("sizes are shown with three digits in powers of 1000") {
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(999) == "999 B");
  CHECK(bytes_text(1000) == "1.00 kB");
  CHECK(bytes_text(12'345) == "12.3 kB");
  CHECK(bytes_text(999'999) == "1.00 MB");
  CHECK(bytes_text(8'000'000'000) == "8.00 GB");
  CHECK(bytes_text(std::numeric_limits<std::uint64_t>::max()) == "18447 PB");
}

TEST_CASE("durations are shown in the unit that fits") {
  CHECK(duration_text(0ns) == "0 ns");
  CHECK(duration_text(999ns) == "999 ns");
  CHECK(duration_text(1500ns) == "1.50 us");
  CHECK(duration_text(12'345us) == "12.3 ms");
  CHECK(duration_text(999'900us) == "1.00 s");
  CHECK(duration_text(3200ms) == "3.20 s");
  CHECK(duration_text(59'960ms) == "1 min 00 s");
  CHECK(duration_text(247s) == "4 min 07 s");
  CHECK(duration_text(3599'600ms) == "1 h 00 min");
  CHECK(duration_text(2h + 5min) == "2 h 05 min");
  CHECK(duration_text(50h) == "2 d 02 h");
  CHECK(duration_text(-3s) == "-3.00 s");
}

TEST_CASE("counts, rates and shares") {
  CHECK(count_text(0) == "0");
  CHECK(count_text(7) == "7");
  CHECK(count_text(0.5) == "0.50");
  CHECK(count_text(12'345) == "12.3k");
  CHECK(count_text(4.56e6) == "4.56M");
  CHECK(count_text(-1500) == "-1.50k");
  CHECK(count_text(std::numeric_limits<double>::infinity()) == "?");
  CHECK(rate_text(8410, "tokens") == "8.41k tokens/s");
  CHECK(share_text(0.0) == "0 %");
  CHECK(share_text(0.001) == "<1 %");
  CHECK(share_text(0.354) == "35 %");
  CHECK(share_text(1.0) == "100 %");
}

TEST_CASE("numbers for JSON read back as the same double") {
  CHECK(json_number(0.1) == "0.1");
  CHECK(json_number(1.0 / 3.0) == "0.3333333333333333");
  CHECK(json_number(1.0) == "1");
  CHECK(json_number(-0.0) == "-0");
  CHECK(json_number(5e-324) == "5e-324");
  CHECK(json_number(std::numeric_limits<double>::quiet_NaN()) == "null");
  CHECK(json_number(-std::numeric_limits<double>::infinity()) == "null");
}

}  // namespace dflash
