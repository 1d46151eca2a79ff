#include "actors/lane_protocol.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>

namespace dflash {

namespace {

batch some_batch() {
  batch b;
  b.k = 77;
  b.epoch = 3;
  b.row = 5;
  b.input_ids = {4, 5, 6, 7};
  b.doc_offsets = {0, 3, 4};
  b.real_docs = 1;
  b.loss_mask = {0, 1, 1, 0};
  b.anchors = {1, 0};
  b.anchor_valid = {1, 0};
  b.prefix = {1, 2};
  b.documents = {9};
  return b;
}

uint64_t bits(double x) {
  return std::bit_cast<uint64_t>(x);
}

}  // namespace

TEST_CASE("a batch and its hidden states arrive as they were sent") {
  const batch b = some_batch();
  const at::Tensor tap = at::arange(8, at::TensorOptions().dtype(at::kFloat)).view({4, 2});
  const accumulate_request r =
      decode_accumulate(encode_accumulate(b, {tap, tap.add(1)}, true, true));
  CHECK(r.tokens.k == b.k);
  CHECK(r.tokens.epoch == b.epoch);
  CHECK(r.tokens.row == b.row);
  CHECK(r.tokens.input_ids == b.input_ids);
  CHECK(r.tokens.doc_offsets == b.doc_offsets);
  CHECK(r.tokens.real_docs == b.real_docs);
  CHECK(r.tokens.loss_mask == b.loss_mask);
  CHECK(r.tokens.anchors == b.anchors);
  CHECK(r.tokens.anchor_valid == b.anchor_valid);
  CHECK(r.tokens.prefix == b.prefix);
  CHECK(r.tokens.documents == b.documents);
  CHECK(r.has_last);
  CHECK(r.measured);
  REQUIRE(r.hidden.size() == 2);
  CHECK(r.hidden[0].equal(tap));
  CHECK(r.hidden[1].equal(tap.add(1)));
  const batch c = batch_of_capture(capture_request(b));
  CHECK(c.k == b.k);
  CHECK(c.input_ids == b.input_ids);
  CHECK(c.doc_offsets == b.doc_offsets);
}

TEST_CASE("batches that cannot be are refused") {
  const auto refused = [](const std::function<void(batch&)>& spoil) {
    batch b = some_batch();
    spoil(b);
    CHECK_THROWS(decode_accumulate(encode_accumulate(b, {}, false, false)));
  };
  refused([](batch& b) { b.input_ids.clear(); });
  refused([](batch& b) { b.input_ids[1] = -1; });
  refused([](batch& b) { b.doc_offsets = {0, 3}; });
  refused([](batch& b) { b.doc_offsets = {0, 5, 4}; });
  refused([](batch& b) { b.doc_offsets = {}; });
  refused([](batch& b) { b.real_docs = 3; });
  refused([](batch& b) { b.loss_mask.pop_back(); });
  refused([](batch& b) { b.anchors[0] = 4; });
  refused([](batch& b) { b.anchors[0] = -1; });
  refused([](batch& b) { b.anchor_valid.pop_back(); });
  refused([](batch& b) { b.prefix = {0, 1}; });
  refused([](batch& b) { b.prefix = {1}; });
  const at::Tensor of_another_length = at::ones({3, 2});
  CHECK_THROWS(
      decode_accumulate(encode_accumulate(some_batch(), {of_another_length}, false, true)));
  CHECK_THROWS(decode_accumulate(encode_accumulate(some_batch(), {}, true, true)));
  const batch whole = some_batch();  // messages look into it
  wire_message m = encode_accumulate(whole, {}, false, false);
  m.tensors.resize(3);
  CHECK_THROWS(decode_accumulate(m));
  for (const char* text : {"", "[]", "{}", R"({"k": -1})", R"({"k": "1"})"}) {
    m = capture_request(whole);
    m.body = text;
    CHECK_THROWS(batch_of_capture(m));
  }
}

TEST_CASE("sums and reports keep every bit, of what is not finite too") {
  step_sums s;
  s.weight_sum = 0.1;
  s.loss = std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < s.terms.size(); ++i) s.terms[i] = -0.0 + 1e-310 * static_cast<double>(i);
  s.cap_weight = std::numeric_limits<double>::infinity();
  s.supervised = 3;
  s.hits = 2;
  s.hits_at = {0, 1, 1};
  s.supervised_at = {0, 2, 1};
  s.finite = false;
  const step_sums t = decode_sums(encode_sums(s));
  CHECK(bits(t.weight_sum) == bits(s.weight_sum));
  CHECK(bits(t.loss) == bits(s.loss));
  for (size_t i = 0; i < s.terms.size(); ++i) CHECK(bits(t.terms[i]) == bits(s.terms[i]));
  CHECK(bits(t.cap_weight) == bits(s.cap_weight));
  CHECK(t.supervised == 3);
  CHECK(t.hits_at == s.hits_at);
  CHECK(t.supervised_at == s.supervised_at);
  CHECK_FALSE(t.finite);
  CHECK_THROWS(decode_sums("{}"));
  const update_report r = decode_report(encode_report({0.3, 1e-4, -0.0, true}));
  CHECK(bits(r.grad_norm) == bits(0.3));
  CHECK(bits(r.update_norm) == bits(-0.0));
  CHECK(r.skipped);
  const update_call u = decode_update(encode_update({0.7, 12, true, true}));
  CHECK(bits(u.weight_sum) == bits(0.7));
  CHECK(u.step == 12);
  CHECK(u.own);
}

TEST_CASE("a range of the gradient lies in it") {
  const gradient_range r = decode_range(encode_range({3, 7}), 10);
  CHECK(r.begin == 3);
  CHECK(r.count == 7);
  for (const gradient_range& outside : {gradient_range{0, 0},
                                        gradient_range{4, 7},
                                        gradient_range{10, 1},
                                        gradient_range{-1, 2},
                                        gradient_range{INT64_MAX, INT64_MAX},
                                        gradient_range{1, INT64_MAX}})
    CHECK_THROWS(decode_range(encode_range(outside), 10));
  CHECK_THROWS(decode_range("", 10));
  CHECK_THROWS(decode_range(R"({"begin": 0})", 10));
}

TEST_CASE("a state travels with its names") {
  replica_state state;
  state.updates = 4;
  state.tensors = {{"master.a", at::ones({2, 3})}, {"m.a", at::ones({6})}};
  const replica_state back = decode_state(encode_state(state));
  CHECK(back.updates == 4);
  REQUIRE(back.tensors.size() == 2);
  CHECK(back.tensors[1].first == "m.a");
  CHECK(back.tensors[0].second.equal(state.tensors[0].second));
  wire_message m = encode_state(state);
  m.tensors.pop_back();
  CHECK_THROWS(decode_state(m));
  m = encode_state(state);
  m.tensors[0] = m.tensors[0].to(at::kLong);
  CHECK_THROWS(decode_state(m));
}

}  // namespace dflash
