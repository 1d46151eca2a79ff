#include "actors/lane_protocol.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace dflash {

namespace {

using nlohmann::json;

constexpr size_t max_names = 65536;
constexpr int64_t max_row_tokens = int64_t{1} << 24;
constexpr size_t max_block = 1024;

json read(const std::string& text) {
  json value = json::parse(text, nullptr, false);
  if (!value.is_object()) throw std::runtime_error("the call has no body");
  return value;
}

uint64_t number(const json& from, const char* key) {
  const auto found = from.find(key);
  if (found == from.end() || !found->is_number_unsigned())
    throw std::runtime_error(std::string(key) + " is missing, or is no number");
  return found->get<uint64_t>();
}

int64_t count(const json& from, const char* key) {
  const uint64_t value = number(from, key);
  if (value > static_cast<uint64_t>(INT64_MAX))
    throw std::runtime_error(std::string(key) + " is too large");
  return static_cast<int64_t>(value);
}

bool flag(const json& from, const char* key) {
  const auto found = from.find(key);
  if (found == from.end() || !found->is_boolean())
    throw std::runtime_error(std::string(key) + " is missing, or is neither true nor false");
  return found->get<bool>();
}

uint64_t bits(double value) {
  return std::bit_cast<uint64_t>(value);
}
double real(const json& from, const char* key) {
  return std::bit_cast<double>(number(from, key));
}

template <class T>
constexpr at::ScalarType scalar_of();
template <>
constexpr at::ScalarType scalar_of<int32_t>() {
  return at::kInt;
}
template <>
constexpr at::ScalarType scalar_of<int64_t>() {
  return at::kLong;
}
template <>
constexpr at::ScalarType scalar_of<uint8_t>() {
  return at::kByte;
}

// Looks into the list; never written.
template <class T>
at::Tensor view_of(const std::vector<T>& list) {
  return at::from_blob(const_cast<T*>(list.data()),
                       {static_cast<int64_t>(list.size())},
                       at::TensorOptions().dtype(scalar_of<T>()));
}

template <class T>
std::vector<T> list_of(const wire_message& m, size_t index, const char* what) {
  if (index >= m.tensors.size()) throw std::runtime_error(std::string(what) + " is missing");
  const at::Tensor& t = m.tensors[index];
  if (t.dim() != 1 || t.scalar_type() != scalar_of<T>() || !t.is_contiguous() ||
      t.numel() > max_row_tokens)
    throw std::runtime_error(std::string(what) + " is of another type or shape");
  std::vector<T> list(static_cast<size_t>(t.numel()));
  if (!list.empty()) std::memcpy(list.data(), t.const_data_ptr(), t.nbytes());
  return list;
}

void check(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string("a batch that cannot be: ") + what);
}

void check_documents(const batch& b) {
  const auto tokens = static_cast<int64_t>(b.input_ids.size());
  check(tokens > 0, "it has no tokens");
  check(b.doc_offsets.size() >= 2 && b.doc_offsets.front() == 0 && b.doc_offsets.back() == tokens &&
            std::is_sorted(b.doc_offsets.begin(), b.doc_offsets.end()),
        "its documents do not cover it");
  check(std::all_of(b.input_ids.begin(), b.input_ids.end(), [](int32_t id) { return id >= 0; }),
        "a token below 0");
}

constexpr size_t batch_tensors = 7;

}  // namespace

wire_message capture_request(const batch& b) {
  return {
      lane_call::capture, json{{"k", b.k}}.dump(), {view_of(b.input_ids), view_of(b.doc_offsets)}};
}

batch batch_of_capture(const wire_message& m) {
  batch b;
  b.k = number(read(m.body), "k");
  b.input_ids = list_of<int32_t>(m, 0, "input_ids");
  b.doc_offsets = list_of<int32_t>(m, 1, "doc_offsets");
  check_documents(b);
  return b;
}

