#include "data/decision_encoder.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/random.h"
#include "io/json.h"

namespace qlora {
namespace {

// A number of the record for its order of options, the same in every run.
std::uint64_t NumberOf(const OrderedJson& state) {
  std::uint64_t hash = 0;
  for (const char byte : FormatJson(state)) {
    hash = MixBits(hash ^ static_cast<std::uint64_t>(static_cast<unsigned char>(byte)));
  }
  return hash >> 1;  // a visit is a number from 0 on
}

// All of the target on its largest share.
std::vector<double> Hard(const std::vector<double>& target) {
  std::vector<double> hard(target.size());
  hard[FirstLargest(target)] = 1;
  return hard;
}

}  // namespace

PromptLayout WithDecisionTemplate(PromptLayout layout, const DecisionOptions& options,
                                  const Tokenizer& tokenizer, const ChatTemplate* chat) {
  if (layout.kind != PromptLayout::Kind::kDecision) return layout;
  if (!layout.prompt_template.empty() && options.decision_template.empty()) return layout;
  const DecisionTokenizer decisions(tokenizer);
  layout.prompt_template = LoadDecisionTemplate(options.decision_template, decisions, chat).text();
  return layout;
}

DecisionEncoder::DecisionEncoder(std::string text, const DecisionOptions& options,
                                 const Tokenizer& tokenizer)
    : options_(options),
      tokenizer_(tokenizer),
      prompter_(DecisionTemplate(std::move(text), "the decision template"), tokenizer_) {
  CheckDecisionTemplate(prompter_.decision_template(), tokenizer_);
}

OptionOrder DecisionEncoder::OrderOf(const Question& question, std::uint64_t visit, std::int64_t q,
                                     const std::vector<double>& target) const {
  const OptionOrder order =
      options_.shuffles_options
          ? ShuffledOrder(question, options_.seed, static_cast<std::int64_t>(visit), q)
          : GivenOrder(question);
  return LimitOrder(order, target, options_.max_options);
}

std::vector<EncodedQuestion> DecisionEncoder::QuestionsOf(const DecisionRecord& record) const {
  const std::uint64_t visit = NumberOf(record.decision.state);
  std::vector<EncodedQuestion> questions;
  for (std::int64_t q = 0; q < std::ssize(record.decision.questions); ++q) {
    const Question& question = record.decision.questions[q];
    const bool asked = std::ranges::count(options_.types, question.type) > 0;
    if (!record.targets[q] || !asked) continue;
    const std::vector<double> target =
        options_.soft_targets ? *record.targets[q] : Hard(*record.targets[q]);
    questions.push_back({question, question.type, OrderOf(question, visit, q, target), target});
  }
  return questions;
}

std::vector<EncodedQuestion> DecisionEncoder::Questions(const OrderedJson& record) const {
  return QuestionsOf(ReadDecisionRecord(record, options_.fields));
}

//   ids        state, questions | A. | B. ... Answer:   a branch for each question
//   choices                       the last row of each branch, over the tokens of its labels
EncodedRecord DecisionEncoder::Encode(const OrderedJson& json) const {
  const DecisionRecord record = ReadDecisionRecord(json, options_.fields);
  const std::vector<EncodedQuestion> questions = QuestionsOf(record);
  std::vector<DecisionPrompt> prompts;
  for (const EncodedQuestion& it : questions) {
    const auto& all = record.decision.questions;
    const auto same = [&](const Question& question) { return question.id == it.question.id; };
    const std::int64_t q = std::find_if(all.begin(), all.end(), same) - all.begin();
    prompts.push_back(prompter_.Encode(record.decision, q, it.order));
  }
  EncodedRecord encoded;
  Sample& sample = encoded.sample;
  const std::int64_t shared =
      prompts.size() > 1 && options_.share_prefix ? SharedPrefix(prompts) : 0;
  if (shared > 0) sample.ids.assign(prompts[0].ids.begin(), prompts[0].ids.begin() + shared);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts.size() > 1) sample.branches.push_back(std::ssize(sample.ids));
    sample.ids.insert(sample.ids.end(), prompts[i].ids.begin() + shared, prompts[i].ids.end());
    sample.choices.push_back({std::ssize(sample.ids) - 1,
                              static_cast<std::int32_t>(questions[i].type), prompts[i].label_ids,
                              InOrder(questions[i].target, prompts[i].order)});
  }
  sample.labels.assign(sample.ids.size(), kIgnoreLabel);
  if (prompter_.HasSpecialSpelling(record.decision)) {
    encoded.notes.findings.push_back(
        {"spellings of special tokens in the state or the questions: read as text, where llama.cpp "
         "reads the tokens"});
  }
  return encoded;
}

}  // namespace qlora
