// Parts of answers as texts that tests compare.
#ifndef QLORA_TESTS_SERVE_ANSWERS_ANSWER_PARTS_UTIL_H_
#define QLORA_TESTS_SERVE_ANSWERS_ANSWER_PARTS_UTIL_H_

#include <string>
#include <string_view>
#include <vector>

#include "serve/answer_parts.h"

namespace qlora {

// "‹a thought›text«f {"a": 1}»": a call that is open has no ».
inline std::string ShowParts(const std::vector<AnswerPart>& parts) {
  using Kind = AnswerPart::Kind;
  std::string shown;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const AnswerPart& part = parts[i];
    const bool continues = i > 0 && parts[i - 1].kind == part.kind;
    const bool goes_on = i + 1 < parts.size() && parts[i + 1].kind == part.kind;
    switch (part.kind) {
      case Kind::kThought:
        shown += (continues ? "" : "‹") + part.text + (goes_on ? "" : "›");
        break;
      case Kind::kText:
      case Kind::kCallArguments:
        shown += part.text;
        break;
      case Kind::kCallBegin:
        shown += "«" + part.text + " ";
        break;
      case Kind::kCallEnd:
        shown += "»";
    }
  }
  return shown;
}

inline std::vector<AnswerPart> PartsOfPieces(AnswerParts parts,
                                             const std::vector<std::string_view>& pieces) {
  std::vector<AnswerPart> all;
  const auto take = [&all](std::vector<AnswerPart> some) {
    all.insert(all.end(), some.begin(), some.end());
  };
  for (const std::string_view piece : pieces) take(parts.Add(piece));
  take(parts.Finish());
  return all;
}

}  // namespace qlora

#endif  // QLORA_TESTS_SERVE_ANSWERS_ANSWER_PARTS_UTIL_H_
