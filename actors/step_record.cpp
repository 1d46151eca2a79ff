#include "actors/step_record.hpp"

#include <vector>

namespace dflash {

namespace {

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

}  // namespace

void step_total::add(const batch_report& m) {
  ++batches;
  tokens += m.tokens;
  if (m.dropped) ++dropped;
  if (!m.sums) return;
  all += *m.sums;
  if (m.measured) measured += *m.sums;
}

double accuracy(const step_sums& sums) {
  return share(sums.hits, sums.supervised);
}

double expected_length(const step_sums& sums) {
  double product = 1, sum = 0;
  for (size_t k = 1; k < sums.hits_at.size(); ++k) {
    product *= share(sums.hits_at[k], sums.supervised_at[k]);
    sum += product;
  }
  return sum;
}

json_object step_record(const step_done& done, const step_total& total, const loss_terms& terms) {
  json_object line;
  const double weight = total.all.weight_sum;
  const auto mean = [&](double sum) { return weight > 0 ? sum / weight : 0.0; };
  line.add("step", done.step + 1).add("k", done.end_k).add("epoch", done.epoch);
  line.add("loss", mean(total.all.loss));
  for (size_t t = 0; t < loss_term_names.size(); ++t)
    if (t == 0 || terms.factor[t] != 0)
      line.add(std::string(loss_term_names[t]), mean(total.all.terms[t]));
  if (terms.of(kernel::loss_term::cap) != 0)
    line.add("cap", mean(total.all.of(kernel::loss_term::cap)))
        .add("cap_coverage", mean(total.all.cap_weight));
  line.add("weight_sum", weight).add("supervised", total.all.supervised);
  const step_sums& m = total.measured;
  if (m.blocks > 0) {
    std::vector<double> by_slot;
    for (size_t k = 1; k < m.hits_at.size(); ++k)
      by_slot.push_back(share(m.hits_at[k], m.supervised_at[k]));
    line.add("acc", accuracy(m)).add("acc_at", std::span<const double>(by_slot));
    line.add("accept_len", m.accept_len()).add("streak", m.accept_len() - 1);
    line.add("eal", expected_length(m));
    line.add("top4", share(m.top4, m.supervised)).add("top8", share(m.top8, m.supervised));
    line.add("cut_share", share(m.cut_blocks, m.blocks));
    line.add("full_block", share(m.full_blocks, m.blocks - m.cut_blocks));
    line.add("blocks", m.blocks);
  }
  line.add("grad_norm", static_cast<double>(done.grad_norm));
  line.add("lr", static_cast<double>(done.rate));
  line.add("update_norm", static_cast<double>(done.update_norm));
  if (done.has_loss_z) line.add("loss_z", static_cast<double>(done.loss_z));
  line.add("skipped", done.skipped);
  if (done.skipped) line.add("skipped_for", skip_cause_name(done.skipped_for));
  if (total.dropped > 0) line.add("dropped", total.dropped);
  return line;
}

json_object evaluation_line(const evaluation_history& history, uint64_t index) {
  const evaluation& e = history.all().at(index);
  evaluation_history before;
  for (uint64_t i = 0; i < index; ++i) before.add(history.all()[i]);
  json_object line;
  line.add("kind", "eval").add("step", e.step);
  if (e.loss) line.add("held_out_loss", *e.loss).add("held_out_accept_len", *e.accept_len);
  if (e.loss) line.add("rows", e.rows);
  if (e.tau) line.add("tau", *e.tau).add("prompts", e.prompts);
  if (e.tau) line.add("passes", e.passes).add("committed", e.committed);
  line.add("best", before.add(e));
  json_object time;
  time.add("seconds", e.seconds);
  line.add("time", time);
  return line;
}

}  // namespace dflash
