// Holds an answer to a grammar: forbids every token that would lead out of it.
#ifndef QLORA_SERVE_STRUCTURED_GRAMMAR_EDIT_H_
#define QLORA_SERVE_STRUCTURED_GRAMMAR_EDIT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "serve/generation_service.h"
#include "serve/structured/grammar_reader.h"

namespace qlora {

class GrammarEdit {
 public:
  // The work for one token, at most (GrammarReader::LimitWork).
  static constexpr std::int64_t kMostWork = 250'000;

  // form: with a grammar. ends: tokens that end the answer, where the grammar lets it end.
  GrammarEdit(AnswerGrammar form, std::vector<std::int32_t> ends,
              std::int64_t most_work = kMostWork);

  // Sets the logits (V) of all tokens to -infinity that must not follow the answer so far: of every
  // token where the vocabulary has no text for what the grammar asks for. Errors: InvalidInput for
  // a grammar that takes too much work here, for which others would wait.
  void Apply(std::span<const std::int32_t> answer, std::span<float> logits);

  // True where the form has come to an end, whether or not it may go on.
  bool CanEnd() const;

  // Bytes that one takes, at most, about.
  static std::size_t MostBytes(std::int64_t vocabulary) {
    return kMostBytes + kMostMasks * static_cast<std::size_t>(vocabulary) / 8;
  }

 private:
  // Beyond so much all but the position of the answer is forgotten.
  static constexpr std::size_t kMostBytes = std::size_t{8} << 20;
  static constexpr std::size_t kMostMasks = 64;

  void Read(std::int32_t token);
  void ForbidWrongBegins(std::span<float> logits);
  const std::vector<bool>& Mask();

  AnswerGrammar form_;
  std::vector<std::int32_t> ends_;
  const std::int64_t most_work_;
  GrammarReader reader_;
  GrammarReader::Position position_;
  std::map<GrammarReader::Position, std::vector<bool>> masks_;
  std::size_t read_ = 0;               // tokens of the answer
  std::string before_;                 // the answer so far, until form_.begins_behind was found
  std::vector<std::int32_t> passing_;  // tokens that may have its end, and more
};

}  // namespace qlora

#endif  // QLORA_SERVE_STRUCTURED_GRAMMAR_EDIT_H_
