#include "model/checkpoint.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <memory>

#include "config/error.hpp"
#include "data/files.hpp"
#include "data/safetensors.hpp"
#include "model/checkpoint_retention.hpp"
#include "tests/model/decode_fixture.hpp"

using namespace dflash;
namespace fs = std::filesystem;

namespace {

std::unique_ptr<drafter_trainer> trainer(const char* optimizer = "muon", double ema = 0) {
  static const auto shared = decode_test::tiny_target();
  const auto config = decode_test::tiny_drafter_config(4);
  optim_section optim;
  optim.name = optimizer;
  optim.ema = ema;
  return std::make_unique<drafter_trainer>(config,
                                           loss_section{},
                                           optim,
                                           decode_test::tiny_drafter(config),
                                           shared,
                                           compute_dtype::fp32,
                                           2000);
}

// Weights and moments that differ from the initial ones.
void update(drafter_trainer& t) {
  t.apply(at::ones_like(t.gradient()), 2.0, 0);
}

void save(const fs::path& folder, drafter_trainer& t, uint64_t steps, int64_t keep = 9) {
  checkpoint_state state;
  state.steps = steps;
  state.next_k = 4 * steps;
  state.dropped = {3};
  trainer_snapshot copy;
  take_snapshot(t, copy);
  write_checkpoint(folder, state, copy, {"[run]\n", at::kBFloat16, {}});
  prune_checkpoints(folder, {keep, 0, {}});
}

void copy_folder(const fs::path& from, const fs::path& to) {
  fs::copy(from, to, fs::copy_options::recursive);
}

void flip_last_byte(const fs::path& file) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(-1, std::ios::end);
  const int byte = f.get();
  f.seekp(-1, std::ios::end);
  f.put(static_cast<char>(byte ^ 1));
}

std::vector<std::string> names(const checkpoint_scan& scan) {
  std::vector<std::string> all;
  for (const auto& r : scan.refusals) all.push_back(r.name);
  return all;
}

}  // namespace

TEST_CASE("a checkpoint brings back weights, moments and counts") {
  const test::scratch_folder folder;
  const auto a = trainer();
  update(*a);
  save(folder.path(), *a, 7);
  const auto scan = find_checkpoint(folder.path());
  REQUIRE(scan.newest);
  CHECK(scan.refusals.empty());
  CHECK(scan.state.steps == 7);
  CHECK(scan.state.updates == 1);
  CHECK(scan.state.dropped == std::vector<uint64_t>{3});
  CHECK(fs::read_symlink(folder.path() / "latest") == "step-7");
  CHECK(fs::exists(*scan.newest / "model.safetensors"));

  const auto b = trainer();
  load_checkpoint(*scan.newest, scan.state, *b);
  CHECK(at::equal(a->flat_masters(), b->flat_masters()));
  const auto moments = a->state().state();
  const auto loaded = b->state().state();
  REQUIRE(moments.size() == loaded.size());
  for (size_t i = 0; i < moments.size(); ++i) CHECK(at::equal(moments[i].second, loaded[i].second));
  update(*a);
  update(*b);
  CHECK(at::equal(a->flat_masters(), b->flat_masters()));

  SECTION("the newest one comes back by its folder") {
    const auto c = trainer();
    CHECK(load_newest_checkpoint(folder.path(), *c)->steps == 7);
    CHECK(c->state().updates() == 1);
    CHECK_FALSE(load_newest_checkpoint(folder.path() / "none", *c));
  }
  SECTION("another optimizer's moments are refused by name") {
    const auto other = trainer("adamw");
    CHECK_THROWS_AS(load_checkpoint(*scan.newest, scan.state, *other), error);
  }
}

