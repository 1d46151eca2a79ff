#include "data/npy.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "tests/data_library/scratch.hpp"

using namespace dflash;
using namespace dflash::test;
using Catch::Matchers::Contains;

namespace {

std::string npy(std::string_view header, std::string_view data, char version = 1) {
  std::string bytes = std::string("\x93NUMPY") + version + '\0';
  const auto length = static_cast<uint32_t>(header.size());
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) bytes += static_cast<char>(length >> 8 * i);
  return bytes.append(header).append(data);
}

std::string refusal(const std::string& bytes) {
  const scratch_folder scratch;
  write_bytes(scratch / "a.npy", bytes);
  const std::string text = error_of([&] { read_npy(scratch / "a.npy"); });
  if (!text.empty()) CHECK_THAT(text, Contains("a.npy"));
  return text;
}

}  // namespace

TEST_CASE("arrays of NumPy are read in formats 1 to 3") {
  const std::string data("\x01\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 16);
  for (const char version : {1, 2, 3}) {
    const scratch_folder scratch;
    write_bytes(
        scratch / "a.npy",
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }    \n", data, version));
    const npy_array a = read_npy(scratch / "a.npy");
    CHECK(a.type == "<i8");
    CHECK(a.shape == std::vector<int64_t>{2});
    CHECK_FALSE(a.fortran_order);
    CHECK(a.bytes == data);
  }
  CHECK(refusal(npy("{\"shape\": (), \"descr\": '|b1', \"fortran_order\": True}", "x")).empty());
  CHECK(refusal(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 0, 3)}", "")).empty());
}

TEST_CASE("whatever is no such array is refused with what is wrong") {
  const std::string good = "{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }";
  CHECK_THAT(refusal("PK\x03\x04 and so on, an .npz"), Contains("does not begin"));
  CHECK_THAT(refusal(""), Contains("does not begin"));
  CHECK_THAT(refusal(npy(good, "abc", 4)), Contains("format 4"));
  CHECK_THAT(refusal(npy(good, "ab")), Contains("3 bytes") && Contains("has 2"));
  CHECK_THAT(refusal(npy(good, "abcd")), Contains("has 4"));
  CHECK_THAT(refusal(npy(good, "abc").substr(0, 30)), Contains("ends in its header"));
  CHECK_THAT(refusal(npy("{'descr': '|O', 'fortran_order': False, 'shape': (3,)}", "abc")),
             Contains("type |O"));
  CHECK_THAT(
      refusal(npy("{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (3,)}", "abc")),
      Contains("records"));
  CHECK_THAT(refusal(npy("{'descr': '|b1', 'fortran_order': 0, 'shape': (3,)}", "abc")),
             Contains("neither True nor False"));
  CHECK_THAT(refusal(npy("{'descr': '|b1', 'fortran_order': False, 'shape': (-3,)}", "abc")),
             Contains("no list of sizes"));
  CHECK_THAT(refusal(npy("{'descr': '|b1', 'fortran_order': False, 'shape': (3x)}", "abc")),
             Contains("no ')'"));
  CHECK_THAT(refusal(npy("{'descr': '<i8', 'fortran_order': False, "
                         "'shape': (9223372036854775807, 9223372036854775807)}",
                         "abc")),
             Contains("overflows"));
  CHECK_THAT(refusal(npy("{'descr': '|b1', 'shape': (3,)}", "abc")), Contains("lacks"));
  CHECK_THAT(refusal(npy("{'descr': '|b1', 'descr': '|b1', 'shape': (3,)}", "abc")),
             Contains("twice"));
  CHECK_THAT(refusal(npy(good + "{}", "abc")), Contains("goes on"));
  CHECK_THAT(refusal(npy("{'descr': '|b1", "abc")), Contains("without end"));
  CHECK_THAT(refusal(npy("    ", "")), Contains("no '{'"));
}
