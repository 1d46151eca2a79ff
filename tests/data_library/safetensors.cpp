#include "data/safetensors.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "data/files.hpp"
#include "tests/data_library/scratch.hpp"

using namespace dflash;
using namespace dflash::test;
using Catch::Matchers::Contains;

namespace {

safetensors_file open_case(const std::string& name) {
  return safetensors_file::open(std::string(DFLASH_TEST_DATA "/safetensors/") + name +
                                ".safetensors");
}

template <class T>
std::vector<T> values(const safetensors_file& file, std::string_view name) {
  const auto bytes = file.bytes(file.at(name));
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, 4);
  return value;
}

std::string entry(const std::string& name, const std::string& rest) {
  return "\"" + name + "\":{" + rest + "}";
}

std::string refusal(std::string_view header, std::string_view data = "") {
  const scratch_folder scratch;
  const auto path = scratch / "x.safetensors";
  write_bytes(path, raw_safetensors(header, data));
  return error_of([&] { safetensors_file::open(path); });
}

}  // namespace

TEST_CASE("files without tensors are read, with or without metadata") {
  const auto only = open_case("metadata_only");
  CHECK(only.tensors().empty());
  CHECK(only.metadata() == std::map<std::string, std::string>{{"crc", "12"}});
  const auto none = open_case("no_tensors_at_all");
  CHECK(none.tensors().empty());
  CHECK(none.metadata().empty());
  CHECK(none.find("x") == nullptr);
}

TEST_CASE("zero-size tensors and scalars are read") {
  const auto file = open_case("zero_dim_and_scalar");
  CHECK(values<uint8_t>(file, "scaled_fp8").empty());
  CHECK(file.at("empty2").elements() == 0);
  CHECK(file.at("empty2").shape == std::vector<int64_t>{3, 0, 2});
  CHECK(file.at("s").shape.empty());
  CHECK(file.at("s").elements() == 1);
  CHECK(values<float>(file, "s") == std::vector<float>{2.5F});
}

TEST_CASE("the header may list tensors in another order than the data") {
  const auto file = open_case("header_order_differs");
  CHECK(file.tensors()[0].name == "z");
  CHECK(values<float>(file, "a") == std::vector<float>{1, 2});
  CHECK(values<float>(file, "z") == std::vector<float>{3, 4, 5});
}

TEST_CASE("data may lie at any alignment") {
  const auto file = open_case("misaligned");
  const auto b = values<uint16_t>(file, "b");
  CHECK(from_bf16(b[0]) == 1.0F);
  CHECK(from_bf16(b[1]) == -2.0F);
  CHECK(from_bf16(b[2]) == 0.5F);
  CHECK(values<float>(file, "f") == std::vector<float>{1.5F, -1.5F});
  CHECK(values<int64_t>(file, "q") == std::vector<int64_t>{-7});
  CHECK_FALSE(is_aligned(file.bytes(file.at("q")), st_dtype::i64));
  CHECK(is_aligned(file.bytes(file.at("b")), st_dtype::u8));
}

TEST_CASE("a header may be padded, and names may be escaped or not ASCII") {
  CHECK(values<float>(open_case("header_padded_4k"), "t") == std::vector<float>{9});
  const auto file = open_case("unicode_and_escaped_names");
  CHECK(values<float>(file, "model.n\u00e4me/\"q\"") == std::vector<float>{8});
}

TEST_CASE("all types are read") {
  const auto file = open_case("all_dtypes");
  CHECK(values<uint8_t>(file, "bool") == std::vector<uint8_t>{1, 0});
  CHECK(values<uint8_t>(file, "u8") == std::vector<uint8_t>{7, 255});
  CHECK(values<uint16_t>(file, "f16") == std::vector<uint16_t>{0x3800, 0xFBFF});
  CHECK(values<double>(file, "f64") == std::vector<double>{1e300});
  CHECK(values<int16_t>(file, "i16") == std::vector<int16_t>{-1, 300});
  CHECK(values<uint64_t>(file, "u64") == std::vector<uint64_t>{9223372036854775808U});
  CHECK(file.at("e8m0").dtype == st_dtype::f8_e8m0);
  // 2^(code − 127)
  const auto codes = values<uint8_t>(file, "e8m0");
  CHECK(std::ldexp(1.0, codes[0] - 127) == 1.0);
  CHECK(std::ldexp(1.0, codes[1] - 127) == 2.0);
  for (const char* name : {"F64",
                           "F32",
                           "F16",
                           "BF16",
                           "F8_E4M3",
                           "F8_E5M2",
                           "F8_E8M0",
                           "I64",
                           "I32",
                           "I16",
                           "I8",
                           "U64",
                           "U32",
                           "U16",
                           "U8",
                           "BOOL"})
    CHECK(dtype_name(parse_dtype(name).value()) == name);
}

