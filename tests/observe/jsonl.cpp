#include "observe/jsonl.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <vector>

#include "config/error.hpp"

namespace dflash {

namespace {

class scratch_file {
public:
  explicit scratch_file(const std::string& text = {}, bool make = true) {
    static std::atomic<int> count{0};
    path = std::filesystem::temp_directory_path() /
           ("dflash_jsonl_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    if (make) std::ofstream(path, std::ios::binary) << text;
  }
  ~scratch_file() { std::filesystem::remove(path); }
  scratch_file(const scratch_file&) = delete;
  scratch_file& operator=(const scratch_file&) = delete;

  std::string text() const {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }

  std::filesystem::path path;
};

json_object step_line(int step) {
  json_object line;
  line.add("step", step);
  return line;
}

}  // namespace

TEST_CASE("an object keeps the order of its keys and is JSON") {
  json_object inner;
  inner.add("a", 1);
  json_object line;
  line.add("step", std::uint64_t{18446744073709551615ull})
      .add("loss", 0.1)
      .add("bad", std::numeric_limits<double>::quiet_NaN())
      .add("ok", true)
      .add("text", "a\"b\\c\nd\x01")
      .add("inner", inner)
      .add("list", std::span<const double>(std::vector<double>{1.0, 2.5}))
      .add("ids", std::span<const std::int64_t>(std::vector<std::int64_t>{-1, 2}))
      .add("names", std::span<const std::string>(std::vector<std::string>{"x"}))
      .add_null("none");
  CHECK(line.text() == R"({"step":18446744073709551615,"loss":0.1,"bad":null,"ok":true,)"
                       R"("text":"a\"b\\c\nd\u0001","inner":{"a":1},"list":[1,2.5],"ids":[-1,2],)"
                       R"("names":["x"],"none":null})");
  CHECK(nlohmann::json::accept(line.text()));
  CHECK(json_object().text() == "{}");
}

TEST_CASE("bytes that are not UTF-8 do not make a file unreadable") {
  CHECK(json_string("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") ==
        "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
  for (const char* text :
       {"\xff", "\xc3", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\x80"}) {
    const std::string json = json_string(std::string(text) + "x");
    CHECK(nlohmann::json::accept(json));
    CHECK(json.find("\xef\xbf\xbd") != std::string::npos);
    CHECK(json.find('x') != std::string::npos);
  }
}

TEST_CASE("lines are appended, and visible at once") {
  const scratch_file file({}, false);
  {
    jsonl_writer writer(file.path);
    writer.write(step_line(1));
    CHECK(file.text() == "{\"step\":1}\n");
    writer.write(step_line(2));
  }
  jsonl_writer(file.path).write(step_line(3));
  CHECK(file.text() == "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
}

TEST_CASE("opening cuts a last line that has no end") {
  const scratch_file file("{\"step\":1}\n{\"st");
  jsonl_writer(file.path).write(step_line(2));
  CHECK(file.text() == "{\"step\":1}\n{\"step\":2}\n");
  const scratch_file none(std::string(10000, 'x'));
  jsonl_writer writer(none.path);
  CHECK(none.text().empty());
}

TEST_CASE("a file that cannot be opened is the user's to mend") {
  CHECK_THROWS_AS(jsonl_writer("/no/such/folder/metrics.jsonl"), error);
}

TEST_CASE("a line for which there is no room leaves nothing behind") {
  const scratch_file file({}, false);
  jsonl_writer writer(file.path);
  writer.write(step_line(1));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{.rlim_cur = 20, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  bool refused = false;
  try {
    writer.write(json_object().add("step", 2).add("text", std::string(100, 'x')));
  } catch (const std::system_error&) {
    refused = true;
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(refused);
  CHECK(file.text() == "{\"step\":1}\n");
  writer.write(step_line(3));
  CHECK(file.text() == "{\"step\":1}\n{\"step\":3}\n");
}

TEST_CASE("a resumed run cuts back to its step") {
  const std::string whole =
      "{\"run\":\"x\"}\n{\"step\":1}\n{\"step\":2,\"a\":1}\n{\"note\":3}\n{\"step\":3}\n";
  struct row {
    std::uint64_t step;
    std::size_t kept;
    std::uint64_t lines;
  };
  const row rows[] = {{0, 12, 1}, {1, 23, 2}, {2, 51, 4}, {3, 62, 5}, {9, 62, 5}};
  for (const row& r : rows) {
    const scratch_file file(whole);
    const cut_report report = truncate_after(file.path, r.step);
    CHECK(report.kept_lines == r.lines);
    CHECK(file.text() == whole.substr(0, r.kept));
    CHECK(report.cut_bytes == whole.size() - r.kept);
  }
}

TEST_CASE("damaged and incomplete lines are cut with all that follows") {
  for (const char* damaged : {"{\"step\":2",
                              "{\"step\":2}",
                              "{\"step\":2,\n{\"step\":2}\n",
                              "[2]\n",
                              "\n",
                              "{\"step\":-2}\n",
                              "{\"step\":\"2\"}\n",
                              "{\"step\":2.5}\n"}) {
    CAPTURE(damaged);
    const scratch_file file("{\"step\":1}\n" + std::string(damaged));
    CHECK(truncate_after(file.path, 5).kept_lines == 1);
    CHECK(file.text() == "{\"step\":1}\n");
  }
  CHECK(truncate_after("/no/such/file", 5).kept_lines == 0);
  const scratch_file empty("");
  CHECK(truncate_after(empty.path, 5).cut_bytes == 0);
}

}  // namespace dflash
