#include "decision/decision_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace qlora {
namespace {

// What all metrics need of a row.
struct Judged {
  const Prediction* row = nullptr;
  std::int64_t decision = 0;
  std::int64_t right = 0;
  double confidence = 0;
  double accuracy = 0;  // the share of the decision in the target
  double log_loss = 0;
  double brier = 0;

  bool is_right() const { return decision == right; }
};

Judged Judge(const Prediction& row) {
  constexpr double kLeast = 1e-15;
  Judged out = {
      .row = &row, .decision = FirstLargest(row.probabilities), .right = FirstLargest(row.target)};
  out.confidence = row.probabilities[out.decision];
  out.accuracy = row.target[out.decision];
  for (std::size_t k = 0; k < row.target.size(); ++k) {
    const double p = row.probabilities[k];
    const double t = row.target[k];
    if (t > 0) out.log_loss -= t * std::log(std::max(p, kLeast));
    out.brier += (p - t) * (p - t);
  }
  return out;
}

std::int64_t BinOf(double confidence, std::int64_t bins) {
  const auto bin = static_cast<std::int64_t>(std::ceil(confidence * static_cast<double>(bins))) - 1;
  return std::clamp<std::int64_t>(bin, 0, bins - 1);
}

struct Pair {
  double confidence;
  double accuracy;
};

// A bin of equal width, with means of the answers in it.
struct ReliabilityBin {
  double low = 0;   // excluded, but in the first bin
  double high = 0;  // included
  std::int64_t count = 0;
  double confidence = 0;
  double accuracy = 0;
};

std::vector<ReliabilityBin> Reliability(std::span<const Pair> pairs, std::int64_t bins) {
  std::vector<ReliabilityBin> table(static_cast<std::size_t>(bins));
  for (const Pair& pair : pairs) {
    ReliabilityBin& bin = table[BinOf(pair.confidence, bins)];
    ++bin.count;
    bin.confidence += pair.confidence;
    bin.accuracy += pair.accuracy;
  }
  for (std::int64_t b = 0; b < bins; ++b) {
    ReliabilityBin& bin = table[b];
    bin.low = static_cast<double>(b) / static_cast<double>(bins);
    bin.high = static_cast<double>(b + 1) / static_cast<double>(bins);
    if (bin.count == 0) continue;
    bin.confidence /= static_cast<double>(bin.count);
    bin.accuracy /= static_cast<double>(bin.count);
  }
  return table;
}

double EceOf(std::span<const ReliabilityBin> table, std::int64_t count) {
  double sum = 0;
  for (const ReliabilityBin& bin : table) {
    sum += static_cast<double>(bin.count) * std::abs(bin.confidence - bin.accuracy);
  }
  return sum / static_cast<double>(count);
}

double AdaptiveEce(std::vector<Pair> pairs, std::int64_t bins) {
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.confidence < b.confidence; });
  const std::int64_t n = std::ssize(pairs);
  double total = 0;
  for (std::int64_t b = 0; b < bins; ++b) {
    double gap = 0;
    for (std::int64_t i = b * n / bins; i < (b + 1) * n / bins; ++i) {
      gap += pairs[i].confidence - pairs[i].accuracy;
    }
    total += std::abs(gap) / static_cast<double>(n);
  }
  return total;
}

// Answers of one confidence are taken together, as a threshold takes them.
double Coverage(const std::vector<Judged>& rows) {
  constexpr double kMostErrors = 0.05;
  std::vector<std::pair<double, bool>> sorted;  // confidence, right
  for (const Judged& row : rows) sorted.emplace_back(row.confidence, row.is_right());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  std::size_t covered = 0;
  std::size_t errors = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    errors += !sorted[i].second;
    const bool is_whole = i + 1 == sorted.size() || sorted[i + 1].first < sorted[i].first;
    const double allowed = kMostErrors * static_cast<double>(i + 1);
    if (is_whole && static_cast<double>(errors) <= allowed) covered = i + 1;
  }
  return static_cast<double>(covered) / static_cast<double>(sorted.size());
}

// The share of pairs of a true and a false row of which the true one has the larger p; ties half.
OrderedJson Auroc(const std::vector<Judged>& rows) {
  std::map<double, std::array<double, 2>> counts;  // of false and true rows, by p(true)
  std::array<double, 2> totals = {};
  for (const Judged& row : rows) {
    const double share = row.row->target[1];
    if (share == 0.5) continue;
    counts[row.row->probabilities[1]][share > 0.5] += 1;
    totals[share > 0.5] += 1;
  }
  if (totals[0] == 0 || totals[1] == 0) return nullptr;
  double wins = 0;
  double below = 0;  // false rows with a smaller p
  for (const auto& [p, at] : counts) {
    wins += at[1] * (below + at[0] / 2);
    below += at[0];
  }
  return wins / (totals[0] * totals[1]);
}