TEST_CASE("an FP8 tensor keeps its type and its codes") {
  const auto file = open_case("fp8_model");
  const auto& q = file.at("model.layers.0.self_attn.q_proj.weight");
  CHECK(q.dtype == st_dtype::f8_e4m3);
  auto codes = values<uint8_t>(file, q.name);
  codes.resize(8);
  CHECK(codes == std::vector<uint8_t>{0x38, 0x40, 0x7E, 0xFE, 0x01, 0x00, 0x80, 0xB8});
  CHECK(file.metadata().at("format") == "pt");
}

TEST_CASE("a tensor that is not there is named") {
  const auto text = error_of([] { open_case("misaligned").at("lm_head.weight"); });
  CHECK_THAT(text, Contains("\"lm_head.weight\"") && Contains("misaligned.safetensors"));
}

TEST_CASE("damaged headers are refused") {
  const std::string ok = "\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]";
  CHECK(refusal("{" + entry("a", ok) + "}", "xy").empty());

  SECTION("no JSON object") {
    CHECK_THAT(refusal(""), Contains("begin with '{'"));
    CHECK_THAT(refusal(" {}"), Contains("begin with '{'"));
    CHECK_THAT(refusal("[]"), Contains("begin with '{'"));
    CHECK_THAT(refusal("\xEF\xBB\xBF{}"), Contains("begin with '{'"));
    CHECK_THAT(refusal("{"), Contains("no valid JSON"));
    CHECK_THAT(refusal("{} x"), Contains("no valid JSON"));
    CHECK_THAT(refusal(std::string_view("{}\0", 3)), Contains("zero byte"));
    CHECK_THAT(refusal("{}{}"), Contains("no valid JSON"));
  }
  SECTION("not UTF-8") {
    CHECK_THAT(refusal("{" + entry("a\xFF", ok) + "}", "xy"), Contains("UTF-8"));
    CHECK_THAT(refusal("{" + entry("a\xC3", ok) + "}", "xy"), Contains("UTF-8"));
    CHECK_THAT(refusal("{" + entry("\\ud800", ok) + "}", "xy"), Contains("UTF-8"));
  }
  SECTION("other values than the format has") {
    CHECK_THAT(refusal("{\"a\":1}"), Contains("\"a\""));
    CHECK_THAT(refusal("{\"a\":null}"), Contains("null"));
    CHECK_THAT(refusal("{\"a\":true}"), Contains("truth value"));
    CHECK_THAT(refusal("{\"a\":\"b\"}"), Contains("string"));
    CHECK_THAT(refusal("{\"a\":[]}"), Contains("list"));
    CHECK_THAT(refusal("{\"__metadata__\":[]}"), Contains("list"));
    CHECK_THAT(refusal("{\"__metadata__\":{\"n\":1}}"), Contains("only strings"));
    CHECK_THAT(refusal("{\"__metadata__\":{\"n\":null}}"), Contains("only strings"));
    CHECK_THAT(refusal("{\"__metadata__\":{\"n\":{}}}"), Contains("only strings"));
    CHECK_THAT(refusal("{" + entry("a", ok + ",\"x\":1") + "}", "xy"), Contains("unknown field"));
  }
  SECTION("parts missing or twice") {
    CHECK_THAT(refusal("{" + entry("a", "\"shape\":[2],\"data_offsets\":[0,2]") + "}", "xy"),
               Contains("\"a\" has no dtype"));
    CHECK_THAT(refusal("{" + entry("a", "\"dtype\":\"U8\",\"data_offsets\":[0,2]") + "}", "xy"),
               Contains("no shape"));
    CHECK_THAT(refusal("{" + entry("a", "\"dtype\":\"U8\",\"shape\":[2]") + "}", "xy"),
               Contains("no data_offsets"));
    CHECK_THAT(refusal("{" + entry("a", ok + ",\"dtype\":\"I8\"") + "}", "xy"),
               Contains("dtype twice"));
    CHECK_THAT(refusal("{" + entry("a", ok) + "," + entry("a", ok) + "}", "xy"),
               Contains("\"a\" stands there twice"));
    CHECK_THAT(refusal("{\"__metadata__\":{},\"__metadata__\":{}}"), Contains("twice"));
    CHECK_THAT(refusal("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}"), Contains("\"k\""));
  }
  SECTION("types, shapes and offsets that make no sense") {
    const auto with = [](const char* dtype, const char* shape, const char* offsets) {
      return "{" +
             entry("w",
                   std::string("\"dtype\":\"") + dtype + "\",\"shape\":" + shape +
                       ",\"data_offsets\":" + offsets) +
             "}";
    };
    CHECK_THAT(refusal(with("F4", "[2]", "[0,2]"), "xy"), Contains("\"F4\"") && Contains("\"w\""));
    CHECK_THAT(refusal(with("f32", "[2]", "[0,8]"), "xyxyxyxy"), Contains("\"f32\""));
    CHECK_THAT(refusal(with("U8", "[-2]", "[0,2]"), "xy"), Contains("negative"));
    CHECK_THAT(refusal(with("U8", "[2.0]", "[0,2]"), "xy"), Contains("whole numbers"));
    CHECK_THAT(refusal(with("U8", "[1e1]", "[0,2]"), "xy"), Contains("whole numbers"));
    CHECK_THAT(refusal(with("U8", "[[2]]", "[0,2]"), "xy"), Contains("list"));
    CHECK_THAT(refusal(with("U8", "[\"2\"]", "[0,2]"), "xy"), Contains("string"));
    CHECK_THAT(refusal(with("U8", "[99999999999999999999]", "[0,2]"), "xy"),
               Contains("whole numbers"));
    CHECK_THAT(refusal(with("U8", "[18446744073709551615]", "[0,2]"), "xy"), Contains("dimension"));
    CHECK_THAT(refusal(with("U8", "[4294967296,4294967296]", "[0,0]")), Contains("no file"));
    CHECK_THAT(refusal(with("F64", "[9223372036854775807]", "[0,2]"), "xy"), Contains("no file"));
    CHECK(refusal(with("F64", "[9223372036854775807,9223372036854775807,0]", "[0,0]")).empty());
    CHECK_THAT(refusal(with("U8", "[3]", "[0,2]"), "xy"), Contains("needs 3 bytes"));
    CHECK_THAT(refusal(with("U8", "[2]", "[0,3]"), "xyz"), Contains("needs 2 bytes"));
    CHECK_THAT(refusal(with("U8", "[2]", "[2,0]"), "xy"), Contains("backwards"));
    CHECK_THAT(refusal(with("U8", "[2]", "[0,2]"), "x"), Contains("only 1 bytes follow"));
    CHECK_THAT(refusal(with("U8", "[2]", "[0]"), "xy"), Contains("two data_offsets"));
    CHECK_THAT(refusal(with("U8", "[2]", "[0,2,2]"), "xy"), Contains("data_offsets"));
    CHECK_THAT(refusal(with("U8", "[2]", "[0,18446744073709551615]"), "xy"), Contains("only 2"));
    CHECK_THAT(refusal(with("U8", "[2]", "[18446744073709551615,1]"), "xy"), Contains("backwards"));
    CHECK_THAT(refusal(with("U8", "[2]", "[1,3]"), "xyz"), Contains("hole of 1 bytes"));
    CHECK_THAT(refusal(with("U8", "[2]", "[0,2]"), "xyz"), Contains("1 bytes follow the last"));
  }
  SECTION("tensors on top of each other") {
    CHECK_THAT(refusal("{" + entry("a", ok) + "," + entry("b", ok) + "}", "xy"),
               Contains("overlaps"));
    CHECK_THAT(
        refusal("{" + entry("a", ok) + "," +
                    entry("b", "\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]") + "}",
                "xyz"),
        Contains("\"b\" overlaps"));
  }
  SECTION("depth that would break a recursive parser") {
    CHECK_FALSE(refusal("{\"a\":" + std::string(1'000'000, '[')).empty());
    CHECK_FALSE(refusal("{" + std::string(100'000, ' ') + "\"a\":{\"shape\":{}}}").empty());
  }
}

TEST_CASE("header lengths outside the file or above the limit are refused") {
  const scratch_folder scratch;
  const auto path = scratch / "x.safetensors";
  const auto with_length = [&](uint64_t length) {
    std::string bytes = raw_safetensors("{}      ", "");
    std::memcpy(bytes.data(), &length, 8);
    write_bytes(path, bytes);
    return error_of([&] { safetensors_file::open(path); });
  };
  CHECK(with_length(8).empty());
  CHECK_THAT(with_length(9), Contains("claims 9 bytes"));
  CHECK_THAT(with_length(100'000'001), Contains("claims"));
  CHECK_THAT(with_length(~uint64_t{0}), Contains("claims 18446744073709551615 bytes"));
  CHECK_THAT(with_length(0), Contains("begin with '{'"));
  write_bytes(path, "");
  CHECK_THAT(error_of([&] { safetensors_file::open(path); }), Contains("0 bytes"));
  write_bytes(path, "1234567");
  CHECK_THAT(error_of([&] { safetensors_file::open(path); }), Contains("7 bytes"));
}

TEST_CASE("what is no file is refused") {
  const scratch_folder scratch;
  CHECK_THAT(error_of([&] { safetensors_file::open(scratch / "none"); }),
             Contains("No such file") && Contains("none"));
  CHECK_THAT(error_of([&] { safetensors_file::open(scratch.path()); }),
             Contains("not a regular file"));
}

TEST_CASE("control characters of a name do not reach the terminal") {
  const auto text = refusal("{\"a\\u001b[31m\":1}");
  CHECK(text.find('\x1b') == std::string::npos);
}

TEST_CASE("what is written is read back, aligned for its type") {
  const scratch_folder scratch;
  const auto path = scratch / "x.safetensors";
  const std::vector<uint8_t> u8 = {1, 2, 3};
  const std::vector<double> f64 = {1.5, -2.5};
  const std::vector<uint16_t> bf16 = {0x3F80};
  const auto bytes = [](const auto& v) { return std::as_bytes(std::span(v)); };
  const std::vector<st_view> tensors = {{"z\"\u00e4", st_dtype::u8, {3}, bytes(u8)},
                                        {"empty", st_dtype::f32, {0, 4}, {}},
                                        {"d", st_dtype::f64, {2, 1}, bytes(f64)},
                                        {"scalar", st_dtype::bf16, {}, bytes(bf16)}};
  write_safetensors(path, tensors, {{"format", "pt"}, {"quote\"", "a\nb"}});
  const auto file = safetensors_file::open(path);
  CHECK(file.tensors().size() == 4);
  CHECK(values<uint8_t>(file, "z\"\u00e4") == u8);
  CHECK(values<double>(file, "d") == f64);
  CHECK(file.at("d").shape == std::vector<int64_t>{2, 1});
  CHECK(values<uint16_t>(file, "scalar") == bf16);
  CHECK(file.metadata().at("quote\"") == "a\nb");
  for (const auto& t : file.tensors()) CHECK(is_aligned(file.bytes(t), t.dtype));
  CHECK_FALSE(std::filesystem::exists(scratch / "x.safetensors.tmp"));

  SECTION("the same input gives the same bytes") {
    const auto before = read_file(path);
    const std::vector<st_view> turned(tensors.rbegin(), tensors.rend());
    write_safetensors(path, turned, {{"quote\"", "a\nb"}, {"format", "pt"}});
    CHECK(read_file(path) == before);
  }
  SECTION("an open file keeps its content when the name gets another one") {
    write_safetensors(path, {}, {});
    CHECK(values<double>(file, "d") == f64);
    CHECK(safetensors_file::open(path).tensors().empty());
  }
}

TEST_CASE("a place that cannot be written is named") {
  const scratch_folder scratch;
  CHECK_THAT(error_of([&] { write_safetensors(scratch / "no/such/x", {}); }),
             Contains("cannot write") && Contains("no/such/x"));
  std::filesystem::create_directory(scratch / "taken");
  CHECK_THAT(error_of([&] { write_safetensors(scratch / "taken", {}); }), Contains("taken"));
  CHECK_FALSE(std::filesystem::exists(scratch / "taken.tmp"));
  if (std::filesystem::exists("/dev/full")) {
    // A full disk: the temporary file is a link to a device that refuses every byte.
    std::filesystem::create_symlink("/dev/full", scratch / "full.tmp");
    CHECK_THAT(error_of([&] { write_safetensors(scratch / "full", {}); }),
               Contains("No space left") && Contains("free some space"));
    CHECK_FALSE(std::filesystem::exists(scratch / "full"));
  }
}
