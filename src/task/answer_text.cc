#include "task/answer_text.h"

#include <algorithm>
#include <map>

#include "io/pattern.h"
#include "jinja/python_str.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

bool IsPunctuation(char c) {
  constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
  return kPunctuation.find(c) != std::string_view::npos;
}

// The first group of the match that took part in it, or the fallback.
std::string SelectMatch(std::string_view answer, const FilterStep& step, std::string_view where) {
  const std::vector<std::vector<std::string>> found = FindAll(step.pattern, answer, where);
  const std::int64_t count = std::ssize(found);
  const std::int64_t index = step.group_select < 0 ? count + step.group_select : step.group_select;
  if (index < 0 || index >= count) return step.fallback;
  const std::vector<std::string>& groups = found[index];
  const auto group = std::find_if(groups.begin(), groups.end(),
                                  [](const std::string& text) { return !text.empty(); });
  const bool is_tuple = groups.size() > 1;
  if (group == groups.end() && is_tuple) return step.fallback;
  return std::string(jinja::StripText(group == groups.end() ? groups.front() : *group));
}

std::string Normalized(std::string_view text, const TaskMetric& metric, std::string_view where) {
  std::string out(text);
  for (const std::string& pattern : metric.regexes_to_ignore) {
    out = ReplaceMatches(pattern, "", out, where);
  }
  if (metric.ignore_case) out = LowerText(out);
  if (metric.ignore_punctuation) std::erase_if(out, IsPunctuation);
  if (metric.ignore_numbers) std::erase_if(out, [](char c) { return c >= '0' && c <= '9'; });
  return out;
}

std::map<std::string, std::int64_t> CountWords(std::string_view text) {
  std::string plain = LowerText(text);
  std::erase_if(plain, IsPunctuation);
  plain = ReplaceMatches("\\b(a|an|the)\\b", " ", plain, "f1");
  std::map<std::string, std::int64_t> counts;
  for (const std::vector<std::string>& word : FindAll("\\S+", plain, "f1")) ++counts[word.front()];
  return counts;
}

}  // namespace

std::string CutAtStops(std::string text, const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (!stop.empty()) text.resize(std::min(text.find(stop), text.size()));
  }
  return text;
}

std::string Filtered(std::string answer, const TaskFilter& filter, std::string_view where) {
  for (const FilterStep& step : filter.steps) {
    switch (step.kind) {
      case FilterStep::kRegex:
        answer = SelectMatch(answer, step, where);
        break;
      case FilterStep::kRemoveWhitespace:
        answer = std::string(jinja::StripText(answer, jinja::Side::kLeft));
        break;
      case FilterStep::kLowercase:
        answer = LowerText(answer);
        break;
      case FilterStep::kTakeFirst:
        break;  // there is one answer
    }
  }
  return answer;
}

bool ExactMatch(std::string_view answer, std::string_view target, const TaskMetric& metric,
                std::string_view where) {
  return Normalized(answer, metric, where) == Normalized(target, metric, where);
}

double WordF1(std::string_view answer, std::string_view target) {
  const auto left = CountWords(answer);
  const auto right = CountWords(target);
  const auto total = [](const auto& counts) {
    std::int64_t sum = 0;
    for (const auto& [word, count] : counts) sum += count;
    return sum;
  };
  const std::int64_t sum = total(left) + total(right);
  if (sum == 0) return 1;
  std::int64_t both = 0;
  for (const auto& [word, count] : left) {
    const auto other = right.find(word);
    if (other != right.end()) both += std::min(count, other->second);
  }
  return 2.0 * static_cast<double>(both) / static_cast<double>(sum);
}

}  // namespace qlora
