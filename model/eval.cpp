#include "model/eval.hpp"

#include <algorithm>

#include "config/error.hpp"
#include "model/generate.hpp"

namespace dflash {

namespace {

// Answers whose contexts are held by the proposer at once.
constexpr size_t walk_slots = 32;

void add_counts(std::vector<int64_t>& into, const std::vector<int64_t>& from) {
  into.resize(std::max(into.size(), from.size()), 0);
  for (size_t i = 0; i < from.size(); ++i) into[i] += from[i];
}

void count_at(std::vector<int64_t>& counts, size_t index, bool hit) {
  if (counts.size() <= index) counts.resize(index + 1, 0);
  counts[index] += hit ? 1 : 0;
}

// One answer: drafts[i] were made behind its token i.
walk_trace walk_one(walk_report& report,
                    const walk_item& item,
                    int64_t max_drafts,
                    std::span<const std::vector<int32_t>> drafts) {
  const auto answer = std::span{item.tokens}.subspan(static_cast<size_t>(item.prompt_tokens));
  walk_trace trace;
  trace.lead.assign(drafts.size(), 0);
  for (size_t i = 0; i < drafts.size(); ++i) {
    const auto truth = answer.subspan(i + 1);
    const size_t supervised = std::min(truth.size(), static_cast<size_t>(max_drafts));
    const size_t drafted = std::min(drafts[i].size(), supervised);
    size_t lead = 0;
    while (lead < drafted && drafts[i][lead] == truth[lead]) ++lead;
    trace.lead[i] = static_cast<int64_t>(lead);
    for (size_t k = 0; k < supervised; ++k) {
      count_at(report.supervised_at, k, true);
      count_at(report.hits_at, k, k < drafted && drafts[i][k] == truth[k]);
    }
    report.anchors += 1;
    report.anchor_length += trace.lead[i] + 1;
  }
  // The path of decoding: each pass adds the leading matches and one token, up to the end.
  size_t at = 0;
  while (at < drafts.size()) {
    const int64_t room = item.limit - static_cast<int64_t>(at) - 1;  // new tokens still allowed
    const size_t count = static_cast<size_t>(std::clamp<int64_t>(room - 1, 0, max_drafts));
    const size_t offered = std::min(drafts[at].size(), count);
    const size_t matched = std::min(static_cast<size_t>(trace.lead[at]), offered);
    const size_t added = std::min(matched + 1, drafts.size() - at);
    report.walk.passes += 1;
    report.walk.committed += static_cast<int64_t>(added);
    report.walk.drafted += static_cast<int64_t>(offered);
    for (size_t k = 0; k < offered; ++k) {
      count_at(report.walk.offered_at, k, true);
      count_at(report.walk.accepted_at, k, k < matched);
    }
    trace.passes.push_back({static_cast<int64_t>(at),
                            static_cast<int64_t>(offered),
                            static_cast<int64_t>(matched),
                            static_cast<int64_t>(added)});
    at += added;
  }
  return trace;
}

}  // namespace

void walk_report::add(const walk_report& other) {
  prompts += other.prompts;
  answer_tokens += other.answer_tokens;
  walk.add(other.walk);
  anchors += other.anchors;
  anchor_length += other.anchor_length;
  add_counts(hits_at, other.hits_at);
  add_counts(supervised_at, other.supervised_at);
}

std::vector<walk_item> make_walk_items(const target& model,
                                       const token_documents& prompts,
                                       int64_t first,
                                       int64_t last,
                                       std::span<const int> taps,
                                       const decode_options& options) {
  std::vector<std::span<const int32_t>> asked;
  for (int64_t i = first; i < last; ++i) asked.push_back(prompts.ids(i));
  decode_options keeping = options;
  keeping.keep_taps.assign(taps.begin(), taps.end());
  keeping.first_prompt = static_cast<uint64_t>(first);
  auto answers = decode_prompts(model, asked, nullptr, keeping);
  std::vector<walk_item> items;
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto prompt = asked[i];
    walk_item item{.tokens = {prompt.begin(), prompt.end()},
                   .prompt_tokens = static_cast<int64_t>(prompt.size()),
                   .limit = room_for(static_cast<int64_t>(prompt.size()),
                                     model.config().max_positions,
                                     options.max_new_tokens),
                   .taps = std::move(answers[i].taps),
                   .stop = answers[i].stop};
    item.tokens.insert(item.tokens.end(), answers[i].tokens.begin(), answers[i].tokens.end());
    items.push_back(std::move(item));
  }
  return items;
}

walk_report walk_answers(proposer& drafts,
                         std::span<const walk_item> items,
                         const std::function<void(const walk_item&, const walk_trace&)>& traced) {
  walk_report report;
  std::vector<draft_request> requests;
  for (size_t first = 0; first < items.size(); first += walk_slots) {
    const auto part = items.subspan(first, std::min(walk_slots, items.size() - first));
    size_t capacity = 1;
    for (const auto& item : part) capacity = std::max(capacity, item.tokens.size());
    drafts.start(static_cast<int64_t>(part.size()), static_cast<int64_t>(capacity));
    requests.clear();
    for (size_t slot = 0; slot < part.size(); ++slot) {
      const auto& item = part[slot];
      const auto slot_id = static_cast<int64_t>(slot);
      const auto total = static_cast<int64_t>(item.tokens.size());
      const committed_rows rows{.slot = slot_id,
                                .start = 0,
                                .tokens = std::span{item.tokens}.first(item.tokens.size() - 1)};
      drafts.commit({&rows, 1}, item.taps);
      for (int64_t position = item.prompt_tokens; position + 1 < total; ++position)
        requests.push_back({.slot = slot_id,
                            .position = position,
                            .token = item.tokens[static_cast<size_t>(position)],
                            .count = drafts.max_drafts()});
    }
    const auto drafted = drafts.propose(requests);
    size_t next = 0;
    for (const auto& item : part) {
      const int64_t answered = static_cast<int64_t>(item.tokens.size()) - item.prompt_tokens;
      const auto anchors = static_cast<size_t>(std::max<int64_t>(answered - 1, 0));
      const auto trace =
          walk_one(report, item, drafts.max_drafts(), std::span{drafted}.subspan(next, anchors));
      if (traced) traced(item, trace);
      next += anchors;
      report.prompts += 1;
      report.answer_tokens += answered;
    }
  }
  return report;
}

}  // namespace dflash
