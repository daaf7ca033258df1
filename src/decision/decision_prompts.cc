#include "decision/decision_prompts.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "io/json.h"
#include "prompt/loss_mask.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

// True when a text of the decision, keys of objects included, has one of these.
bool HasAny(const Decision& decision, std::span<const std::string> parts) {
  const auto has_none = [&](const std::string& text, const OrderedJson* = nullptr) {
    return std::none_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return text.find(part) != std::string::npos;
    });
  };
  const auto has_none_in_question = [&](const Question& question) {
    return has_none(question.id) && ForEachText(question.instructions, has_none) &&
           std::ranges::all_of(question.options, [&](const DecisionOption& option) {
             return has_none(option.key) && ForEachText(option.description, has_none);
           });
  };
  return !ForEachText(decision.state, has_none) ||
         !std::ranges::all_of(decision.questions, has_none_in_question);
}

// Puts `mark` behind the first character of every spelling.
class Marker {
 public:
  Marker(std::span<const std::string> spellings, const std::string& mark)
      : spellings_(spellings), mark_(mark) {}

  std::string Marked(const std::string& text) const {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const auto begins = [&](const std::string& spelling) {
        return std::string_view(text).substr(at).starts_with(spelling);
      };
      const bool is_spelling = std::any_of(spellings_.begin(), spellings_.end(), begins);
      const int length = Utf8Length(text[at]);
      out.append(text, at, length);
      if (is_spelling) out += mark_;
      at += length;
    }
    return out;
  }

  OrderedJson Marked(const OrderedJson& value) const {
    if (value.is_string()) return Marked(value.get_ref<const std::string&>());
    if (!value.is_structured()) return value;
    OrderedJson out = value.is_object() ? OrderedJson::object() : OrderedJson::array();
    for (const auto& [key, item] : value.items()) {
      value.is_object() ? void(out[Marked(key)] = Marked(item)) : out.push_back(Marked(item));
    }
    return out;
  }

  Decision Marked(Decision decision) const {
    decision.state = Marked(decision.state);
    for (Question& question : decision.questions) {
      question.id = Marked(question.id);
      question.instructions = Marked(question.instructions);
      for (DecisionOption& option : question.options) {
        option.key = Marked(option.key);
        option.description = Marked(option.description);
      }
    }
    return decision;
  }

 private:
  std::span<const std::string> spellings_;
  const std::string& mark_;
};

}  // namespace

// Fisher and Yates.
OptionOrder ShuffledOrder(const Question& question, std::uint64_t seed, std::int64_t visit,
                          std::int64_t q) {
  OptionOrder order = GivenOrder(question);
  if (question.type != QuestionType::kChoice) return order;
  constexpr int kQuestionBits = 12;
  const RandomKey key =
      MakeKey(seed, RandomPlace::kOptionOrder,
              static_cast<std::uint64_t>(visit) << kQuestionBits | static_cast<std::uint64_t>(q));
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[RandomBelow(key, i, i)]);
  }
  return order;
}

OptionOrder ShiftedOrder(const Question& question, std::int64_t shift) {
  OptionOrder order = GivenOrder(question);
  if (question.type == QuestionType::kChoice) {
    std::rotate(order.begin(), order.begin() + shift % std::ssize(order), order.end());
  }
  return order;
}

OptionOrder LimitOrder(const OptionOrder& order, const std::vector<double>& target,
                       std::int64_t most) {
  std::int64_t free = most;
  for (const std::int64_t option : order) free -= target[option] > 0;
  OptionOrder kept;
  for (const std::int64_t option : order) {
    if (target[option] > 0 || free-- > 0) kept.push_back(option);
  }
  return kept;
}

std::vector<double> InOrder(const std::vector<double>& of_options, const OptionOrder& order) {
  std::vector<double> values;
  for (const std::int64_t option : order) values.push_back(of_options[option]);
  return values;
}

std::vector<double> OfOptions(const std::vector<double>& in_order, const OptionOrder& order,
                              std::int64_t n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < order.size(); ++i) values[order[i]] = in_order[i];
  return values;
}

DecisionPrompter::DecisionPrompter(DecisionTemplate decision_template,
                                   const DecisionTokenizer& tokenizer)
    : template_(std::move(decision_template)),
      tokenizer_(tokenizer),
      labels_(tokenizer.LabelTexts()) {
  for (const AddedToken& token : tokenizer.tokenizer().spec().added_tokens) {
    // A token of one character has no place for a mark inside.
    const bool is_long = std::ssize(token.content) > Utf8Length(token.content[0]);
    if (token.special && is_long) special_.push_back(token.content);
  }
}

bool DecisionPrompter::HasSpecialSpelling(const Decision& decision) const {
  return HasAny(decision, special_);
}

// Returns a character that no text of the decision has, one of those that Unicode keeps free.
// Errors: InvalidInput for a decision that has them all.
std::string DecisionPrompter::MarkFor(const Decision& decision) const {
  for (char32_t c = 0xFDD0; c <= 0xFDEF; ++c) {
    std::string mark;
    AppendUtf8(c, &mark);
    if (!HasAny(decision, {&mark, 1})) return mark;
  }
  ThrowInvalidInput(
      "state: has the spelling of a special token, and the state and its questions have all of the "
      "characters U+FDD0 to U+FDEF, of which one must be free to read it as text; leave one out");
}

std::string DecisionPrompter::Text(const Decision& decision, std::int64_t q,
                                   const OptionOrder& order) const {
  return template_.Render(decision, q, order, labels_);
}

DecisionPrompt DecisionPrompter::Encode(const Decision& decision, std::int64_t q,
                                        const OptionOrder& order) const {
  DecisionPrompt prompt;
  prompt.order = order;
  const std::string mark = HasSpecialSpelling(decision) ? MarkFor(decision) : "";
  const std::string text = mark.empty() ? Text(decision, q, order)
                                        : Text(Marker(special_, mark).Marked(decision), q, order);
  prompt.ids = tokenizer_.Encode(text, mark);
  for (std::size_t i = 0; i < order.size(); ++i) {
    prompt.label_ids.push_back(tokenizer_.labels()[i].id);
  }
  return prompt;
}

std::int64_t SharedPrefix(std::span<const DecisionPrompt> prompts) {
  if (prompts.empty()) return 0;
  std::int64_t shared = std::ssize(prompts[0].ids);
  for (const DecisionPrompt& prompt : prompts) {
    shared =
        std::min({shared, CommonPrefix(prompts[0].ids, prompt.ids), std::ssize(prompt.ids) - 1});
  }
  return std::max<std::int64_t>(shared, 0);
}

}  // namespace qlora
