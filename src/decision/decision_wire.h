// Requests and answers of programs that ask for decisions:
//
//   /v1/systemone   {"model", "state", "questions": {id: {"type", "instructions", "criteria"}}}
//   /v1/decisions   {"model", "input", "questions": [{"type", "name", "instructions",
//                    "choices" or "levels"}]}, of OpenAI
#ifndef QLORA_DECISION_DECISION_WIRE_H_
#define QLORA_DECISION_DECISION_WIRE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decision/question.h"
#include "io/json_fwd.h"

namespace qlora {

// The most options of one question: the letters.
inline constexpr std::int64_t kMaxOptions = 26;
// The most questions of a request to a server, and of OpenAI's form anywhere.
inline constexpr std::int64_t kMostQuestions = 400;

struct DecisionRequest {
  std::string model;  // "" where the request names none
  Decision decision;
  bool is_openai = false;                         // of /v1/decisions
  std::vector<std::optional<std::string>> names;  // (questions) of OpenAI's
};

// Reads a request of either form: OpenAI's questions are a list. Criteria of a choice are an object
// of one option or more; of OpenAI's choices two or more. Errors: InvalidInput that begins with the
// field, "questions.who.criteria: ...".
DecisionRequest ReadDecisionRequest(const OrderedJson& body);
// The same, of JSON text, in which a key that appears twice is refused. where: for errors.
DecisionRequest ParseDecisionRequest(std::string_view text, std::string_view where);

// Returns the body of the answer. probabilities: of each question those of its options, after
// temperature. input_tokens: the sum over all prompts.
OrderedJson DecisionAnswer(const DecisionRequest& request,
                           std::span<const std::vector<double>> probabilities,
                           std::string_view model, std::int64_t input_tokens);

// How sure a distribution is, as llama.cpp counts it: of a choice from 0 (all alike) to 1; of a
// score by the mean distance from the most probable level, against that of a flat distribution. 1
// of one option.
double ChoiceConfidence(const std::vector<double>& p);
double ScoreConfidence(const std::vector<double>& p);

}  // namespace qlora

#endif  // QLORA_DECISION_DECISION_WIRE_H_
