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