wire_message encode_accumulate(const batch& b,
                               std::vector<at::Tensor> hidden,
                               bool has_last,
                               bool measured) {
  wire_message m;
  m.method = lane_call::accumulate;
  m.body = json{{"k", b.k},
                {"epoch", b.epoch},
                {"row", static_cast<uint64_t>(b.row)},
                {"real_docs", static_cast<uint64_t>(b.real_docs)},
                {"has_last", has_last},
                {"measured", measured}}
               .dump();
  m.tensors = {view_of(b.input_ids),
               view_of(b.doc_offsets),
               view_of(b.loss_mask),
               view_of(b.anchors),
               view_of(b.anchor_valid),
               view_of(b.prefix),
               view_of(b.documents)};
  for (at::Tensor& t : hidden) m.tensors.push_back(std::move(t));
  return m;
}

accumulate_request decode_accumulate(wire_message m) {
  const json body = read(m.body);
  accumulate_request r;
  batch& b = r.tokens;
  b.k = number(body, "k");
  b.epoch = number(body, "epoch");
  b.row = count(body, "row");
  b.input_ids = list_of<int32_t>(m, 0, "input_ids");
  b.doc_offsets = list_of<int32_t>(m, 1, "doc_offsets");
  b.loss_mask = list_of<uint8_t>(m, 2, "loss_mask");
  b.anchors = list_of<int32_t>(m, 3, "anchors");
  b.anchor_valid = list_of<uint8_t>(m, 4, "anchor_valid");
  b.prefix = list_of<int32_t>(m, 5, "prefix");
  b.documents = list_of<int64_t>(m, 6, "documents");
  check_documents(b);
  const int64_t real_docs = count(body, "real_docs");
  check(real_docs < static_cast<int64_t>(b.doc_offsets.size()), "more documents than it has");
  b.real_docs = static_cast<int32_t>(real_docs);
  const auto tokens = static_cast<int64_t>(b.input_ids.size());
  check(b.loss_mask.size() == b.input_ids.size(), "its mask is of another length");
  check(b.anchor_valid.size() == b.anchors.size() &&
            (b.prefix.empty() || b.prefix.size() == b.anchors.size()),
        "its anchors' lists are of different lengths");
  check(std::all_of(
            b.anchors.begin(), b.anchors.end(), [&](int32_t a) { return a >= 0 && a < tokens; }),
        "an anchor outside of it");
  check(std::all_of(b.prefix.begin(),
                    b.prefix.end(),
                    [](int32_t l) { return l >= 1 && l <= static_cast<int32_t>(max_block); }),
        "a prefix longer than a block");
  r.has_last = flag(body, "has_last");
  r.measured = flag(body, "measured");
  r.hidden.assign(std::make_move_iterator(m.tensors.begin() + batch_tensors),
                  std::make_move_iterator(m.tensors.end()));
  for (const at::Tensor& t : r.hidden)
    check(t.dim() == 2 && t.size(0) == tokens, "hidden states of another length");
  check(!r.has_last || !r.hidden.empty(), "no last hidden state");
  return r;
}

std::string encode_sums(const step_sums& s) {
  std::vector<uint64_t> terms;
  for (const double term : s.terms) terms.push_back(bits(term));
  return json{{"weight_sum", bits(s.weight_sum)},
              {"loss", bits(s.loss)},
              {"terms", terms},
              {"cap_weight", bits(s.cap_weight)},
              {"supervised", s.supervised},
              {"hits", s.hits},
              {"blocks", s.blocks},
              {"lead_sum", s.lead_sum},
              {"top4", s.top4},
              {"top8", s.top8},
              {"cut_blocks", s.cut_blocks},
              {"full_blocks", s.full_blocks},
              {"hits_at", s.hits_at},
              {"supervised_at", s.supervised_at},
              {"finite", s.finite}}
      .dump();
}

