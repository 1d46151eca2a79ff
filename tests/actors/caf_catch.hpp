// Uses CAF's message DSL (expect/allow/disallow/inject, test_coordinator_fixture) with Catch2's
// reporting.
#pragma once
#include <catch2/catch.hpp>
#include <sstream>
#define CAF_SUITE unused
#include <caf/test/unit_test.hpp>
#undef CAF_FAIL
#undef CAF_MESSAGE
#undef CAF_REQUIRE
#undef CAF_REQUIRE_EQUAL
#undef CAF_CHECK_EQUAL
#define CAF_FAIL(what)                \
  do {                                \
    std::ostringstream caf_catch_oss; \
    caf_catch_oss << what;            \
    FAIL(caf_catch_oss.str());        \
  } while (false)
#define CAF_MESSAGE(what)               \
  do {                                  \
    std::ostringstream caf_catch_oss;   \
    caf_catch_oss << what;              \
    UNSCOPED_INFO(caf_catch_oss.str()); \
  } while (false)
#define CAF_REQUIRE(...)  \
  do {                    \
    if (!(__VA_ARGS__))   \
      FAIL(#__VA_ARGS__); \
    else                  \
      SUCCEED();          \
  } while (false)
#define CAF_REQUIRE_EQUAL(x, y) \
  do {                          \
    if (!((x) == (y)))          \
      FAIL(#x " == " #y);       \
    else                        \
      SUCCEED();                \
  } while (false)
#define CAF_CHECK_EQUAL(x, y)   \
  do {                          \
    if (!((x) == (y)))          \
      FAIL_CHECK(#x " == " #y); \
    else                        \
      SUCCEED();                \
  } while (false)
namespace caf {
namespace test {
inline int engine::argc() {
  return 0;
}
inline char** engine::argv() {
  return nullptr;
}
}  // namespace test
}  // namespace caf
#include <caf/test/dsl.hpp>
