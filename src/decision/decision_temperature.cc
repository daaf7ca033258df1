#include "decision/decision_temperature.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "base/text.h"
#include "decision/decision_loss.h"
#include "decision/decision_wire.h"

namespace qlora {
namespace {

// The mean derivatives of the cross-entropy in b = 1/T: it is convex, and the second is a variance.
struct Slope {
  double first = 0;
  double second = 0;
};

Slope SlopeAt(std::span<const Prediction> rows, double b) {
  Slope sum;
  std::vector<double> scaled;
  for (const Prediction& row : rows) {
    const std::vector<double>& z = row.logits;
    scaled = z;
    for (double& logit : scaled) logit *= b;
    const std::vector<double> p = Softmax(std::span<const double>(scaled));
    const double mean = std::inner_product(p.begin(), p.end(), z.begin(), 0.0);
    sum.first += mean - std::inner_product(row.target.begin(), row.target.end(), z.begin(), 0.0);
    for (std::size_t k = 0; k < z.size(); ++k) sum.second += p[k] * (z[k] - mean) * (z[k] - mean);
  }
  const auto n = static_cast<double>(rows.size());
  return {sum.first / n, sum.second / n};
}

struct CountRange {
  std::int64_t least;
  std::int64_t most;
};

CountRange OptionsOf(QuestionType type) {
  if (type == QuestionType::kNoul) return {2, 2};
  return type == QuestionType::kScore ? CountRange{kMinLevels, kMaxLevels}
                                      : CountRange{1, kMaxOptions};
}

bool AllEqual(const std::vector<double>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

}  // namespace

// A number has one spelling, by which it is found.
bool IsTemperatureName(std::string_view name) {
  for (const QuestionType type : kQuestionTypes) {
    if (name == NameOf(type)) return true;
    const auto [least, most] = OptionsOf(type);
    for (std::int64_t options = least; options <= most; ++options) {
      if (name == fmt::format("{}.{}", NameOf(type), options)) return true;
    }
  }
  return false;
}

void Temperatures::Set(const std::string& name, double temperature, std::string_view where) {
  if (!IsTemperatureName(name)) {
    ThrowInvalidInput(
        "{}: expected temperatures of noul, choice and score, or of a number of options that these "
        "may have, as choice.3, found '{}'",
        where, name);
  }
  if (!(temperature > 0) || !std::isfinite(temperature)) {
    ThrowInvalidInput("{}: the temperature of {} must be above 0, found {}", where, name,
                      temperature);
  }
  values_[name] = temperature;
}

double Temperatures::Of(QuestionType type, std::int64_t options) const {
  const std::string name(NameOf(type));
  for (const std::string& key : {fmt::format("{}.{}", name, options), name}) {
    const auto found = values_.find(key);
    if (found != values_.end()) return found->second;
  }
  return 1;
}

Temperatures ParseTemperatures(std::string_view list, std::string_view where) {
  Temperatures temperatures;
  for (const std::string_view word : Words(list, ',')) {
    const std::size_t equals = word.find('=');
    const auto number =
        ParseNumber<double>(Trim(word.substr(std::min(equals, word.size() - 1) + 1)));
    if (equals == std::string_view::npos || !number) {
      ThrowInvalidInput("{}: expected noul=1.2,choice=0.9,score=1.5 or some of these, found '{}'",
                        where, list);
    }
    const std::string name(Trim(word.substr(0, equals)));
    if (temperatures.values().contains(name)) {
      ThrowInvalidInput("{}: {} appears twice, expected one temperature of it", where, name);
    }
    temperatures.Set(name, *number, where);
  }
  return temperatures;
}

// Newton's method inside a bracket of b = 1/T, and halving it where a step would leave it.
double FitTemperature(std::span<const Prediction> rows) {
  constexpr int kMostSteps = 200;
  constexpr double kFlat = 1e-14;
  constexpr double kSame = 1e-15;
  double low = 1 / kMostTemperature;
  double high = 1 / kLeastTemperature;
  const bool is_flat = std::all_of(rows.begin(), rows.end(),
                                   [](const Prediction& row) { return AllEqual(row.logits); });
  if (is_flat) return 1;
  if (SlopeAt(rows, low).first >= 0) return kMostTemperature;
  if (SlopeAt(rows, high).first <= 0) return kLeastTemperature;
  double b = 1;
  for (int step = 0; step < kMostSteps; ++step) {
    const Slope slope = SlopeAt(rows, b);
    if (std::abs(slope.first) < kFlat) break;
    (slope.first < 0 ? low : high) = b;
    double next = slope.second > 0 ? b - slope.first / slope.second : low;
    if (!(next > low && next < high)) next = (low + high) / 2;
    if (std::abs(next - b) < kSame * b) break;
    b = next;
  }
  return 1 / b;
}

std::vector<FittedTemperature> FitTemperatures(std::span<const Prediction> rows,
                                               std::int64_t min_questions) {
  std::vector<FittedTemperature> all;
  for (const QuestionType type : kQuestionTypes) {
    std::vector<Prediction> of_type;
    for (const Prediction& row : rows) {
      if (row.type != type) continue;
      if (row.logits.empty()) {
        ThrowInvalidInput("logits: missing; temperatures are fitted to the logits of the labels");
      }
      of_type.push_back(row);
    }
    if (of_type.empty()) continue;
    FittedTemperature& out = all.emplace_back();
    out.type = type;
    out.questions = std::ssize(of_type);
    out.is_few = out.questions < min_questions;
    if (out.is_few) continue;
    out.fitted = FitTemperature(of_type);
    out.is_at_bound = out.fitted == kLeastTemperature || out.fitted == kMostTemperature;
    out.temperature = out.is_at_bound ? 1 : out.fitted;
  }
  return all;
}

Temperatures ToUse(std::span<const FittedTemperature> fitted) {
  Temperatures temperatures;
  for (const FittedTemperature& one : fitted) {
    temperatures.Set(std::string(NameOf(one.type)), one.temperature, "temperature");
  }
  return temperatures;
}

std::string Describe(const FittedTemperature& fitted) {
  const std::string of = Counted(fitted.questions, "question");
  if (fitted.is_few) {
    return fmt::format("{}: {} are too few to fit a temperature: 1 is used", NameOf(fitted.type),
                       of);
  }
  if (fitted.is_at_bound) {
    return fmt::format(
        "{}: {} of {} is at its bound, because {}: 1 is used", NameOf(fitted.type), fitted.fitted,
        of, fitted.fitted < 1 ? "every answer is right" : "the answers are no better than chance");
  }
  return fmt::format("{}: {:.4f}, of {}", NameOf(fitted.type), fitted.fitted, of);
}

}  // namespace qlora
