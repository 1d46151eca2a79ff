// Draft vocabularies from files: the same ids from each form, and every refusal by file.
#include "model/vocab_map.hpp"

#include <catch2/catch.hpp>

#include <cstring>
#include <fstream>

#include "config/error.hpp"
#include "data/safetensors.hpp"
#include "model/draft_vocab.hpp"
#include "tests/model/decode_fixture.hpp"

using namespace dflash;

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

const fs::path reduced = fs::path(DFLASH_TEST_DATA) / "speculators" / "reduced";  // 50 of 80

// As numpy.save writes a list.
template <class T>
void save_npy(const fs::path& path, const std::string& type, const std::vector<T>& values) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" +
                       std::to_string(values.size()) + ",), }";
  header.resize((header.size() + 10) / 64 * 64 + 53, ' ');
  header += '\n';
  std::ofstream out(path, std::ios::binary);
  out << "\x93NUMPY" << '\x01' << '\0' << static_cast<char>(header.size()) << '\0' << header;
  out.write(reinterpret_cast<const char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
}

struct pair_files {
  std::vector<int32_t> ids;
  std::vector<int64_t> d2t = d2t_of(ids);
  std::vector<uint8_t> t2d = t2d_of(ids, 80);
  void save(const fs::path& folder, const std::string& end) const {
    save_npy(folder / ("d2t" + end + ".npy"), "<i8", d2t);
    save_npy(folder / ("t2d" + end + ".npy"), "|b1", t2d);
  }
};

std::string refusal(const fs::path& path, int64_t vocab = 80, int64_t wanted = 0) {
  try {
    read_vocab_map(path, vocab, wanted);
  } catch (const error& problem) {
    return problem.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a draft vocabulary is the same from a checkpoint, its tensors, and pairs of arrays") {
  const auto ids = read_drafter(reduced).config.draft_ids;
  REQUIRE(ids.size() == 50);
  CHECK(read_vocab_map(reduced, 80, 0) == ids);
  CHECK(read_vocab_map(reduced / "model.safetensors", 80, 0) == ids);
  const decode_test::scratch_folder scratch;
  const fs::path& f = scratch.path();
  pair_files{.ids = ids}.save(f, "-50");
  CHECK(read_vocab_map(f, 80, 0) == ids);
  CHECK(read_vocab_map(f / "d2t-50.npy", 80, 0) == ids);
  CHECK(read_vocab_map(f / "t2d-50.npy", 80, 0) == ids);
  // speculators keeps a pair for each size in its data folder.
  pair_files{.ids = {3, 7, 79}}.save(f, "-3");
  CHECK(read_vocab_map(f, 80, 50) == ids);
  CHECK(read_vocab_map(f, 80, 3) == std::vector<int32_t>{3, 7, 79});
  CHECK_THAT(refusal(f), Contains("several") && Contains("d2t-3.npy d2t-50.npy"));
  CHECK_THAT(refusal(f, 80, 4), Contains("several"));
}

TEST_CASE("a draft vocabulary that is none, or of another target, is refused by file") {
  const decode_test::scratch_folder scratch;
  const fs::path& f = scratch.path();
  CHECK_THAT(refusal(f), Contains("no draft vocabulary") && Contains(f.string()));
  CHECK_THAT(refusal(f / "nowhere"), Contains("nowhere") && Contains("d2t.npy"));
  CHECK_THAT(refusal(fs::path(DFLASH_TEST_DATA) / "speculators" / "full"), Contains("d2t"));
  CHECK_THAT(refusal(reduced, 81), Contains("80 tokens") && Contains("the target has 81"));
  std::ofstream(f / "token_freq.pt") << "pickle";
  CHECK_THAT(refusal(f / "token_freq.pt"), Contains("token_freq.pt"));
  std::ofstream(f / "map.npy") << "x";
  CHECK_THAT(refusal(f / "map.npy"), Contains("does not say d2t or t2d"));

  const pair_files good{.ids = {3, 7, 79}};
  const auto spoilt = [&](auto&& spoil) {
    pair_files p = good;
    spoil(p);
    p.save(f, "");
    return refusal(f / "d2t.npy");
  };
  CHECK(spoilt([](pair_files&) {}).empty());
  CHECK_THAT(spoilt([](pair_files& p) { p.d2t[2] = 78; }), Contains("d2t[2]") && Contains("80"));
  CHECK_THAT(spoilt([](pair_files& p) { p.d2t[0] = -1; }), Contains("d2t[0]"));
  CHECK_THAT(spoilt([](pair_files& p) { p.d2t[1] = 2; }), Contains("rise"));
  CHECK_THAT(spoilt([](pair_files& p) { p.d2t[1] = 7; }), Contains("t2d does not mark"));
  CHECK_THAT(spoilt([](pair_files& p) { p.t2d[5] = 1; }),
             Contains("marks 4") && Contains("lists 3"));
  CHECK_THAT(spoilt([](pair_files& p) { p.t2d[5] = 2; }), Contains("neither true nor false"));
  CHECK_THAT(spoilt([](pair_files& p) { p.t2d.pop_back(); }), Contains("79 tokens"));
  CHECK_THAT(spoilt([](pair_files& p) { p.d2t.clear(); }), Contains("d2t is empty"));
  good.save(f, "");
  save_npy(f / "d2t.npy", "<i4", std::vector<int32_t>{3, 6, 77});
  CHECK_THAT(refusal(f / "t2d.npy"), Contains("<i4") && Contains("d2t.npy"));
  fs::remove(f / "d2t.npy");
  CHECK_THAT(refusal(f / "t2d.npy"), Contains("d2t.npy"));

  const std::vector<int64_t> d2t = {3, 6};
  const std::vector<uint8_t> t2d(80, 0);
  write_safetensors(f / "m.safetensors",
                    {{{"d2t", st_dtype::i64, {1, 2}, std::as_bytes(std::span(d2t))},
                      {"t2d", st_dtype::boolean, {80}, std::as_bytes(std::span(t2d))}}});
  CHECK_THAT(refusal(f / "m.safetensors"), Contains("d2t is I64 [1, 2]"));
  write_safetensors(f / "m.safetensors",
                    {{{"d2t", st_dtype::i64, {2}, std::as_bytes(std::span(d2t))}}});
  CHECK_THAT(refusal(f / "m.safetensors"), Contains("no tensor t2d"));
}
