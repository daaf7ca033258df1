// Answers of records as distributions over the options of a question.
#ifndef QLORA_DECISION_DECISION_ANSWER_H_
#define QLORA_DECISION_DECISION_ANSWER_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "decision/question.h"
#include "io/json_fwd.h"

namespace qlora {

// What a record has that its author may not know of; notices are counted by their texts.
using Notices = std::vector<std::string_view>;
inline constexpr std::string_view kNoticeYesNo = "answers yes and no are read as true and false";
inline constexpr std::string_view kNoticeSum =
    "probabilities of an answer that do not sum to 1 are scaled to do so";
inline constexpr std::string_view kNoticeUniform = "targets that give all options the same share";

// Reads an answer in any of these forms:
//
//   "dog", true, 2                     hard: the key of an option, a side, a level; "2", 2.0 and
//                                      the text of a level, if it is only one's, are a level, too.
//                                      Where levels are numbers, one that names another level by
//                                      its text than by its place is refused
//   {"dog": 0.7, "cat": 0.3}           soft; options that are not named have 0
//   [0.3, 0.7], 0.7                    soft; by the order of the options; of a noul that of true
//   {"label": "dog"}, {"noul": 0.7}, {"probabilities": {...}}, {"choice": "dog"}
//                                      of Unsloth and of answers of models; probabilities come
//                                      first
//
// Returns shares (options) that sum to 1; nothing for null and for -1, which says that nobody
// knows. Errors: InvalidInput that begins with `where`: an answer that is not among the options, or
// names two of them, shares that are negative, not numbers, or all zero.
std::optional<std::vector<double>> ReadTarget(const Question& question, const OrderedJson& answer,
                                              const std::string& where, Notices& notices);

// Returns the hard target of the first largest share.
std::vector<double> HardTarget(const std::vector<double>& target);

}  // namespace qlora

#endif  // QLORA_DECISION_DECISION_ANSWER_H_
