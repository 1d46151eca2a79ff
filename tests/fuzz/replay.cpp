// main of a fuzz target that is built without libFuzzer: runs a corpus, then inputs made from it by
// seeded mutations (bytes flipped, set, cut, doubled, spliced from another file, numbers replaced
// by edge values). The same seed gives the same inputs; the one that kills the process is left in
// --artifact. Built with libFuzzer instead (preset fuzz), the target has libFuzzer's own main.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz_target.hpp"

namespace {

using bytes = std::vector<uint8_t>;
using engine = std::mt19937_64;

size_t below(engine& random, size_t n) {
  return n == 0 ? 0 : static_cast<size_t>(random() % n);
}

bytes read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void replace_number(bytes& input, engine& random) {
  static const std::vector<std::string> edges = {"0",
                                                 "-1",
                                                 "1",
                                                 "9223372036854775807",
                                                 "9223372036854775808",
                                                 "1e308",
                                                 "1e400",
                                                 "-0.0",
                                                 "4294967296",
                                                 "18446744073709551615",
                                                 "null",
                                                 "[]",
                                                 "{}",
                                                 "\"text\"",
                                                 "true",
                                                 "99999999999",
                                                 "2147483648",
                                                 "0.5"};
  std::vector<size_t> digits;
  for (size_t i = 0; i < input.size(); ++i)
    if (input[i] >= '0' && input[i] <= '9' && (i == 0 || input[i - 1] < '0' || input[i - 1] > '9'))
      digits.push_back(i);
  if (digits.empty()) return;
  const size_t begin = digits[below(random, digits.size())];
  size_t end = begin;
  while (end < input.size() && input[end] >= '0' && input[end] <= '9') ++end;
  const std::string& edge = edges[below(random, edges.size())];
  input.erase(input.begin() + static_cast<ptrdiff_t>(begin),
              input.begin() + static_cast<ptrdiff_t>(end));
  input.insert(input.begin() + static_cast<ptrdiff_t>(begin), edge.begin(), edge.end());
}

void mutate(bytes& input, const bytes& other, engine& random, size_t max_size) {
  const auto at = [&](size_t i) { return input.begin() + static_cast<ptrdiff_t>(i); };
  switch (below(random, 8)) {
    case 0:
      if (!input.empty()) input[below(random, input.size())] ^= uint8_t(1U << below(random, 8));
      break;
    case 1:
      if (!input.empty()) input[below(random, input.size())] = static_cast<uint8_t>(random());
      break;
    case 2:
      input.resize(below(random, input.size() + 1));
      break;
    case 3: {  // a piece twice
      const size_t begin = below(random, input.size() + 1);
      const bytes piece(at(begin),
                        at(begin + below(random, std::min<size_t>(64, input.size() - begin) + 1)));
      input.insert(at(below(random, input.size() + 1)), piece.begin(), piece.end());
      break;
    }
    case 4: {  // a piece less
      const size_t begin = below(random, input.size() + 1);
      input.erase(at(begin),
                  at(begin + below(random, std::min<size_t>(64, input.size() - begin) + 1)));
      break;
    }
    case 5: {  // a piece of another file
      const size_t begin = below(random, other.size() + 1);
      const size_t length = below(random, std::min<size_t>(256, other.size() - begin) + 1);
      input.insert(at(below(random, input.size() + 1)),
                   other.begin() + static_cast<ptrdiff_t>(begin),
                   other.begin() + static_cast<ptrdiff_t>(begin + length));
      break;
    }
    case 6: {  // a length field
      static constexpr uint64_t lengths[] = {
          0, 1, 8, 0xff, 0xffff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, ~uint64_t{0}};
      if (input.size() < 8) break;
      const size_t place = below(random, input.size() - 7);
      const uint64_t value = lengths[below(random, std::size(lengths))];
      for (size_t i = 0; i < 8; ++i) input[place + i] = static_cast<uint8_t>(value >> (8 * i));
      break;
    }
    default:
      replace_number(input, random);
  }
  if (input.size() > max_size) input.resize(max_size);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs a fuzz target over its corpus and over mutations of it.");
  std::vector<std::string> folders;
  uint64_t runs = 1000, seed = 1, memory_mb = 4096;
  size_t max_size = 65536;
  std::string artifact = "fuzz-input", ending;
  app.add_option("corpus", folders, "folders of inputs, or single files")->required();
  app.add_option("--ending", ending, "only files of the folders whose names end so");
  app.add_option("--runs", runs, "mutated inputs");
  app.add_option("--seed", seed, "of the mutations");
  app.add_option("--max-size", max_size, "bytes of an input");
  app.add_option("--memory-mb", memory_mb, "address space above what the program starts with");
  app.add_option("--artifact", artifact, "where the input is left that ends the process");
  CLI11_PARSE(app, argc, argv);

  std::vector<std::filesystem::path> files;
  for (const auto& folder : folders) {
    if (std::filesystem::is_directory(folder))
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        if (entry.is_regular_file() && name.ends_with(ending)) files.push_back(entry.path());
      }
    else
      files.emplace_back(folder);
  }
  std::sort(files.begin(), files.end());
  std::vector<bytes> corpus;
  for (const auto& file : files) corpus.push_back(read_bytes(file));
  if (corpus.empty()) {
    std::fprintf(stderr, "error: the corpus is empty\n");
    return 2;
  }

  // A decoder that believes a length from outside asks for more than this and ends by bad_alloc.
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  statm >> pages;
  const rlim_t limit = pages * 4096 + memory_mb * (rlim_t{1} << 20);
  const rlimit address_space{limit, limit};
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (::setrlimit(RLIMIT_AS, &address_space) != 0) std::perror("setrlimit");
#endif

  const auto run = [&](const bytes& input) {
    {
      std::ofstream out(artifact, std::ios::binary | std::ios::trunc);
      out.write(reinterpret_cast<const char*>(input.data()),
                static_cast<std::streamsize>(input.size()));
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  };
  for (const bytes& input : corpus) run(input);
  engine random(seed);
  for (uint64_t i = 0; i < runs; ++i) {
    bytes input = corpus[below(random, corpus.size())];
    const bytes& other = corpus[below(random, corpus.size())];
    for (size_t n = 1 + below(random, 4); n > 0; --n) mutate(input, other, random, max_size);
    run(input);
  }
  std::filesystem::remove(artifact);
  std::printf("%zu inputs of the corpus and %llu mutations (seed %llu): no fault\n",
              corpus.size(),
              static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(seed));
}