TEST_CASE("a moving average is saved in fp32, goes on to the bit, and is what is exported") {
  const test::scratch_folder folder;
  const auto a = trainer("adamw", 0.5);
  update(*a);
  checkpoint_state state;
  state.steps = 1;
  trainer_snapshot copy;
  take_snapshot(*a, copy);
  write_checkpoint(folder.path(), state, copy, {"[run]\n", at::kFloat, {}});
  const auto scan = find_checkpoint(folder.path());
  REQUIRE(scan.newest);
  const auto b = trainer("adamw", 0.5);
  load_checkpoint(*scan.newest, scan.state, *b);
  update(*a);
  update(*b);
  const auto kept = named_tensors(*a->average()), loaded = named_tensors(*b->average());
  for (size_t i = 0; i < kept.size(); ++i) CHECK(at::equal(*kept[i].second, *loaded[i].second));

  const auto file = safetensors_file::open(*scan.newest / "trainer_state.safetensors");
  const auto exported = safetensors_file::open(*scan.newest / "model.safetensors");
  const auto bytes = [](const safetensors_file& f, const std::string& name) {
    const auto raw = f.bytes(f.at(name));
    return std::string(reinterpret_cast<const char*>(raw.data()), raw.size());
  };
  CHECK(bytes(exported, "fc.weight") == bytes(file, "ema.fc.weight"));
  CHECK(bytes(exported, "fc.weight") != bytes(file, "master.fc.weight"));

  SECTION("a run without an average refuses it by name, and the other way round") {
    const auto other = trainer("adamw");
    CHECK_THROWS_WITH(load_checkpoint(*scan.newest, scan.state, *other), Catch::Contains("ema."));
    save(folder.path(), *other, 2);
    const auto plain = find_checkpoint(folder.path());
    CHECK_THROWS_WITH(load_checkpoint(*plain.newest, plain.state, *b), Catch::Contains("ema."));
  }
}

TEST_CASE("the newest good checkpoint is chosen by number and check, the others are named") {
  const test::scratch_folder holder;
  const fs::path folder = holder.path();
  const auto t = trainer();
  save(folder, *t, 999);
  update(*t);
  save(folder, *t, 1000);
  const fs::path good = folder / "step-1000";
  fs::create_directory(folder / "step-1001");
  copy_folder(good, folder / "step-1002");
  fs::resize_file(folder / "step-1002/model.safetensors",
                  fs::file_size(good / "model.safetensors") - 1);
  copy_folder(good, folder / "step-1003");
  fs::resize_file(folder / "step-1003/state.json", 0);
  copy_folder(good, folder / "step-1004");
  flip_last_byte(folder / "step-1004/trainer_state.safetensors");
  copy_folder(good, folder / "step-1005.tmp");
  copy_folder(folder / "step-999", folder / "step-0900000");
  copy_folder(good, folder / "handpicked");
  write_file_atomically(folder / "step-1006", "x");
  copy_folder(good, folder / "step-1007");
  fs::resize_file(folder / "step-1007/model.safetensors", 0);
  fs::remove(folder / "latest");
  fs::create_directory_symlink("step-2000", folder / "latest");

  const auto scan = find_checkpoint(folder);
  REQUIRE(scan.newest);
  CHECK(scan.newest->filename() == "step-1000");
  CHECK(names(scan) == std::vector<std::string>{"step-0900000",
                                                "step-1001",
                                                "step-1002",
                                                "step-1003",
                                                "step-1004",
                                                "step-1005.tmp",
                                                "step-1006",
                                                "step-1007"});
  CHECK_THAT(scan.latest_note, Catch::Contains("step-2000"));

  SECTION("a later damage in the good one falls back to the one before") {
    flip_last_byte(good / "trainer_state.safetensors");
    const auto before = find_checkpoint(folder);
    REQUIRE(before.newest);
    CHECK(before.newest->filename() == "step-999");
  }
  SECTION("without a good one nothing is chosen") {
    fs::remove_all(good);
    fs::remove_all(folder / "step-999");
    const auto none = find_checkpoint(folder);
    CHECK_FALSE(none.newest);
    CHECK_FALSE(none.nothing_there);
  }
  SECTION("keeping two neither counts nor removes damaged ones") {
    save(folder, *t, 1010, 2);
    CHECK(fs::exists(good));
    CHECK_FALSE(fs::exists(folder / "step-999"));
    CHECK(fs::exists(folder / "step-1004"));
    CHECK(find_checkpoint(folder).newest->filename() == "step-1010");
  }
}