step_sums decode_sums(const std::string& text) {
  const json from = read(text);
  step_sums s;
  s.weight_sum = real(from, "weight_sum");
  s.loss = real(from, "loss");
  const auto terms = from.find("terms");
  if (terms == from.end() || !terms->is_array() || terms->size() != s.terms.size())
    throw std::runtime_error("terms are missing, or not as many as there are");
  for (size_t i = 0; i < s.terms.size(); ++i) {
    if (!(*terms)[i].is_number_unsigned()) throw std::runtime_error("a term is no number");
    s.terms[i] = std::bit_cast<double>((*terms)[i].get<uint64_t>());
  }
  s.cap_weight = real(from, "cap_weight");
  s.supervised = count(from, "supervised");
  s.hits = count(from, "hits");
  s.blocks = count(from, "blocks");
  s.lead_sum = count(from, "lead_sum");
  s.top4 = count(from, "top4");
  s.top8 = count(from, "top8");
  s.cut_blocks = count(from, "cut_blocks");
  s.full_blocks = count(from, "full_blocks");
  const auto list = [&](const char* key) {
    const auto found = from.find(key);
    if (found == from.end() || !found->is_array() || found->size() > max_block)
      throw std::runtime_error(std::string(key) + " is missing, or is no list of a block");
    std::vector<int64_t> values;
    for (const json& value : *found) {
      if (!value.is_number_unsigned()) throw std::runtime_error(std::string(key) + ": no number");
      values.push_back(static_cast<int64_t>(value.get<uint64_t>() & INT64_MAX));
    }
    return values;
  };
  s.hits_at = list("hits_at");
  s.supervised_at = list("supervised_at");
  s.finite = flag(from, "finite");
  return s;
}

std::string encode_range(const gradient_range& range) {
  return json{{"begin", range.begin}, {"count", range.count}}.dump();
}

gradient_range decode_range(const std::string& text, int64_t parameters) {
  const json from = read(text);
  const gradient_range range{count(from, "begin"), count(from, "count")};
  if (range.count < 1 || range.count > parameters || range.begin > parameters - range.count)
    throw std::runtime_error("a range outside of the gradient");
  return range;
}

std::string encode_update(const update_call& call) {
  return json{{"weight_sum", bits(call.weight_sum)},
              {"step", call.step},
              {"skip", call.skip},
              {"own", call.own}}
      .dump();
}

update_call decode_update(const std::string& text) {
  const json from = read(text);
  return {real(from, "weight_sum"), number(from, "step"), flag(from, "skip"), flag(from, "own")};
}

std::string encode_report(const update_report& r) {
  return json{{"grad_norm", bits(r.grad_norm)},
              {"lr", bits(r.lr)},
              {"update_norm", bits(r.update_norm)},
              {"skipped", r.skipped}}
      .dump();
}

update_report decode_report(const std::string& text) {
  const json from = read(text);
  update_report r;
  r.grad_norm = real(from, "grad_norm");
  r.lr = real(from, "lr");
  r.update_norm = real(from, "update_norm");
  r.skipped = flag(from, "skipped");
  return r;
}

wire_message encode_state(const replica_state& state) {
  wire_message m;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state.tensors) {
    names.push_back(name);
    m.tensors.push_back(tensor);
  }
  m.body = json{{"names", names}, {"updates", state.updates}}.dump();
  return m;
}

replica_state decode_state(wire_message m) {
  const json body = read(m.body);
  const auto names = body.find("names");
  if (names == body.end() || !names->is_array() || names->size() > max_names ||
      names->size() != m.tensors.size())
    throw std::runtime_error("a state whose names and tensors do not fit");
  replica_state state;
  state.updates = number(body, "updates");
  for (size_t i = 0; i < m.tensors.size(); ++i) {
    if (!(*names)[i].is_string()) throw std::runtime_error("a name that is no text");
    if (m.tensors[i].scalar_type() != at::kFloat)
      throw std::runtime_error("a state that is not fp32");
    state.tensors.emplace_back((*names)[i].get<std::string>(), std::move(m.tensors[i]));
  }
  return state;
}

}  // namespace dflash
