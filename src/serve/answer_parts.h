// An answer that comes in pieces, cut into thoughts, text and calls of tools, in the form of its
// model's family.
#ifndef QLORA_SERVE_ANSWER_PARTS_H_
#define QLORA_SERVE_ANSWER_PARTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

struct AnswerPart {
  enum class Kind { kThought, kText, kCallBegin, kCallArguments, kCallEnd };
  Kind kind;
  std::string text = {};  // of kCallBegin the name of the tool; of kCallArguments JSON text
  std::int64_t call = 0;  // number of the call, from 0
  bool is_cut = false;    // of kCallEnd: the answer ended within the call
};

class ArgumentTypes;
// The forms of a template: what encloses thoughts, and how calls are written.
struct AnswerForm;
// template_text: the chat template. Never null.
std::shared_ptr<const AnswerForm> FindAnswerForm(std::string_view template_text);
// True when texts of special tokens may enclose thoughts or calls.
bool HasMarks(const AnswerForm& form);
// True when calls of tools are read from answers of this form.
bool HasCalls(const AnswerForm& form);
// True when answers are cut into channels.
bool HasChannels(const AnswerForm& form);
// The text that ends a thought which the prompt has begun.
std::string_view ThoughtEnd(const AnswerForm& form);
// The form of answers whose text has no marks; that of a thought which the prompt has begun stays.
std::shared_ptr<const AnswerForm> WithoutMarks(const AnswerForm& form);
// True when a prompt ends within a thought, which the answer goes on with.
bool EndsInThought(const AnswerForm& form, std::string_view prompt);

class AnswerParts {
 public:
  // types: of arguments that a form writes without; null: unknown. only_one: the answer ends behind
  // its first call.
  AnswerParts(std::shared_ptr<const AnswerForm> form, bool begins_with_thought, bool reads_calls,
              std::shared_ptr<const ArgumentTypes> types = {}, bool only_one = false);
  ~AnswerParts();
  AnswerParts(AnswerParts&&) noexcept;

  // Takes the next piece; returns what is certain. Names and arguments are streamed as they come.
  std::vector<AnswerPart> Add(std::string_view piece);
  // Once no more pieces come: what was held back. A call that is cut ends where it was cut.
  std::vector<AnswerPart> Finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_ANSWER_PARTS_H_
