#include "model/generate.hpp"

#include <ATen/ops/index_select.h>

#include <algorithm>
#include <cmath>

#include "config/error.hpp"
#include "device/upload.hpp"

namespace dflash {
namespace {

// Prompt rows that one pass takes on beside the sequences that decode; a longer prompt goes alone.
constexpr int64_t prefill_rows = 1024;

struct sequence {
  int64_t prompt = -1;  // within the group; -1: the slot is free
  int64_t room = 0;
  int32_t last = 0;  // newest token, not yet in the cache
};

bool ends_text(const target_config& config, int32_t id) {
  return std::find(config.eos.begin(), config.eos.end(), id) != config.eos.end();
}

}  // namespace

void check_generate(const generate_options& options) {
  const auto at_least_one = [](int64_t value, const char* name) {
    if (value < 1)
      throw error(std::string(name) + " is " + std::to_string(value), name, "use 1 or more");
  };
  at_least_one(options.max_new_tokens, "--max-new-tokens");
  at_least_one(options.slots, "--slots");
  at_least_one(options.group, "--group");
  at_least_one(options.workers, "--threads");
  at_least_one(options.threads_per_group, "--threads-per-group");
  check_sampling(options.sampling);
}

int64_t room_for(int64_t prompt_tokens, int64_t max_positions, int64_t max_new_tokens) {
  return std::clamp<int64_t>(max_positions - prompt_tokens, 0, max_new_tokens);
}

std::optional<std::vector<answer>> generate_group(const target& model,
                                                  const token_documents& prompts,
                                                  int64_t first,
                                                  int64_t count,
                                                  const generate_options& options,
                                                  const std::function<bool(int64_t)>& go_on) {
  const auto& config = model.config();
  std::vector<answer> answers(count);
  std::vector<int64_t> rooms(count);
  int64_t capacity = 1;
  for (int64_t i = 0; i < count; ++i) {
    const auto length = static_cast<int64_t>(prompts.ids(first + i).size());
    rooms[i] = room_for(length, config.max_positions, options.max_new_tokens);
    if (rooms[i] == 0) answers[i].end = answer_end::no_room;
    // The last new token is never fed back.
    if (rooms[i] > 0) capacity = std::max(capacity, length + rooms[i] - 1);
  }
  const int64_t slots = std::min(options.slots, count);
  kv_cache cache(config, model.dtype(), slots, capacity, 0, model.device());
  std::vector<sequence> sequences(slots);
  int64_t next = 0;  // prompt that the next free slot takes
  while (true) {
    std::vector<target::chunk> chunks;
    std::vector<int64_t> last_rows;
    int64_t rows = 0, fresh = 0;
    for (int64_t slot = 0; slot < slots; ++slot) {
      auto& s = sequences[slot];
      while (s.prompt < 0 && next < count && rooms[next] == 0) ++next;
      if (s.prompt < 0) {
        if (next == count) continue;
        const auto ids = prompts.ids(first + next);
        const auto length = static_cast<int64_t>(ids.size());
        if (fresh > 0 && fresh + length > prefill_rows) continue;
        s.prompt = next;
        s.room = rooms[next++];
        cache.clear(slot);
        chunks.push_back({slot, ids});
        fresh += length;
        rows += length;
      } else {
        chunks.push_back({slot, std::span<const int32_t>(&s.last, 1)});
        rows += 1;
      }
      last_rows.push_back(rows - 1);
    }
    if (chunks.empty()) return answers;
    auto hidden = model.forward(cache, chunks).hidden;
    if (rows != static_cast<int64_t>(last_rows.size()))
      hidden = at::index_select(hidden, 0, upload(last_rows, model.device()));
    std::vector<sampling_key> keys;
    for (const auto& chunk : chunks)
      keys.push_back({static_cast<uint64_t>(first + sequences[chunk.slot].prompt),
                      static_cast<uint64_t>(cache.length(chunk.slot))});
    const auto tokens = sample_rows(model.logits(hidden), config.vocab, options.sampling, keys);
    for (size_t i = 0; i < chunks.size(); ++i) {
      auto& s = sequences[chunks[i].slot];
      auto& answer = answers[s.prompt];
      if (tokens[i] == bad_token) {
        answer.end = answer_end::bad_logits;
        s.prompt = -1;
        continue;
      }
      answer.ids.push_back(tokens[i]);
      s.last = tokens[i];
      const auto made = static_cast<int64_t>(answer.ids.size());
      if (!options.ignore_eos && ends_text(config, tokens[i])) {
        answer.end = answer_end::eos;
        s.prompt = -1;
      } else if (made == s.room) {
        answer.end =
            made == options.max_new_tokens ? answer_end::max_new_tokens : answer_end::context;
        s.prompt = -1;
      }
    }
    if (go_on && !go_on(static_cast<int64_t>(chunks.size()))) return std::nullopt;
  }
}

}  // namespace dflash
