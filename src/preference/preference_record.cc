#include "preference/preference_record.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "preference/answer_messages.h"
#include "prompt/known_fields.h"
#include "prompt/record_format.h"

namespace qlora {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::string_view kChosen[] = {"chosen", "chosen_response", "preferred_output"};
constexpr std::string_view kRejected[] = {"rejected", "rejected_response", "non_preferred_output"};
constexpr std::string_view kChosenIds[] = {"chosen_ids", "chosen_input_ids"};
constexpr std::string_view kRejectedIds[] = {"rejected_ids", "rejected_input_ids"};
constexpr std::string_view kCompletion[] = {"completion"};
constexpr std::string_view kCompletionIds[] = {"completion_ids", "completion_input_ids"};
constexpr std::string_view kPromptIds[] = {"prompt_ids", "prompt_input_ids"};
constexpr std::string_view kLabel[] = {"label", "kto_tag"};
constexpr std::string_view kChosenScore[] = {"score_chosen", "chosen_score"};
constexpr std::string_view kRejectedScore[] = {"score_rejected", "rejected_score"};
constexpr std::string_view kTurns[] = {"messages", "conversations", "conversation"};
constexpr std::string_view kQuestions[] = {"prompt", "question", "query"};

struct Field {
  std::string name;
  const OrderedJson* value = nullptr;  // null: there is none

