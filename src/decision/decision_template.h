// The Jinja template of decision prompts. It is exported with the model, and llama.cpp renders it
// as this folder does, once for each question, so that it must write everything: BOS too.
//
// It sees state, id, type, instructions and options of the question, each option with key,
// description (None without one) and label; and questions, the list of all of the decision. Blocks
// take the line end behind them and the spaces before them, the last line end of the template is
// dropped, and what is undefined prints nothing.
#ifndef QLORA_DECISION_DECISION_TEMPLATE_H_
#define QLORA_DECISION_DECISION_TEMPLATE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decision/decision_labels.h"
#include "decision/question.h"
#include "jinja/jinja.h"
#include "prompt/chat_template.h"

namespace qlora {

// Numbers of options, in the order in which a prompt shows them: the i-th has the i-th label. All,
// or some in training.
using OptionOrder = std::vector<std::int64_t>;
OptionOrder GivenOrder(const Question& question);

class DecisionTemplate {
 public:
  // name: for errors. Errors: InvalidInput when the text is no template.
  DecisionTemplate(std::string text, std::string name);

  const std::string& text() const { return text_; }
  const std::string& name() const { return name_; }

  // Returns the prompt of question q. order: the options that it shows, by their numbers; the i-th
  // gets the i-th label. Other questions show all their options. May be called by several threads.
  // Errors: InvalidInput when there are more options than labels; when state or instructions are no
  // text and the template does not show such ones; when the template fails.
  std::string Render(const Decision& decision, std::int64_t q, std::span<const std::int64_t> order,
                     std::span<const std::string> labels) const;

 private:
  std::string Run(const Decision& decision, std::int64_t q, std::span<const std::int64_t> order,
                  std::span<const std::string> labels) const;
  void CheckShows(const OrderedJson& value, bool shows_objects, std::string_view field) const;

  std::string text_;
  std::string name_;
  JinjaTemplate jinja_;
  // {{ state }} prints nothing of an object, {{ state | tojson }} does.
  bool shows_object_states_ = true;
  bool shows_object_instructions_ = true;
};

// The text of the built-in template `plain`: state, instructions, a line for each option,
// "Answer:".
std::string PlainDecisionText();
// The text of `chat`: the same as the user's message of a chat template, up to where the
// assistant's answer begins. A thought that the chat template opens there is closed. Errors:
// InvalidInput when the template does not show a message once and unchanged.
std::string ChatDecisionText(const ChatTemplate& chat);

// Makes the template that `choice` names: plain, chat, a Jinja file, or "": chat if there is a chat
// template, else plain. Puts the tokenizer's front (decision_labels.h) before it unless it begins
// with BOS, and checks it. chat: may be null. Errors: InvalidInput that names decision_template.
DecisionTemplate LoadDecisionTemplate(const std::string& choice, const DecisionTokenizer& tokenizer,
                                      const ChatTemplate* chat);

// Refuses a template that leaves out the state or a label of an option, ends where a label is not
// the next token, or ends within a thought. Errors: InvalidInput that names the template.
void CheckDecisionTemplate(const DecisionTemplate& decision_template,
                           const DecisionTokenizer& tokenizer);

}  // namespace qlora

#endif  // QLORA_DECISION_DECISION_TEMPLATE_H_
