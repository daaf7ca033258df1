#include "inference/asked_questions.h"

#include <algorithm>
#include <utility>

#include "objective/decision.h"
#include "records/record_error.h"

namespace qlora {
namespace {

// What a sample takes while it waits for its pass.
std::size_t BytesOf(const Sample& sample) {
  std::size_t bytes = sizeof(Sample) + sample.ids.size() * sizeof(std::int32_t) +
                      sample.labels.size() * sizeof(std::int32_t) +
                      sample.branches.size() * sizeof(std::int64_t);
  for (const Choice& choice : sample.choices) {
    bytes += sizeof(Choice) + choice.labels.size() * (sizeof(std::int32_t) + sizeof(double));
  }
  return bytes;
}

}  // namespace

void AskedQuestions::Add(const Decision& decision, std::span<const AnsweredQuestion> questions,
                         std::int64_t record) {
  Filling filling;
  for (const AnsweredQuestion& asked : questions) {
    const Question& question = decision.questions[asked.number];
    const std::int64_t n = std::ssize(question.options);
    Row row;
    row.prediction.record = record;
    row.prediction.id = question.id;
    row.prediction.type = question.type;
    for (const DecisionOption& option : question.options) {
      row.prediction.keys.push_back(option.key);
    }
    row.prediction.target = asked.target;
    const bool shifts = all_orders_ && question.type == QuestionType::kChoice;
    for (std::int64_t shift = 0; shift < (shifts ? n : 1); ++shift) {
      row.orders.push_back(ShiftedOrder(question, shift));
      AnsweredPrompt prompt = encoder_.Prompt(decision, asked, row.orders.back());
      const std::vector<std::int32_t>& ids = prompt.prompt.ids;
      // Other orders are ours: a request pays for its questions.
      prompt_tokens_ += shift == 0 ? std::ssize(ids) : 0;
      longest_ = std::max(longest_, std::ssize(ids));
      for (const std::int32_t id : ids) largest_id_ = std::max(largest_id_, id);
      AddPrompt(std::move(prompt), filling);
    }
    rows_.push_back(std::move(row));
  }
  if (!filling.prompts.empty()) Keep(std::move(filling.sample));
}

void AskedQuestions::AddPrompt(AnsweredPrompt prompt, Filling& filling) {
  std::vector<AnsweredPrompt>& prompts = filling.prompts;
  prompts.push_back(std::move(prompt));
  Sample larger = SampleOf(prompts, encoder_.shares_prefix());
  if (prompts.size() > 1 &&
      (std::ssize(larger.ids) > filling.most || UnfoldedRows(larger) > kMostUnfoldedRows)) {
    Keep(std::move(filling.sample));
    prompts.erase(prompts.begin(), prompts.end() - 1);
    larger = SampleOf(prompts, encoder_.shares_prefix());
  }
  if (prompts.size() == 1) filling.most = std::ssize(larger.ids) + kMostFurtherRows;
  filling.sample = std::move(larger);
}

void AskedQuestions::Keep(Sample sample) {
  if (hold_) hold_(BytesOf(sample));
  const std::int64_t length = std::ssize(sample.ids);
  largest_ = std::max(largest_, length);
  unfolding_ =
      std::max(unfolding_, static_cast<double>(UnfoldedRows(sample)) / static_cast<double>(length));
  samples_.push_back(std::move(sample));
}

SampleList AskedQuestions::ListOf(std::int64_t begin, std::int64_t end) const {
  return {
      .size = end - begin,
      .largest = largest_,
      .length = [=, this](std::int64_t i) { return std::ssize(samples_[begin + i].ids); },
      .supervised = [=, this](std::int64_t i) { return std::ssize(samples_[begin + i].choices); },
      .get = [=, this](std::int64_t i) { return samples_[begin + i]; }};
}

DatasetSums AskedQuestions::RunPart(const MeasuredModel& model, std::int64_t part) const {
  const std::int64_t rows = std::ssize(samples_[part].ids);
  const std::int64_t unfolded = UnfoldedRows(samples_[part]);
  ReservePass(model.decoder, AdaptersOf(model.adapter), rows, unfolded > rows ? unfolded : 0,
              model.memory);
  return *EvaluateDataset(model, DecisionObjective(), ListOf(part, part + 1), /*per_token=*/true);
}

std::optional<DatasetSums> AskedQuestions::Run(const MeasuredModel& model) const {
  return EvaluateDataset(model, DecisionObjective(), ListOf(0, parts()), /*per_token=*/true);
}

DecisionAnswers AskedQuestions::Answers(const DatasetSums& sums,
                                        const Temperatures& temperatures) const {
  DecisionAnswers answers;
  auto logit = sums.logprobs.begin();
  std::int64_t choices = 0;
  std::int64_t flipped = 0;
  for (const Row& row : rows_) {
    Prediction& out = answers.rows.emplace_back(row.prediction);
    const std::int64_t n = std::ssize(out.keys);
    const double temperature = temperatures.Of(out.type, n);
    out.probabilities.assign(static_cast<std::size_t>(n), 0);
    bool flips = false;
    for (const OptionOrder& order : row.orders) {
      const std::vector<double> in_order(logit, logit + n);
      logit += n;
      const std::vector<double> z = OfOptions(in_order, order, n);
      if (out.logits.empty()) out.logits = z;
      const std::vector<double> p = WithTemperature(z, temperature);
      flips = flips || FirstLargest(p) != FirstLargest(out.logits);
      for (std::int64_t k = 0; k < n; ++k) {
        out.probabilities[k] += p[k] / static_cast<double>(row.orders.size());
      }
    }
    choices += out.type == QuestionType::kChoice;
    flipped += flips;
  }
  if (all_orders_ && choices > 0) {
    answers.flip = static_cast<double>(flipped) / static_cast<double>(choices);
  }
  // Loss, accuracy, Brier score, label mass.
  answers.label_mass = DecisionObjective().Values(sums.sums, sums.totals)[3];
  return answers;
}

void AskAll(const Dataset& dataset, const DecisionEncoder& encoder, AskedQuestions& asked) {
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    NamePlace([&] { return dataset.Where(i); },
              [&] {
                const DecisionRecord record = encoder.Read(*dataset.ReadRecord(i));
                asked.Add(record.decision, encoder.Questions(record), dataset.RecordOf(i));
              });
  }
}

}  // namespace qlora
