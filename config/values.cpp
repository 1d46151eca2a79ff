#include "config/values.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "config/error.hpp"

namespace dflash::detail {

namespace {

template <class... Fs>
struct overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
overloaded(Fs...) -> overloaded<Fs...>;  // Clang 14 does not make it by itself

template <class T>
const T& look(member<T> at, const run_config& config) {
  return at(const_cast<run_config&>(config));  // the accessors only find the member
}

std::string found_text(const toml::node& value) {
  if (const auto* v = value.as_string()) return "the string " + toml_string(v->get());
  if (const auto* v = value.as_integer()) return "the whole number " + std::to_string(v->get());
  if (const auto* v = value.as_floating_point()) return "the number " + number_text(v->get());
  if (const auto* v = value.as_boolean()) return v->get() ? "true" : "false";
  if (value.is_array()) return "a list";
  if (value.is_table()) return "a table";
  return "a date or time";
}

// What a reader needs to refuse a value: the key's name and the place.
struct reader {
  const key& k;
  const std::string& where;

  std::string example() const {
    if (const auto text = print_value(k, run_config{}))
      return "e.g. " + std::string(k.leaf()) + " = " + *text;
    return std::string(k.help);
  }

  [[noreturn]] void wrong_type(const toml::node& value) const {
    throw error(std::string(k.name) + " must be " + type_text(k) + ", not " + found_text(value),
                where,
                example());
  }

  [[noreturn]] void out_of_range(const std::string& found) const {
    throw error(std::string(k.name) + " must be " + range_text(k) + ", not " + found,
                where,
                std::string(k.help));
  }

  std::int64_t integer(const toml::node& value) const {
    if (const auto* v = value.as_integer()) return v->get();
    wrong_type(value);
  }

  double number(const toml::node& value) const {
    if (const auto* v = value.as_floating_point()) return v->get();
    if (const auto* v = value.as_integer()) return static_cast<double>(v->get());
    wrong_type(value);
  }

  bool flag(const toml::node& value) const {
    if (const auto* v = value.as_boolean()) return v->get();
    wrong_type(value);
  }

  std::string text(const toml::node& value, const choices& one_of) const {
    const auto* v = value.as_string();
    if (v == nullptr) wrong_type(value);
    for (const char c : v->get())
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
        throw error(
            std::string(k.name) + " has a control character in it: " + toml_string(v->get()),
            where);
    if (!one_of.empty() && std::find(one_of.begin(), one_of.end(), v->get()) == one_of.end()) {
      std::vector<std::string> known(one_of.begin(), one_of.end());
      const auto near = nearest(v->get(), known);
      throw error(
          std::string(k.name) + " must be " + range_text(k) + ", not " + toml_string(v->get()),
          where,
          near ? "did you mean \"" + *near + "\"?" : std::string(k.help));
    }
    return v->get();
  }