  explicit operator bool() const { return value != nullptr; }
};

// The field of this meaning; of several that are equal the first. Errors: InvalidInput for several
// that differ, of which one would be lost.
Field Find(const OrderedJson& record, Names names) {
  Field found;
  for (const std::string_view name : names) {
    const auto field = record.find(name);
    if (field == record.end() || field->is_null()) continue;
    if (found && *found.value != *field) {
      ThrowInvalidInput(
          "the fields '{}' and '{}' mean the same and differ; keep one, or leave one out with "
          "ignore_fields: {}",
          found.name, name, name);
    }
    if (!found) found = {std::string(name), &*field};
  }
  return found;
}
bool Has(const OrderedJson& record, Names names) {
  return std::ranges::any_of(
      names, [&](std::string_view name) { return HasField(record, std::string(name).c_str()); });
}

Field Require(const OrderedJson& record, Names names) {
  if (Field found = Find(record, names)) return found;
  for (const std::string_view name : names) {
    if (record.contains(name)) ThrowInvalidInput("field '{}' is null, expected an answer", name);
  }
  RequiredField(record, std::string(names.front()).c_str());
  return {};
}

// Takes a field out of the record, and those that repeat it.
void Erase(OrderedJson& record, Names names) {
  for (const std::string_view name : names) record.erase(std::string(name));
}

// Gives the record a field. Errors: InvalidInput where it has another one of this name.
void Put(OrderedJson& record, const std::string& name, OrderedJson value) {
  const auto there = record.find(name);
  if (there != record.end() && !SaysNothing(*there) && *there != value) {
    ThrowInvalidInput(
        "field '{}' holds something else than the prompt and the answers, which get that name; "
        "leave it out with ignore_fields: {}",
        name, name);
  }
  record[name] = std::move(value);
}

// The messages before the last one, which is the answer.
struct SplitTurns {
  OrderedJson prompt;
  OrderedJson answer;  // a message
};
SplitTurns SplitLastAnswer(const Field& field) {
  OrderedJson turns = AsTurns(*field.value);
  if (!turns.is_array()) {
    ThrowInvalidInput("field '{}': expected a list of messages, found {}", field.name,
                      KindOf(turns));
  }
  CheckAnswer(turns, field.name);
  OrderedJson answer = turns.back();
  turns.erase(turns.size() - 1);
  CheckPrompt(turns, field.name);
  return {std::move(turns), std::move(answer)};
}

// The record of tokens as they are: those of the prompt are masked. base: the other fields.
OrderedJson OfIds(OrderedJson base, const OrderedJson& prompt, const Field& completion) {
  if (!prompt.is_array()) ThrowInvalidInput("field 'prompt_ids': expected a list of token ids");
  if (!completion.value->is_array() || completion.value->empty()) {
    ThrowInvalidInput("field '{}': expected a list of token ids that is not empty",
                      completion.name);
  }
  OrderedJson ids = prompt;
  OrderedJson labels(OrderedJson::array_t(prompt.size(), -100));
  for (const OrderedJson& id : *completion.value) {
    ids.push_back(id);
    labels.push_back(id);
  }
  Put(base, "input_ids", std::move(ids));
  Put(base, "labels", std::move(labels));
  return base;
}

// The record of an answer in messages. base: the other fields.
OrderedJson OfMessages(OrderedJson base, OrderedJson prompt, OrderedJson answer) {
  Put(base, "prompt", std::move(prompt));
  Put(base, "completion", std::move(answer));
  return base;
}

// Takes a prompt out of `base` that stands beside the messages before the answers. Errors:
// InvalidInput for one that says something else, which would be lost.
void TakeRepeated(OrderedJson& base, const OrderedJson& messages) {
  const Field question = Find(base, kQuestions);
  if (!question || SaysNothing(*question.value)) return Erase(base, kQuestions);
  const OrderedJson value = AsTurns(*question.value);
  const bool is_said =
      value.is_string() ? HasContent(messages, value.get<std::string>()) : value == messages;
  if (!is_said) {
    ThrowInvalidInput(
        "field '{}' is none of the messages before the answers; mend it, or leave it out with "
        "ignore_fields: {}",
        question.name, question.name);
  }
  Erase(base, kQuestions);
}

// Takes messages out of `base` that stand beside a prompt: data sets repeat a whole conversation.
// Errors: InvalidInput as TakeRepeated.
void TakeRepeatedTurns(OrderedJson& base, const OrderedJson& prompt, const OrderedJson& chosen,
                       const OrderedJson& rejected) {
  const Field turns = Find(base, kTurns);
  if (!turns) return;
  const OrderedJson value = AsTurns(*turns.value);
  const auto is_whole = [&](const OrderedJson& answer) {
    return value.is_array() && value.size() == prompt.size() + answer.size() &&
           Slice(value, 0, prompt.size()) == prompt &&
           Slice(value, prompt.size(), value.size()) == answer;
  };
  if (value != prompt && !is_whole(chosen) && !is_whole(rejected)) {
    ThrowInvalidInput(
        "field '{}' is another conversation than the prompt and its answers; leave one of them out "
        "with ignore_fields",
        turns.name);
  }
  Erase(base, kTurns);
}

// Both answers as lists of messages, without the prompt.
PreferenceRecord OfAnswers(OrderedJson base, const OrderedJson& prompt, OrderedJson chosen,
                           OrderedJson rejected) {
  TakeRepeated(base, prompt);
  TakeRepeatedTurns(base, prompt, chosen, rejected);
  if (AskedIn(chosen) != AskedIn(rejected)) {
    ThrowInvalidInput(
        "the turns of the user in chosen and rejected differ, so that they answer different "
        "questions; end both before the turns that differ");
  }
  PreferenceRecord record;
  record.answers = {OfMessages(base, prompt, std::move(chosen)),
                    OfMessages(base, prompt, std::move(rejected))};
  return record;
}

// Both answers are lists of messages.
PreferenceRecord OfLists(OrderedJson base, const OrderedJson& chosen, const OrderedJson& rejected) {
  for (const Names names : {Names(kQuestions), Names(kTurns)}) {
    const Field given = Find(base, names);
    const OrderedJson prompt = given ? AsTurns(*given.value) : OrderedJson();
    // Data sets repeat a whole conversation as messages.
    const bool repeats = names.data() == kTurns && (prompt == chosen || prompt == rejected);
    if (!prompt.is_array() || prompt.empty() || repeats) continue;
    CheckPrompt(prompt, given.name);
    Erase(base, names);
    const auto answer = [&](const OrderedJson& side) {
      const bool begins = !prompt.empty() && BeginsWith(side, prompt);
      return begins ? Slice(side, prompt.size(), side.size()) : side;
    };
    return OfAnswers(std::move(base), prompt, answer(chosen), answer(rejected));
  }
  const std::size_t common = CommonMessages(chosen, rejected);
  if (common == 0) {
    ThrowInvalidInput(
        "chosen and rejected share no message before an answer of the assistant; expected the same "
        "first messages, or a field 'prompt'");
  }
  const OrderedJson shared = Slice(chosen, 0, common);
  return OfAnswers(std::move(base), shared, Slice(chosen, common, chosen.size()),
                   Slice(rejected, common, rejected.size()));
}

// The record of an answer that is a text or one message. base: the other fields, the prompt
// included.
OrderedJson OfAnswer(OrderedJson base, const OrderedJson& answer) {
  if (const Field turns = Find(base, kTurns)) {
    OrderedJson prompt = AsTurns(*turns.value);
    CheckPrompt(prompt, turns.name);
    Erase(base, kTurns);
    TakeRepeated(base, prompt);
    return OfMessages(std::move(base), std::move(prompt), MessagesOf(answer));
  }
  if (HasField(base, "instruction") && answer.is_string()) {
    Put(base, "output", answer);
    return base;
  }
  const Field question = Find(base, kQuestions);
  if (!question && answer.is_string()) {
    Put(base, "text", answer);
    return base;
  }
  OrderedJson prompt = question ? AsTurns(*question.value) : RequiredField(base, "prompt");
  Erase(base, kQuestions);
  if (answer.is_string() && !prompt.is_array()) {
    return OfMessages(std::move(base), std::move(prompt), answer);
  }
  if (prompt.is_string()) {
    prompt = OrderedJson::array({{{"role", "user"}, {"content", prompt}}});
  }
  CheckPrompt(prompt, "prompt");
  return OfMessages(std::move(base), std::move(prompt), MessagesOf(answer));
}

// The fields around the answers; OpenAI's are inside `input`.
OrderedJson Around(const OrderedJson& record) {
  OrderedJson base = record;
  Erase(base, kChosen);
  Erase(base, kRejected);
  if (base.contains("input") && base["input"].is_object()) {
    const OrderedJson input = base["input"];
    base.erase("input");
    for (const auto& [name, value] : input.items()) {
      if (name != "parallel_tool_calls") Put(base, name, value);
    }
  }
  return base;
}

// Texts whose prompt is what they begin with alike.
void CheckImplicit(const std::string& chosen, const std::string& rejected) {
  if (chosen == rejected) return;  // counted as identical
  if (chosen.starts_with(rejected) || rejected.starts_with(chosen)) {
    ThrowInvalidInput(
        "one of chosen and rejected is the beginning of the other, so that it has no answer; "
        "expected a field 'prompt', or texts that differ");
  }
  const auto ends = std::ranges::mismatch(chosen, rejected);
  if (FirstBytes(chosen, ends.in1 - chosen.begin()).empty()) {
    ThrowInvalidInput(
        "chosen and rejected begin with different characters, so that they have no prompt; "
        "expected texts that begin alike, or a field 'prompt'");
  }
}

PreferenceRecord OfPair(const OrderedJson& record) {
  // {"messages": [..., answer], "rejected_response": text}
  if (!Has(record, kChosen) && HasField(record, "rejected_response") && Has(record, kTurns)) {
    const Field field = Find(record, kTurns);
    SplitTurns turns = SplitLastAnswer(field);
    OrderedJson whole = record;
    Erase(whole, kTurns);
    whole[field.name] = std::move(turns.prompt);
    whole["chosen"] = std::move(turns.answer);
    return OfPair(whole);
  }
  const Field first = Require(record, kChosen);
  const Field second = Require(record, kRejected);
  const OrderedJson chosen = AsTurns(*first.value);
  const OrderedJson rejected = AsTurns(*second.value);
  CheckAnswer(chosen, first.name);
  CheckAnswer(rejected, second.name);
  if (chosen.is_array() != rejected.is_array()) {
    ThrowInvalidInput("'{}' is {} and '{}' is {}, expected both of one kind", first.name,
                      KindOf(chosen), second.name, KindOf(rejected));
  }
  OrderedJson base = Around(record);
  if (chosen.is_array()) return OfLists(std::move(base), chosen, rejected);
  PreferenceRecord read;
  read.answers = {OfAnswer(base, chosen), OfAnswer(base, rejected)};
  read.implicit = read.answers[0].contains("text") && !base.contains("text");
  if (read.implicit) CheckImplicit(chosen.get<std::string>(), rejected.get<std::string>());
  return read;
}

// {"prompt_ids", "chosen_ids", "rejected_ids"}: the tokens stand for the texts of the answers.
PreferenceRecord OfPairIds(const OrderedJson& record) {
  const OrderedJson& prompt = *Require(record, kPromptIds).value;
  const Field chosen = Require(record, kChosenIds);
  const Field rejected = Require(record, kRejectedIds);
  OrderedJson base = record;
  for (const Names names : {Names(kPromptIds), Names(kChosenIds), Names(kRejectedIds),
                            Names(kChosen), Names(kRejected)}) {
    Erase(base, names);
  }
  PreferenceRecord read;
  read.answers = {OfIds(base, prompt, chosen), OfIds(base, prompt, rejected)};
  return read;
}

// Some data sets keep what judges thought of the answers of a pair.
bool ScoresDisagree(const OrderedJson& record) {
  const auto score = [&record](Names names) -> const OrderedJson* {
    for (const std::string_view name : names) {
      const auto field = record.find(name);
      if (field != record.end() && field->is_number()) return &*field;
    }
    return nullptr;
  };
  const OrderedJson* chosen = score(kChosenScore);
  const OrderedJson* rejected = score(kRejectedScore);
  return chosen != nullptr && rejected != nullptr &&
         !(chosen->get<double>() > rejected->get<double>());
}

bool LabelOf(const OrderedJson& value, std::string_view name) {
  if (value.is_boolean()) return value.get<bool>();
  if (value == 1) return true;
  if (value == 0) return false;
  if (value.is_string()) {
    const std::string text = LowerCase(value.get<std::string>());
    if (text == "true") return true;
    if (text == "false") return false;
  }
  ThrowInvalidInput("field '{}': expected true or false, found {}", name, FormatJson(value));
}

// {"prompt_ids", "completion_ids"}, {"prompt", "completion"}, or a conversation whose last turn is
// the answer.
OrderedJson Labelled(OrderedJson record) {
  Erase(record, kLabel);
  if (const Field ids = Find(record, kCompletionIds)) {
    OrderedJson base = record;
    for (const Names names : {Names(kPromptIds), Names(kCompletionIds), Names(kCompletion)}) {
      Erase(base, names);
    }
    return OfIds(std::move(base), *Require(record, kPromptIds).value, ids);
  }
  if (const Field field = Find(record, kTurns)) {
    SplitTurns turns = SplitLastAnswer(field);
    Erase(record, kTurns);
    TakeRepeated(record, turns.prompt);
    return OfMessages(std::move(record), std::move(turns.prompt),
                      OrderedJson::array({std::move(turns.answer)}));
  }
  const OrderedJson completion = AsTurns(*Require(record, kCompletion).value);
  CheckAnswer(completion, "completion");
  Erase(record, kCompletion);
  return OfAnswer(std::move(record), completion);
}

}  // namespace

