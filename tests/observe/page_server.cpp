#include "observe/page_server.hpp"

#include <httplib.h>

#include <catch2/catch.hpp>
#include <string>

#include "config/error.hpp"

namespace dflash {

namespace {

page_server make(std::uint16_t port = 0) {
  return {"127.0.0.1",
          port,
          "metrics.listen",
          {[] { return std::string("{\"step\":1}"); }, [] { return std::string("x 1\n"); }}};
}

}  // namespace

TEST_CASE("the server answers with page, status and metrics, and with nothing else") {
  const page_server server = make();
  REQUIRE(server.port() > 0);
  httplib::Client client("127.0.0.1", server.port());
  const auto page = client.Get("/");
  REQUIRE(page);
  CHECK(page->status == 200);
  CHECK(page->body == page_html());
  CHECK(page->get_header_value("Content-Type").starts_with("text/html"));
  CHECK(page->get_header_value("Content-Security-Policy").starts_with("default-src 'none'"));
  CHECK(client.Get("/status.json")->body == "{\"step\":1}");
  CHECK(client.Get("/metrics")->body == "x 1\n");
  CHECK(client.Get("/../etc/passwd")->status == 404);
  CHECK(client.Post("/status.json", "{}", "application/json")->status == 404);
}

TEST_CASE("a name of another site that points to this machine is refused") {
  const page_server server = make();
  httplib::Client client("127.0.0.1", server.port());
  CHECK(client.Get("/status.json", {{"Host", "evil.example:80"}})->status == 403);
  CHECK(client.Get("/status.json", {{"Host", "localhost:1"}})->status == 200);
  CHECK(client.Get("/status.json", {{"Host", "[::1]:1"}})->status == 200);
}

TEST_CASE("a port in use is the user's error, and a server ends at once") {
  const page_server server = make();
  CHECK_THROWS_AS(make(server.port()), error);
  for (int i = 0; i < 20; ++i) make();
}

TEST_CASE("loopback addresses are told from others") {
  for (const char* own : {"127.0.0.1", "127.9.9.9", "::1", "localhost"}) CHECK(is_loopback(own));
  for (const char* other : {"0.0.0.0", "::", "10.0.0.1", "127.evil.example", ""})
    CHECK_FALSE(is_loopback(other));
}

TEST_CASE("the page takes nothing from elsewhere and puts no text in as HTML") {
  const std::string page = page_html();
  for (const char* bad : {"innerHTML",
                          "outerHTML",
                          "document.write",
                          "insertAdjacent",
                          "eval(",
                          "src=",
                          "href=",
                          "@import",
                          "url("})
    CHECK(page.find(bad) == std::string::npos);
  const std::string address = "http://www.w3.org/2000/svg";  // a name, which nobody fetches
  CHECK(page.find("http") == page.find(address));
  CHECK(page.find("http", page.find(address) + 1) == std::string::npos);
}

}  // namespace dflash