  const toml::array& list(const toml::node& value) const {
    if (const auto* v = value.as_array()) return *v;
    wrong_type(value);
  }
};

void read(const reader& r, const integer_key& b, const toml::node& value, run_config& config) {
  const std::int64_t v = r.integer(value);
  if (v < b.least || v > b.most) r.out_of_range(std::to_string(v));
  b.at(config) = v;
}

void read(const reader& r, const seed_key& b, const toml::node& value, run_config& config) {
  const std::int64_t v = r.integer(value);
  if (v < 0) r.out_of_range(std::to_string(v));
  b.at(config) = static_cast<std::uint64_t>(v);
}

void read(const reader& r, const number_key& b, const toml::node& value, run_config& config) {
  const double v = r.number(value);
  const bool low = b.above_least ? v <= b.least : v < b.least;
  if (!std::isfinite(v) || low || v > b.most) r.out_of_range(number_text(v));
  b.at(config) = v;
}

void read(const reader& r, const flag_key& b, const toml::node& value, run_config& config) {
  b.at(config) = r.flag(value);
}

void read(const reader& r,
          const optional_flag_key& b,
          const toml::node& value,
          run_config& config) {
  b.at(config) = r.flag(value);
}

void read(const reader& r, const text_key& b, const toml::node& value, run_config& config) {
  b.at(config) = r.text(value, b.one_of);
}

void read(const reader& r, const texts_key& b, const toml::node& value, run_config& config) {
  std::vector<std::string> all;
  for (const toml::node& v : r.list(value)) all.push_back(r.text(v, b.one_of));
  b.at(config) = std::move(all);
}

void read(const reader& r, const integers_key& b, const toml::node& value, run_config& config) {
  std::vector<int> all;
  for (const toml::node& v : r.list(value)) {
    const std::int64_t i = r.integer(v);
    if (i < b.least || i > std::numeric_limits<int>::max()) r.out_of_range(std::to_string(i));
    all.push_back(static_cast<int>(i));
  }
  b.at(config) = std::move(all);
}

void read(const reader& r, const pair_key& b, const toml::node& value, run_config& config) {
  const toml::array& list = r.list(value);
  if (list.size() != 2) r.out_of_range("a list of " + std::to_string(list.size()));
  std::array<double, 2> pair{};
  for (std::size_t i = 0; i < 2; ++i) {
    pair[i] = r.number(list[i]);
    if (!(pair[i] >= 0.0 && pair[i] < 1.0)) r.out_of_range(number_text(pair[i]));
  }
  b.at(config) = pair;
}

void read(const reader& r, const weights_key& b, const toml::node& value, run_config& config) {
  const toml::table* table = value.as_table();
  if (table == nullptr) r.wrong_type(value);
  std::map<std::string, double> weights;
  for (auto&& [name, node] : *table) {
    const std::string term(name.str());
    if (std::find(b.names.begin(), b.names.end(), term) == b.names.end())
      throw error("unknown name " + toml_string(term) + " in " + std::string(r.k.name),
                  r.where,
                  range_text(r.k));
    const double weight = r.number(node);
    if (!std::isfinite(weight) || weight < 0.0) r.out_of_range(number_text(weight));
    weights[term] = weight;
  }
  b.at(config) = std::move(weights);
}

void read(const reader& r, const addresses_key& b, const toml::node& value, run_config& config) {
  const toml::table* table = value.as_table();
  if (table == nullptr) r.wrong_type(value);
  std::map<std::string, std::string> addresses;
  for (auto&& [key_name, node] : *table) {
    const std::string name(key_name.str());
    if (!is_node_name(name))
      throw error(toml_string(name) + " in " + std::string(r.k.name) + " is no name of a node",
                  r.where,
                  "letters, digits, \".\", \"_\" and \"-\", at most 63 of them");
    const auto* text = node.as_string();
    if (text == nullptr || text->get().empty())
      throw error(std::string(r.k.name) + "." + name + " must be an address",
                  r.where,
                  "a string, e.g. \"10.0.0.2:5555\"");
    addresses[name] = text->get();
  }
  b.at(config) = std::move(addresses);
}

void read(const reader& r, const bytes_key& b, const toml::node& value, run_config& config) {
  if (const auto* v = value.as_integer()) {
    if (v->get() < 0) r.out_of_range(std::to_string(v->get()));
    b.at(config) = static_cast<std::uint64_t>(v->get());
    return;
  }
  const auto* text = value.as_string();
  if (text == nullptr) r.wrong_type(value);
  const auto bytes = parse_bytes(text->get());
  if (!bytes)
    throw error(std::string(r.k.name) + " is not a size: " + toml_string(text->get()),
                r.where,
                "write a number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, e.g. \"8 GB\"");
  b.at(config) = *bytes;
}

void read(const reader& r, const span_key& b, const toml::node& value, run_config& config) {
  if (const auto* v = value.as_integer()) {
    if (v->get() < 0) r.out_of_range(std::to_string(v->get()));
    b.at(config) = {.share = 0.0, .steps = v->get()};
    return;
  }
  const double share = r.number(value);
  if (!(share >= 0.0 && share <= 1.0)) r.out_of_range(number_text(share));
  b.at(config) = {.share = share, .steps = -1};
}

template <class Range, class Print>
std::string listed(const Range& range, Print&& print) {
  std::string text = "[";
  for (const auto& value : range) text += (text.size() > 1 ? ", " : "") + print(value);
  return text + "]";
}

std::string bytes_text(std::uint64_t bytes) {
  struct unit {
    std::uint64_t size;
    const char* name;
  };
  constexpr unit units[] = {
      {1ull << 30, "GiB"}, {1'000'000'000ull, "GB"}, {1ull << 20, "MiB"}, {1'000'000ull, "MB"}};
  for (const unit& u : units)
    if (bytes != 0 && bytes % u.size == 0)
      return "\"" + std::to_string(bytes / u.size) + " " + u.name + "\"";
  return std::to_string(bytes);
}

std::string span_text(const step_span& span) {
  return span.steps >= 0 ? std::to_string(span.steps) : number_text(span.share);
}

std::string backticked(const choices& names) {
  std::string text;
  for (const auto name : names) text += (text.empty() ? "`" : ", `") + std::string(name) + "`";
  return text;
}

std::string integer_range(std::int64_t least, std::int64_t most) {
  const bool open = most == std::numeric_limits<std::int64_t>::max();
  return open ? "at least " + std::to_string(least)
              : "from " + std::to_string(least) + " to " + std::to_string(most);
}

std::string short_number(double value) {  // 1000 rather than 1e+03
  const std::string text = number_text(value);
  if (value == std::floor(value) && std::abs(value) < 1e9)
    return std::to_string(static_cast<std::int64_t>(value));
  return text;
}

}  // namespace

void read_value(const key& k,
                const toml::node& value,
                const std::string& where,
                run_config& config) {
  const reader r{k, where};
  std::visit([&](const auto& b) { read(r, b, value, config); }, k.bound);
}

std::optional<std::string> print_value(const key& k, const run_config& config) {
  using text = std::optional<std::string>;
  return std::visit(
      overloaded{
          [&](const integer_key& b) -> text {
            const std::int64_t v = look(b.at, config);
            if (v < b.least) return std::nullopt;  // a required key that is not given
            return std::to_string(v);
          },
          [&](const seed_key& b) -> text { return std::to_string(look(b.at, config)); },
          [&](const number_key& b) -> text { return number_text(look(b.at, config)); },
          [&](const flag_key& b) -> text { return look(b.at, config) ? "true" : "false"; },
          [&](const optional_flag_key& b) -> text {
            const auto& v = look(b.at, config);
            if (!v) return std::nullopt;
            return *v ? "true" : "false";
          },
          [&](const text_key& b) -> text { return toml_string(look(b.at, config)); },
          [&](const texts_key& b) -> text {
            return listed(look(b.at, config), [](const std::string& v) { return toml_string(v); });
          },
          [&](const integers_key& b) -> text {
            return listed(look(b.at, config), [](int v) { return std::to_string(v); });
          },
          [&](const pair_key& b) -> text { return listed(look(b.at, config), number_text); },
          [&](const weights_key& b) -> text {
            std::string all;
            for (const auto& [name, weight] : look(b.at, config))
              all += (all.empty() ? " " : ", ") + name + " = " + number_text(weight);
            return "{" + all + (all.empty() ? "}" : " }");
          },
          [&](const addresses_key& b) -> text {
            std::string all;
            for (const auto& [name, address] : look(b.at, config))
              all += (all.empty() ? " " : ", ") + toml_string(name) + " = " + toml_string(address);
            return "{" + all + (all.empty() ? "}" : " }");
          },
          [&](const bytes_key& b) -> text { return bytes_text(look(b.at, config)); },
          [&](const span_key& b) -> text { return span_text(look(b.at, config)); },
      },
      k.bound);
}

std::string type_text(const key& k) {
  return std::visit(
      overloaded{
          [](const integer_key&) -> std::string { return "a whole number"; },
          [](const seed_key&) -> std::string { return "a whole number"; },
          [](const number_key&) -> std::string { return "a number"; },
          [](const flag_key&) -> std::string { return "true or false"; },
          [](const optional_flag_key&) -> std::string { return "true or false"; },
          [](const text_key&) -> std::string { return "a string"; },
          [](const texts_key&) -> std::string { return "a list of strings"; },
          [](const integers_key&) -> std::string { return "a list of whole numbers"; },
          [](const pair_key&) -> std::string { return "a list of two numbers"; },
          [](const weights_key&) -> std::string { return "a table of numbers"; },
          [](const addresses_key&) -> std::string { return "a table of strings"; },
          [](const bytes_key&) -> std::string { return "a size (\"8 GB\", or bytes)"; },
          [](const span_key&) -> std::string {
            return "a share (0.0 to 1.0) or a whole number of steps";
          },
      },
      k.bound);
}

std::string range_text(const key& k) {
  return std::visit(
      overloaded{
          [](const integer_key& b) { return integer_range(b.least, b.most); },
          [](const seed_key&) -> std::string { return "at least 0"; },
          [](const number_key& b) {
            std::string text = (b.above_least ? "above " : "at least ") + short_number(b.least);
            if (b.most < std::numeric_limits<double>::max())
              text += ", at most " + short_number(b.most);
            return text;
          },
          [](const flag_key&) { return std::string(); },
          [](const optional_flag_key&) { return std::string(); },
          [](const text_key& b) {
            return b.one_of.empty() ? std::string() : "one of " + backticked(b.one_of);
          },
          [](const texts_key& b) {
            return b.one_of.empty() ? std::string() : "of " + backticked(b.one_of);
          },
          [](const integers_key& b) { return "each at least " + std::to_string(b.least); },
          [](const pair_key&) -> std::string { return "two numbers from 0 to below 1"; },
          [](const weights_key& b) {
            return "names " + backticked(b.names) + ", weights at least 0";
          },
          [](const addresses_key&) -> std::string { return "names of nodes, HOST:PORT each"; },
          [](const bytes_key&) -> std::string { return "at least 0"; },
          [](const span_key&) -> std::string { return "from 0.0 to 1.0, or steps from 0"; },
      },
      k.bound);
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      constexpr char digits[] = "0123456789abcdef";
      out += "\\u00";
      out += digits[static_cast<unsigned char>(c) >> 4];
      out += digits[static_cast<unsigned char>(c) & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace dflash::detail
