#include "model/evaluation_history.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

#include "config/error.hpp"
#include "data/files.hpp"

namespace dflash {

namespace {

constexpr int64_t file_format = 1;
constexpr uint64_t largest_file = 64 << 20;

// A number that is none (a drafter that diverged) is null in JSON and loses against every other.
nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

std::optional<double> read_number(const nlohmann::json& j, const char* key) {
  const auto found = j.find(key);
  if (found == j.end()) return std::nullopt;
  return found->is_null() ? std::nan("") : found->get<double>();
}

nlohmann::ordered_json to_json(const evaluation& e) {
  nlohmann::ordered_json j;
  j["step"] = e.step;
  if (e.loss) j["loss"] = number(*e.loss);
  if (e.accept_len) j["accept_len"] = number(*e.accept_len);
  if (e.tau) j["tau"] = number(*e.tau);
  j["rows"] = e.rows;
  j["prompts"] = e.prompts;
  j["passes"] = e.passes;
  j["committed"] = e.committed;
  j["seconds"] = number(e.seconds);
  return j;
}

evaluation parse(const nlohmann::json& j) {
  evaluation e;
  j.at("step").get_to(e.step);
  e.loss = read_number(j, "loss");
  e.accept_len = read_number(j, "accept_len");
  e.tau = read_number(j, "tau");
  j.at("rows").get_to(e.rows);
  j.at("prompts").get_to(e.prompts);
  j.at("passes").get_to(e.passes);
  j.at("committed").get_to(e.committed);
  e.seconds = read_number(j, "seconds").value_or(0);
  return e;
}

}  // namespace

bool evaluation::is_better_than(const evaluation& other) const {
  if (tau && other.tau) return *tau > *other.tau || (std::isnan(*other.tau) && !std::isnan(*tau));
  const double mine = loss.value_or(std::nan("")), its = other.loss.value_or(std::nan(""));
  return mine < its || (std::isnan(its) && !std::isnan(mine));
}

bool evaluation_history::add(const evaluation& result) {
  DFLASH_CHECK(all_.empty() || result.step > all_.back().step,
               "evaluations in the order of steps",
               result.step);
  const bool better = all_.empty() || result.is_better_than(all_[best_]);
  all_.push_back(result);
  if (better) best_ = all_.size() - 1;
  without_better_ = better ? 0 : without_better_ + 1;
  if (patience_ > 0 && without_better_ >= patience_ && !out_of_patience_)
    out_of_patience_ = result.step;
  return better;
}

void write_evaluations(const std::filesystem::path& file,
                       const std::string& settings,
                       const std::vector<evaluation>& all) {
  nlohmann::ordered_json j;
  j["format"] = file_format;
  j["settings"] = settings;
  j["evaluations"] = nlohmann::ordered_json::array();
  for (const evaluation& e : all) j["evaluations"].push_back(to_json(e));
  write_file_atomically(file, j.dump(1) + "\n");
}

stored_evaluations read_evaluations(const std::filesystem::path& file,
                                    const std::string& settings,
                                    uint64_t last_step) {
  stored_evaluations stored;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return stored;
  try {
    const auto j = nlohmann::json::parse(read_file(file, largest_file));
    if (j.at("format").get<int64_t>() != file_format)
      throw error("an unknown format", file.string());
    if (j.at("settings").get<std::string>() != settings) {
      stored.note =
          "earlier evaluations were made with other prompts, text or settings: the best "
          "is looked for anew";
      return stored;
    }
    uint64_t before = 0;
    for (const auto& entry : j.at("evaluations")) {
      evaluation e = parse(entry);
      if (e.step <= before) throw error("steps that do not rise", file.string());
      before = e.step;
      if (e.step <= last_step) stored.all.push_back(e);
    }
  } catch (const std::exception& e) {
    stored.all.clear();
    stored.note = std::string("earlier evaluations cannot be read: ") + e.what();
  }
  return stored;
}

}  // namespace dflash
