#include "decision/decision_answer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"

namespace qlora {
namespace {

using Target = std::vector<double>;

// Reads one answer; every function throws for what it cannot read.
class AnswerReader {
 public:
  AnswerReader(const Question& question, const std::string& where, Notices& notices)
      : question_(question), where_(where), notices_(notices) {}

  Target Read(const OrderedJson& answer) const {
    if (answer.is_object()) return ReadObject(answer);
    if (answer.is_array()) return ReadList(answer);
    if (const auto values = ValuesOfText(answer)) return Read(*values);
    if (question_.type == QuestionType::kNoul) return ReadSide(answer);
    return Hard(question_.type == QuestionType::kScore ? LevelOf(answer) : KeyOf(answer));
  }

 private:
  std::int64_t count() const { return std::ssize(question_.options); }

  [[noreturn]] void Fail(std::string_view expected, const OrderedJson& found) const {
    ThrowInvalidInput("{}: expected {}, found {}", where_, expected, ShortJson(found));
  }
  [[noreturn]] void FailOption(const OrderedJson& found) const {
    ThrowInvalidInput("{}: {} is not among the options of '{}': {}", where_, ShortJson(found),
                      question_.id, ListOfOptions(question_));
  }

  Target Hard(std::int64_t option) const {
    Target target(question_.options.size());
    target[option] = 1;
    return target;
  }

  // A column of a table holds an object or a list as text.
  std::optional<OrderedJson> ValuesOfText(const OrderedJson& answer) const {
    if (!answer.is_string()) return std::nullopt;
    const auto text = answer.get<std::string>();
    if (!text.starts_with('{') && !text.starts_with('[')) return std::nullopt;
    if (FindOption(question_, text) >= 0) return std::nullopt;
    return ParseOrderedJson(text, where_, DuplicateKeys::kRefuse);
  }

  static std::optional<double> NumberOf(const OrderedJson& value) {
    if (value.is_number()) return value.get<double>();
    if (!value.is_string()) return std::nullopt;
    return ParseNumber<double>(value.get_ref<const std::string&>());
  }

  double ShareOf(const OrderedJson& value) const {
    const auto share = NumberOf(value);
    if (!share || !std::isfinite(*share) || *share < 0) {
      Fail("a probability, which is a number from 0 on", value);
    }
    return *share;
  }

  Target Normalized(Target target, const OrderedJson& answer) const {
    double sum = 0;
    for (const double share : target) sum += share;
    if (!(sum > 0) || !std::isfinite(sum)) Fail("probabilities that are not all 0", answer);
    constexpr double kMostRounding = 1e-3;
    if (std::abs(sum - 1) > kMostRounding) notices_.push_back(kNoticeSum);
    for (double& share : target) share /= sum;
    return target;
  }

  Target ReadList(const OrderedJson& list) const {
    if (std::ssize(list) != count()) {
      ThrowInvalidInput("{}: expected {} probabilities, one for each option, found {}", where_,
                        count(), ShortJson(list));
    }
    Target target;
    for (const OrderedJson& value : list) target.push_back(ShareOf(value));
    return Normalized(std::move(target), list);
  }

  // The option that a key of a distribution names: its key, or the text of a level.
  std::int64_t FindNamed(const std::string& name) const {
    const std::int64_t option = FindOption(question_, name);
    return option >= 0 ? option : FindLevel(name).value_or(-1);
  }

  Target ReadObject(const OrderedJson& answer) const {
    bool is_distribution = !answer.empty();
    for (const auto& [name, share] : answer.items()) {
      is_distribution = is_distribution && FindNamed(name) >= 0;
    }
    if (is_distribution) return ReadShares(answer);
    if (const OrderedJson* shares = FindField(answer, "probabilities")) {
      return shares->is_object() ? ReadShares(*shares) : ReadList(*shares);
    }
    for (const char* key : {"label", "noul", "choice"}) {
      const OrderedJson* value = FindField(answer, key);
      if (value != nullptr && !value->is_structured()) return Read(*value);
    }
    return ReadShares(answer);
  }

  Target ReadShares(const OrderedJson& shares) const {
    Target target(question_.options.size());
    for (const auto& [name, share] : shares.items()) {
      const std::int64_t option = FindNamed(name);
      if (option < 0) FailOption(name);
      target[option] += ShareOf(share);
    }
    return Normalized(std::move(target), shares);
  }

  // true, false, or the probability of true.
  Target ReadSide(const OrderedJson& answer) const {
    if (answer.is_boolean()) return Hard(answer.get<bool>() ? 1 : 0);
    const std::string text = answer.is_string() ? LowerCase(answer.get<std::string>()) : "";
    if (text == "true" || text == "false") return Hard(text == "true" ? 1 : 0);
    if (text == "yes" || text == "no") {
      notices_.push_back(kNoticeYesNo);
      return Hard(text == "yes" ? 1 : 0);
    }
    const auto share = NumberOf(answer);
    if (!share || !(*share >= 0 && *share <= 1)) {
      Fail("true, false, or the probability of true from 0 to 1", answer);
    }
    return {1 - *share, *share};
  }

  // The level with this text; nothing when none or several have it.
  std::optional<std::int64_t> FindLevel(const std::string& text) const {
    if (question_.type != QuestionType::kScore) return std::nullopt;
    std::optional<std::int64_t> found;
    for (std::int64_t i = 0; i < count(); ++i) {
      const DecisionOption& option = question_.options[i];
      if (option.value != text && option.description != text) continue;
      if (found) return std::nullopt;
      found = i;
    }
    return found;
  }

  std::int64_t LevelOf(const OrderedJson& answer) const {
    if (answer.is_string()) {
      if (const auto level = FindLevel(answer.get<std::string>())) return *level;
    }
    const auto number = NumberOf(answer);
    const bool fits = number && *number >= 0 && *number < static_cast<double>(count()) &&
                      *number == std::floor(*number);
    if (!fits) FailOption(answer);
    return static_cast<std::int64_t>(*number);
  }

  std::int64_t KeyOf(const OrderedJson& answer) const {
    const std::int64_t option = FindOption(question_, TextOrJson(answer));
    if (option < 0) FailOption(answer);
    return option;
  }

  const Question& question_;
  const std::string& where_;
  Notices& notices_;
};

}  // namespace

std::optional<Target> ReadTarget(const Question& question, const OrderedJson& answer,
                                 const std::string& where, Notices& notices) {
  const bool is_unknown = answer == -1 || answer == "-1";
  if (answer.is_null() || (is_unknown && FindOption(question, "-1") < 0)) return std::nullopt;
  Target target = AnswerReader(question, where, notices).Read(answer);
  const auto [least, most] = std::minmax_element(target.begin(), target.end());
  if (*least == *most && target.size() > 1) notices.push_back(kNoticeUniform);
  return target;
}

Target HardTarget(const Target& target) {
  Target hard(target.size());
  hard[FirstLargest(target)] = 1;
  return hard;
}

}  // namespace qlora
