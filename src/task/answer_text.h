// What is taken out of a generated answer, and how it is compared with the right one.
#ifndef QLORA_TASK_ANSWER_TEXT_H_
#define QLORA_TASK_ANSWER_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include "task/task_file.h"

namespace qlora {

// The text before the first of the stop texts: each cuts what the ones before it have left.
std::string CutAtStops(std::string text, const std::vector<std::string>& stops);

// Looks for stop texts in an answer that comes in pieces.
class StopSearch {
 public:
  explicit StopSearch(std::vector<std::string> stops);

  // Takes the next piece. True when the answer has a stop text that it had not before.
  bool Add(std::string_view piece);

 private:
  std::vector<std::string> stops_;
  std::size_t kept_ = 0;  // bytes of the answer's end in which a stop text may have begun
  std::string end_;
};

// The answer after the steps of a filter. where: for messages about patterns.
std::string Filtered(std::string answer, const TaskFilter& filter, std::string_view where);

// True where both texts are equal after the metric has taken out what it ignores.
bool ExactMatch(std::string_view answer, std::string_view target, const TaskMetric& metric,
                std::string_view where);

// The harmonic mean of the shares of words that both have, as SQuAD counts them: without articles,
// case and punctuation.
double WordF1(std::string_view answer, std::string_view target);

}  // namespace qlora

#endif  // QLORA_TASK_ANSWER_TEXT_H_
