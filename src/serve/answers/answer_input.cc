#include "serve/answers/answer_input.h"

#include <algorithm>

#include "unicode/unicode.h"

namespace qlora {
namespace {

// Without the beginning of a character at the end.
std::string_view WholeCharacters(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0 && text.size() - begin < 3 && ContinuesCharacter(text[begin - 1])) --begin;
  if (begin == 0) return text;
  const std::size_t bytes = text.size() - --begin;
  return static_cast<int>(bytes) < Utf8Length(text[begin]) ? text.substr(0, begin) : text;
}

}  // namespace

std::string_view AnswerInput::view() const {
  const std::string_view rest = std::string_view(text_).substr(at_);
  return is_finished_ ? rest : WholeCharacters(rest);
}

AnswerInput::Match AnswerInput::Begins(std::string_view mark, std::size_t at) const {
  const std::string_view text = view().substr(std::min(at, view().size()));
  if (text.starts_with(mark)) return Match::kYes;
  // Of a mark that is not ASCII a part of a character may be there.
  const std::string_view rest = std::string_view(text_).substr(std::min(at_ + at, text_.size()));
  return !is_finished_ && mark.starts_with(rest) ? Match::kPart : Match::kNo;
}

AnswerInput::Match AnswerInput::TakeMark(std::string_view mark) {
  const Match match = Begins(mark);
  if (match == Match::kYes) Take(mark.size());
  return match;
}

bool AnswerInput::TakeSpace() {
  const std::string_view text = view();
  Take(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return !view().empty();
}

void AnswerInput::Keep() {
  text_.erase(0, at_);
  at_ = 0;
}

}  // namespace qlora
