// The dispatcher without its messages: every batch in flight, the pool of batches to be made again,
// the lanes that ask for work, and the room that drafters have granted. Calls bring news,
// take_jobs() says what to hand out now. Single owner, no threads, no CAF.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/runtime/credit_ledger.hpp"
#include "data/batches.hpp"
#include "messages/messages.hpp"

namespace dflash {

struct dispatch_options {
  uint64_t first_k = 0;      // where the run begins, or goes on
  uint64_t end_k = 0;        // of the whole run, exclusive
  uint32_t targets = 1;      // N: lanes 0 .. N - 1; lane N reads stored hidden states
  uint32_t drafters = 1;     // M
  uint64_t batch_bytes = 0;  // hidden states of one batch
  uint32_t read_ahead = 4;   // batches loaded or being loaded, but not handed out
  uint32_t max_drops_in_a_row = 8;
  std::set<uint64_t> dropped = {};  // by an earlier life: they stay dropped
};

enum class batch_state : uint8_t { loaded, dispatched, delivered, trained };

class dispatch_book {
public:
  explicit dispatch_book(dispatch_options options);

  void loaded(const batch_ready& m);
  void lane_asks(uint32_t lane);
  // What the drafter holds or has trained is not handed out again: a restarted dispatcher learns
  // it.
  void granted(const room_grant& m);
  // A producer is gone: what it had and did not deliver goes back to the pool, in the room it has.
  void lane_lost(uint32_t lane);
  // A drafter is gone: its batches that are not committed go back to the pool, without room. Its
  // next life gets them in order of k, before any later one.
  void drafter_lost(uint32_t consumer);
  // To a new loader: what the old one was allowed to make and did not.
  load_credit open_load_credit() const;
  // Of an older reservation: the drafter died meanwhile, nothing changes.
  void delivered_to_drafter(const delivered& m);
  // false: an old grant or an unknown batch; nothing changed.
  bool trained(const credit_return& m);
  // Hidden states were NaN or infinite. The batch is made again once, then it is dropped for good:
  // its room stays reserved until the drafter has passed it. Too many drops in a row throw
  // std::runtime_error.
  enum class verdict : uint8_t { nobody_wants_it, made_again, dropped };
  verdict not_finite(const capture_job& job);
  // Kept hidden states are gone: a target makes them.
  void kept_is_missing(const capture_job& job);
  // A mailbox refused the batch: made again.
  void refused(uint64_t k);
  // All of [first, end) are committed: forgotten.
  void committed(uint64_t end_k);
  void stop_at(uint64_t end_k);

  // Jobs that can start now, with the room for their results reserved, in order of k; batches to be
  // made again go first. Each goes to job.lane.
  std::vector<capture_job> take_jobs();
  // Dropped batches that their drafters are to be told of, with room reserved; after take_jobs().
  std::vector<capture_job> take_dropped();
  // Batches that the loader may send beyond what it was allowed before; 0 batches: none.
  load_credit take_load_credit();

  // For watching: batches handed out and not yet trained; bytes reserved at a drafter.
  size_t in_flight() const;
  const credit_ledger& ledger() const { return ledger_; }
  // Credits, lanes that ask and batches in flight, a line each.
  std::string describe() const;
  std::shared_ptr<const batch> tokens_of(uint64_t k) const;
  uint32_t epoch_of(uint64_t k) const;
  uint64_t faults() const { return faults_; }

private:
  struct entry {
    batch_state state = batch_state::loaded;
    std::shared_ptr<const batch> tokens;
    bool kept = false;
    bool dropped = false;
    uint32_t lane = 0;     // that works on it or has delivered it
    uint32_t epoch = 0;    // of its reservation; 0: it has none
    uint32_t attempt = 0;  // made again after a non-finite value
  };
  // What its drafter has granted.
  struct grant {
    uint32_t life = 0;
    std::shared_ptr<slot_pool> slots;
  };
  uint32_t drafter_of(uint64_t k) const { return static_cast<uint32_t>(k % options_.drafters); }
  std::optional<uint32_t> lane_for(const entry& e) const;
  // To a lane, or to the list of dropped ones.
  void start(uint64_t k, entry& e, std::vector<capture_job>& jobs);
  entry* in_flight_as(uint64_t k, uint32_t epoch);
  entry& at(uint64_t k);

  dispatch_options options_;
  credit_ledger ledger_;
  std::map<uint64_t, entry> entries_;  // by k: loaded .. trained
  std::vector<grant> grants_;          // [drafter]
  std::set<uint64_t> again_;           // dispatched before, waiting for room or a lane
  std::vector<capture_job> dropped_;   // not taken yet
  std::deque<uint32_t> asking_;        // targets that ask, first come first
  bool reader_asks_ = false;
  uint64_t forgotten_k_;    // batches below are committed
  uint64_t next_k_;         // next to be handed out for the first time
  uint64_t next_credit_k_;  // loader may make batches below this
  uint64_t loaded_end_k_;   // it has made those below this
  uint32_t drops_in_a_row_ = 0;
  uint64_t faults_ = 0;
};

}  // namespace dflash
