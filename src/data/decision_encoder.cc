#include "data/decision_encoder.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/random.h"
#include "decision/decision_wire.h"
#include "io/json.h"

namespace qlora {
namespace {

// A number of a visit of the record for its order of options, the same in every run.
std::uint64_t NumberOf(const OrderedJson& state, std::int64_t visit) {
  auto hash = static_cast<std::uint64_t>(visit);
  for (const char byte : FormatJson(state)) {
    hash = MixBits(hash ^ static_cast<std::uint64_t>(static_cast<unsigned char>(byte)));
  }
  return hash >> 1;  // a visit is a number from 0 on
}

}  // namespace

Sample SampleOf(std::span<const AnsweredPrompt> prompts, bool share_prefix) {
  std::vector<DecisionPrompt> all;
  for (const AnsweredPrompt& it : prompts) all.push_back(it.prompt);
  const std::int64_t shared = all.size() > 1 && share_prefix ? SharedPrefix(all) : 0;
  Sample sample;
  if (shared > 0) sample.ids.assign(all[0].ids.begin(), all[0].ids.begin() + shared);
  for (const AnsweredPrompt& it : prompts) {
    if (prompts.size() > 1) sample.branches.push_back(std::ssize(sample.ids));
    const std::vector<std::int32_t>& ids = it.prompt.ids;
    sample.ids.insert(sample.ids.end(), ids.begin() + shared, ids.end());
    sample.choices.push_back({std::ssize(sample.ids) - 1, static_cast<std::int32_t>(it.type),
                              it.prompt.label_ids, it.target});
  }
  sample.labels.assign(sample.ids.size(), kIgnoreLabel);
  return sample;
}

PromptLayout WithDecisionTemplate(PromptLayout layout, const DecisionOptions& options,
                                  const Tokenizer& tokenizer, const ChatTemplate* chat) {
  if (layout.kind != PromptLayout::Kind::kDecision) return layout;
  if (!layout.prompt_template.empty() && options.decision_template.empty()) return layout;
  const DecisionTokenizer decisions(tokenizer, options.space);
  layout.prompt_template = LoadDecisionTemplate(options.decision_template, decisions, chat).text();
  return layout;
}

DecisionEncoder::DecisionEncoder(std::string text, const DecisionOptions& options,
                                 const Tokenizer& tokenizer)
    : options_(options),
      tokenizer_(tokenizer, options.space),
      prompter_(DecisionTemplate(std::move(text), "the decision template"), tokenizer_) {
  CheckDecisionTemplate(prompter_.decision_template(), tokenizer_);
}

DecisionRecord DecisionEncoder::Read(const OrderedJson& record) const {
  return ReadDecisionRecord(record, options_.fields);
}

std::vector<AnsweredQuestion> DecisionEncoder::Questions(const DecisionRecord& record) const {
  std::vector<AnsweredQuestion> questions;
  for (std::int64_t q = 0; q < std::ssize(record.decision.questions); ++q) {
    const bool asked = std::ranges::count(options_.types, record.decision.questions[q].type) > 0;
    const auto& target = record.targets[q];
    if (!target || !asked) continue;
    questions.push_back({q, options_.soft_targets ? *target : HardTarget(*target)});
  }
  return questions;
}

OptionOrder DecisionEncoder::OrderOf(const DecisionRecord& record, const AnsweredQuestion& asked,
                                     std::int64_t visit, std::int64_t draw) const {
  const Question& question = record.decision.questions[asked.number];
  const auto number = [&](std::int64_t of) { return NumberOf(record.decision.state, of); };
  const auto shuffled = [&](std::uint64_t of) {
    return ShuffledOrder(question, options_.seed, static_cast<std::int64_t>(of), asked.number);
  };
  const bool shuffles = options_.shuffles_options && visit != kNoVisit;
  OptionOrder order = shuffles ? shuffled(number(visit)) : GivenOrder(question);
  // Without a limit, more options than letters are refused where they are shown.
  const bool limits = question.type == QuestionType::kChoice && options_.max_options < kMaxOptions;
  if (!limits) return order;
  // Drawn apart from the order: were the first options of the order kept, the answer would be last
  // more often than elsewhere.
  const OptionOrder kept =
      LimitOrder(shuffled(MixBits(number(draw)) >> 1), asked.target, options_.max_options);
  std::erase_if(order, [&](std::int64_t option) { return std::ranges::count(kept, option) == 0; });
  return order;
}

AnsweredPrompt DecisionEncoder::Prompt(const Decision& decision, const AnsweredQuestion& question,
                                       const OptionOrder& order) const {
  return {prompter_.Encode(decision, question.number, order),
          decision.questions[question.number].type, InOrder(question.target, order)};
}

EncodedRecord DecisionEncoder::Encode(const OrderedJson& json, std::int64_t visit,
                                      std::int64_t draw) const {
  const DecisionRecord record = Read(json);
  std::vector<AnsweredPrompt> prompts;
  for (const AnsweredQuestion& question : Questions(record)) {
    prompts.push_back(Prompt(record.decision, question, OrderOf(record, question, visit, draw)));
  }
  EncodedRecord encoded;
  encoded.sample = SampleOf(prompts, options_.share_prefix);
  for (const std::string_view notice : record.notices) {
    encoded.notes.findings.push_back({std::string(notice)});
  }
  if (prompter_.HasSpecialSpelling(record.decision)) {
    encoded.notes.findings.push_back(
        {"spellings of special tokens in the state or the questions: read as text, where llama.cpp "
         "reads the tokens"});
  }
  return encoded;
}

}  // namespace qlora
