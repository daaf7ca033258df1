// Questions on their way through a model: prompts about states, and the probabilities that their
// labels get.
#ifndef QLORA_INFERENCE_ASKED_QUESTIONS_H_
#define QLORA_INFERENCE_ASKED_QUESTIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "data/decision_encoder.h"
#include "decision/decision_temperature.h"
#include "decision/prediction.h"
#include "inference/dataset_evaluation.h"

namespace qlora {

struct DecisionAnswers {
  // Logits are those of the options in the given order. Probabilities: softmax(logits / T), or the
  // mean of it over all orders that were asked.
  std::vector<Prediction> rows;
  std::optional<double> flip;  // share of choices whose answer some order changes; of all orders
  double label_mass = 0;       // mean probability that the vocabulary gives to the labels
};

// Prompts about one state share a sample up to so many rows beside those of the first prompt, and
// so many unfolded ones; more of them are samples of their own, whose prefix is computed anew. So a
// pass is little longer than one question with its state has to be.
inline constexpr std::int64_t kMostFurtherRows = 512;
inline constexpr std::int64_t kMostUnfoldedRows = 16384;

class AskedQuestions {
 public:
  // Is told the bytes of each sample before they are kept, and may throw.
  using Hold = std::function<void(std::size_t bytes)>;

  // all_orders: asks a choice in all cyclic shifts of its options. The encoder must outlive this.
  explicit AskedQuestions(const DecisionEncoder& encoder, bool all_orders = false, Hold hold = {})
      : encoder_(encoder), all_orders_(all_orders), hold_(std::move(hold)) {}

  // record: of the answers. Errors: InvalidInput, without a place, as DecisionTemplate::Render.
  void Add(const Decision& decision, std::span<const AnsweredQuestion> questions,
           std::int64_t record);

  // All questions count what they share.
  std::int64_t prompt_tokens() const { return prompt_tokens_; }
  std::int64_t longest() const { return longest_; }  // tokens of a prompt
  std::int64_t largest() const { return largest_; }  // tokens of a sample
  double unfolding() const { return unfolding_; }    // as DataReport::unfolding
  std::int32_t largest_id() const { return largest_id_; }

  // Samples, each of which is a pass of its own for RunPart.
  std::int64_t parts() const { return std::ssize(samples_); }
  // Asks the questions of one sample, in the memory, which is replaced if it is too small. All
  // parts together, added in their order, are a result of Run.
  DatasetSums RunPart(const MeasuredModel& model, std::int64_t part) const;
  // Asks the model. memory, progress, result: as of EvaluateDataset.
  std::optional<DatasetSums> Run(const MeasuredModel& model) const;
  // Reads the result of Run.
  DecisionAnswers Answers(const DatasetSums& sums, const Temperatures& temperatures) const;

 private:
  struct Row {
    Prediction prediction;            // but for what the model says
    std::vector<OptionOrder> orders;  // of the options
  };
  // The sample that prompts are added to, as many as it may have.
  struct Filling {
    std::vector<AnsweredPrompt> prompts;
    Sample sample;
    std::int64_t most = 0;  // rows
  };
  // Adds a prompt to the sample, or where that has no room keeps it and begins the next.
  void AddPrompt(AnsweredPrompt prompt, Filling& filling);
  void Keep(Sample sample);
  SampleList ListOf(std::int64_t begin, std::int64_t end) const;

  const DecisionEncoder& encoder_;
  bool all_orders_;
  Hold hold_;
  std::vector<Row> rows_;
  std::vector<Sample> samples_;  // a choice for each order of each row, in this order
  std::int64_t prompt_tokens_ = 0;
  std::int64_t longest_ = 0;
  std::int64_t largest_ = 0;
  double unfolding_ = 1;
  std::int32_t largest_id_ = 0;
};

// Adds the questions of all records of a data set. Errors: InvalidInput with file and line.
void AskAll(const Dataset& dataset, const DecisionEncoder& encoder, AskedQuestions& asked);

}  // namespace qlora

#endif  // QLORA_INFERENCE_ASKED_QUESTIONS_H_