TEST_CASE("an empty or missing folder of checkpoints is no damage, nor is a cut off first save") {
  const test::scratch_folder folder;
  CHECK(find_checkpoint(folder.path()).nothing_there);
  fs::create_directory(folder.path() / "step-2.tmp");
  CHECK(find_checkpoint(folder.path()).nothing_there);
  CHECK(find_checkpoint(folder.path() / "none").nothing_there);
}

TEST_CASE("a save that fails leaves older checkpoints and no trace") {
  const test::scratch_folder holder;
  const auto t = trainer();
  save(holder.path(), *t, 1);
  fs::create_directory(holder.path() / "step-2.tmp");
  const auto bad = trainer();
  bad->flat_masters().fill_(std::numeric_limits<float>::quiet_NaN());  // the export refuses NaN
  CHECK_THROWS(save(holder.path(), *bad, 2));
  CHECK_FALSE(fs::exists(holder.path() / "step-2"));
  CHECK_FALSE(fs::exists(holder.path() / "step-2.tmp"));
  CHECK(find_checkpoint(holder.path()).newest->filename() == "step-1");
}

TEST_CASE("a snapshot stays as it was while its trainer goes on, and its memory is used again") {
  const auto t = trainer("adamw", 0.5);
  snapshot_buffer buffer;
  const trainer_snapshot* first = nullptr;
  {
    const auto taken = buffer.take(*t);
    first = taken.get();
    CHECK(taken->bytes() == snapshot_bytes(*t));
    const at::Tensor before = taken->tensors.front().second.clone();
    update(*t);
    CHECK(at::equal(taken->tensors.front().second, before));
    CHECK_FALSE(at::equal(taken->tensors.front().second, *named_tensors(t->masters())[0].second));
    const auto another = buffer.take(*t);  // the first is still being read
    CHECK(another.get() != first);
    CHECK(at::equal(another->tensors.front().second, *named_tensors(t->masters())[0].second));
    first = another.get();
  }
  CHECK(buffer.take(*t).get() == first);
}

TEST_CASE("kept are the newest, the best, every n-th and what is named; leftovers go") {
  const test::scratch_folder holder;
  const fs::path folder = holder.path();
  const auto t = trainer();
  for (const uint64_t steps : {2, 4, 5, 6, 7, 8, 9}) save(folder, *t, steps, 99);
  fs::create_directory(folder / "step-11.tmp");
  point_link(folder, "best", 4);
  fs::resize_file(folder / "step-5/model.safetensors", 3);  // damaged: neither counted nor removed
  prune_checkpoints(folder, {1, 3, {2}});
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder)) left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{
                    "best", "latest", "step-2", "step-4", "step-5", "step-6", "step-9"});
  CHECK(linked_checkpoint(folder, "best") == 4);
  CHECK(linked_checkpoint(folder, "latest") == 9);
  CHECK(check_checkpoint(folder / "best", true).empty());
}

TEST_CASE("checkpoints of another run, of another version and of absurd size are refused by name") {
  const test::scratch_folder holder;
  const fs::path folder = holder.path();
  const auto t = trainer();
  for (const uint64_t steps : {1, 2, 3}) save(folder, *t, steps, 99);
  const auto not_three = [](const fs::path&, const checkpoint_state& state) {
    return state.steps == 3 ? std::string("another run's") : std::string();
  };
  auto scan = find_checkpoint(folder, not_three);
  REQUIRE(scan.newest);
  CHECK(scan.newest->filename() == "step-2");
  REQUIRE(scan.refusals.size() == 1);
  CHECK(scan.refusals[0].why == "another run's");
  // None suits: the caller says more about the newest than a list would.
  scan = find_checkpoint(folder, [](const auto&, const auto&) { return std::string("no"); });
  CHECK(scan.newest->filename() == "step-3");

  const fs::path state = folder / "step-3/state.json";
  std::string text = read_file(state);
  text.replace(text.find("\"format\": 1"), 11, "\"format\": 7");
  write_file_atomically(state, text);
  CHECK_THAT(check_checkpoint(folder / "step-3", false), Catch::Contains("format 7"));
  write_file_atomically(folder / "step-2/state.json", std::string(17 << 20, ' '));
  CHECK_FALSE(check_checkpoint(folder / "step-2", false).empty());
  CHECK(find_checkpoint(folder).newest->filename() == "step-1");
}
