// The text of an answer that is being read, which may end at any byte.
#ifndef QLORA_SERVE_ANSWERS_ANSWER_INPUT_H_
#define QLORA_SERVE_ANSWERS_ANSWER_INPUT_H_

#include <string>
#include <string_view>

namespace qlora {

class AnswerInput {
 public:
  enum class Match { kNo, kPart, kYes };

  void Add(std::string_view piece) { text_ += piece; }
  void Finish() { is_finished_ = true; }
  bool is_finished() const { return is_finished_; }

  // What is there and not taken, in whole characters.
  std::string_view view() const;
  // Whether that begins with `mark`; kPart: it is the beginning of `mark`, and more may come.
  Match Begins(std::string_view mark) const { return Begins(mark, 0); }
  Match Begins(std::string_view mark, std::size_t at) const;

  void Take(std::size_t bytes) { at_ += bytes; }
  // Takes `mark` where the text begins with it.
  Match TakeMark(std::string_view mark);
  // Takes white space; false when nothing is there behind it.
  bool TakeSpace();
  // What was taken has its meaning; Restore no longer gives it back.
  void Keep();
  // Gives back what was taken since Keep.
  void Restore() { at_ = 0; }

 private:
  std::string text_;  // since Keep
  std::size_t at_ = 0;
  bool is_finished_ = false;
};

}  // namespace qlora

#endif  // QLORA_SERVE_ANSWERS_ANSWER_INPUT_H_