bool LooksLikePreference(const OrderedJson& record) {
  if (Has(record, kRejected) || Has(record, kRejectedIds)) return true;
  return Has(record, kLabel) &&
         (Has(record, kCompletion) || Has(record, kTurns) || Has(record, kCompletionIds));
}

bool IsVerdict(std::string_view name, const OrderedJson& value) {
  return name == "kto_tag" || (name == "label" && value.is_boolean());
}

PreferenceRecord ReadPreferenceRecord(const OrderedJson& record) {
  if (!record.is_object()) ThrowInvalidInput("expected an object with fields");
  const bool has_ids = Has(record, kChosenIds) || Has(record, kRejectedIds);
  if (has_ids || Has(record, kRejected) || Has(record, kChosen)) {
    PreferenceRecord pair = has_ids ? OfPairIds(record) : OfPair(record);
    if (ScoresDisagree(record)) pair.notices.push_back(kNoticeScores);
    return pair;
  }
  const Field label = Find(record, kLabel);
  if (!label) {
    for (const std::string_view name : kLabel) {
      if (!record.contains(name)) continue;
      ThrowInvalidInput(
          "field '{}': expected true or false, found null; leave out answers that nobody has "
          "judged, "
          "or have such records dropped with bad_records drop",
          name);
    }
    ThrowInvalidInput(
        "no preference in the record: expected chosen and rejected, or an answer with a label "
        "(completion and label, conversations and kto_tag)");
  }
  PreferenceRecord read;
  read.label = LabelOf(*label.value, label.name);
  if (!label.value->is_boolean()) read.notices.push_back(kNoticeLabel);
  read.answers = {Labelled(record)};
  return read;
}

}  // namespace qlora