double MacroF1(const std::vector<Judged>& rows) {
  struct Counts {
    double both = 0;
    double decided = 0;
    double right = 0;
  };
  std::map<std::string_view, std::map<std::string_view, Counts>> by_id;
  for (const Judged& row : rows) {
    auto& keys = by_id[row.row->id];
    ++keys[row.row->keys[row.decision]].decided;
    ++keys[row.row->keys[row.right]].right;
    if (row.is_right()) ++keys[row.row->keys[row.right]].both;
  }
  double sum = 0;
  for (const auto& [id, keys] : by_id) {
    double of_id = 0;
    for (const auto& [key, counts] : keys) {
      of_id += 2 * counts.both / (counts.decided + counts.right);
    }
    sum += of_id / static_cast<double>(keys.size());
  }
  return sum / static_cast<double>(by_id.size());
}

OrderedJson QuadraticKappa(const std::vector<Judged>& rows) {
  std::map<std::size_t, std::int64_t> groups;  // rows by their number of levels
  for (const Judged& row : rows) ++groups[row.row->keys.size()];
  std::size_t n = 0;
  for (const auto& [levels, count] : groups) {
    if (n == 0 || count >= groups[n])
      n = levels;  // of two groups of one size the one of more levels
  }
  std::vector<double> decided(n);
  std::vector<double> right(n);
  double seen = 0;
  for (const Judged& row : rows) {
    if (row.row->keys.size() != n) continue;
    ++decided[row.decision];
    ++right[row.right];
    const auto distance = static_cast<double>(row.decision - row.right);
    seen += distance * distance;
  }
  double chance = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      const double distance = static_cast<double>(i) - static_cast<double>(j);
      chance += distance * distance * decided[i] * right[j];
    }
  }
  if (chance == 0) return nullptr;
  return 1 - seen / (chance / static_cast<double>(groups[n]));
}

void AddMetricsOfType(const std::vector<Judged>& rows, std::int64_t bins, OrderedJson& out) {
  const QuestionType type = rows[0].row->type;
  for (const Judged& row : rows) {
    if (row.row->type != type) return;
  }
  if (type == QuestionType::kNoul) {
    std::vector<Pair> pairs;
    for (const Judged& row : rows) {
      pairs.push_back({row.row->probabilities[1], row.row->target[1]});
    }
    out["auroc"] = Auroc(rows);
    out["ece_true"] = EceOf(Reliability(pairs, bins), std::ssize(rows));
  } else if (type == QuestionType::kChoice) {
    out["macro_f1"] = MacroF1(rows);
  } else {
    double sum = 0;
    for (const Judged& row : rows) {
      sum += std::abs(MeanLevel(row.row->probabilities) - MeanLevel(row.row->target));
    }
    out["mae"] = sum / static_cast<double>(rows.size());
    out["quadratic_kappa"] = QuadraticKappa(rows);
  }
}

// Sums of the rows of one record.
struct RecordSums {
  double count = 0;
  double right = 0;
  double log_loss = 0;
  double brier = 0;
  std::vector<std::pair<std::int64_t, double>> gaps;  // each with its bin
};

OrderedJson Middle95(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const auto place =
        static_cast<std::int64_t>(share * static_cast<double>(values.size() - 1) + 0.5);
    return values[place];
  };
  return {at(0.025), at(0.975)};
}

OrderedJson BootstrapIntervals(std::span<const Prediction> rows, std::int64_t bins) {
  constexpr std::int64_t kDraws = 1000;
  constexpr std::uint64_t kSeed = 0;
  std::vector<RecordSums> records;
  std::unordered_map<std::int64_t, std::size_t> places;
  for (const DecisionScore& score : ScoresOf(rows, bins)) {
    const auto [place, is_new] = places.emplace(score.record, records.size());
    if (is_new) records.emplace_back();
    RecordSums& sums = records[place->second];
    sums.count += 1;
    sums.right += score.is_right;
    sums.log_loss += score.log_loss;
    sums.brier += score.brier;
    sums.gaps.emplace_back(score.bin, score.gap);
  }
  std::array<std::vector<double>, 4> values;  // accuracy, log loss, Brier, ECE
  std::vector<double> gaps(static_cast<std::size_t>(bins));
  const std::uint64_t n = records.size();
  for (std::int64_t draw = 0; draw < kDraws; ++draw) {
    const RandomKey key = MakeKey(kSeed, RandomPlace::kBootstrap, static_cast<std::uint64_t>(draw));
    RecordSums sums;
    std::fill(gaps.begin(), gaps.end(), 0.0);
    for (std::uint64_t i = 0; i < n; ++i) {
      const RecordSums& record = records[RandomBelow(key, i, n)];
      sums.count += record.count;
      sums.right += record.right;
      sums.log_loss += record.log_loss;
      sums.brier += record.brier;
      for (const auto& [bin, gap] : record.gaps) gaps[bin] += gap;
    }
    double ece = 0;
    for (const double gap : gaps) ece += std::abs(gap);
    const std::array sampled = {sums.right, sums.log_loss, sums.brier, ece};
    for (std::size_t m = 0; m < sampled.size(); ++m) values[m].push_back(sampled[m] / sums.count);
  }
  return {{"accuracy", Middle95(std::move(values[0]))},
          {"log_loss", Middle95(std::move(values[1]))},
          {"brier", Middle95(std::move(values[2]))},
          {"ece", Middle95(std::move(values[3]))}};
}

