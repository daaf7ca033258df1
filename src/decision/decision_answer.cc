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

  // True for -1 in any spelling, "-1.0" of tables too, unless an option is called so.
  bool IsUnknown(const OrderedJson& answer) const {
    if (answer.is_null()) return true;
    const auto is_minus_one = [](const std::string& text) {
      return ParseNumber<double>(Trim(text)) == -1;
    };
    const bool is_called_so =
        std::ranges::any_of(question_.options, is_minus_one, &DecisionOption::key);
    return is_minus_one(answer.is_string() ? answer.get_ref<const std::string&>()
                                           : FormatJson(answer)) &&
           !is_called_so && !FindLevel(answer);
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
  // Of levels that are numbers, such as 1 to 5.
  [[noreturn]] void FailTwoReadings(const OrderedJson& found) const {
    ThrowInvalidInput(
        "{}: {} names one level of '{}' by its number, which counts from 0, and another by its "
        "text: {}. Write levels that are no numbers, such as \"2 stars\", or the answer as a list "
        "with a probability for each level",
        where_, ShortJson(found), question_.id, ListOfOptions(question_));
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

  // The options that the names of a distribution stand for; -1: none. The keys of levels are their
  // numbers, and so may their texts be.
  std::vector<std::int64_t> OptionsNamed(const OrderedJson& shares) const {
    std::vector<std::int64_t> by_key;
    std::vector<std::int64_t> by_text;
    for (const auto& [name, share] : shares.items()) {
      by_key.push_back(FindOption(question_, name));
      by_text.push_back(FindLevel(name).value_or(-1));
    }
    if (std::ranges::count(by_text, -1) == 0) {
      if (std::ranges::count(by_key, -1) > 0 || by_key == by_text) return by_text;
      FailTwoReadings(shares);
    }
    for (std::size_t i = 0; i < by_key.size(); ++i) {
      if (by_key[i] < 0) by_key[i] = by_text[i];
    }
    return by_key;
  }

  Target ReadShares(const OrderedJson& shares) const {
    const std::vector<std::int64_t> options = OptionsNamed(shares);
    Target target(question_.options.size());
    auto option = options.begin();
    for (const auto& [name, share] : shares.items()) {
      if (*option < 0) FailOption(name);
      target[*option++] += ShareOf(share);
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

  // True for a level that is this value, as text or as a number.
  static bool IsSame(const OrderedJson& level, const OrderedJson& value) {
    if (level.is_null() || level.is_structured()) return false;
    if (TextOrJson(level) == TextOrJson(value)) return true;
    const auto number = NumberOf(level);
    return number && number == NumberOf(value);
  }

  // The level with this text; nothing when none or several have it.
  std::optional<std::int64_t> FindLevel(const OrderedJson& text) const {
    if (question_.type != QuestionType::kScore) return std::nullopt;
    std::optional<std::int64_t> found;
    for (std::int64_t i = 0; i < count(); ++i) {
      const DecisionOption& option = question_.options[i];
      if (!IsSame(option.value, text) && !IsSame(option.description, text)) continue;
      if (found) return std::nullopt;
      found = i;
    }
    return found;
  }

  // The level with this number.
  std::optional<std::int64_t> FindNumbered(const OrderedJson& answer) const {
    const auto number = NumberOf(answer);
    const bool fits = number && *number >= 0 && *number < static_cast<double>(count()) &&
                      *number == std::floor(*number);
    return fits ? std::optional(static_cast<std::int64_t>(*number)) : std::nullopt;
  }

  std::int64_t LevelOf(const OrderedJson& answer) const {
    const auto by_text = FindLevel(answer);
    const auto by_number = FindNumbered(answer);
    if (by_text && by_number && by_text != by_number) FailTwoReadings(answer);
    if (!by_text && !by_number) FailOption(answer);
    return by_text ? *by_text : *by_number;
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
  const AnswerReader reader(question, where, notices);
  if (reader.IsUnknown(answer)) return std::nullopt;
  Target target = reader.Read(answer);
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