// The metrics of some rows, in the order in which people read them.
OrderedJson MetricsOf(std::span<const Prediction> rows, std::int64_t bins) {
  constexpr double kConfident = 0.9;
  std::vector<Judged> judged;
  std::vector<Pair> pairs;
  double right = 0;
  double log_loss = 0;
  double brier = 0;
  std::int64_t confident_errors = 0;
  for (const Prediction& row : rows) {
    const Judged& j = judged.emplace_back(Judge(row));
    pairs.push_back({j.confidence, j.accuracy});
    right += j.is_right();
    log_loss += j.log_loss;
    brier += j.brier;
    confident_errors += j.confidence >= kConfident && !j.is_right();
  }
  const std::vector<ReliabilityBin> reliability = Reliability(pairs, bins);
  double mce = 0;
  OrderedJson table = OrderedJson::array();
  for (const ReliabilityBin& bin : reliability) {
    if (bin.count == 0) continue;
    mce = std::max(mce, std::abs(bin.confidence - bin.accuracy));
    table.push_back({{"low", bin.low},
                     {"high", bin.high},
                     {"n", bin.count},
                     {"confidence", bin.confidence},
                     {"accuracy", bin.accuracy}});
  }
  const auto n = static_cast<double>(rows.size());
  OrderedJson out = {{"n", std::ssize(rows)},
                     {"accuracy", right / n},
                     {"log_loss", log_loss / n},
                     {"brier", brier / n},
                     {"ece", EceOf(reliability, std::ssize(rows))},
                     {"mce", mce},
                     {"adaptive_ece", AdaptiveEce(std::move(pairs), bins)}};
  AddMetricsOfType(judged, bins, out);
  out["coverage_at_5_percent_error"] = Coverage(judged);
  out["confident_errors"] = confident_errors;
  out["intervals"] = BootstrapIntervals(rows, bins);
  out["reliability"] = std::move(table);
  return out;
}

// Counts of answers of one question, by the right option and the decision: {"keys": [...],
// "counts": [[...], ...]}, a row for each right option.
OrderedJson ConfusionOf(std::span<const Prediction> rows) {
  std::vector<std::string> keys;
  std::unordered_map<std::string, std::size_t> places;
  for (const Prediction& row : rows) {
    for (const std::string& key : row.keys) {
      if (places.emplace(key, keys.size()).second) keys.push_back(key);
    }
  }
  std::vector<std::vector<std::int64_t>> counts(keys.size(),
                                                std::vector<std::int64_t>(keys.size()));
  for (const Prediction& row : rows) {
    ++counts[places[row.keys[FirstLargest(row.target)]]]
            [places[row.keys[FirstLargest(row.probabilities)]]];
  }
  return {{"keys", keys}, {"counts", counts}};
}

// The matrices of a type, by the ids of its questions; null where so many would tell a reader
// nothing.
OrderedJson ConfusionsOf(const std::vector<Prediction>& rows) {
  constexpr std::size_t kMostIds = 20;
  std::map<std::string, std::vector<Prediction>> by_id;
  for (const Prediction& row : rows) by_id[row.id].push_back(row);
  if (by_id.size() > kMostIds) return nullptr;
  OrderedJson out = OrderedJson::object();
  for (const auto& [id, of_id] : by_id) out[id] = ConfusionOf(of_id);
  return out;
}

}  // namespace

void CheckBins(std::int64_t bins) {
  constexpr std::int64_t kMostBins = 10'000;
  if (bins < 1 || bins > kMostBins) {
    ThrowInvalidInput("ece_bins: expected a number from 1 to {}, found {}", kMostBins, bins);
  }
}

std::vector<DecisionScore> ScoresOf(std::span<const Prediction> rows, std::int64_t bins) {
  std::vector<DecisionScore> scores;
  for (const Prediction& row : rows) {
    const Judged j = Judge(row);
    scores.push_back({.record = row.record,
                      .is_right = j.is_right(),
                      .log_loss = j.log_loss,
                      .brier = j.brier,
                      .bin = BinOf(j.confidence, bins),
                      .gap = j.confidence - j.accuracy});
  }
  return scores;
}

OrderedJson MetricsJson(std::span<const Prediction> rows, std::int64_t bins) {
  OrderedJson out = OrderedJson::object();
  if (rows.empty()) return out;
  out["all"] = MetricsOf(rows, bins);
  for (const QuestionType type : kQuestionTypes) {
    std::vector<Prediction> of_type;
    for (const Prediction& row : rows) {
      if (row.type == type) of_type.push_back(row);
    }
    if (of_type.empty()) continue;
    OrderedJson metrics = MetricsOf(of_type, bins);
    metrics["confusion"] = ConfusionsOf(of_type);
    out[std::string(NameOf(type))] = std::move(metrics);
  }
  return out;
}

}  // namespace qlora
